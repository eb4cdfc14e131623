package sample_test

import (
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
	"lightmetrics.dev/lightmetrics/internal/harness/mutants/sample"
)

func TestSum(t *testing.T) {
	if got := sample.Sum(1, 2, 3); got != 6 {
		t.Errorf("sum %d", got)
	}
}

func TestLargest(t *testing.T) {
	if got, err := sample.Largest([]int{1, 3, 2}, true); got != 3 || err != nil {
		t.Errorf("largest %d %v", got, err)
	}
	if _, err := sample.Largest([]float64{}, true); !errors.Is(err, sample.ErrNone) {
		t.Errorf("of nothing: %v", err)
	}
}

func TestCounter(t *testing.T) {
	var c sample.Counter
	c.Add(2)
	c.Add(-1)
	if c.N != 2 || c.Kind() != "counter" {
		t.Errorf("%+v is a %s", c, c.Kind())
	}
}

// Every shape of function can be changed, and a function more than once.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "variadic", File: "sample.go", Old: "n += v", New: "n -= v", By: "TestSum"},
		{Name: "generic", File: "sample.go", Old: "v > max", New: "v < max"},
		{Name: "generic a second time", File: "sample.go", Old: "max, ErrNone", New: "max, nil"},
		{Name: "no result", File: "sample.go", Old: "n < 0", New: "false"},
		{Name: "receiver without a name", File: "sample.go", Old: `"counter"`, New: `"gauge"`, By: "TestCounter"},
		{Name: "a panic", File: "sample.go", Old: "c.N += n", New: `panic("planted")`},
		{Name: "without an end", File: "sample.go", Old: "max = of[0]", New: "for { }", By: "TestLargest"},
	}, Timeout: 2 * time.Second})
}
