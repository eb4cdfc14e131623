package rollup

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	workmem "lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/snapshots"
)

// inSnapshots reads the newest snapshots as a query node does.
func (w *world) inSnapshots() map[identity.Batch]bool {
	w.t.Helper()
	all, err := snapshot.All(w.t.Context(), w.store)
	must(w.t, err)
	got := map[identity.Batch]bool{}
	for id, numbers := range all {
		s, err := snapshot.Read(w.t.Context(), w.store, id, numbers[0])
		if errors.Is(err, objstore.ErrNotFound) {
			return nil // three newer ones were made since
		}
		must(w.t, err)
		for _, r := range s.Packs {
			p, err := snapshot.ReadPack(w.t.Context(), w.store, s, r)
			if errors.Is(err, objstore.ErrNotFound) {
				return nil
			}
			must(w.t, err)
			for i, e := range p.Entries {
				raw, err := p.Frame(i)
				must(w.t, err)
				if !bytes.Equal(raw, w.frames[e.Identity]) {
					w.t.Errorf("%s has another frame", e.Identity)
				}
				got[e.Identity] = true
			}
		}
	}
	return got
}

// run runs a worker of its own dependencies.
func (w *world) run(t *testing.T, d Deps, cfg Config) running {
	t.Helper()
	svc, err := New(cfg, d)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return running{svc, stop}
}

// Two workers that think they own every shard, with one table of pending work or each with
// its own; one of them goes. All that is accepted comes into the snapshots, but what can't be read.
func TestSnapshotsOfOwnedShards(t *testing.T) {
	for name, shared := range map[string]bool{"one table": true, "a table each": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMem())
			cfg := testConfig()
			cfg.Snapshot.Interval = 2 * time.Millisecond
			if shared { // little room, and segments that stay; else room, and segments that owners delete at once
				cfg.Follow.MaxPending, cfg.Schedule.FirstAfter = 16, 1000*time.Hour
			}
			table := func() *workmem.Store {
				if shared {
					return w.pending
				}
				return workmem.New(w.now, workmem.Options{})
			}
			run := func(fence uint64) running {
				p := table()
				return w.run(t, Deps{
					Store: w.store, Telemetry: telemetry.Discard(), Queue: p, Table: p, Refs: w.refs, Now: w.now, Policy: testPolicy,
					Ownership: ownership.Static{Fence: fence},
				}, cfg)
			}
			seq := map[shard.ID]uint64{}
			for id := range shard.ID(testShards) {
				seq[id] = w.some(agentOf(id, 0), hour0, 0, 20, 0)
				w.some(agentOf(id, 1), hour0, 5, 20, 0)
			}
			lost := w.accepted[3]
			must(t, w.store.Delete(t.Context(), lost.RawBlobKey))
			have := func() bool {
				w.advance(100 * time.Millisecond) // messages wait by this clock
				return len(w.inSnapshots()) == len(w.accepted)-1
			}

			a := run(1)
			eventually(t, "everything is in a snapshot", have)
			run(2)
			for id := range shard.ID(testShards) {
				seq[id] = w.some(agentOf(id, 0), hour0, 30, 5, seq[id])
			}
			eventually(t, "what came since is too", have)
			a.stop()
			w.advance(2 * time.Minute) // whatever the first one held, it holds no more
			for id := range shard.ID(testShards) {
				w.some(agentOf(id, 0), hour0, 40, 5, seq[id])
			}
			eventually(t, "the other goes on", have)
			if w.inSnapshots()[lost.Identity] {
				t.Error("a batch without a frame is in a snapshot")
			}
		})
	}
}

func TestSnapshotsCanBeOff(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Snapshot.Interval = 0
	w.some(agentOf(0, 0), hour0, 0, 3, 0)
	w.start(t, cfg, w.store)
	eventually(t, "the hour is rolled up", func() bool { return len(w.left(0)) == 0 })
	must(t, storetest.Each(t.Context(), w.store, layout.LivePrefix, func(o objstore.Info) error {
		t.Errorf("%s is there", o.Key)
		return nil
	}))
	var p *snapshots.Loop
	p.Offer([]accepted.Batch{w.accepted[0]}) // what an owner does without them
	p.Run(t.Context())
}
