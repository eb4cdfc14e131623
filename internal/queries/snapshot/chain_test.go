package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func TestSnapshotsGoOnFromOneAnother(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	w.step(c, work.Idle)
	for k := range 30 {
		c.Offer(w.accept(1 + k%5))
		w.step(c, work.Completed)
		s := w.holds(w.entries)
		if s.Number != uint64(k+1) {
			t.Fatalf("number %d after %d", s.Number, k)
		}
		if len(s.Packs) > 2*fan {
			t.Errorf("%d packs at number %d", len(s.Packs), s.Number)
		}
		w.tidy()
		w.step(c, work.Idle) // nothing is new
		w.now = w.now.Add(time.Minute)
	}
	if c.Pending() != 0 {
		t.Errorf("%d batches wait", c.Pending())
	}
}

func TestWhatIsOutOfTheWindowGoes(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	var packs int
	for range 180 { // three windows
		c.Offer(w.accept(2))
		w.step(c, work.Completed)
		s, got := w.newest()
		for _, e := range w.entries {
			if _, ok := got[e.Identity]; !ok && e.MaxTime >= c.horizon() {
				t.Fatalf("%s is in the window, and not in snapshot %d", e.Identity, s.Number)
			}
		}
		packs = max(packs, len(s.Packs))
		w.now = w.now.Add(time.Minute)
	}
	if packs > 3*fan {
		t.Errorf("%d packs", packs)
	}
	w.now = w.now.Add(2 * time.Hour)
	w.step(c, work.Completed)
	w.holds(nil)
	// Should nothing come any more, no further snapshot is made, and packs must not stay for that.
	if packs, snapshots := w.keys(layout.LivePacks(mine)), w.keys(layout.LiveSnapshots(mine)); len(packs) != 0 || len(snapshots) != 1 {
		t.Errorf("%d packs and %d snapshots are left", len(packs), len(snapshots))
	}
	for range 2 {
		c.Offer(w.accept(1))
		w.step(c, work.Completed)
	}
	w.tidy()
	if n := len(w.keys(layout.LivePacks(mine))); n != 2 {
		t.Errorf("%d packs are left", n)
	}
	old := w.accept(1)
	w.now = w.now.Add(2 * time.Hour)
	if c.Offer(old); c.Pending() != 0 {
		t.Error("a batch from before the window is taken")
	}
}

// A clock that runs ahead must not keep a batch for ever.
func TestSamplesFromTheFutureGoToo(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	e := w.accept(1)[0]
	e.MaxTime += int64(10 * 365 * 24 * time.Hour)
	w.entries[0] = e
	c.Offer([]accepted.Batch{e})
	w.step(c, work.Completed)
	w.holds(w.entries)
	w.now = w.now.Add(time.Hour + future + time.Second)
	w.step(c, work.Completed)
	w.holds(nil)
}

func TestFramesThatCantBeReadAreLeftOut(t *testing.T) {
	w := newWorld(t)
	var skipped []identity.Batch
	c := w.chain(func(c *Config) { c.Events.Skipped = func(e accepted.Batch) { skipped = append(skipped, e.Identity) } })
	es := w.accept(5)
	w.bad[es[3].Identity] = true
	c.Offer(es)
	w.step(c, work.Completed)
	w.holds([]accepted.Batch{es[0], es[1], es[2], es[4]})
	if len(skipped) != 1 || skipped[0] != es[3].Identity {
		t.Errorf("skipped %v", skipped)
	}
	w.step(c, work.Idle)
}

// A backlog goes into packs of bounded size, and into several jobs when it is long.
func TestBacklogIsBounded(t *testing.T) {
	w := newWorld(t)
	c := w.chain(func(c *Config) { c.PackBatches, c.MaxPending = 2, 150 })
	es := w.accept(200)
	if c.Offer(es) || c.Pending() != 150 || c.Room() {
		t.Fatalf("%d batches wait", c.Pending())
	}
	w.step(c, work.Completed)
	if s, got := w.newest(); len(s.Packs) != maxNewPacks || len(got) != 2*maxNewPacks {
		t.Errorf("%d packs, %d batches", len(s.Packs), len(got))
	}
	w.step(c, work.Completed)
	c.Offer(es)
	w.step(c, work.Completed)
	w.holds(es)
	w.step(c, work.Idle)
}

// The successor makes the next number, whatever the table remembers.
func TestForgottenLogGoesOn(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	for range 3 {
		c.Offer(w.accept(1))
		w.step(c, work.Completed)
	}
	log, err := w.work.Log(bg, Log(mine))
	w.must(err)
	w.must(w.work.Forget(bg, log))
	c = w.chain(nil)
	c.Offer(w.accept(1))
	w.step(c, work.Completed)
	if s := w.holds(w.entries); s.Number != 4 {
		t.Errorf("number %d", s.Number)
	}
}

// A damaged newest snapshot, and a pack that is gone: the chain continues from what is there.
func TestDamageIsGoneRound(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	for range 3 {
		c.Offer(w.accept(2))
		w.step(c, work.Completed)
	}
	if _, err := w.store.Put(bg, layout.LiveSnapshot(mine, 3), []byte("{}"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	var lost []error
	c = w.chain(func(c *Config) { c.Events.Lost = func(err error) { lost = append(lost, err) } })
	c.Offer(w.entries)
	c.Offer(w.accept(1))
	w.step(c, work.Completed)
	if s := w.holds(w.entries); s.Number != 4 || len(lost) == 0 {
		t.Errorf("number %d, told of %v", s.Number, lost)
	}
	s, _ := w.newest()
	w.must(w.store.Delete(bg, s.Packs[0].Key(mine)))
	for range 2 * fan { // until the packs are merged
		c.Offer(w.accept(1))
		w.step(c, work.Completed)
	}
	w.holds(w.entries[2:])
}

// A snapshot of a newer release, made before a downgrade, stays with all of its packs, and the
// chain does not go on over it.
func TestSnapshotOfANewerReleaseIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	for range keep + 1 {
		c.Offer(w.accept(2))
		w.step(c, work.Completed)
	}
	s, _ := w.newest()
	body, err := s.Marshal()
	w.must(err)
	newer := bytes.Replace(body, []byte("live_snapshot.v1"), []byte("live_snapshot.v2"), 1)
	if _, err := w.store.Put(bg, s.Key(), newer, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	before := w.keys(layout.LivePrefix)
	c = w.chain(nil)
	c.Offer(w.entries)
	c.Offer(w.accept(1))
	for range 3 {
		if o, err := c.Step(bg); !errors.Is(err, record.ErrNewerVersion) {
			t.Errorf("step: %s, %v", o, err)
		}
		w.now = w.now.Add(time.Minute)
	}
	if _, _, err := c.Collect(bg); !errors.Is(err, record.ErrNewerVersion) {
		t.Errorf("collect: %v", err)
	}
	if after := w.keys(layout.LivePrefix); !slices.Equal(before, after) {
		t.Errorf("there were %q, there are %q", before, after)
	}
}

// A former owner collects while its successor has written packs and not yet named them.
func TestCollectionLeavesJobsUnderWay(t *testing.T) {
	w := newWorld(t)
	old := w.chain(nil)
	for range fan {
		old.Offer(w.accept(1))
		w.step(old, work.Completed)
	}
	c := w.chain(func(c *Config) {
		c.Store = stopped{w.store, func() {
			if _, _, err := old.Collect(bg); err != nil {
				t.Error(err)
			}
		}}
	})
	c.Offer(w.accept(2))
	w.step(c, work.Completed)
	w.holds(w.entries)
	w.tidy()
}

// Packs that a checkpoint names, of merged ones too, are gone before the job is resumed.
func TestLostPiecesAreMadeAgain(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	for range fan {
		c.Offer(w.accept(1))
		w.step(c, work.Completed)
	}
	die, merged := true, 0
	c = w.chain(func(c *Config) {
		c.Store = failing{w.store, &die}
		c.Events.Packed = func(_ Ref, m bool) {
			if m {
				merged++
			}
		}
	})
	c.Offer(w.accept(3))
	if o, err := c.Step(bg); o != work.Failed || !errors.Is(err, objstore.ErrUnavailable) || merged != 1 {
		t.Fatalf("%s, %v, %d merges", o, err, merged)
	}
	for _, key := range w.keys(layout.LivePacks(mine)) {
		if _, n, _, _ := layout.ParseLivePack(key); n == fan+1 {
			w.must(w.store.Delete(bg, key))
		}
	}
	c = w.chain(nil)
	c.Offer(w.entries[fan:]) // the rest is offered late
	w.step(c, work.Completed)
	if s := w.holds(w.entries); s.Number != fan+1 {
		t.Errorf("number %d", s.Number)
	}
	w.tidy()
}

// TestThousandJobsKeepTheirOrder: jobs that are sent in any order are done in theirs.
func TestThousandJobsKeepTheirOrder(t *testing.T) {
	const jobs = 1000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newWorld(t)
	var order []uint64
	c := w.chain(func(c *Config) {
		c.Events.Committed = func(s *Snapshot) { order = append(order, s.Number) }
	})
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, i := range rng.Perm(jobs) {
		k := work.Key{Log: Log(mine), Number: uint64(i + 1)}
		row := work.Row{Key: k, Topic: Topic(mine), Body: Message(mine, k.Number)}
		if rng.IntN(50) == 0 { // the others' come as those before them end
			w.must(work.Submit(bg, w.work, w.work, row, 0))
			continue
		}
		_, err := w.work.Create(bg, row, nil)
		w.must(err)
	}
	for n := 0; len(order) < jobs; n++ {
		if n > 100*jobs {
			t.Fatalf("%d jobs after %d steps", len(order), n)
		}
		w.now = w.now.Add(100 * time.Millisecond)
		if c.Pending() == 0 {
			c.Offer(w.accept(1))
		}
		if _, err := c.Step(bg); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range order {
		if n != uint64(i+1) {
			t.Fatalf("job %d was done at place %d", n, i+1)
		}
	}
	w.tidy()
	// What is left of the messages is of jobs that are done, but for the next one's.
	for range 2 * jobs {
		w.now = w.now.Add(5 * time.Second)
		if _, err := c.Step(bg); err != nil {
			t.Fatal(err)
		}
		if d, err := w.work.Depth(bg, Topic(mine)); err == nil && d.Ready+d.Hidden == 1 {
			return
		}
	}
	t.Error("messages are left")
}

// TestSnapshotsKeepTheirInterval: what comes meanwhile waits, over a change of owners too; a
// backlog for which one snapshot has no room does not.
func TestSnapshotsKeepTheirInterval(t *testing.T) {
	w := newWorld(t)
	const interval = 20 * time.Minute // more than a message can be delayed
	every := func(c *Config) { c.Interval = interval }
	c := w.chain(every)
	c.Offer(w.accept(1))
	w.step(c, work.Completed)
	made := w.now
	for n := 0; len(w.keys(layout.LiveSnapshots(mine))) < 2; n++ {
		c.Offer(w.accept(1))
		if n == 10 {
			c = w.chain(every)
			c.Offer(w.entries)
		}
		if _, err := c.Step(bg); err != nil || n > 500 {
			t.Fatal(n, err)
		}
		w.now = w.now.Add(5 * time.Second)
	}
	if took := w.now.Sub(made); took < interval*9/10 || took > interval*11/10 {
		t.Errorf("the second snapshot came after %v", took)
	}
	w.holds(w.entries)

	b := newWorld(t)
	c = b.chain(func(c *Config) { every(c); c.PackBatches, c.MaxPending = 2, 150 })
	es := b.accept(200)
	for n := 0; c.Offer(es) && n == 0 || c.Pending() > 0; n++ {
		if _, err := c.Step(bg); err != nil || n > 50 {
			t.Fatal(n, err)
		}
		b.now = b.now.Add(time.Second)
	}
	b.holds(es)
}

// TestALostMessageStopsNoChain: of a job that is pending, or that has not begun.
func TestALostMessageStopsNoChain(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	c.Offer(w.accept(1))
	w.step(c, work.Completed)
	ms, err := w.work.Receive(bg, Topic(mine), 10, time.Minute)
	w.must(err)
	for _, m := range ms {
		w.must(w.work.Delete(bg, m))
	}
	if len(ms) == 0 {
		t.Fatal("no message of the next job")
	}
	c.Offer(w.accept(1))
	if o, err := c.Step(bg); o != work.Idle || err != nil {
		t.Fatal(o, err)
	}
	w.now = w.now.Add(messageCheck)
	w.step(c, work.Completed)
	w.holds(w.entries)
}

// TestSnapshotIsHandedOver: a job that takes longer than its limit is left to the next
// step, which continues from its packs.
func TestSnapshotIsHandedOver(t *testing.T) {
	w := newWorld(t)
	packs := 0
	c := w.chain(func(c *Config) {
		c.PackBatches, c.TimeLimit = 2, 45*time.Second
		c.Events.Packed = func(Ref, bool) { packs++; w.now = w.now.Add(10 * time.Second) }
	})
	c.Offer(w.accept(20))
	over := 0
	for n := 0; len(w.keys(layout.LiveSnapshots(mine))) == 0; n++ {
		o, err := c.Step(bg)
		if err != nil || n > 20 {
			t.Fatal(o, err)
		}
		if o == work.HandedOver {
			over++
		}
	}
	if over < 2 || packs != 10 {
		t.Errorf("handed over %d times, %d packs were written", over, packs)
	}
	w.holds(w.entries)
}

// stopped stops its process at the create of a snapshot.
type stopped struct {
	objstore.Store
	at func()
}

func (s stopped) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if _, _, err := layout.ParseLiveSnapshot(key); err == nil {
		s.at()
	}
	return s.Store.Create(ctx, key, b, o)
}

// An owner that was paused before its commit, past the grant: what its successor made
// stands, and nothing that a snapshot names is lost.
func TestStaleOwnerIsRefused(t *testing.T) {
	for _, rounds := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(rounds, " snapshots by the successor"), func(t *testing.T) {
			w := newWorld(t)
			first := w.chain(nil)
			first.Offer(w.accept(3))
			w.step(first, work.Completed)

			paused := w.accept(2)
			var successor *Chain
			stale := w.chain(func(c *Config) {
				c.Store = stopped{w.store, func() {
					successor = w.chain(nil)
					for range rounds {
						successor.Offer(w.accept(2))
						w.step(successor, work.Completed)
					}
				}}
			})
			stale.Offer(paused)
			o, err := stale.Step(bg)
			if o != work.Lost || !errors.Is(err, work.ErrMoved) {
				t.Errorf("the stale owner: %s, %v", o, err)
			}
			if o, err := stale.Step(bg); o == work.Completed {
				t.Errorf("the stale owner continues: %s, %v", o, err)
			}
			s, got := w.newest()
			if s.Number != uint64(1+rounds) || s.Fence != 3 {
				t.Errorf("number %d, fence %d", s.Number, s.Fence)
			}
			for _, e := range w.entries[:3] {
				if _, ok := got[e.Identity]; !ok {
					t.Errorf("%s is lost", e.Identity)
				}
			}
			successor.Offer(w.accept(1))
			w.step(successor, work.Completed)
			if successor.Offer(paused); successor.Pending() != 0 {
				t.Error("the pack of the stale owner's checkpoint is not taken over")
			}
			w.holds(w.entries)
			w.tidy()
		})
	}
}
