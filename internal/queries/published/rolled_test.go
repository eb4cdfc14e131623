package published_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// TestRolledRowsAreKept: decoded rows of a resolution are the same whether they are kept from an earlier query or read,
// whichever columns and times other queries wanted, and whichever hours they read as samples; and a reader may use its
// memory again. With a label for the agent whole selections are kept.
func TestRolledRowsAreKept(t *testing.T) {
	for _, label := range []agentlabel.Name{"", agentlabel.Default} {
		t.Run(string(label), func(t *testing.T) { testRolledRowsAreKept(t, published.Config{AgentLabel: label}) })
	}
}

func testRolledRowsAreKept(t *testing.T, cfg published.Config) {
	f := newFixture(t)
	f.publish(t, 2, timegrid.OneMinute, timegrid.FiveMinutes)
	all := labels.MustNewMatcher(labels.MatchRegexp, "s", "1.")
	rows := func(r *published.Reader, res timegrid.Resolution, want chunk.Mask, mint, maxt int64, raw bool) (string, published.Stats) {
		q := f.query(t, r, published.Limits{})
		found, ok, err := q.SelectRolled(t.Context(), published.Rows{Resolution: res, Want: want}, mint, maxt, func(h timegrid.Hour) bool { return raw && h == f.first }, func(series.Type) bool { return true }, all)
		if err != nil || !ok || len(found) == 0 {
			t.Fatal(len(found), ok, err)
		}
		slices.SortFunc(found, func(a, b published.Rolled) int { return labels.Compare(a.Labels, b.Labels) })
		var b strings.Builder
		var into chunk.Columns
		for i := range found {
			if s := found[i].Raw; s != nil {
				for runs := s.Runs(mint, maxt); ; {
					run, ok := runs.Next()
					if !ok {
						break
					}
					fmt.Fprintln(&b, s.Labels, run.T)
				}
			}
			// Parts of what is kept may have more hours.
			var times []int64
			var sums, most, least []float64
			counts := 0
			for k := range found[i].Parts() {
				c, from, to, ok, err := found[i].Rows(k, mint, maxt, want, &into)
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				times = append(times, c.T[from:to]...)
				for of, v := range map[*[]float64][]float64{&sums: c.Sum, &most: c.Max, &least: c.Min} {
					if v != nil {
						*of = append(*of, v[from:to]...)
					}
				}
				if c.Count != nil {
					counts += len(c.Count[from:to])
				}
			}
			fmt.Fprintln(&b, found[i].Labels, times, sums, most, least, counts)
		}
		return b.String(), q.Stats()
	}
	kept, hits := f.reader(t, cfg), int64(0)
	begin, end := f.first.StartMS()+1, (f.first + 1).EndMS()
	for round := range 5 {
		for _, res := range []timegrid.Resolution{timegrid.OneMinute, timegrid.FiveMinutes} {
			for _, want := range []chunk.Mask{chunk.ColSum | chunk.ColSumC | chunk.ColCount, chunk.ColMax, chunk.ColMin | chunk.ColMax} {
				for _, span := range [][2]int64{{begin, end}, {begin + 1_800_000, end - 1_800_000}, {begin, f.first.EndMS()}} {
					// The last span is of that hour alone.
					raw := round > 1 && span[1] != f.first.EndMS()
					got, st := rows(kept, res, want, span[0], span[1], raw)
					fresh, once := rows(f.reader(t, cfg), res, want, span[0], span[1], raw)
					if got != fresh {
						t.Fatalf("round %d, %s, columns %#x: %s\nwant %s", round, res, want, got, fresh)
					}
					// Whether a query meets its limit does not depend on what others read before.
					if st.Samples != once.Samples {
						t.Fatalf("round %d, %s, columns %#x: %d samples, want %d", round, res, want, st.Samples, once.Samples)
					}
					hits += st.ColumnHits
				}
			}
		}
	}
	if hits == 0 {
		t.Error("no rows were kept")
	}
}
