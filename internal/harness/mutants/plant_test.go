package mutants

import (
	"strings"
	"testing"
	"time"
)

// A mutant that can't be planted as it is written is an error that names it.
func TestMutantsThatDoNotFit(t *testing.T) {
	for name, c := range map[string]struct {
		list []Mutant
		want string
	}{
		"no such file":       {[]Mutant{{Name: "a", File: "nothing.go", Old: "x"}}, "nothing.go"},
		"no such text":       {[]Mutant{{Name: "a", File: "plant.go", Old: "no such\ttext"}}, "0 times"},
		"text twice":         {[]Mutant{{Name: "a", File: "sample/sample.go", Old: "for _, v := range of"}}, "2 times"},
		"outside a function": {[]Mutant{{Name: "a", File: "sample/sample.go", Old: "N int }"}}, "not within the body"},
		"over two functions": {[]Mutant{{Name: "a", File: "sample/sample.go", Old: "return n\n}\n\n// Largest"}}, "not within the body"},
		"no name":            {[]Mutant{{File: "plant.go", Old: "x"}}, "empty or taken"},
		"a name twice": {[]Mutant{{Name: "a", File: "sample/sample.go", Old: "n += v"},
			{Name: "a", File: "sample/sample.go", Old: "n < 0"}}, "empty or taken"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := plant(".", c.list); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

// Only a failing test catches a mutant: a binary that can't start does not.
func TestWhatCatches(t *testing.T) {
	for out, want := range map[string]string{
		"--- FAIL: TestX (0.00s)\n    x_test.go:3: sum 5\nFAIL\n": "--- FAIL: TestX (0.00s): x_test.go:3: sum 5",
		"panic: test timed out after 1s\n":                        "panic: test timed out after 1s",
		"exec format error\n":                                     "",
	} {
		if got, ok := caughtBy(out); got != want || ok != (want != "") {
			t.Errorf("%q: %q %v, want %q", out, got, ok, want)
		}
	}
}

// A mutant that changes nothing that a test sees is reported, and so is a run that no test ended.
func TestSurvivorsAreReported(t *testing.T) {
	t.Chdir("sample")
	survivor := Mutant{Name: "the same", File: "sample.go", Old: "n < 0", New: "n <= 0"}
	program := Build(t, []Mutant{survivor})
	if _, err := (List{Timeout: time.Minute}).find(t.Context(), program, survivor); err == nil || !strings.Contains(err.Error(), "survived") {
		t.Errorf("a survivor: %v", err)
	}
	if _, err := (List{Timeout: time.Minute}).find(t.Context(), program+".none", survivor); err == nil || !strings.Contains(err.Error(), "not because of a test") {
		t.Errorf("a binary that does not run: %v", err)
	}
}

// A slow machine is no bug: what the tests take without a mutant bounds what is too long with one.
func TestTimeLimit(t *testing.T) {
	for _, c := range []struct {
		set, took, want time.Duration
	}{
		{0, time.Second, time.Minute}, {0, 50 * time.Second, 100 * time.Second},
		{2 * time.Second, time.Millisecond, 2 * time.Second}, {2 * time.Second, 3 * time.Minute, 6 * time.Minute},
	} {
		if got := (List{Timeout: c.set}).limit(c.took); got != c.want {
			t.Errorf("%v set, %v taken: %v, want %v", c.set, c.took, got, c.want)
		}
	}
}
