package compact_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// queried has what the readers of queries give in a range, raw and rolled, bit for bit.
// Run.Before is left out: from a compaction it is known more often.
func (w *world) queried(mint, maxt int64) map[string]string {
	w.t.Helper()
	r, err := published.New(published.Config{Store: w.store})
	w.must(err)
	views, err := publishedtest.NewViews(w.store, authority)
	w.must(err)
	q := r.Query(views, shards, published.Span{Oldest: hour0 - 10, Newest: hour0 + 100}, published.Limits{})
	all := labels.MustNewMatcher(labels.MatchRegexp, "job", ".+")
	out := map[string]string{}
	found, err := q.Select(w.t.Context(), mint, maxt, all)
	w.must(err)
	for i := range found {
		var b strings.Builder
		runs := found[i].Runs(mint, maxt)
		for run, ok := runs.Next(); ok; run, ok = runs.Next() {
			for k, t := range run.T {
				fmt.Fprintf(&b, "%d", t)
				if run.V != nil {
					fmt.Fprintf(&b, " %x", math.Float64bits(run.V[k]))
				}
				if run.H != nil {
					fmt.Fprintf(&b, " %v", run.H[k])
				}
				if run.STs != nil {
					fmt.Fprintf(&b, " %d", run.STs[k])
				} else {
					b.WriteString(" 0")
				}
				b.WriteByte('\n')
			}
		}
		w.must(runs.Err())
		if b.Len() > 0 {
			out["raw "+found[i].Labels.String()] = b.String()
		}
	}
	rolled, _, err := q.SelectRolled(w.t.Context(), published.Rows{Resolution: timegrid.OneMinute}, mint, maxt, func(timegrid.Hour) bool { return false },
		func(series.Type) bool { return true }, all, labels.MustNewMatcher(labels.MatchEqual, "zone", "b"), labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, "load"))
	w.must(err)
	for i := range rolled {
		var b strings.Builder
		for h := range rolled[i].Parts() {
			c, from, to, ok, err := rolled[i].Rows(h, mint, maxt, chunk.AllColumns, &chunk.Columns{})
			if err != nil || !ok {
				w.t.Fatalf("rolled rows: %t, %v", ok, err)
			}
			for k := from; k < to; k++ {
				t := c.T[k]
				if ms := timegrid.Millisecond(t); ms >= mint && ms <= maxt {
					fmt.Fprintf(&b, "%d %s\n", t, rowText(c, k))
				}
			}
		}
		if b.Len() > 0 {
			out["1m "+rolled[i].Labels.String()] = b.String()
		}
	}
	if ps, _ := q.Problems(); len(ps) > 0 {
		w.t.Fatal(ps)
	}
	return out
}

// The readers of queries answer the same before and after compaction, collection, a late
// re-roll, and the next level.
func TestQueriesStayTheSame(t *testing.T) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(3*time.Hour + 30*time.Minute)
	w.rollAll(hour0, 6, timegrid.Raw, timegrid.OneMinute)
	st := settings()
	ranges := [][2]int64{
		{hour0.StartMS(), (hour0 + 6).EndMS()}, {hour0.EndMS(), hour0.EndMS()}, {hour0.StartMS() + 1_800_000, (hour0 + 2).StartMS() + 1_800_000},
		{hour0.EndMS() - 100_000, hour0.EndMS() + 100_000}, {(hour0 + 1).EndMS() + 1, (hour0 + 2).EndMS()},
	}
	ask := func() []map[string]string {
		var out []map[string]string
		for _, r := range ranges {
			out = append(out, w.queried(r[0], r[1]))
		}
		return out
	}
	want := ask()
	check := func(what string) {
		t.Helper()
		for i, got := range ask() {
			if len(want[i]) == 0 && len(got) == 0 {
				continue
			}
			same(t, fmt.Sprint(what, ranges[i]), got, want[i])
		}
	}
	step := func(what string) {
		t.Helper()
		if w.compactAll(st) == 0 {
			t.Fatalf("%s: nothing was compacted", what)
		}
		check(what)
		w.collect()
		check(what + ", collected")
	}
	step("2 h")
	w.roll(hour0, 1, timegrid.Raw, timegrid.OneMinute)
	w.roll(hour0+1, 2, timegrid.Raw, timegrid.OneMinute)
	want = ask()
	w.clock.now = hour0.Start().Add(8 * time.Hour)
	step("6 h")
	w.roll(hour0+3, 0, timegrid.Raw, timegrid.OneMinute)
	want = ask()
	w.collect()
	check("masked, collected")
}
