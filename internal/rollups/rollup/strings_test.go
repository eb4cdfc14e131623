package rollup

import (
	"fmt"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// TestPartsKeepTheirStringsOnly: a builder of a part keeps no strings of the series of other parts. The limit does not count
// them, and each of the parts would have those of the whole hour.
func TestPartsKeepTheirStringsOnly(t *testing.T) {
	const all, parts = 512, 8
	b := frame.NewBuilder()
	for i := range all {
		id, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: "m"}, {Name: "user", Value: fmt.Sprint("u", i)}}, series.Gauge, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Append(id, testHour.StartMS()*1e6+1, 1); err != nil {
			t.Fatal(err)
		}
	}
	f, err := b.Build(identity.Boot{Agent: "a", Boot: "b"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for i := range uint32(parts) {
		rb := NewBuilder(testHour, []accepted.Claim{{Identity: f.Identity}}, Part{Index: i, Of: parts})
		if err := rb.Add(0, f); err != nil {
			t.Fatal(err)
		}
		sum += len(rb.series)
		// Besides one value of each series: the agent, the name and what the labels are called.
		if n := len(rb.text); n > len(rb.series)+4 {
			t.Errorf("part %d has %d series and %d strings", i, len(rb.series), n)
		}
	}
	if sum != all {
		t.Fatalf("%d series in all parts", sum)
	}
}
