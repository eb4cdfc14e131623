package rollup

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/owner"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// badSegments writes a segment that is none, one of another number of shards, and one
// under another shard's key, as the first ones of the shard's intake.
func (w *world) badSegments(id shard.ID) (keys []string) {
	w.t.Helper()
	agent := ""
	for i := 0; agent == "" || shard.Of(agent, 2*testShards) != id; i++ {
		agent = fmt.Sprintf("elsewhere-%d", i)
	}
	e := accepted.Batch{
		Identity: identity.Batch{Agent: agent, Boot: "b", SeqEnd: 1}, FrameSHA256: identity.Sum([]byte("x")), FrameBytes: 1,
		MinTime: at(hour0, time.Minute).UnixNano(), MaxTime: at(hour0, time.Minute).UnixNano(),
	}
	foreign, err := intake.Segment{Shard: id, Shards: 2 * testShards, Entries: []accepted.Batch{e}}.Marshal()
	must(w.t, err)
	e.Agent = agentOf(1-id, 0)
	misplaced, err := intake.Segment{Shard: 1 - id, Shards: testShards, Entries: []accepted.Batch{e}}.Marshal()
	must(w.t, err)
	for i, body := range [][]byte{[]byte("{"), foreign, misplaced} {
		key := layout.IntakeSegment(id, fmt.Sprintf("%04x", i), 0)
		_, err := w.store.Create(w.t.Context(), key, body, objstore.PutOptions{})
		must(w.t, err)
		keys = append(keys, key)
	}
	return keys
}

// Segments that can't be read, or are not of this authority, are logged and left alone.
// One that can't be read now is tried again. None holds up those behind it.
func TestSegmentsThatCanNotBeTaken(t *testing.T) {
	w := newWorld(t, newMem())
	bad := w.badSegments(0)
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0, 0, 3, 0)
	refused := layout.IntakeSegment(0, "abcd", 1)
	faulty := fault.New(w.store, 1, fault.Refused("get", refused, objstore.ErrDenied))
	var logged bytes.Buffer
	svc := w.worker(testConfig(), faulty)
	svc.log = slog.New(slog.NewTextHandler(&logged, nil))
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	must(t, rounds(t.Context(), o))
	if s := w.set(hour0, 0, timegrid.Raw); s == nil || s.Inputs.Batches() != 2 {
		t.Fatalf("with one that is refused: %+v", s)
	}
	svc.board.Note(o.Status())
	if st := svc.Shards()[0]; st.DeferredSegments != 1 || testutil.ToFloat64(svc.m.Deferred.WithLabelValues("0000", "segments")) != 1 {
		t.Errorf("status %+v", st)
	}
	for what, want := range map[string]float64{"corrupt": 2, "foreign": 1, "read": 2} {
		if n := testutil.ToFloat64(svc.m.Segments.WithLabelValues(what)); n != want {
			t.Errorf("%v segments are %s, want %v", n, what, want)
		}
	}
	if testutil.ToFloat64(svc.m.Segments.WithLabelValues("deferred")) == 0 {
		t.Error("no segment is counted as deferred")
	}
	for _, key := range append(bad, refused) {
		if !bytes.Contains(logged.Bytes(), []byte(key)) {
			t.Errorf("nothing is said of %s", key)
		}
	}
	faulty.Clear()
	w.some(agent, hour0, 10, 1, seq)
	w.advance(time.Hour)
	must(t, rounds(t.Context(), o))
	w.advance(time.Hour)
	must(t, rounds(t.Context(), o))
	w.check(hour0, 0, w.generation(hour0, 0))
	if s := w.set(hour0, 0, timegrid.Raw); s.Inputs.Batches() != 4 {
		t.Errorf("%d batches", s.Inputs.Batches())
	}
	if left := w.left(0); fmt.Sprint(left) != fmt.Sprint(bad) {
		t.Errorf("left %v, want %v", left, bad)
	}
	// They are read again once per rescan, not in every round.
	n := testutil.ToFloat64(svc.m.Segments.WithLabelValues("corrupt"))
	for range 20 {
		must(t, rounds(t.Context(), o))
	}
	if m := testutil.ToFloat64(svc.m.Segments.WithLabelValues("corrupt")); m != n {
		t.Errorf("read %v more times", m-n)
	}
	// Somebody puts one right: the next rescan takes it.
	e := w.acceptSilently(agent, 500, one(hour0, 50*time.Minute))
	body, err := intake.Segment{Shard: 0, Shards: testShards, Entries: []accepted.Batch{e}}.Marshal()
	must(t, err)
	_, err = w.store.Put(t.Context(), bad[0], body, objstore.PutOptions{})
	must(t, err)
	w.advance(svc.cfg.Intake.Recheck)
	must(t, rounds(t.Context(), o))
	w.advance(svc.cfg.Schedule.LateAfter)
	must(t, rounds(t.Context(), o))
	w.check(hour0, 0, w.generation(hour0, 0))
	if left := w.left(0); fmt.Sprint(left) != fmt.Sprint(bad[1:]) {
		t.Errorf("left %v, want %v", left, bad[1:])
	}
}

// A listing, or a table of pending work, that fails keeps no hour from being rolled up
// that is known already; a delete that is refused keeps none of the others.
func TestWhatFailsKeepsNothingElse(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0, 0, 3, 0)
	faulty := fault.New(w.store, 1)
	o, err := w.owner(w.worker(testConfig(), faulty), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	if _, err := o.Intake.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	faulty.Add(fault.NotApplied("list", layout.IntakePrefix), fault.Refused("delete", layout.IntakeSegment(0, "abcd", 0), objstore.ErrDenied))
	for range 4 {
		if _, err := o.Round(t.Context()); err == nil {
			t.Fatal("nothing is said of the listing")
		}
	}
	w.check(hour0, 0, 1)
	if left := w.left(0); len(left) != 1 {
		t.Errorf("%d segments are left, want the one that is not to be deleted", len(left))
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
			cfg.Intake.MaxPending, cfg.Schedule.FirstAfter = 25, time.Minute
			w.clock.Store(at(hour0, 30*time.Minute).UnixNano())
			faulty := fault.New(w.store, seed,
				fault.Rule{Op: "write", Kind: fault.After, Chance: 0.02}, fault.Rule{Op: "write", Kind: fault.Before, Chance: 0.02},
				fault.Rule{Op: "read", Kind: fault.Before, Chance: 0.02})
			bad := w.badSegments(0)
			var gone, held []accepted.Batch
			var lastSeq uint64
			var o *owner.Owner
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
					w.enter(0, held)
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
			w.enter(0, held)
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
				if o.Shard.Backlog.Len() == 0 && len(w.left(0)) == len(bad) {
					break
				}
			}
			if left := w.left(0); fmt.Sprint(left) != fmt.Sprint(bad) {
				t.Fatalf("left %d segments, %d batches", len(left), o.Shard.Backlog.Len())
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

// TestIntakeOverTheEmbeddedStore: a running worker over HTTP, with all of it at once: bad
// segments first, hours far ahead, frames that are gone, more batches than may be pending.
func TestIntakeOverTheEmbeddedStore(t *testing.T) {
	w := newWorld(t, realStore(t))
	cfg := testConfig()
	cfg.Intake.MaxPending, cfg.Schedule.FirstAfter = 20, time.Minute
	cfg.Compact.Interval = 0 // it would merge the hours that are compared, on a machine that is slow enough
	w.clock.Store(at(hour0, 30*time.Minute).UnixNano())
	bad := w.badSegments(0)
	broken, right := agentOf(0, 0), agentOf(0, 1)
	var es []accepted.Batch
	for i := range 30 {
		es = append(es, w.acceptSilently(broken, uint64(i), one(hour0+1000*timegrid.Hour(i%10), time.Duration(i+1)*time.Minute)))
	}
	w.enter(0, es)
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
	eventually(t, "all segments but the bad ones are consumed", func() bool { w.advance(time.Minute); return len(w.left(0)) == len(bad) })
	for _, h := range []timegrid.Hour{hour0 - 9, hour0, hour0 + 1000, hour0 + 9000} {
		w.check(h, 0, w.generation(h, 0))
	}
	for _, st := range s.Shards() {
		if st.PendingBatches > 0 {
			t.Errorf("status %+v", st)
		}
	}
}
