package backlog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func batch(from, to uint64) accepted.Batch {
	return accepted.Batch{Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: from, SeqEnd: to}}
}

// hourOfNumber puts each batch into the hour of its first number.
func hourOfNumber(e accepted.Batch) []timegrid.Hour {
	return []timegrid.Hour{timegrid.Hour(e.SeqStart)}
}

func everything(identity.Batch) bool { return true }

var start = time.Unix(0, 0)

// notBlocked blocks nothing but what it lists.
type notBlocked map[identity.Batch]int

func (b notBlocked) Tries(id identity.Batch) int       { return b[id] }
func (notBlocked) SetAside(timegrid.Hour, string) bool { return false }

func always(v bool) func() bool { return func() bool { return v } }

// A batch that gets another hour takes those that overlap with it there, also when they
// were joined before; what is apart stays where it is.
func TestOverlapsFollowIntoLaterHours(t *testing.T) {
	b := New()
	x, y, z := batch(0, 9), batch(5, 14), batch(15, 20)
	h := timegrid.Hour(100)
	b.AddSegment("segment", []accepted.Batch{x, y, z}, func(accepted.Batch) []timegrid.Hour { return []timegrid.Hour{h} }, start)
	b.JoinOverlaps(start)
	if n := len(b.Inputs(h)); n != 3 {
		t.Fatalf("%d inputs", n)
	}
	b.AddHour(x.Identity, h+1, start)
	b.JoinOverlaps(start)
	in := b.Inputs(h + 1)
	if len(in) != 2 || in[0] != x || in[1] != y {
		t.Errorf("inputs of the later hour: %+v", in)
	}
}

// Overlaps are closed: the first and the last of three batches do not overlap, but each overlaps
// the one between them, and so all three decide about its numbers.
func TestOverlapsAreClosed(t *testing.T) {
	b := New()
	all := []accepted.Batch{batch(0, 9), batch(2, 4), batch(8, 14), batch(12, 20)}
	hours := map[identity.Batch]timegrid.Hour{}
	for i, e := range all {
		hours[e.Identity] = timegrid.Hour(i)
	}
	b.AddSegment("segment", all, func(e accepted.Batch) []timegrid.Hour { return []timegrid.Hour{hours[e.Identity]} }, start)
	b.JoinOverlaps(start)
	for h := range timegrid.Hour(len(all)) {
		if in := b.Inputs(h); !slices.Equal(in, all) {
			t.Errorf("inputs of hour %d: %+v", h, in)
		}
	}
}

// A segment is not deleted while a batch of it was evicted, whatever becomes of others.
func TestEvictedBatchesKeepTheirSegments(t *testing.T) {
	b := New()
	b.AddSegment("both", []accepted.Batch{batch(1, 1), batch(2, 2)}, hourOfNumber, start)
	b.AddSegment("second", []accepted.Batch{batch(2, 2)}, hourOfNumber, start)
	out := b.MakeRoom(always(true), notBlocked{batch(2, 2).Identity: permanentAfter})
	if len(out) != 1 || out[0] != batch(2, 2).Identity || b.Evicted() != 1 {
		t.Fatalf("evicted %v, %d", out, b.Evicted())
	}
	if b.Knows("second") || !b.Knows("both") || len(b.hours) != 1 {
		t.Fatalf("segments %v, hours %v", b.segments, b.hours)
	}
	// It comes back by the one that is not known, and is done there; the other has it, too.
	b.AddSegment("second", []accepted.Batch{batch(2, 2)}, hourOfNumber, start)
	b.Cover(2, everything)
	if len(b.spent) != 1 || b.spent[0] != "second" {
		t.Fatalf("spent %v", b.spent)
	}
	b.Cover(1, everything)
	if len(b.spent) != 1 || b.Knows("both") {
		t.Fatalf("spent %v, segments %v", b.spent, b.segments)
	}
	b.AddSegment("both", []accepted.Batch{batch(1, 1), batch(2, 2)}, hourOfNumber, start)
	b.Cover(1, everything)
	b.Cover(2, everything)
	if len(b.spent) != 2 || len(b.batches)+len(b.hours) > 0 {
		t.Fatalf("spent %v", b.spent)
	}
}

// Hours that fail again and again never take the turn of one that waits longer.
func TestHoursTakeTurns(t *testing.T) {
	b := New()
	for h := range uint64(3) {
		b.AddSegment(fmt.Sprint(h), []accepted.Batch{batch(h+1, h+1)}, hourOfNumber, start)
	}
	now := start
	var turns []timegrid.Hour
	for range 9 {
		w := b.Due(now)[0]
		turns = append(turns, w.Hour)
		w.Fail(now.Add(time.Second), true)
		now = now.Add(time.Second)
	}
	if want := []timegrid.Hour{1, 2, 3, 1, 2, 3, 1, 2, 3}; !slices.Equal(turns, want) {
		t.Errorf("turns of hours %v, want %v", turns, want)
	}
	w := b.Hour(1)
	if w.Failures != 3 || w.Permanent != 3 {
		t.Errorf("%+v", w)
	}
	if w.Fail(now, false); w.Failures != 4 || w.Permanent != 0 {
		t.Errorf("a failure that may pass: %+v", w)
	}
	if w.Succeed(now); w.Failures+w.Permanent != 0 || !w.Next.Equal(now) {
		t.Errorf("after a success: %+v", w)
	}
}

// Where eviction makes no room, the fullest hours are expedited, and those that fail are not.
func TestTheFullestHoursAreExpedited(t *testing.T) {
	b := New()
	seq := uint64(0)
	for h, n := range []int{1, 5, 3, 9} {
		var es []accepted.Batch
		for range n {
			es = append(es, batch(seq, seq))
			seq++
		}
		b.AddSegment(fmt.Sprint(h), es, func(accepted.Batch) []timegrid.Hour { return []timegrid.Hour{timegrid.Hour(h)} }, start)
	}
	later := start.Add(time.Hour)
	for w := range b.Hours() {
		w.Next = later
	}
	b.Hour(3).Fail(later, false)
	if out := b.MakeRoom(always(false), notBlocked{}); len(out) > 0 {
		t.Fatalf("evicted %v", out)
	}
	for h, want := range map[timegrid.Hour]bool{0: false, 1: true, 2: false, 3: false} {
		if w := b.Hour(h); w.Expedited != want || w.Next.Equal(start) != want {
			t.Errorf("hour %d: expedited %v, next %v", h, w.Expedited, w.Next)
		}
	}
}

// Permanent failures of all hours of a batch evict it, and one hour that may still be rolled up
// keeps it.
func TestABatchStaysWhileOneOfItsHoursMayBeMade(t *testing.T) {
	b := New()
	e := batch(1, 9)
	b.AddSegment("s", []accepted.Batch{e}, func(accepted.Batch) []timegrid.Hour { return []timegrid.Hour{1, 2} }, start)
	for range permanentAfter {
		b.Hour(1).Fail(start, true)
	}
	if out := b.MakeRoom(always(true), notBlocked{}); len(out) > 0 {
		t.Fatalf("evicted %v", out)
	}
	for range permanentAfter {
		b.Hour(2).Fail(start, true)
	}
	if out := b.MakeRoom(always(true), notBlocked{}); len(out) != 1 || b.Len() != 0 || b.Knows("s") || len(b.Spent()) > 0 {
		t.Fatalf("evicted %v, spent %v", out, b.Spent())
	}
	b.ForgetEvicted()
	if b.Evicted() != 0 {
		t.Error("still counted")
	}
}

// A clock that goes back leaves no hour waiting, and no batch seen in the future.
func TestForgetWaits(t *testing.T) {
	b := New()
	now := start.Add(365 * 24 * time.Hour)
	b.AddSegment("s", []accepted.Batch{batch(1, 1)}, hourOfNumber, now)
	b.Hour(1).Next = now.Add(time.Hour)
	if b.ForgetWaits(start); len(b.Due(start)) != 1 || !b.Hour(1).Since.Equal(start) {
		t.Errorf("%+v", b.Hour(1))
	}
}

// TestSchedules plays schedules of all events by seed, beside a model that remembers every
// segment that was written and what blocks cover. A segment is spent exactly when every batch of
// it is covered in each of its hours, never while one was evicted, and nothing is forgotten
// that a rescan of the remaining segments does not bring back.
func TestSchedules(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 23))
		b := New()
		stored := map[string][]accepted.Batch{}
		covered := map[timegrid.Hour]map[identity.Batch]bool{}
		hours := func(e accepted.Batch) []timegrid.Hour {
			h := timegrid.Hour(e.SeqStart % 7)
			return slices.Compact([]timegrid.Hour{h, h + timegrid.Hour(e.SeqStart%2)})
		}
		isCovered := func(e accepted.Batch) bool {
			return !slices.ContainsFunc(hours(e), func(h timegrid.Hour) bool { return !covered[h][e.Identity] })
		}
		check := func(step int) {
			t.Helper()
			for _, key := range b.Spent() {
				for _, e := range stored[key] {
					if !isCovered(e) {
						t.Fatalf("seed %d, step %d: %s is spent, and %v is not covered", seed, step, key, e.Identity)
					}
				}
			}
			for p := range b.Batches() {
				if len(p.Open) == 0 {
					t.Fatalf("seed %d, step %d: %v is pending in no hour", seed, step, p.Identity)
				}
			}
			for w := range b.Hours() {
				if w.Batches() == 0 || len(b.Inputs(w.Hour)) != w.Batches() {
					t.Fatalf("seed %d, step %d: hour %d has %d batches", seed, step, w.Hour, w.Batches())
				}
			}
		}
		now := start
		for step := range 80 {
			now = now.Add(time.Second)
			switch rnd.IntN(6) {
			case 0, 1: // a segment is written, with batches that others may list too
				var es []accepted.Batch
				for range 1 + rnd.IntN(5) {
					n := rnd.Uint64N(40)
					es = append(es, batch(n, n))
				}
				key := fmt.Sprint("segment ", step)
				stored[key] = es
				b.AddSegment(key, es, hours, now)
			case 2, 3: // a block of some of an hour's batches is published
				h := timegrid.Hour(rnd.IntN(8))
				if covered[h] == nil {
					covered[h] = map[identity.Batch]bool{}
				}
				for _, e := range b.Inputs(h) {
					covered[h][e.Identity] = covered[h][e.Identity] || rnd.IntN(3) > 0
				}
				b.Cover(h, func(id identity.Batch) bool { return covered[h][id] })
			case 4: // some are evicted
				out := notBlocked{}
				for p := range b.Batches() {
					out[p.Identity] = rnd.IntN(2) * permanentAfter
				}
				b.MakeRoom(always(rnd.IntN(2) == 0), out)
			case 5: // spent segments are deleted, and the others are scanned again
				for _, key := range b.Spent() {
					delete(stored, key)
					b.Deleted(key)
				}
				for key, es := range stored {
					b.AddSegment(key, es, hours, now)
				}
			}
			check(step)
		}
		// Everything is brought back, covered and deleted. A segment that is known and lists batches
		// that were evicted is forgotten when the others are covered, and so needs a second scan.
		for range 2 {
			for key, es := range stored {
				b.AddSegment(key, es, hours, now)
			}
			for h := range timegrid.Hour(9) {
				b.Cover(h, everything)
			}
			for _, key := range b.Spent() {
				delete(stored, key)
				b.Deleted(key)
			}
		}
		if b.Len() > 0 || len(b.hours) > 0 || len(b.segments) > 0 || len(stored) > 0 {
			t.Fatalf("seed %d: %d batches, %d hours, %d segments are left, %d in the store", seed, b.Len(), len(b.hours), len(b.segments), len(stored))
		}
	}
}

// A batch whose frame can't be read is tried ever more rarely, and at once when the clock went back.
func TestUnreadable(t *testing.T) {
	u := Unreadable{Jitter: func() float64 { return 1 }}
	id := batch(1, 1).Identity
	if listed, due := u.Due(id, start); listed || due {
		t.Fatal("listed at first")
	}
	now := start
	for n, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 64} {
		u.Add(id, now)
		wait *= UnreadableWait
		if listed, due := u.Due(id, now.Add(wait-1)); !listed || due {
			t.Errorf("try %d is due before %v", n+1, wait)
		}
		now = now.Add(wait)
		if _, due := u.Due(id, now); !due || u.Tries(id) != n+1 {
			t.Errorf("try %d is not due after %v", n+1, wait)
		}
	}
	u.Add(id, now)
	if u.ForgetWaits(); u.Len() != 1 {
		t.Error("forgotten")
	}
	if _, due := u.Due(id, start); !due {
		t.Error("it waits for where the clock was")
	}
	u.Remove(id)
	if listed, _ := u.Due(id, now); listed || u.Len() != 0 {
		t.Error("still listed")
	}
}
