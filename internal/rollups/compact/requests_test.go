package compact_test

import (
	"maps"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish/refstest"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestRequestsOfACompaction: what it costs to merge the blocks of an hour or several, and to collect what they had;
// docs/protocol/compaction.md has it. Sources have four objects each, and the compaction a few.
func TestRequestsOfACompaction(t *testing.T) {
	const hours, blocks = 6, 6 * 2
	w, st := newWorld(t), settings()
	st.ObjectBytes = 1 << 20
	w.rollAll(hour0, hours, timegrid.Raw)
	store, refs := storetest.Count(w.store), refstest.Counted{Refs: w.refs, Calls: map[string]int{}}
	type want struct {
		op, prefix string
		n          int
	}
	check := func(step string, calls map[string]int, requests ...want) {
		t.Helper()
		total := 0
		for _, one := range requests {
			total += one.n
			if got := store.Of(one.op, one.prefix); got != one.n {
				t.Errorf("%s: %s %s: %d requests, want %d", step, one.op, one.prefix, got, one.n)
			}
		}
		if got := store.Of("", ""); got != total {
			t.Errorf("%s: %d requests to the store, want %d: %v", step, got, total, store.All())
		}
		if !maps.Equal(refs.Calls, calls) {
			t.Errorf("%s: calls of the metadata store: %v, want %v", step, refs.Calls, calls)
		}
		store.Reset()
		clear(refs.Calls)
	}
	v := w.view()
	c := st.Choose(timegrid.Raw, setsOf(v, timegrid.Raw), shard.ID(0), w.clock.now)[0]
	if len(c.Sources) != blocks {
		t.Fatalf("%d sources", len(c.Sources))
	}
	r, err := w.compactorOver(store, refs, st).Compact(t.Context(), c, 7)
	if err != nil || r.Redirected != blocks || len(r.Block.Objects) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	check("compact", map[string]int{"epoch": 1, "add": 1},
		want{"list", "manifests/", 1}, want{"create", "rollup/v1/plans/", 1}, want{"head", "rollup/v1/plans/", 1}, want{"get", "gc/", 1},
		want{"get", "index/", 2 * blocks}, want{"get", "rollup/v1/window", 2 * blocks}, // two of each block
		want{"create", "rollup/v1/window", 1}, want{"create", "index/", 1}, want{"create", "manifests/", 1},
		want{"get", "manifests/", 1 + blocks}, want{"create", "gc/v1/delayed/", 1}, want{"replace", "manifests/", blocks})

	w.clock.now = w.clock.now.Add(time.Hour)
	k, err := publish.NewCollector(w.config(store, refs))
	if err != nil {
		t.Fatal(err)
	}
	rep, err := k.Step(t.Context(), 100)
	if err != nil || rep.Items != 1 || len(rep.Entries) != 4*blocks+1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	check("collect", map[string]int{"epoch": 1, "get": hours, "condemn": hours},
		want{"list", "gc/v1/delayed/", 1}, want{"get", "gc/", 2}, want{"list", "manifests/", hours},
		// Those of the sources before the condemnations, and what they did not show behind them: the blocks of the other
		// shards and the compaction.
		want{"get", "manifests/", blocks + blocks + 1},
		want{"delete", "rollup/v1/window", 2 * blocks}, want{"delete", "index/", 2 * blocks}, want{"delete", "rollup/v1/plans/", 1}, want{"delete", "gc/v1/delayed/", 1})
	if left := w.keys("gc/v1/delayed/"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
