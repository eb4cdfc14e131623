package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
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

// The successor makes the number after all that store and table know.
func TestNumbersGoOn(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	for range 3 {
		c.Offer(w.accept(1))
		w.step(c, work.Completed)
	}
	c = w.chain(nil)
	c.Offer(w.accept(1))
	w.step(c, work.Completed)
	if s := w.holds(w.entries); s.Number != 4 {
		t.Errorf("number %d", s.Number)
	}
	row, err := w.work.Create(bg, work.Row{Key: work.Key{Log: Log(mine), Number: 9}, Topic: topic(mine), Body: JobBody(mine, 9)}, nil)
	w.must(err)
	w.must(w.work.Done(bg, row))
	c = w.chain(nil)
	c.Offer(w.accept(1))
	w.step(c, work.Completed)
	if s := w.holds(w.entries); s.Number != 10 {
		t.Errorf("number %d", s.Number)
	}
}

// TestRequestsOfASnapshot: what one of new batches costs; docs/protocol/snapshots.md has it. A step that finds nothing due
// costs nothing at all.
func TestRequestsOfASnapshot(t *testing.T) {
	w := newWorld(t)
	store, l := storetest.Count(w.store), &life{at: math.MaxInt}
	c := w.chain(func(c *Config) { c.Store, c.Table, c.PackBatches = store, mortalTable{w.work, l}, 40 })
	w.step(c, work.Idle)
	if got := store.All(); store.Of("", "") != 1 || store.Of("list", layout.LiveSnapshotsPrefix) != 1 || l.calls != 2 {
		t.Errorf("a start: %v, %d calls of the table", got, l.calls)
	}
	for k := range 2 * fan {
		store.Reset()
		l.calls = 0
		c.Offer(w.accept(1))
		w.step(c, work.Completed)
		for range 10 {
			w.step(c, work.Idle)
		}
		creates, deletes := store.Of("create", ""), store.Of("delete", "")
		switch {
		case k == 0: // the first one looks for packs that its predecessors left
			if store.Of("list", "") != 2 {
				t.Errorf("the first: %v", store.All())
			}
		case k < keep:
			if creates != 2 || store.Of("", "") != 2 || l.calls != 0 {
				t.Errorf("snapshot %d: %v, %d calls of the table", k+1, store.All(), l.calls)
			}
		case k < fan:
			if creates != 2 || deletes != 1 || store.Of("", "") != 3 || l.calls != 0 {
				t.Errorf("snapshot %d: %v, %d calls of the table", k+1, store.All(), l.calls)
			}
		case k == fan: // eight packs are merged, and a ninth is new: create and done of a row
			if creates != 3 || store.Of("get", layout.LivePacks(mine)) != fan || l.calls != 2 {
				t.Errorf("snapshot %d: %v, %d calls of the table", k+1, store.All(), l.calls)
			}
		case store.Of("list", "") != 0 || l.calls != 0:
			t.Errorf("snapshot %d: %v, %d calls of the table", k+1, store.All(), l.calls)
		}
		w.tidy()
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

// TestRowsOfOtherOwners: rows of jobs that are done, or were never begun, hold nothing up, and go.
func TestRowsOfOtherOwners(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	for range 3 {
		c.Offer(w.accept(1))
		w.step(c, work.Completed)
	}
	for _, n := range []uint64{5, 2, 3, 4} {
		_, err := w.work.Create(bg, work.Row{Key: work.Key{Log: Log(mine), Number: n}, Topic: topic(mine), Body: JobBody(mine, n)}, nil)
		w.must(err)
	}
	c = w.chain(func(c *Config) { c.PackBatches = 2 })
	w.step(c, work.Idle) // a row of a job that has not begun makes none due
	c.Offer(w.accept(4)) // in two packs, so that the row is needed
	w.step(c, work.Completed)
	if s := w.holds(w.entries); s.Number != 4 {
		t.Errorf("number %d", s.Number)
	}
	c.Offer(w.accept(4))
	if o, err := c.Step(bg); o != work.Lost || !errors.Is(err, work.ErrMoved) {
		t.Errorf("%s, %v: there is a row that this owner has not made", o, err)
	}
	w.step(c, work.Completed)
	if s := w.holds(w.entries); s.Number != 5 {
		t.Errorf("number %d", s.Number)
	}
	if rows, _, err := w.work.Rows(bg, Log(mine), "", 10); err != nil || len(rows) != 0 {
		t.Errorf("%+v, %v", rows, err)
	}
	w.tidy()
}

// TestNothingWaitsAtTheEnd: before a shard is given back all that waits is packed, whatever the interval.
func TestNothingWaitsAtTheEnd(t *testing.T) {
	w := newWorld(t)
	c := w.chain(func(c *Config) { c.Interval, c.PackBatches, c.MaxPending = time.Hour, 2, 300 })
	c.Offer(w.accept(1))
	w.step(c, work.Completed)
	c.Offer(w.accept(2*maxNewPacks + 3)) // more than one snapshot takes
	w.step(c, work.Idle)
	w.must(c.Finish(bg))
	w.holds(w.entries)
	if s, _ := w.newest(); s.Number != 3 || c.Pending() != 0 {
		t.Errorf("number %d, %d wait", s.Number, c.Pending())
	}
	w.must(c.Finish(bg)) // and no snapshot more
	if n := len(w.keys(layout.LiveSnapshots(mine))); n != 3 {
		t.Errorf("%d snapshots", n)
	}
}

// TestSnapshotsKeepTheirInterval: what comes meanwhile waits, over a change of owners too; a
// backlog for which one snapshot has no room does not.
func TestSnapshotsKeepTheirInterval(t *testing.T) {
	w := newWorld(t)
	const interval = 20 * time.Minute // more than between two listings
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
			w.step(stale, work.Completed)
			s, got := w.newest()
			if s.Number != uint64(1+rounds) || s.Fence != 3 {
				t.Errorf("number %d, fence %d", s.Number, s.Fence)
			}
			for _, e := range w.entries[:3] {
				if _, ok := got[e.Identity]; !ok {
					t.Errorf("%s is lost", e.Identity)
				}
			}
			w.now = w.now.Add(scanEvery) // by then the successor has found what the stale owner left
			successor.Offer(paused)
			successor.Offer(w.accept(1))
			w.step(successor, work.Completed)
			w.holds(w.entries)
			w.tidy()
		})
	}
}
