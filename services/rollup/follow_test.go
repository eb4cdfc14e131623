package rollup

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// A batch of many hours has to be read before it is known which they are. While its frame can't be read, it waits,
// and the batches beside it and behind it do not.
func TestABatchThatCanNotBeTakenNow(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	wide := w.acceptSilently(agent, 0, one(hour0-9, time.Minute), one(hour0-4, time.Minute), one(hour0, 30*time.Second))
	good := w.acceptSilently(agent, 10, one(hour0, 20*time.Minute))
	w.enter(wide, good)
	faulty := fault.New(w.store, 1, fault.Refused("get", wide.RawBlobKey, objstore.ErrDenied))
	svc := w.worker(testConfig(), faulty)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	w.accept(agent, 20, one(hour0, 40*time.Minute))
	must(t, rounds(t.Context(), o))
	svc.board.Enter(o.Status())
	if st := svc.Shards()[0]; st.DeferredBatches != 1 || !st.Behind || testutil.ToFloat64(svc.m.Deferred.WithLabelValues("0000", "deferred")) != 1 {
		t.Errorf("status %+v", st)
	}
	if block := w.set(hour0, 0, timegrid.Raw); block == nil || block.Inputs.Batches() != 2 {
		t.Fatalf("the others: %+v", block)
	}
	if left := w.left(0); len(left) != 1 {
		t.Errorf("left %v", left)
	}
	// A new owner finds it in the record of the shard's progress, or behind its positions.
	w.advance(time.Hour)
	must(t, o.Arrivals.End(t.Context()))
	faulty.Clear()
	o, err = w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 2})
	must(t, err)
	w.drain(o, time.Minute, 10)
	for _, h := range []timegrid.Hour{hour0 - 9, hour0 - 4} {
		w.check(h, 0, 1)
	}
	w.check(hour0, 0, 2)
}

// A listing that fails keeps no hour from being rolled up that is known already, and nothing that is refused keeps the
// worker from the rest.
func TestWhatFailsKeepsNothingElse(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0, 0, 3, 0)
	faulty := fault.New(w.store, 1)
	o, err := w.owner(w.worker(testConfig(), faulty), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	if _, err := o.Arrivals.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	faulty.Add(fault.NotApplied("list", layout.JournalPrefix), fault.Refused("create", layout.RollupProgress(0), objstore.ErrDenied))
	for range 4 {
		if _, err := o.Round(t.Context()); err == nil {
			t.Fatal("nothing is said of the listing")
		}
	}
	w.check(hour0, 0, 1)
	if left := w.left(0); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	faulty.Clear()
	w.some(agent, hour0, 10, 1, seq)
	w.drain(o, time.Minute, 10)
	w.check(hour0, 0, 2)
}

const seeds = 4

// TestMovesAndFaults: batches of all kinds in an order by seed, requests that fail or whose
// answers are lost, clocks that jump, owners that change without a word: in the end every
// batch is in its hours' sets once, but for those whose frames are gone until they are back.
func TestMovesAndFaults(t *testing.T) {
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 17))
			w := newWorld(t, newMem())
			cfg := testConfig()
			cfg.Follow.MaxPending, cfg.Schedule.FirstAfter = 25, time.Minute
			w.clock.Store(at(hour0, 30*time.Minute).UnixNano())
			faulty := fault.New(w.store, seed,
				fault.Rule{Op: "write", Kind: fault.After, Chance: 0.02}, fault.Rule{Op: "write", Kind: fault.Before, Chance: 0.02},
				fault.Rule{Op: "read", Kind: fault.Before, Chance: 0.02})
			var gone, held []accepted.Batch
			var lastSeq uint64
			var o *driven
			fence := uint64(0)
			for range 60 {
				for range rnd.IntN(8) {
					var h timegrid.Hour
					switch now := timegrid.HourStarting(w.now()); rnd.IntN(4) {
					case 0:
						h = now
					case 1:
						h = now - timegrid.Hour(rnd.IntN(4))
					case 2:
						h = now + 2 + timegrid.Hour(rnd.IntN(3))
					default:
						h = now + timegrid.Hour(rnd.IntN(100_000))
					}
					lastSeq += 2
					e := w.acceptSilently(agentOf(0, rnd.IntN(3)), lastSeq, one(h, time.Duration(1+rnd.IntN(3500_000))*time.Millisecond))
					if rnd.IntN(6) == 0 {
						w.lose([]accepted.Batch{e})
						gone = append(gone, e)
					}
					for range 1 + rnd.IntN(2) { // some stand there twice
						held = append(held, e)
					}
				}
				if rnd.IntN(3) == 0 {
					w.enter(held...)
					held = nil
				}
				if o == nil || rnd.IntN(10) == 0 {
					fence++
					if next, err := w.owner(w.worker(cfg, faulty), ownership.Grant{Shard: 0, Fence: fence}); err == nil {
						o = next
					}
				}
				for range rnd.IntN(4) {
					if o != nil {
						_, _ = o.Round(t.Context())
					}
				}
				w.advance(time.Duration(rnd.IntN(int(20 * time.Minute))))
				switch rnd.IntN(30) {
				case 0:
					w.advance(24 * time.Hour)
				case 1:
					w.advance(-24 * time.Hour)
				}
			}
			w.enter(held...)
			faulty.Clear()
			w.restore(gone)
			if rnd.IntN(2) == 0 || o == nil {
				var err error
				o, err = w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: fence + 1})
				must(t, err)
			}
			for range 60 * 24 {
				_ = rounds(t.Context(), o)
				w.advance(time.Minute)
				if o.Shard.Backlog.Len() == 0 && len(w.left(0)) == 0 {
					break
				}
			}
			if left := w.left(0); len(left) > 0 {
				t.Fatalf("left %v, %d batches", left, o.Shard.Backlog.Len())
			}
			hours := map[timegrid.Hour]bool{}
			for _, e := range w.accepted {
				h, _ := e.Hours()
				hours[h] = true
			}
			for h := range hours {
				w.check(h, 0, w.generation(h, 0))
			}
			t.Logf("%d batches of %d hours, %d requests", len(w.accepted), len(hours), faulty.Count("", ""))
		})
	}
}

// TestArrivalsOverTheEmbeddedStore: a running worker over HTTP, with all of it at once: hours far ahead, frames that are gone, more batches than may be pending.
func TestArrivalsOverTheEmbeddedStore(t *testing.T) {
	w := newWorld(t, realStore(t))
	cfg := testConfig()
	cfg.Follow.MaxPending, cfg.Schedule.FirstAfter = 20, time.Minute
	cfg.Compact.Interval = 0 // it would merge the hours that are compared, on a machine that is slow enough
	w.clock.Store(at(hour0, 30*time.Minute).UnixNano())
	broken, right := agentOf(0, 0), agentOf(0, 1)
	var es []accepted.Batch
	for i := range 30 {
		es = append(es, w.acceptSilently(broken, uint64(i), one(hour0+1000*timegrid.Hour(i%10), time.Duration(i+1)*time.Minute)))
	}
	w.enter(es...)
	w.lose(es[20:])
	w.some(right, hour0, 0, 30, 0)
	late := w.accept(right, 1000, one(hour0-9, time.Minute))
	s := w.start(t, cfg, w.store)
	done := func(e accepted.Batch) bool {
		h, _ := e.Hours()
		block := w.set(h, 0, timegrid.OneHour)
		return block != nil && block.Inputs.Covers(e.Identity)
	}
	eventually(t, "the late batch, and those far ahead", func() bool {
		w.advance(time.Minute)
		return done(late) && !slices.ContainsFunc(es[:20], func(e accepted.Batch) bool { return !done(e) })
	})
	w.restore(es[20:])
	eventually(t, "everything is rolled up", func() bool { w.advance(time.Minute); return len(w.left(0)) == 0 })
	for _, h := range []timegrid.Hour{hour0 - 9, hour0, hour0 + 1000, hour0 + 9000} {
		w.check(h, 0, w.generation(h, 0))
	}
	for _, st := range s.Shards() {
		if st.PendingBatches > 0 {
			t.Errorf("status %+v", st)
		}
	}
}
