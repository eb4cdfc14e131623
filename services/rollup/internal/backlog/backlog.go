// Package backlog is what a shard's intake says and blocks do not cover yet, as far as one
// worker knows. It lives in memory only: whoever owns the shard next rebuilds it from the
// intake's segments, which stay until everything in them is covered.
//
// The package is pure. Time and randomness are handed in, and nothing is for concurrent use.
package backlog

import (
	"iter"
	"maps"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Backlog has the pending batches of a shard, by batch, by hour and by segment.
type Backlog struct {
	batches  map[identity.Batch]*Batch
	hours    map[timegrid.Hour]*Hour
	segments map[string]segment // by key
	spent    []string           // segments that may be deleted
	evicted  int                // batches that were evicted since ForgetEvicted
	// changed: batches or hours were added since JoinOverlaps went through all of them.
	changed bool
}

// segment counts the batches of one that are not covered: those that are pending, and those
// that were evicted from memory. A segment with the latter is never spent, because it is all
// that tells of them.
type segment struct{ pending, evicted int }

// Batch is a pending batch: some hours that it is an input of do not cover it yet.
type Batch struct {
	accepted.Batch
	// Open are the hours that do not cover it yet.
	Open     []timegrid.Hour
	all      []timegrid.Hour // that it is an input of
	segments []string
}

// Hour is one hour with pending batches, and when it is due. The owner of the shard moves
// Next.
type Hour struct {
	Hour timegrid.Hour
	// Since is when the first of its pending batches was seen.
	Since time.Time
	// Next: it is left alone before.
	Next time.Time
	// Expedited: there is no room for more batches, so it does not wait for its end.
	Expedited bool
	// Failures in a row, and those of them that a later try does not mend.
	Failures, Permanent int

	ids map[identity.Batch]struct{}
}

// Batches is how many batches are pending in the hour.
func (h *Hour) Batches() int { return len(h.ids) }

// Fail puts the hour off until next after a failure. permanent: the store answered, and what
// it holds does not let the hour be rolled up.
func (h *Hour) Fail(next time.Time, permanent bool) {
	h.Failures++
	h.Next = next
	if permanent {
		h.Permanent++
	} else {
		h.Permanent = 0
	}
}

// Succeed notes that a generation was made, so that the hour is considered again at once:
// what came meanwhile may be due.
func (h *Hour) Succeed(now time.Time) {
	h.Failures, h.Permanent, h.Expedited, h.Next = 0, 0, false, now
}

// New has nothing pending.
func New() *Backlog {
	return &Backlog{batches: map[identity.Batch]*Batch{}, hours: map[timegrid.Hour]*Hour{}, segments: map[string]segment{}}
}

// AddSegment takes what a segment lists; hours gives the hours that a batch is an input of.
func (b *Backlog) AddSegment(key string, entries []accepted.Batch, hours func(accepted.Batch) []timegrid.Hour, now time.Time) {
	if b.Knows(key) {
		return
	}
	n := 0
	b.segments[key] = segment{}
	for _, e := range entries {
		p := b.batches[e.Identity]
		if p == nil {
			hs := hours(e)
			if len(hs) == 0 {
				continue // it has no record in any hour, so there is nothing to wait for
			}
			p = b.pend(e)
			for _, h := range hs {
				b.addHour(p, h, now)
			}
		}
		// A batch may be listed in several segments, and twice in one. Each segment waits for it once.
		if !slices.Contains(p.segments, key) {
			p.segments = append(p.segments, key)
			n++
		}
	}
	b.segments[key] = segment{pending: n}
	b.release(key)
}

// Knows reports whether the segment was read, and was not deleted since.
func (b *Backlog) Knows(key string) bool {
	_, ok := b.segments[key]
	return ok
}

// Has reports whether the batch is pending.
func (b *Backlog) Has(id identity.Batch) bool { return b.batches[id] != nil }

// Len is the number of pending batches.
func (b *Backlog) Len() int { return len(b.batches) }

// Batches gives the pending batches, in no order.
func (b *Backlog) Batches() iter.Seq[*Batch] { return maps.Values(b.batches) }

// Hours gives the hours with pending batches, in no order.
func (b *Backlog) Hours() iter.Seq[*Hour] { return maps.Values(b.hours) }

// Hour is the state of an hour with pending batches, nil for any other.
func (b *Backlog) Hour(h timegrid.Hour) *Hour { return b.hours[h] }

// AddHour makes a pending batch an input of one more hour.
func (b *Backlog) AddHour(id identity.Batch, h timegrid.Hour, now time.Time) {
	if p := b.batches[id]; p != nil {
		b.addHour(p, h, now)
	}
}

// AddInput makes a batch an input of the hour, pending or not: one that is published in
// another hour, and overlaps one of this hour.
func (b *Backlog) AddInput(e accepted.Batch, h timegrid.Hour, now time.Time) {
	p := b.batches[e.Identity]
	if p == nil {
		p = b.pend(e)
	}
	b.addHour(p, h, now)
}

func (b *Backlog) pend(e accepted.Batch) *Batch {
	p := &Batch{Batch: e}
	b.batches[e.Identity] = p
	return p
}

func (b *Backlog) addHour(p *Batch, h timegrid.Hour, now time.Time) {
	if slices.Contains(p.all, h) {
		return
	}
	b.changed = true
	p.all = append(p.all, h)
	w := b.hours[h]
	if w == nil {
		w = &Hour{Hour: h, ids: map[identity.Batch]struct{}{}, Since: now}
		b.hours[h] = w
	}
	w.ids[p.Identity] = struct{}{}
	p.Open = append(p.Open, h)
}

// Cover takes off the batches of an hour that its blocks cover. A segment of which nothing
// is left is spent.
func (b *Backlog) Cover(h timegrid.Hour, covers func(identity.Batch) bool) {
	w := b.hours[h]
	if w == nil {
		return
	}
	for id := range w.ids {
		if !covers(id) {
			continue
		}
		delete(w.ids, id)
		p := b.batches[id]
		// The batch may be an input of other hours too, and is pending until the last of them.
		if p.Open = slices.DeleteFunc(p.Open, func(o timegrid.Hour) bool { return o == h }); len(p.Open) > 0 {
			continue
		}
		delete(b.batches, id)
		for _, key := range p.segments {
			s := b.segments[key]
			s.pending--
			b.segments[key] = s
			b.release(key)
		}
	}
	if len(w.ids) == 0 {
		delete(b.hours, h)
	}
}

// release decides what becomes of a segment once nothing of it is pending in memory.
func (b *Backlog) release(key string) {
	switch s := b.segments[key]; {
	case s.pending > 0:
	case s.evicted > 0:
		// It lists batches that were evicted. It is forgotten, so that the next rescan of the
		// intake reads it again and brings them back.
		delete(b.segments, key)
	default:
		b.spent = append(b.spent, key)
	}
}

// Spent are the keys of segments whose batches are all covered: they may be deleted.
func (b *Backlog) Spent() []string { return slices.Clone(b.spent) }

// Deleted forgets a segment that is gone from the store.
func (b *Backlog) Deleted(key string) {
	delete(b.segments, key)
	b.spent = slices.DeleteFunc(b.spent, func(o string) bool { return o == key })
}

// Inputs are the batches that wait for the hour, in the order of their identities.
func (b *Backlog) Inputs(h timegrid.Hour) []accepted.Batch {
	w := b.hours[h]
	if w == nil {
		return nil
	}
	out := make([]accepted.Batch, 0, len(w.ids))
	for id := range w.ids {
		out = append(out, b.batches[id].Batch)
	}
	slices.SortFunc(out, func(x, y accepted.Batch) int { return x.Identity.Compare(y.Identity) })
	return out
}

// Due gives the hours whose turn it is, the one first that has waited the longest. So hours
// that fail again and again never take another hour's turn.
func (b *Backlog) Due(now time.Time) []*Hour {
	var out []*Hour
	for _, w := range b.hours {
		if !now.Before(w.Next) {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(x, y *Hour) int {
		if c := x.Next.Compare(y.Next); c != 0 {
			return c
		}
		return int(x.Hour - y.Hour)
	})
	return out
}

// Oldest is the first hour with pending batches.
func (b *Backlog) Oldest() (first timegrid.Hour, ok bool) {
	for h := range b.hours {
		if !ok || h < first {
			first, ok = h, true
		}
	}
	return first, ok
}

// ForgetWaits makes all hours due, as of now: the clock went back, and their waits would last
// until it is again where it was.
func (b *Backlog) ForgetWaits(now time.Time) {
	for _, w := range b.hours {
		w.Next = time.Time{}
		if w.Since.After(now) {
			w.Since = now
		}
	}
}

// Retry has an hour considered without a wait.
func (b *Backlog) Retry(h timegrid.Hour) {
	if w := b.hours[h]; w != nil {
		w.Next = time.Time{}
	}
}

// JoinOverlaps finds groups of pending batches whose record numbers overlap, and makes each of
// them an input of every hour of its group: a number counts once, and every hour that has it
// in some batch must know all the others to tell which one that is.
func (b *Backlog) JoinOverlaps(now time.Time) {
	// Nothing has changed for most hours of a round, and the sort below goes over all batches.
	if !b.changed {
		return
	}
	all := slices.Collect(maps.Values(b.batches))
	slices.SortFunc(all, func(x, y *Batch) int { return x.Identity.Compare(y.Identity) })
	for i := 0; i < len(all); {
		// In the order of first numbers a group continues while the next batch begins at or before
		// the highest number of those before it.
		first := all[i].Identity
		end, j := first.SeqEnd, i+1
		for j < len(all) && all[j].Identity.BootOf() == first.BootOf() && all[j].SeqStart <= end {
			end = max(end, all[j].SeqEnd)
			j++
		}
		if j > i+1 {
			b.shareHours(all[i:j], now)
		}
		i = j
	}
	b.changed = false
}

func (b *Backlog) shareHours(group []*Batch, now time.Time) {
	var hours []timegrid.Hour
	for _, p := range group {
		hours = append(hours, p.all...)
	}
	slices.Sort(hours)
	for _, h := range slices.Compact(hours) {
		for _, p := range group {
			b.addHour(p, h, now)
		}
	}
}

// Pending batches have a bound. Where it is reached, batches that wait for their hour's end,
// or that can't be rolled up as things are, must not keep the shard from reading its intake:
// late batches are listed there, and batches of hours that are over.

const (
	// permanentAfter is how often an hour, or a batch, has failed for good before it is evicted.
	permanentAfter = 2
	// expediteAtOnce bounds the hours that are expedited at one time. Each of them costs a
	// generation that its end makes once more.
	expediteAtOnce = 32
)

// Blocked says which batches wait for something that more time does not bring.
type Blocked interface {
	// Tries is how often the batch's frame could not be read.
	Tries(identity.Batch) int
	// SetAside reports whether the agent is left out of the hour.
	SetAside(h timegrid.Hour, agent string) bool
}

// MakeRoom is called while hasRoom is false. First it evicts what can't be rolled up as things
// are; where that is not enough it expedites the fullest hours. It gives what was evicted.
func (b *Backlog) MakeRoom(hasRoom func() bool, blocked Blocked) (evicted []identity.Batch) {
	evicted = b.evict(func(p *Batch) bool {
		if blocked.Tries(p.Identity) >= permanentAfter {
			return true
		}
		// One hour that can still be rolled up is reason enough to keep it.
		return !slices.ContainsFunc(p.Open, func(h timegrid.Hour) bool {
			return b.hours[h].Permanent < permanentAfter && !blocked.SetAside(h, p.Agent)
		})
	})
	if !hasRoom() {
		b.expedite()
	}
	return evicted
}

// evict forgets batches. Their segments stay in the store, and the backlog forgets each of
// them once nothing else of it is pending, so that a rescan reads it again.
func (b *Backlog) evict(which func(*Batch) bool) (out []identity.Batch) {
	for id, p := range b.batches {
		if !which(p) {
			continue
		}
		out = append(out, id)
		delete(b.batches, id)
		for _, h := range p.Open {
			w := b.hours[h]
			if delete(w.ids, id); len(w.ids) == 0 {
				delete(b.hours, h)
			}
		}
		for _, key := range p.segments {
			s := b.segments[key]
			s.pending--
			s.evicted++
			b.segments[key] = s
			b.release(key)
		}
	}
	b.evicted += len(out)
	return out
}

// Evicted is how many batches were evicted since the last ForgetEvicted.
func (b *Backlog) Evicted() int { return b.evicted }

// ForgetEvicted starts counting again: a rescan of the intake begins, which finds them.
func (b *Backlog) ForgetEvicted() { b.evicted = 0 }

// expedite marks the fullest hours, until they have half of what is pending.
func (b *Backlog) expedite() {
	hours := slices.Collect(maps.Values(b.hours))
	slices.SortFunc(hours, func(x, y *Hour) int {
		if len(x.ids) != len(y.ids) {
			return len(y.ids) - len(x.ids)
		}
		return int(x.Hour - y.Hour)
	})
	for i, left := 0, len(b.batches)/2; i < min(len(hours), expediteAtOnce) && left >= 0; i++ {
		w := hours[i]
		left -= len(w.ids)
		// An hour that fails keeps its wait: making it earlier would only fail more often.
		if !w.Expedited && w.Failures == 0 {
			w.Expedited = true
			w.Next = w.Since // in the past; the schedule says when it is really due
		}
	}
}
