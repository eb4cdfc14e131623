package rollup

import (
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/maintain"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// hoursObjects lists chunks and indexes of an hour.
func (w *world) hoursObjects(h timegrid.Hour) (keys []string) {
	w.t.Helper()
	prefixes := []string{layout.RollupIndexesHour(h)}
	for _, res := range timegrid.Resolutions() {
		prefixes = append(prefixes, layout.RollupChunksHour(res, h))
	}
	for _, p := range prefixes {
		must(w.t, storetest.Each(w.t.Context(), w.store, p, func(o objstore.Info) error {
			keys = append(keys, o.Key)
			return nil
		}))
	}
	return keys
}

// What nobody queued is collected all the same: superseded sets, and objects of no set,
// hour after hour, also past an hour that can't be read. What committed sets name stays.
func TestSweepFindsWhatNobodyQueued(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	hours := []timegrid.Hour{-5, hour0 - 30, hour0 - 2, hour0}
	a, seq := agentOf(1, 0), uint64(0)
	for _, h := range hours {
		seq = w.some(a, h, 0, 5, seq)
	}
	w.drive(cfg, ownership.Grant{Shard: 1, Fence: 5})
	stray := map[timegrid.Hour]string{}
	for i, h := range hours {
		seq = w.some(a, h, 100, 1, seq) // the next generation
		stray[h] = layout.RollupIndex(h, [32]byte{byte(i + 1)}, 0)
		_, err := w.store.Create(t.Context(), stray[h], []byte("left by a crash"), objstore.PutOptions{})
		must(t, err)
	}
	w.drive(cfg, ownership.Grant{Shard: 1, Fence: 5})
	lone := hour0 + 1 // has nothing but what was left
	stray[lone] = layout.RollupIndex(lone, [32]byte{99}, 0)
	_, err := w.store.Create(t.Context(), stray[lone], []byte("left by a crash"), objstore.PutOptions{})
	must(t, err)
	// The queue is lost, and with it what the publications put on.
	must(t, storetest.Each(t.Context(), w.store, layout.DelayedPrefix, func(o objstore.Info) error {
		return w.store.Delete(t.Context(), o.Key)
	}))
	bad := layout.BlockManifest(hours[0], 0, timegrid.Raw, 1)
	_, err = w.store.Create(t.Context(), bad, []byte("{"), objstore.PutOptions{})
	must(t, err)

	svc := w.worker(cfg, w.store)
	for id := range shard.ID(testShards) {
		o, err := w.owner(svc, ownership.Grant{Shard: id, Fence: 6})
		must(t, err)
		svc.board.Enter(o.Status())
	}
	collection, swept := w.workers[svc].collection, maintain.SweepStart
	var seen []timegrid.Hour
	for range 3 * (len(hours) + 2) { // rounds of all hours, each followed by one that starts over
		if swept, err = collection.Step(t.Context(), swept); err != nil {
			t.Log(err)
		}
		seen = append(seen, swept)
		w.advance(time.Hour)
	}
	round := append(slices.Clone(hours), lone, maintain.SweepStart)
	again := append(slices.Clone(hours), maintain.SweepStart) // the lone one is gone
	if want := slices.Concat(round, again, again); !slices.Equal(seen[:min(len(seen), len(want))], want) {
		t.Errorf("swept %v, want %v", seen, want)
	}
	if left := w.hoursObjects(lone); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	for i, h := range hours {
		var named []string
		for _, res := range timegrid.Resolutions() {
			block := w.set(h, 1, res)
			if block == nil || block.Name.Generation != 2 {
				t.Fatalf("%s: %+v", h, block)
			}
			named = append(named, block.Keys()...)
		}
		there := w.hoursObjects(h)
		for _, k := range named {
			if !slices.Contains(there, k) {
				t.Errorf("%s is gone", k)
			}
		}
		if i == 0 {
			continue // nothing is deleted beside a record that can't be read
		}
		slices.Sort(named)
		if slices.Sort(there); !slices.Equal(there, slices.Compact(named)) {
			t.Errorf("%s: %d objects, its sets name %d; stray there: %v", h, len(there), len(named), slices.Contains(there, stray[h]))
		}
	}
}

// Workers that share the shards share the hours of the sweep: together they sweep each
// once in a round, one that owns nothing asks the store nothing, and one that takes over
// has all.
func TestWorkersShareTheSweep(t *testing.T) {
	w := newWorld(t, newMem())
	agent, seq := agentOf(0, 0), uint64(0)
	hours := []timegrid.Hour{-3, hour0 - 50, hour0 - 49, hour0 - 3, hour0 - 2, hour0 - 1, hour0}
	for _, h := range hours {
		seq = w.some(agent, h, 0, 1, seq)
	}
	w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 1})
	counted := [3]*fault.Store{}
	var svcs [3]*Service
	for i := range svcs {
		counted[i] = fault.New(w.store, 1)
		svcs[i] = w.worker(testConfig(), counted[i])
		o, err := w.owner(svcs[i], ownership.Grant{Shard: shard.ID(i % testShards), Fence: 2})
		must(t, err)
		if i < testShards {
			svcs[i].board.Enter(o.Status())
		}
	}
	round := func(svc *Service) (seen []timegrid.Hour) {
		for at := maintain.SweepStart; ; {
			var err error
			if at, _, err = w.workers[svc].collection.SweepNext(t.Context(), at); err != nil {
				t.Fatal(err)
			}
			if at < hour.Earliest {
				return seen
			}
			seen = append(seen, at)
		}
	}
	a, b := round(svcs[0]), round(svcs[1])
	both := slices.Concat(a, b)
	if slices.Sort(both); !slices.Equal(both, hours) || len(a) == 0 || len(b) == 0 {
		t.Errorf("one swept %v, the other %v", a, b)
	}
	before := counted[2].Count("", "")
	if at, n, err := w.workers[svcs[2]].collection.SweepNext(t.Context(), hour0); at != hour0 || n != 0 || err != nil || counted[2].Count("", "") != before {
		t.Errorf("without a shard: %v, %d, %v", at, n, err)
	}
	o, err := w.owner(svcs[0], ownership.Grant{Shard: 1, Fence: 3})
	must(t, err)
	svcs[0].board.Enter(o.Status())
	if all := round(svcs[0]); !slices.Equal(all, hours) {
		t.Errorf("alone: %v", all)
	}
}
