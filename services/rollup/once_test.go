package rollup

import (
	"context"
	cryptorand "crypto/rand"
	"fmt"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// folded folds everything that the journal has and deletes its segments: who did not follow it reads the files.
func (w *world) folded() {
	w.t.Helper()
	must(w.t, w.journal.Close(w.t.Context()))
	f, err := journal.NewFolder(journal.FolderConfig{Store: w.store, Rand: cryptorand.Reader})
	must(w.t, err)
	from, err := f.Load(w.t.Context())
	must(w.t, err)
	follower, err := journal.NewFollower(journal.FollowerConfig{Store: w.store, Authority: testAuthority, From: from, Segment: func(_ context.Context, s *journal.Segment) error { return f.Add(s) },
		Folded: func(context.Context, []journal.Entry) error { return nil }})
	must(w.t, err)
	_, err = follower.Poll(w.t.Context())
	must(w.t, err)
	for range 3 {
		_, err = f.Fold(w.t.Context(), w.clock.Add(int64(time.Second)))
		must(w.t, err)
	}
}

// A frame comes back after every process that knew of its loss is gone, and nobody says so to the workers: the batch is
// rolled up, by the worker that waits for it, or by the shard's next owner. Nothing that a reconciler has takes part.
func TestHealedBatchIsRolledUpByASuccessor(t *testing.T) {
	for _, successor := range []bool{false, true} {
		for _, dies := range []bool{false, true} {
			for _, folds := range []bool{false, true} {
				t.Run(fmt.Sprintf("successor %v, dies %v, folded %v", successor, dies, folds), func(t *testing.T) {
					w := newWorld(t, newMem())
					w.some(agentOf(0, 0), hour0, 0, 3, 0)
					gone := w.accepted[1:2]
					w.lose(gone)
					o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 1})
					must(t, err)
					w.turns(o)
					if block := w.set(hour0, 0, timegrid.Raw); block == nil || block.Inputs.Batches() != 2 {
						t.Fatalf("the others: %+v", block)
					}
					if !w.waiting(0)[gone[0].Identity] {
						t.Fatal("the record of the shard's progress says that it is in a block")
					}
					if folds {
						w.folded()
					}
					w.restore(gone)
					if successor {
						if !dies {
							must(t, o.Arrivals.End(t.Context()))
						}
						o, err = w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 2})
						must(t, err)
					}
					w.drain(o, 10*time.Minute, 60)
					if left := w.left(0); len(left) > 0 {
						t.Fatalf("left: %v", left)
					}
					w.check(hour0, 0, w.generation(hour0, 0))
				})
			}
		}
	}
}

// numbers accepts a batch of n numbers from seq on, a minute apart.
func (w *world) numbers(agent string, h timegrid.Hour, seq uint64, n int) accepted.Batch {
	w.t.Helper()
	var ps []point
	for i := range n {
		ps = append(ps, point{"m", series.Gauge, at(h, time.Duration(i+1)*time.Minute+time.Duration(seq)*time.Millisecond), float64(seq) + float64(i)})
	}
	return w.acceptSilently(agent, seq, ps...)
}

// published counts the records that the raw blocks of hours have.
func (w *world) published(hours ...timegrid.Hour) (n uint64) {
	w.t.Helper()
	for _, h := range hours {
		if block := w.set(h, 0, timegrid.Raw); block != nil {
			n += block.Counts.Published
		}
	}
	return n
}

// Numbers 0-9 and 5-14 of one boot are 15 records, however far apart their samples are, in whatever order they come, and
// whoever owns the shard meanwhile.
func TestNumbersCountOnceHoursApart(t *testing.T) {
	for _, apart := range []timegrid.Hour{2, 3, 100} {
		for name, waves := range map[string][][]int{"together": {{0, 1}}, "in order": {{0}, {1}}, "the first one late": {{1}, {0}}} {
			for _, changes := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d hours apart, %s, owner changes %v", apart, name, changes), func(t *testing.T) {
					w := newWorld(t, newMem())
					agent := agentOf(0, 0)
					accept := []func() accepted.Batch{
						func() accepted.Batch { return w.numbers(agent, hour0-apart, 0, 10) },
						func() accepted.Batch { return w.numbers(agent, hour0, 5, 10) },
					}
					o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 1})
					must(t, err)
					for i, wave := range waves {
						if changes && i > 0 {
							o, err = w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 2})
							must(t, err)
						}
						for _, k := range wave {
							w.enter(accept[k]())
						}
						w.turns(o)
					}
					for _, h := range []timegrid.Hour{hour0 - apart, hour0} {
						w.check(h, 0, w.generation(h, 0))
					}
					if n := w.published(hour0-apart, hour0); n != 15 {
						t.Errorf("%d records of 15 numbers", n)
					}
					rep, err := w.repairer().Verify(t.Context(), repair.Options{From: hour0 - apart, To: hour0})
					must(t, err)
					if rep.Found != 0 || rep.Overlaps != 1 || rep.Batches != 2 {
						t.Errorf("%+v", rep)
					}
				})
			}
		}
	}
}

// Blocks of a worker that did not know of an overlap count numbers twice, each of them conserved: verify finds it over all
// hours, not while one of the batches is on its way, and reading the journal again mends it.
func TestVerifyFindsNumbersThatCountTwice(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	x, y := w.numbers(agent, hour0-4, 0, 10), w.numbers(agent, hour0, 5, 10)
	restore := w.hidden(y)
	w.enter(x)
	w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 1})
	restore()
	restore = w.hidden(x)
	w.enter(y)
	o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 2})
	must(t, err)
	w.turns(o)
	restore()
	if n := w.published(hour0-4, hour0); n != 20 {
		t.Fatalf("%d records", n)
	}
	must(t, o.Arrivals.End(t.Context()))
	found := w.verify(repair.CountedTwice)
	if len(found) != 2 || found[0].Hour != hour0-4 || found[1].Hour != hour0 {
		t.Errorf("found %v", found)
	}
	// Of a shard or a range that does not have them, nothing is said.
	other := repair.Options{From: hour0 + 1, To: hour0 + 5}
	rep, err := w.repairer().Verify(t.Context(), other)
	must(t, err)
	if rep.Found != 0 || rep.Overlaps != 1 {
		t.Errorf("%+v", rep)
	}
	// As lmctl reprocess does.
	p, etag, err := progress.Read(t.Context(), w.store, testAuthority, 0, testShards)
	must(t, err)
	p.Positions = journal.Positions{}
	_, err = p.Write(t.Context(), w.store, etag)
	must(t, err)
	w.verify() // both are behind the record's positions
	o, err = w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 3})
	must(t, err)
	w.turns(o)
	must(t, o.Arrivals.End(t.Context()))
	w.verify()
	if n := w.published(hour0-4, hour0); n != 15 {
		t.Errorf("%d records of 15 numbers", n)
	}
	for _, h := range []timegrid.Hour{hour0 - 4, hour0} {
		w.check(h, 0, w.generation(h, 0))
	}
}

// What a claim left behind that moved on to another batch is in no journal: it takes no part in an hour, and verify misses nothing.
func TestABatchThatLostToAnotherRegionCountsNowhere(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	x, y := w.numbers(agent, hour0, 0, 10), w.numbers(agent, hour0, 5, 10)
	m, err := accept.ReadManifest(t.Context(), w.store, y.Identity)
	must(t, err)
	m.HomeRegion, m.ClaimEpoch, m.ClaimFence = "us", 1, 7
	_, err = w.store.Put(t.Context(), layout.Accepted(y.Identity), m.Marshal(), objstore.PutOptions{})
	must(t, err)
	w.enter(x)
	w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 1})
	if n := w.published(hour0); n != 10 {
		t.Errorf("%d records, of 10 that were accepted", n)
	}
	rep, err := w.repairer().Verify(t.Context(), repair.Options{From: hour0, To: hour0})
	must(t, err)
	if rep.Found != 0 || rep.Overlaps != 1 {
		t.Errorf("%+v", rep)
	}
}

// A collector without claims died between the manifest of a batch and its entry, and then its bucket became one of several regions':
// who has the numbers the linearizer decides. Until the journal has the batch it takes no part in an hour; when it comes it does.
func TestABatchOfBeforeThereWereRegionsCountsByItsEntry(t *testing.T) {
	for name, c := range map[string]struct {
		region, incomplete, comes bool
		want                      uint64
	}{
		"no region":                       {want: 15},
		"of a region":                     {region: true, want: 10},
		"of a region, and it comes":       {region: true, comes: true, want: 15},
		"of a region, and nobody can say": {region: true, incomplete: true, want: 15},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMem())
			agent := agentOf(0, 0)
			x, y := w.numbers(agent, hour0, 0, 10), w.numbers(agent, hour0, 5, 10)
			if c.region {
				_, err := w.store.Create(t.Context(), layout.RegionsKey, []byte("{}"), objstore.PutOptions{})
				must(t, err)
			}
			w.enter(x)
			if c.incomplete {
				must(t, w.store.Delete(t.Context(), layout.JournalBeginKey))
			}
			o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 1})
			must(t, err)
			w.turns(o)
			if c.comes {
				w.enter(y)
				w.drain(o, 10*time.Minute, 60)
			}
			if n := w.published(hour0); n != c.want {
				t.Errorf("%d records, want %d", n, c.want)
			}
			rep, err := w.repairer().Verify(t.Context(), repair.Options{From: hour0, To: hour0})
			must(t, err)
			if rep.Found != 0 || rep.Overlaps != 1 {
				t.Errorf("%+v", rep)
			}
		})
	}
}

// A batch that is known only because another one overlaps it, and comes itself while it is pending, is published in the
// hours that it has samples in.
func TestABatchThatOverlapsOneThatComesLater(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	x, y := w.numbers(agent, hour0-3, 0, 10), w.numbers(agent, hour0, 5, 10)
	o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	follow := func() {
		_, err := o.wk.arrivals.Poll(t.Context())
		must(t, err)
		_, err = o.Arrivals.Follow(t.Context())
		must(t, err)
	}
	w.enter(y)
	follow()
	w.enter(x)
	follow()
	w.turns(o)
	if left := w.left(0); len(left) > 0 {
		t.Fatalf("left: %v", left)
	}
	for _, h := range []timegrid.Hour{hour0 - 3, hour0} {
		w.check(h, 0, w.generation(h, 0))
	}
	if n := w.published(hour0-3, hour0); n != 15 {
		t.Errorf("%d records of 15 numbers", n)
	}
}

// Which hours a batch has between its first and its last only its frame says. One that can't be read when the batch comes,
// and comes back, is rolled up in all of them, by whoever owns the shard then.
func TestAWideFrameThatComesBack(t *testing.T) {
	for _, successor := range []bool{false, true} {
		w := newWorld(t, newMem())
		wide := w.acceptSilently(agentOf(0, 0), 0, one(hour0-9, time.Minute), one(hour0-4, time.Minute), one(hour0, 30*time.Second))
		w.enter(wide)
		w.lose([]accepted.Batch{wide})
		o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 1})
		must(t, err)
		w.turns(o)
		if n := w.published(hour0-9, hour0-4, hour0); n != 0 {
			t.Fatalf("%d records without a frame", n)
		}
		w.restore([]accepted.Batch{wide})
		if successor {
			must(t, o.Arrivals.End(t.Context()))
			o, err = w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 2})
			must(t, err)
		}
		w.drain(o, 10*time.Minute, 60)
		if left := w.left(0); len(left) > 0 {
			t.Fatalf("successor %v: left: %v", successor, left)
		}
		for _, h := range []timegrid.Hour{hour0 - 9, hour0 - 4, hour0} {
			w.check(h, 0, w.generation(h, 0))
		}
	}
}

// The frame of a published batch is gone when one comes that shares numbers with it, hours apart. The hour of the second
// needs the first one's numbers and not its frame.
func TestNumbersOfALostFrameCountOnce(t *testing.T) {
	for _, late := range []bool{false, true} {
		w := newWorld(t, newMem())
		agent := agentOf(0, 0)
		o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 1})
		must(t, err)
		first := w.numbers(agent, hour0-3, 0, 10)
		w.enter(first)
		if late {
			w.enter(w.numbers(agent, hour0, 20, 10))
		}
		must(t, w.turns(o))
		w.lose([]accepted.Batch{first})
		if late {
			for range 8 { // so that what comes is late in its hour
				must(t, w.turns(o))
			}
		}
		w.enter(w.numbers(agent, hour0, 5, 10))
		for range 3 {
			_ = w.turns(o) // the first one's hour can't be made once more
		}
		want := uint64(15)
		if late {
			want += 10
		}
		if n := w.published(hour0-3, hour0); n != want {
			t.Errorf("late %v: %d records of %d numbers", late, n, want)
		}
		if block := w.set(hour0, 0, timegrid.Raw); block == nil || !block.Inputs.Covers(first.Identity) || block.Counts.Overlapped != 5 {
			t.Errorf("late %v: %+v", late, block)
		}
	}
}

// hidden takes a batch's manifest away until restore is called: nobody knows that it was accepted.
func (w *world) hidden(e accepted.Batch) (restore func()) {
	w.t.Helper()
	b, _, err := w.store.Get(w.t.Context(), layout.Accepted(e.Identity), objstore.GetOptions{})
	must(w.t, err)
	must(w.t, w.store.Delete(w.t.Context(), layout.Accepted(e.Identity)))
	return func() { w.spoil(layout.Accepted(e.Identity), string(b)) }
}

// The frame of a published batch is gone when another comes late into its hour: what loses numbers to it, or shares none,
// is added to the rows that are published.
func TestALateBatchBesideALostFrame(t *testing.T) {
	for name, from := range map[string]uint64{"shares numbers": 5, "has numbers of its own": 30} {
		w := newWorld(t, newMem())
		agent := agentOf(0, 0)
		o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 1})
		must(t, err)
		first := w.numbers(agent, hour0, 0, 10)
		w.enter(first)
		must(t, w.turns(o))
		w.lose([]accepted.Batch{first})
		w.enter(w.numbers(agent, hour0, from, 10))
		if err := w.turns(o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if left := w.left(0); len(left) > 0 {
			t.Errorf("%s: left: %v", name, left)
			continue
		}
		w.check(hour0, 0, 2)
		w.verify()
	}
}

// The frame of a published batch is gone, and one that wins numbers from it, or repeats one of its records, comes late.
// It waits for the frame, in all of its hours; others of the hour don't wait, and no number counts twice meanwhile.
func TestABatchThatNeedsALostFrame(t *testing.T) {
	for _, c := range []struct {
		name  string
		apart timegrid.Hour
		late  func(w *world, agent string) accepted.Batch
	}{
		{"wins numbers", 0, func(w *world, agent string) accepted.Batch { return w.numbers(agent, hour0, 5, 10) }},
		{"wins numbers, hours apart", 3, func(w *world, agent string) accepted.Batch { return w.numbers(agent, hour0, 5, 10) }},
		{"wins numbers of later hours", -3, func(w *world, agent string) accepted.Batch { return w.numbers(agent, hour0-6, 5, 10) }},
		{"repeats a record", 0, func(w *world, agent string) accepted.Batch {
			return w.acceptSilently(agent, 50, point{"m", series.Gauge, at(hour0, time.Minute), 1})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, newMem())
			agent := agentOf(0, 0)
			late := c.late(w, agent)
			restore := w.hidden(late)
			first := w.numbers(agent, hour0-max(c.apart, 0), 0, 10)
			w.enter(first)
			svc := w.worker(testConfig(), w.store)
			o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
			must(t, err)
			must(t, w.turns(o))
			w.lose([]accepted.Batch{first})
			restore()
			w.enter(late, w.numbers(agent, hour0-max(c.apart, 0), 20, 10), w.numbers(agent, hour0, 40, 5))
			for range 3 {
				_ = w.turns(o)
			}
			if err := w.turns(o); err != nil {
				t.Errorf("an hour still fails: %v", err)
			}
			hours := slices.Compact([]timegrid.Hour{hour0 - 6, hour0 - 3, hour0})
			if n := w.published(hours...); n != 25 {
				t.Errorf("%d records of 25 numbers", n)
			}
			if waiting := w.waiting(0); len(waiting) != 1 || !waiting[late.Identity] {
				t.Errorf("waiting: %v", waiting)
			}
			w.verify()
			generation := w.generation(hour0, 0)
			w.restore([]accepted.Batch{first})
			w.drain(o, 10*time.Minute, 60)
			if left := w.left(0); len(left) > 0 {
				t.Fatalf("left: %v", left)
			}
			for _, h := range hours {
				if g := w.generation(h, 0); g > 0 {
					w.check(h, 0, g)
				}
			}
			if g := w.generation(hour0, 0); g > generation+1 {
				t.Errorf("generation %d, and %d while the batch waited", g, generation)
			}
			w.verify()
		})
	}
}
