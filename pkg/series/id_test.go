package series_test

import (
	"bytes"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

func labels(pairs ...string) (out []series.Label) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, series.Label{Name: pairs[i], Value: pairs[i+1]})
	}
	return out
}

// The order is by name, other labels, agent, type and unit, wherever __name__ stands among
// the labels; and no two IDs have one key.
func TestIDs(t *testing.T) {
	ids := []series.ID{
		{Labels: labels(series.MetricName, "a")},
		{Labels: labels(series.MetricName, "a"), Unit: "s"},
		{Labels: labels(series.MetricName, "a"), Type: series.Gauge},
		{Agent: "x", Labels: labels(series.MetricName, "a")},
		{Labels: labels("A", "1", series.MetricName, "a")},
		{Labels: labels("A", "1", series.MetricName, "a", "b", "1")},
		{Labels: labels(series.MetricName, "a", "b", "1")},
		{Labels: labels(series.MetricName, "a", "b", "1", "c", "1")},
		{Labels: labels(series.MetricName, "a", "b", "1c", "d", "1")},
		{Labels: labels(series.MetricName, "a", "b", "2")},
		{Labels: labels("A", "1", series.MetricName, "b")},
		{Labels: labels(series.MetricName, "b")},
	}
	// By other labels: none, A=1, A=1 b=1, b=1, …; b's A=1 stands before b's none only by the name.
	slices.SortFunc(ids[10:], func(a, b series.ID) int { return a.Compare(&b) })
	keys := map[string]bool{}
	for i := range ids {
		for k := range ids {
			want := 0
			if i < k {
				want = -1
			} else if i > k {
				want = 1
			}
			if got := ids[i].Compare(&ids[k]); got != want {
				t.Errorf("%v and %v: %d, want %d", ids[i], ids[k], got, want)
			}
		}
		keys[string(ids[i].AppendKey(nil))] = true
	}
	if len(keys) != len(ids) {
		t.Errorf("%d keys of %d series", len(keys), len(ids))
	}
}

// A series of a batch has the key of its ID.
func TestKeyOfABatchesSeries(t *testing.T) {
	table := series.Table{Strings: []string{"", series.MetricName, "up", "job", "j", "host", "h", "s"},
		Resource: []series.LabelRef{{Name: 5, Value: 6}, {Name: 3, Value: 2}}}
	ref := series.Ref{Labels: []series.LabelRef{{Name: 1, Value: 2}, {Name: 3, Value: 4}}, Type: series.Counter, Unit: 7}
	id := series.ID{Agent: "a", Labels: table.AppendLabels(nil, &ref), Type: series.Counter, Unit: "s"}
	if want := labels(series.MetricName, "up", "host", "h", "job", "j"); !slices.Equal(id.Labels, want) {
		t.Errorf("labels %v, want %v", id.Labels, want)
	}
	if id.Name() != "up" || table.Name(&ref) != "up" {
		t.Errorf("names %q and %q", id.Name(), table.Name(&ref))
	}
	if got := table.AppendKey(nil, "a", &ref, series.Counter); !bytes.Equal(got, id.AppendKey(nil)) {
		t.Errorf("key %q, want %q", got, id.AppendKey(nil))
	}
}
