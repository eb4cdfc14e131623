// Package backlog is what the journal says of a shard and blocks do not cover yet, as far as one
// worker knows. It lives in memory only: whoever owns the shard next rebuilds it from the record
// of the shard's progress and from what the journal has after that.
//
// The package is pure. Time and randomness are handed in, and nothing is for concurrent use.
package backlog

import (
	"encoding/binary"
	"hash/fnv"
	"iter"
	"maps"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Backlog has the pending batches of a shard, by batch and by hour.
type Backlog struct {
	batches map[identity.Batch]*Batch
	hours   map[timegrid.Hour]*Hour
	marks   uint64 // that were set
	unread  map[identity.Batch]struct{}
	// evicted are hashes of the batches that were evicted since ForgetEvicted, and kept the batches themselves, as long as
	// they are few: the record of the shard's progress can name those. unnamed: some of them are not among kept.
	evicted map[uint64]struct{}
	kept    map[identity.Batch]accepted.Batch
	unnamed bool
}

const (
	// maxEvicted bounds the evicted batches that are not taken again until ForgetEvicted, and maxKept those of them that
	// Before gives.
	maxEvicted = 1_000_000
	maxKept    = 5_000
)

// Batch is a pending batch: some hours that it is an input of do not cover it yet.
type Batch struct {
	accepted.Batch
	// Open are the hours that do not cover it yet.
	Open []timegrid.Hour
	all  []timegrid.Hour // that it is an input of
	mark uint64          // the last one that was set before it was added
	// whole: it has come itself, and all of its hours are known; unread: it has come, and not all of them are.
	whole, unread bool
}

// Knowledge says which hours of a batch are known.
type Knowledge int

// Knowledge of a batch, the least first.
const (
	// Shared hours are those of another batch, which it overlaps. It has perhaps not come itself.
	Shared Knowledge = iota
	// Ends are its first and its last hour. It may have others between, which its frame would say, and that can't be read.
	Ends
	// All of its hours.
	All
)

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
	return &Backlog{batches: map[identity.Batch]*Batch{}, hours: map[timegrid.Hour]*Hour{}, unread: map[identity.Batch]struct{}{},
		evicted: map[uint64]struct{}{}, kept: map[identity.Batch]accepted.Batch{}}
}

// Add makes a batch an input of hours, pending or not. One that is an input already keeps its place, and one
// without hours has no record in any, so there is nothing to wait for. It stays while not all of its hours are known.
func (b *Backlog) Add(e accepted.Batch, hours []timegrid.Hour, know Knowledge, now time.Time) {
	p := b.batches[e.Identity]
	if p == nil {
		if len(hours) == 0 && know != Ends {
			return
		}
		p = &Batch{Batch: e}
		if know != Shared {
			p.mark = b.marks
		} // else it may have come before all marks, and been covered in the hours that it has itself
		b.batches[e.Identity] = p
	}
	p.whole = p.whole || know == All
	p.unread = !p.whole && (p.unread || know == Ends)
	for _, h := range hours {
		b.addHour(p, h, now)
	}
	b.leave(p)
}

// leave forgets a batch that every hour covers, unless it may have others.
func (b *Backlog) leave(p *Batch) {
	switch {
	case len(p.Open) > 0:
		delete(b.unread, p.Identity)
	case p.unread:
		b.unread[p.Identity] = struct{}{}
	default:
		delete(b.unread, p.Identity)
		delete(b.batches, p.Identity)
	}
}

// Unread gives up to n batches that all known hours cover, and that may have others: their frames could not be read
// when they came, so they are to be added once more.
func (b *Backlog) Unread(n int) (out []accepted.Batch) {
	for id := range b.unread {
		if len(out) == n {
			break
		}
		out = append(out, b.batches[id].Batch)
	}
	return out
}

// Knows reports whether the batch is pending and has come itself, and all of its hours are known. Adding it once more
// would tell nothing.
func (b *Backlog) Knows(id identity.Batch) bool {
	p := b.batches[id]
	return p != nil && p.whole
}

// Mark sets a mark behind every batch that was added so far, and returns its number.
func (b *Backlog) Mark() uint64 {
	b.marks++
	return b.marks
}

// Before gives the pending batches that were added before a mark, and those that were evicted, in the order of their
// identities. More than limit of them, or evicted ones that are not known any more, are nil and false.
func (b *Backlog) Before(mark uint64, limit int) (out []accepted.Batch, ok bool) {
	if b.unnamed || len(b.kept) > limit {
		return nil, false
	}
	out = slices.Collect(maps.Values(b.kept))
	for id, p := range b.batches {
		// One that was evicted is pending once more where another batch overlaps it.
		if _, named := b.kept[id]; named || p.mark >= mark {
			continue
		}
		if len(out) == limit {
			return nil, false
		}
		out = append(out, p.Batch)
	}
	slices.SortFunc(out, func(x, y accepted.Batch) int { return x.Identity.Compare(y.Identity) })
	return out, true
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

func (b *Backlog) addHour(p *Batch, h timegrid.Hour, now time.Time) {
	if slices.Contains(p.all, h) {
		return
	}
	p.all = append(p.all, h)
	w := b.hours[h]
	if w == nil {
		w = &Hour{Hour: h, ids: map[identity.Batch]struct{}{}, Since: now}
		b.hours[h] = w
	}
	w.ids[p.Identity] = struct{}{}
	p.Open = append(p.Open, h)
}

// Cover takes off the batches of an hour that its blocks cover.
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
		p.Open = slices.DeleteFunc(p.Open, func(o timegrid.Hour) bool { return o == h })
		b.leave(p)
	}
	if len(w.ids) == 0 {
		delete(b.hours, h)
	}
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

// Pending batches have a bound. Where it is reached, batches that wait for their hour's end,
// or that can't be rolled up as things are, must not keep the shard from taking new ones:
// late batches are among them, and batches of hours that are over.

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

// evict forgets batches. The journal has them, and whoever owns the shard catches up with it from time to time:
// until then the record of the shard's progress must not move.
func (b *Backlog) evict(which func(*Batch) bool) (out []identity.Batch) {
	for id, p := range b.batches {
		if !which(p) {
			continue
		}
		out = append(out, id)
		b.noteEvicted(p.Batch)
		delete(b.batches, id)
		delete(b.unread, id)
		for _, h := range p.Open {
			w := b.hours[h]
			if delete(w.ids, id); len(w.ids) == 0 {
				delete(b.hours, h)
			}
		}
	}
	return out
}

// noteEvicted remembers that a batch was evicted, so that it is not taken again at once and takes the room of others.
func (b *Backlog) noteEvicted(e accepted.Batch) {
	if _, again := b.kept[e.Identity]; again {
		return
	}
	if len(b.kept) < maxKept {
		b.kept[e.Identity] = e
	} else {
		b.unnamed = true
	}
	if len(b.evicted) < maxEvicted {
		b.evicted[hash(e.Identity)] = struct{}{}
	}
}

// hash tells batches apart but for one pair in billions, which then waits until the next ForgetEvicted.
func hash(id identity.Batch) uint64 {
	h := fnv.New64a()
	var n [16]byte
	binary.LittleEndian.PutUint64(n[:8], id.SeqStart)
	binary.LittleEndian.PutUint64(n[8:], id.SeqEnd)
	h.Write([]byte(id.Agent))
	h.Write([]byte{0})
	h.Write([]byte(id.Boot))
	h.Write(n[:])
	return h.Sum64()
}

// WasEvicted reports whether the batch was evicted since the last ForgetEvicted.
func (b *Backlog) WasEvicted(id identity.Batch) bool {
	if len(b.evicted) == 0 {
		return false
	}
	_, ok := b.evicted[hash(id)]
	return ok
}

// Evicted is how many batches were evicted since the last ForgetEvicted.
func (b *Backlog) Evicted() int { return len(b.evicted) }

// ForgetEvicted starts counting again: the owner begins to catch up with the journal, and finds them.
func (b *Backlog) ForgetEvicted() {
	clear(b.evicted)
	clear(b.kept)
	b.unnamed = false
}

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
