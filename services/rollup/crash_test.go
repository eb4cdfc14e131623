package rollup

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// crashing fills a world with an hour that is to be rolled up, for the first time or a second.
func crashing(t *testing.T, s objstore.Store, again bool) *world {
	w := newWorld(t, s)
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0, 0, 4, 0)
	w.some(agentOf(0, 1), hour0, 0, 4, 0)
	if again {
		w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 1})
		w.check(hour0, 0, 1)
		w.some(agent, hour0, 20, 2, seq)
	}
	w.some(agent, hour0+1, 0, 1, seq+100)
	return w
}

// TestCrashAtEveryStoreCall: a worker whose store is gone from its n-th call on, for every
// n of a whole job; the n-th write takes effect or not, and nobody hears of it. A second
// worker with a later fence finishes: every resolution is published once and equals the
// recomputation.
func TestCrashAtEveryStoreCall(t *testing.T) {
	for _, lost := range []bool{false, true} {
		gen := uint64(1)
		if lost {
			gen = 2
		}
		for n := 1; ; n++ {
			w := crashing(t, newMem(), gen > 1)
			rules := []fault.Rule{{Skip: n - 1, Kind: fault.Before}}
			if lost {
				rules = append([]fault.Rule{{Skip: n - 1, Times: 1, Kind: fault.After}}, rules...)
			}
			ctx, cancel := context.WithCancel(t.Context())
			dying := fault.New(w.store, 1, rules...)
			o, err := w.owner(w.worker(testConfig(), dying), ownership.Grant{Shard: 0, Fence: 2})
			for range 4 { // it tries again, in vain
				if err == nil {
					err = rounds(ctx, o)
				}
				w.advance(testConfig().Schedule.LateAfter)
			}
			cancel()
			finished := err == nil && dying.Count("", "") < n
			w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 3})
			w.check(hour0, 0, gen)
			w.check(hour0+1, 0, 1)
			if left := w.left(0); len(left) > 0 {
				t.Fatalf("call %d, lost %v: batches left: %v", n, lost, left)
			}
			w.onlyOneSet(hour0, n)
			if logs, _, err := w.pending.Logs(t.Context(), "rollup", "", 10); err != nil || len(logs) > 0 {
				t.Fatalf("call %d: pending work of rollups: %v %v", n, logs, err)
			}
			if finished {
				t.Logf("%d calls, answers lost: %v", n-1, lost)
				break
			}
			if n > 500 {
				t.Fatal("does not come to an end")
			}
		}
	}
}

// onlyOneSet wants the committed generations 1 and 2 of each resolution, with growing fences,
// and objects for all that they name.
func (w *world) onlyOneSet(h timegrid.Hour, n int) {
	w.t.Helper()
	must(w.t, storetest.Each(w.t.Context(), w.store, layout.BlockManifestsHour(h), func(i objstore.Info) error {
		r, _, err := catalog.Read(w.t.Context(), w.store, testAuthority, i.Key)
		if err != nil {
			return err
		}
		if r.Block == nil || r.Block.Name.Generation > 2 {
			w.t.Errorf("call %d: %s holds %+v", n, i.Key, r)
		} else if r.Block.Name.Generation == 2 && r.Block.Fence < 2 {
			w.t.Errorf("call %d: fence %d", n, r.Block.Fence)
		}
		return nil
	}))
}

// TestPausedOwner: it loses its shard while it is about to publish, and wakes up after
// another has published the generation, and the next: nothing of it counts, and it stops.
func TestPausedOwner(t *testing.T) {
	w := crashing(t, newMem(), true)
	gate, reached := make(chan struct{}), make(chan struct{})
	slow := &paused{Store: w.store, gate: gate, reached: reached}
	svc := w.worker(testConfig(), slow)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 2})
	must(t, err)
	done := make(chan error, 1)
	w.advance(time.Hour)
	must(t, func() error { _, err := o.Arrivals.Follow(t.Context()); return err }())
	w.advance(time.Hour)
	go func() { done <- rounds(t.Context(), o) }() // it does not hear of its loss
	<-reached
	w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 3})
	w.check(hour0, 0, 2)
	w.some(agentOf(0, 0), hour0, 50, 1, 9000)
	w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 3})
	w.check(hour0, 0, 3)
	close(gate)
	if err := <-done; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if n := testutil.ToFloat64(svc.m.Generations.WithLabelValues("raw")); n != 0 {
		t.Errorf("it committed %v raw generations", n)
	}
	if n := testutil.ToFloat64(svc.m.Refused.WithLabelValues("exists")); int(n) != len(timegrid.Resolutions()) { // each resolution's manifest is another's
		t.Errorf("%v refused", n)
	}
	w.check(hour0, 0, 3)
}

// paused waits before its first create of a manifest.
type paused struct {
	objstore.Store
	gate, reached chan struct{}
	once          bool
}

func (p *paused) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if _, err := layout.ParseBlockManifest(key); err == nil && !p.once {
		p.once = true
		close(p.reached)
		<-p.gate
	}
	return p.Store.Create(ctx, key, body, o)
}

// What another transaction decided is counted by its reason, and the next generation has
// the inputs.
func TestRefusals(t *testing.T) {
	w := newWorld(t, newMem())
	w.some(agentOf(0, 0), hour0, 0, 2, 0)
	hook := &aborting{Store: w.store}
	svc := w.worker(testConfig(), hook)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 5})
	must(t, err)
	// Somebody aborts the raw resolution of generation 1 between plan and commit.
	name := catalog.Name{Hour: hour0, Shard: 0, Resolution: timegrid.Raw, Generation: 1}
	hook.before, hook.do = layout.RollupPlan(hour0, 0, 1), func() {
		_, err := w.workers[svc].publisher.Abort(t.Context(), name, "test")
		must(t, err)
	}
	must(t, rounds(t.Context(), o))
	if n := testutil.ToFloat64(svc.m.Refused.WithLabelValues(string(publish.OutcomeAborted))); n != 1 {
		t.Errorf("%v aborted", n)
	}
	w.advance(time.Hour)
	must(t, rounds(t.Context(), o))
	w.check(hour0, 0, 2)

	// An owner of before publishes no more.
	w.some(agentOf(0, 0), hour0, 10, 1, 100)
	old := w.worker(testConfig(), w.store)
	oo, err := w.owner(old, ownership.Grant{Shard: 0, Fence: 4})
	must(t, err)
	must(t, rounds(t.Context(), oo))
	w.advance(time.Hour)
	if err := rounds(t.Context(), oo); err != nil && !errors.Is(err, publish.ErrFenced) {
		t.Error(err)
	}
	w.check2(hour0, 2)
}

func (w *world) check2(h timegrid.Hour, gen uint64) {
	w.t.Helper()
	for _, res := range timegrid.Resolutions() {
		if s := w.set(h, 0, res); s == nil || s.Name.Generation != gen {
			w.t.Errorf("%s: %+v, want generation %d", res, s, gen)
		}
	}
}

// aborting does something before an object is created.
type aborting struct {
	objstore.Store
	before string
	do     func()
}

func (a *aborting) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if key == a.before {
		a.do()
	}
	return a.Store.Create(ctx, key, body, o)
}

// A plan that is there is used as it is, whatever else is pending.
func TestPlanOfAFormerOwnerIsUsed(t *testing.T) {
	w := newWorld(t, newMem())
	w.some(agentOf(0, 0), hour0, 0, 3, 0)
	first := w.accepted[0]
	svc := w.worker(testConfig(), w.store)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	p, err := w.workers[svc].planner().Plan(t.Context(), hour0, 0, 1, &hour.State{}, w.accepted[:1], nil, 0)
	must(t, err)
	if p.SHA256.IsZero() {
		t.Fatal("no digest")
	}
	_, err = o.Round(t.Context())
	must(t, err)
	if s := w.set(hour0, 0, timegrid.Raw); s.Inputs.Batches() != 1 || !s.Inputs.Covers(first.Identity) {
		t.Fatalf("generation 1: %+v", s.Inputs)
	}
	w.advance(time.Hour)
	must(t, rounds(t.Context(), o))
	w.check(hour0, 0, 2)
}
