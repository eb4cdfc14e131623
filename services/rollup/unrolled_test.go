package rollup

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// every accepts an hour of a gauge of whole numbers, a sample each step, in one batch.
func (w *world) every(agent string, h timegrid.Hour, step time.Duration) {
	w.t.Helper()
	var points []point
	for d := step; d <= time.Hour; d += step {
		points = append(points, point{"load", series.Gauge, at(h, d), float64(d / step * 7919 % 101)})
	}
	w.accept(agent, 1, points...)
}

// TestRowsAreMadeWhereTheyAreSmaller: rows of a minute, or of five, are made where they are smaller than the samples, for
// each hour of a shard by itself, and where they are to outlive the samples. Later generations decide again, and what was
// not made is not merged.
func TestRowsAreMadeWhereTheyAreSmaller(t *testing.T) {
	const dense, sparse = shard.ID(0), shard.ID(1)
	h := hour0 - hour0%4
	fill := func(cfg Config) *world {
		w := newWorld(t, newMem())
		w.clock.Store((h + 6).End().UnixNano())
		for k := range timegrid.Hour(2) {
			w.every(agentOf(dense, int(k)), h+k, time.Second)
			w.every(agentOf(sparse, int(k)), h+k, 30*time.Second)
		}
		for _, id := range []shard.ID{dense, sparse} {
			w.drive(cfg, ownership.Grant{Shard: id, Fence: 5})
			w.check(h, id, 1)
			w.check(h+1, id, 1)
		}
		return w
	}
	unrolled := func(w *world, id shard.ID, want ...timegrid.Resolution) {
		t.Helper()
		for _, res := range timegrid.Resolutions() {
			has := false
			for _, r := range want {
				has = has || r == res
			}
			if b := w.set(h, id, res); b.Unrolled != has {
				t.Errorf("shard %s %s: unrolled %v, want %v", id, res, b.Unrolled, has)
			}
		}
	}
	cfg := testConfig()
	cfg.Compact.Group, cfg.Compact.After, cfg.Compact.Back, cfg.Compact.Minute = testShards, time.Hour, 10, []string{"2h"}
	w := fill(cfg)
	unrolled(w, dense)
	unrolled(w, sparse, timegrid.OneMinute)
	m := w.compactor(cfg)
	must(t, m.compaction.Compact(t.Context()))
	if b := w.set(h, dense, timegrid.OneMinute); b.Redirect == nil {
		t.Errorf("rows of %s are not merged", b.Name.Key())
	}
	if b := w.set(h, sparse, timegrid.OneMinute); b.Redirect != nil || !b.Unrolled {
		t.Errorf("%s became %+v", b.Name.Key(), b)
	}
	// A late agent with many samples: now rows are smaller.
	w.every(agentOf(sparse, 2), h, time.Second)
	w.drive(cfg, ownership.Grant{Shard: sparse, Fence: 6})
	w.check(h, sparse, 2)
	unrolled(w, sparse)

	// Samples that go before their rows do need these, whatever they cost.
	cfg.Retention.Raw = 24 * 365 * time.Hour
	unrolled(fill(cfg), sparse)
	cfg.Retention.Minute = cfg.Retention.Raw
	unrolled(fill(cfg), sparse, timegrid.OneMinute)
}
