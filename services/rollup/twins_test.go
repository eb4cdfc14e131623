package rollup

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// Agents with equal values and times have equal chunks, within a set and in the sets of
// two shards. Generations that go on from a former one, compactions, and the expiry and
// collection of one of the sets leave each of them all of its rows.
func TestAgentsWithEqualValues(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Chunks.MetricSamples, cfg.Chunks.MaxSamples = 1, 20 // a chunk for each series
	cfg.Compact.Group, cfg.Compact.After, cfg.Compact.Back, cfg.Compact.Raw = testShards, time.Hour, 10, []string{"2h"}
	h := hour0 - hour0%2
	w.clock.Store((h + 4).End().UnixNano())
	next := map[string]uint64{}
	agents := func(fn func(a string)) {
		for id := range shard.ID(testShards) {
			for n := range 3 {
				fn(agentOf(id, n))
			}
		}
	}
	agents(func(a string) {
		for k := range timegrid.Hour(2) {
			next[a] = w.some(a, h+k, 0, 20, next[a])
		}
	})
	drive := func(fence uint64) {
		for id := range shard.ID(testShards) {
			w.drive(cfg, ownership.Grant{Shard: id, Fence: fence})
		}
	}
	drive(5)
	for id := range shard.ID(testShards) {
		w.check(h, id, 1)
		w.check(h+1, id, 1)
	}
	chunks := map[string]int{}
	for id := range shard.ID(testShards) {
		for _, o := range w.set(h, id, timegrid.Raw).Objects {
			chunks[o.ChunkKey]++
		}
	}
	if len(chunks) != 2 { // of two metrics
		t.Fatalf("the agents' chunks are not equal: %v", chunks)
	}

	// Equal late batches: the next generation goes on from the former one.
	agents(func(a string) {
		next[a] = w.accept(a, next[a], point{"load", series.Gauge, at(h, 50*time.Minute), 7}).SeqEnd + 1
	})
	drive(6)
	for id := range shard.ID(testShards) {
		w.check(h, id, 2)
	}

	m := w.compactor(cfg)
	must(t, m.compaction.Compact(t.Context()))
	w.collected(m)
	for id := range shard.ID(testShards) {
		w.checkCompacted(h, id)
		w.checkCompacted(h+1, id)
	}

	// One shard's rows of 1m expire; the other's, whose chunks are the same, stay.
	if _, err := m.publisher.Expire(t.Context(), w.set(h, 0, timegrid.OneMinute).Name); err != nil {
		t.Fatal(err)
	}
	w.collected(m)
	kept := w.set(h, 1, timegrid.OneMinute)
	for _, o := range kept.Objects {
		for _, key := range []string{o.ChunkKey, o.IndexKey} {
			if _, err := w.store.Head(t.Context(), key); err != nil {
				t.Errorf("%s is gone: %v", key, err)
			}
		}
	}
	if _, err := compact.Series(t.Context(), w.store, testAuthority, kept); err != nil {
		t.Error(err)
	}
}
