package promstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/teststorage"

	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestRolledAtTheEdges: samples on the stroke of each minute, and a millisecond to either
// side of it, are counted in the ranges that upstream counts them in; ranges that do not
// begin and end on a stroke are not answered from rows.
func TestRolledAtTheEdges(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	ref, ours := teststorage.New(t), newRolled(t, 1, 1, true)
	defer ref.Close()
	ours.resolutions = timegrid.Resolutions()
	const minute, minutes = int64(60_000), 10 * 60
	g := labels.FromStrings("__name__", "g")
	a, b := ref.AppenderV2(t.Context()), ours.AppenderV2(t.Context())
	for k := range int64(minutes) {
		for d := int64(-1); d <= 1; d++ {
			for _, app := range []storage.AppenderV2{a, b} {
				if _, err := app.Append(0, g, 0, (k+1)*minute+d, float64(k), nil, nil, storage.AppendV2Options{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, app := range []storage.AppenderV2{a, b} {
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	ms := []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "g")}
	snap := ours.store.Snapshot(testNow)
	defer snap.Close()
	q, _, err := ours.open(snap)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []int64{minute, 5 * minute, 60 * minute} {
		good := promstore.RangeCall{Func: "count_over_time", Matchers: ms, Range: 4 * w, Start: 5 * w, Step: w, End: 7 * w}
		moved := good
		moved.Offset, moved.Start, moved.End = minute/2, good.Start+minute/2, good.End+minute/2
		for _, c := range []promstore.RangeCall{good, moved} {
			id, ok, err := q.Rolled(t.Context(), c)
			if !ok || err != nil {
				t.Fatalf("%+v: %v, %v", c, ok, err)
			}
			want := matrix(t, engine, ref, fmt.Sprintf("count_over_time(g[%dms] offset %dms)", c.Range, c.Offset), c)
			if n := compare(t, fmt.Sprintf("%+v", c), c.Func, matrix(t, engine, q, fmt.Sprintf("{%s=%q}", promstore.RolledLabel, id), c), want); n != 3 {
				t.Errorf("%+v: %d values", c, n)
			}
		}
		for name, change := range map[string]func(*promstore.RangeCall){
			"offset": func(c *promstore.RangeCall) { c.Offset = minute / 2 }, "start": func(c *promstore.RangeCall) { c.Start++ },
			"step": func(c *promstore.RangeCall) { c.Step += minute / 2 }, "range": func(c *promstore.RangeCall) { c.Range += minute / 2 },
		} {
			c := good
			change(&c)
			if _, ok, err := q.Rolled(t.Context(), c); ok || err != nil {
				t.Errorf("%s off the stroke: %+v: %v, %v", name, c, ok, err)
			}
		}
	}
	// One millisecond at the very begin and end of an hour's object.
	for _, at := range []int64{minute - 1, minutes*minute + 1} {
		s, err := ours.Querier(at, at)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for set := s.Select(t.Context(), false, nil, ms...); set.Next(); {
			for it := set.At().Iterator(nil); it.Next() != chunkenc.ValNone; n++ {
				if got := it.AtT(); got != at {
					t.Errorf("a sample at %d in [%d, %d]", got, at, at)
				}
			}
		}
		if err := s.Close(); err != nil || n != 1 {
			t.Errorf("%d samples at %d, %v", n, at, err)
		}
	}
}

// TestRowsOfAnOlderGeneration: rows that were made before a late batch came do not stand in
// for samples that have it.
func TestRowsOfAnOlderGeneration(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	ref, ours := teststorage.New(t), newRolled(t, 1, 1, true)
	defer ref.Close()
	g := labels.FromStrings("__name__", "g")
	const minute = int64(60_000)
	for half, resolutions := range [][]timegrid.Resolution{timegrid.Resolutions(), {timegrid.Raw}} {
		ours.resolutions = resolutions
		for _, to := range []storage.Storage{ref, ours} {
			app := to.AppenderV2(t.Context())
			for k := range int64(20) {
				at := (k+1)*minute - 30_000 + int64(half)*20*minute
				if _, err := app.Append(0, g, 0, at, 1, nil, nil, storage.AppendV2Options{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := app.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		snap := ours.store.Snapshot(testNow)
		q, _, err := ours.open(snap)
		if err != nil {
			t.Fatal(err)
		}
		c := promstore.RangeCall{Func: "count_over_time", Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "g")},
			Range: 10 * minute, Start: 10 * minute, Step: 10 * minute, End: 40 * minute}
		id, ok, err := q.Rolled(t.Context(), c)
		if err != nil || ok != (half == 0) {
			t.Errorf("half %d: %v, %v", half, ok, err)
		}
		if ok {
			got := matrix(t, engine, q, fmt.Sprintf("{%s=%q}", promstore.RolledLabel, id), c)
			compare(t, "count_over_time", c.Func, got, matrix(t, engine, ref, fmt.Sprintf("count_over_time(g[%dms])", c.Range), c))
		}
		snap.Close()
	}
}
