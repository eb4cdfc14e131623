package backlog

import (
	"maps"
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

func everything(identity.Batch) bool { return true }

var start = time.Unix(0, 0)

// notBlocked blocks nothing but what it lists.
type notBlocked map[identity.Batch]int

func (b notBlocked) Tries(id identity.Batch) int       { return b[id] }
func (notBlocked) SetAside(timegrid.Hour, string) bool { return false }

func always(v bool) func() bool { return func() bool { return v } }

// What was evicted is named until it is forgotten, and is not taken again at once; of very many only their number is
// known, and then nobody may say what is pending.
func TestEvictedBatchesAreNamed(t *testing.T) {
	b := New()
	b.Add(batch(1, 1), []timegrid.Hour{1}, All, start)
	b.Add(batch(2, 2), []timegrid.Hour{1, 2}, All, start)
	mark := b.Mark()
	b.Add(batch(3, 3), []timegrid.Hour{1}, All, start)
	out := b.MakeRoom(always(true), notBlocked{batch(2, 2).Identity: permanentAfter})
	if len(out) != 1 || out[0] != batch(2, 2).Identity || b.Evicted() != 1 || !b.WasEvicted(out[0]) || b.WasEvicted(batch(1, 1).Identity) || b.Hour(2) != nil {
		t.Fatalf("evicted %v, %d", out, b.Evicted())
	}
	if got, ok := b.Before(mark, 2); !ok || !slices.Equal(got, []accepted.Batch{batch(1, 1), batch(2, 2)}) {
		t.Fatalf("%+v, %v", got, ok)
	}
	if got, ok := b.Before(mark, 1); ok || got != nil {
		t.Errorf("more than the limit: %+v", got)
	}
	b.Cover(1, everything)
	if got, ok := b.Before(mark, 2); !ok || !slices.Equal(got, []accepted.Batch{batch(2, 2)}) {
		t.Fatalf("%+v, %v", got, ok)
	}
	if b.ForgetEvicted(); b.Evicted() != 0 || b.WasEvicted(batch(2, 2).Identity) {
		t.Error("still evicted")
	}
	blocked := notBlocked{}
	for n := range uint64(maxKept + 1) {
		b.Add(batch(n, n), []timegrid.Hour{5}, All, start)
		blocked[batch(n, n).Identity] = permanentAfter
	}
	b.MakeRoom(always(true), blocked)
	if _, ok := b.Before(b.Mark(), 1<<30); ok || b.Evicted() != maxKept+1 {
		t.Errorf("%d evicted batches are all named", b.Evicted())
	}
}

// A batch that was evicted comes back as an input of the hours of one that overlaps it, and may be evicted once more. It
// is named once, and so is what is evicted after it.
func TestABatchIsEvictedTwice(t *testing.T) {
	b := New()
	twice, after := batch(1, 1), batch(2, 2)
	out := notBlocked{twice.Identity: permanentAfter}
	b.Add(twice, []timegrid.Hour{1}, All, start)
	b.MakeRoom(always(true), out)
	b.Add(twice, []timegrid.Hour{9}, Shared, start)
	if got, ok := b.Before(b.Mark(), 9); !ok || !slices.Equal(got, []accepted.Batch{twice}) {
		t.Errorf("evicted, and pending again: %+v, %v", got, ok)
	}
	b.MakeRoom(always(true), out)
	out[after.Identity] = permanentAfter
	b.Add(after, []timegrid.Hour{1}, All, start)
	b.MakeRoom(always(true), out)
	if got, ok := b.Before(b.Mark(), 9); !ok || !slices.Equal(got, []accepted.Batch{twice, after}) {
		t.Errorf("evicted twice, and another one: %+v, %v", got, ok)
	}
}

// Hours that fail again and again never take the turn of one that waits longer.
func TestHoursTakeTurns(t *testing.T) {
	b := New()
	for h := range uint64(3) {
		b.Add(batch(h+1, h+1), []timegrid.Hour{timegrid.Hour(h + 1)}, All, start)
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
		for range n {
			b.Add(batch(seq, seq), []timegrid.Hour{timegrid.Hour(h)}, All, start)
			seq++
		}
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

// A batch of which not all hours are known stays, is named, and is asked for, until they are; one that is known by
// another alone stands before every mark, because it may have come before.
func TestBatchesWithoutAllTheirHours(t *testing.T) {
	b := New()
	mark := b.Mark()
	b.Add(batch(1, 1), []timegrid.Hour{1}, Shared, start)
	b.Add(batch(2, 2), []timegrid.Hour{1, 4}, Ends, start)
	if b.Knows(batch(1, 1).Identity) || b.Knows(batch(2, 2).Identity) || len(b.Unread(9)) > 0 {
		t.Error("they are known, or asked for while hours wait")
	}
	if got, ok := b.Before(mark, 9); !ok || !slices.Equal(got, []accepted.Batch{batch(1, 1)}) {
		t.Errorf("before the mark %+v", got)
	}
	b.Cover(1, everything)
	b.Cover(4, everything)
	if got := b.Unread(9); !slices.Equal(got, []accepted.Batch{batch(2, 2)}) || b.Len() != 1 {
		t.Fatalf("to be read %+v, %d pending", got, b.Len())
	}
	if got, ok := b.Before(b.Mark(), 9); !ok || !slices.Equal(got, []accepted.Batch{batch(2, 2)}) {
		t.Errorf("before a mark %+v", got)
	}
	b.Add(batch(2, 2), nil, Ends, start) // still not to be read
	b.Add(batch(2, 2), []timegrid.Hour{3}, All, start)
	if !b.Knows(batch(2, 2).Identity) || len(b.Unread(9)) > 0 || b.Hour(3) == nil || b.Hour(1) != nil {
		t.Errorf("known %v, hours %v", b.Knows(batch(2, 2).Identity), b.hours)
	}
	b.Add(batch(2, 2), nil, Ends, start)
	if b.Cover(3, everything); b.Len() != 0 {
		t.Error("it stays after all of its hours are covered")
	}
	// It had no other hours.
	b.Add(batch(5, 5), nil, Ends, start)
	if b.Add(batch(5, 5), nil, All, start); b.Len() != 0 || len(b.Unread(9)) > 0 {
		t.Error("it stays")
	}
	b.Add(batch(6, 6), nil, Ends, start)
	if out := b.MakeRoom(always(true), notBlocked{}); len(out) != 1 || len(b.Unread(9)) > 0 {
		t.Errorf("evicted %v", out)
	}
}

// Permanent failures of all hours of a batch evict it, and one hour that may still be rolled up
// keeps it.
func TestABatchStaysWhileOneOfItsHoursMayBeMade(t *testing.T) {
	b := New()
	e := batch(1, 9)
	b.Add(e, []timegrid.Hour{1, 2}, All, start)
	for range permanentAfter {
		b.Hour(1).Fail(start, true)
	}
	if out := b.MakeRoom(always(true), notBlocked{}); len(out) > 0 {
		t.Fatalf("evicted %v", out)
	}
	for range permanentAfter {
		b.Hour(2).Fail(start, true)
	}
	if out := b.MakeRoom(always(true), notBlocked{}); len(out) != 1 || b.Len() != 0 || len(b.hours) > 0 {
		t.Fatalf("evicted %v, hours %v", out, b.hours)
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
	b.Add(batch(1, 1), []timegrid.Hour{1}, All, now)
	b.Hour(1).Next = now.Add(time.Hour)
	if b.ForgetWaits(start); len(b.Due(start)) != 1 || !b.Hour(1).Since.Equal(start) {
		t.Errorf("%+v", b.Hour(1))
	}
}

// TestSchedules plays schedules of all events by seed, beside a model that remembers everything that came and what blocks
// cover. What came before a mark is covered in each of its hours, or the backlog names it, as long as it says that it
// can.
func TestSchedules(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 23))
		b := New()
		came := map[identity.Batch]accepted.Batch{}
		covered := map[timegrid.Hour]map[identity.Batch]bool{}
		hours := func(e accepted.Batch) []timegrid.Hour {
			h := timegrid.Hour(e.SeqStart % 7)
			return slices.Compact([]timegrid.Hour{h, h + timegrid.Hour(e.SeqStart%2)})
		}
		isCovered := func(e accepted.Batch) bool {
			return !slices.ContainsFunc(hours(e), func(h timegrid.Hour) bool { return !covered[h][e.Identity] })
		}
		type mark struct {
			n    uint64
			came []accepted.Batch
		}
		var marks []mark
		check := func(step int) {
			t.Helper()
			for _, m := range marks {
				named, ok := b.Before(m.n, 1000)
				if !ok {
					t.Fatalf("seed %d, step %d: %d evicted, and not named", seed, step, b.Evicted())
				}
				for _, e := range m.came {
					if _, found := slices.BinarySearchFunc(named, e, func(x, y accepted.Batch) int { return x.Identity.Compare(y.Identity) }); !found && !isCovered(e) {
						t.Fatalf("seed %d, step %d: %v came before mark %d, is not covered, and is not named", seed, step, e.Identity, m.n)
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
			switch rnd.IntN(7) {
			case 0, 1: // batches come, some of them again, and some are inputs of another hour besides
				for range 1 + rnd.IntN(5) {
					n := rnd.Uint64N(40)
					e := batch(n, n)
					if b.WasEvicted(e.Identity) || isCovered(e) {
						continue
					}
					came[e.Identity] = e
					b.Add(e, hours(e), All, now)
					if rnd.IntN(4) == 0 {
						b.Add(e, []timegrid.Hour{8}, All, now)
					}
				}
			case 2, 3: // a block of some of an hour's batches is published
				h := timegrid.Hour(rnd.IntN(9))
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
			case 5: // those are forgotten: everything that is not covered comes again, and marks before count no more
				if rnd.IntN(3) > 0 {
					continue
				}
				b.ForgetEvicted()
				marks = nil
				for _, e := range came {
					if !isCovered(e) {
						b.Add(e, hours(e), All, now)
					}
				}
			case 6:
				marks = append(marks, mark{b.Mark(), slices.Collect(maps.Values(came))})
			}
			check(step)
		}
		for h := range timegrid.Hour(9) {
			b.Cover(h, everything)
		}
		if b.Len() > 0 || len(b.hours) > 0 {
			t.Fatalf("seed %d: %d batches, %d hours are left", seed, b.Len(), len(b.hours))
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
