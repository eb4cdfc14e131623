package published_test

import (
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// TestFoundRows: rows that were found before are those of the matchers, are refused when their types are, and are not looked
// for in any index again.
func TestFoundRows(t *testing.T) {
	f := newFixture(t)
	f.publish(t, 2, timegrid.OneMinute)
	r := f.reader(t, published.Config{AgentLabel: agentlabel.Default})
	find := func(accept bool, pattern string) ([]published.Rolled, bool, published.Stats) {
		q := f.query(t, r, published.Limits{})
		found, ok, err := q.SelectRolled(t.Context(), published.Rows{Resolution: timegrid.OneMinute, Want: chunk.ColCount}, f.first.StartMS()+1, f.first.EndMS(),
			func(timegrid.Hour) bool { return false }, func(series.Type) bool { return accept }, labels.MustNewMatcher(labels.MatchRegexp, "s", pattern))
		if err != nil {
			t.Fatal(err)
		}
		var into chunk.Columns
		for i := range found {
			for k := range found[i].Parts() {
				if _, from, to, ok, err := found[i].Rows(k, f.first.StartMS()+1, f.first.EndMS(), chunk.ColCount, &into); err != nil || !ok || from >= to {
					t.Fatal(from, to, ok, err)
				}
			}
		}
		return found, ok, q.Stats()
	}
	first, _, _ := find(true, "1.")
	var again []published.Rolled
	var st published.Stats
	for range 3 {
		again, _, st = find(true, "1.")
	}
	if len(again) != len(first) || len(first) == 0 || st.IndexHits != 0 || st.ColumnHits < int64(len(first)) {
		t.Errorf("%d series, at first %d; %+v", len(again), len(first), st)
	}
	if other, _, _ := find(true, "11"); len(other) == 0 || len(other) >= len(first) {
		t.Errorf("%d series of fewer, %d of more", len(other), len(first))
	}
	if found, ok, _ := find(false, "1."); ok || len(found) > 0 {
		t.Errorf("%d series of types that are refused", len(found))
	}
}
