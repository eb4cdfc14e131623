// Package late is what is known of a shard's deltas, and decides about them: which late batches go into one instead
// of making a new generation of their hour, which hours are to be folded, and which deltas nobody needs any more.
// docs/protocol/deltas.md has the argument.
//
// It decides and starts nothing: no goroutines, no store, no clock.
package late

import (
	"maps"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Book has the deltas of a shard, and the batches of them that some block still lacks.
type Book struct {
	deltas  map[string]*object
	batches map[identity.Batch]*batch
	hours   map[timegrid.Hour]*Hour
	boots   map[identity.Boot]map[identity.Batch]*batch
	// bytes of the frames of batches.
	bytes uint64
}

// object is a delta in the store.
type object struct {
	*delta.Delta
	// open batches of it are in no other delta that would do.
	open int
	// spent is when the last batch of it was covered, or the delta replaced; zero while it is needed.
	spent time.Time
}

// batch is one that is not covered in some hour.
type batch struct {
	delta.Batch
	open []timegrid.Hour
	in   []string // keys of deltas
}

// Hour is an hour whose blocks lack batches of deltas.
type Hour struct {
	Hour timegrid.Hour
	// Since is when the first of the batches came.
	Since time.Time
	// Next: it is left alone before.
	Next time.Time
	// Full: it is folded as soon as Next is over.
	Full bool
	// Failures in a row.
	Failures int

	ids map[identity.Batch]struct{}
	// bytes of the batches, each by its share.
	bytes uint64
}

// Batches is how many batches of deltas the hour's blocks lack.
func (h *Hour) Batches() int { return len(h.ids) }

// New has no deltas.
func New() *Book {
	return &Book{deltas: map[string]*object{}, batches: map[identity.Batch]*batch{}, hours: map[timegrid.Hour]*Hour{}, boots: map[identity.Boot]map[identity.Batch]*batch{}}
}

// share is about how many bytes of the batch are of one hour.
func share(b *delta.Batch) uint64 { return b.FrameBytes/uint64(len(b.Hours)) + 1 }

// Add takes a delta that is in the store. Until Cover says otherwise all hours lack its batches.
func (b *Book) Add(d *delta.Delta, now time.Time) {
	key := d.Key()
	if b.deltas[key] != nil {
		return
	}
	o := &object{Delta: d, open: len(d.Batches)}
	b.deltas[key] = o
	for i := range d.Batches {
		e := &d.Batches[i]
		p := b.batches[e.Identity]
		if p == nil {
			p = &batch{Batch: *e, open: slices.Clone(e.Hours)}
			b.batches[e.Identity] = p
			if b.boots[e.BootOf()] == nil {
				b.boots[e.BootOf()] = map[identity.Batch]*batch{}
			}
			b.boots[e.BootOf()][e.Identity] = p
			b.bytes += e.FrameBytes
			for _, h := range e.Hours {
				b.addHour(h, e, now)
			}
		}
		p.in = append(p.in, key)
	}
}

func (b *Book) addHour(h timegrid.Hour, e *delta.Batch, now time.Time) {
	w := b.hours[h]
	if w == nil {
		w = &Hour{Hour: h, Since: now, ids: map[identity.Batch]struct{}{}}
		b.hours[h] = w
	}
	w.ids[e.Identity] = struct{}{}
	w.bytes += share(e)
	// The acceptance says how old it is, also to an owner that has just begun; a collector's clock that is ahead
	// makes it no younger than now.
	if at := time.Unix(0, e.AcceptedAt); at.Before(w.Since) {
		w.Since = at
	}
}

// Knows reports whether the delta was added, and was not deleted since.
func (b *Book) Knows(key string) bool { return b.deltas[key] != nil }

// Holds reports whether a delta has the batch's records of the hour, and the hour's blocks may lack them.
func (b *Book) Holds(id identity.Batch, h timegrid.Hour) bool {
	p := b.batches[id]
	return p != nil && slices.Contains(p.open, h)
}

// Inputs are the batches that the hour's blocks lack, in the order of their identities.
func (b *Book) Inputs(h timegrid.Hour) []accepted.Batch {
	w := b.hours[h]
	if w == nil {
		return nil
	}
	out := make([]accepted.Batch, 0, len(w.ids))
	for id := range w.ids {
		out = append(out, b.batches[id].Batch.Batch)
	}
	slices.SortFunc(out, func(x, y accepted.Batch) int { return x.Identity.Compare(y.Identity) })
	return out
}

// Overlapping are the batches in deltas that share record numbers with id, but id.
func (b *Book) Overlapping(id identity.Batch) (out []delta.Batch) {
	for _, p := range b.boots[id.BootOf()] {
		if p.Identity != id && p.Identity.Intersects(id) {
			out = append(out, p.Batch)
		}
	}
	slices.SortFunc(out, func(x, y delta.Batch) int { return x.Identity.Compare(y.Identity) })
	return out
}

// Cover takes off the batches of an hour that its blocks cover.
func (b *Book) Cover(h timegrid.Hour, covers func(identity.Batch) bool, now time.Time) {
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
		w.bytes -= share(&p.Batch)
		if p.open = slices.DeleteFunc(p.open, func(o timegrid.Hour) bool { return o == h }); len(p.open) > 0 {
			continue
		}
		delete(b.batches, id)
		if delete(b.boots[id.BootOf()], id); len(b.boots[id.BootOf()]) == 0 {
			delete(b.boots, id.BootOf())
		}
		b.bytes -= p.FrameBytes
		for _, key := range p.in {
			b.release(key, now)
		}
	}
	if len(w.ids) == 0 {
		delete(b.hours, h)
	}
}

func (b *Book) release(key string, now time.Time) {
	o := b.deltas[key]
	if o.open--; o.open == 0 {
		o.spent = now
	}
}

// Replaced takes it that another delta has every batch of these that some hour lacks.
func (b *Book) Replaced(of []*delta.Delta, now time.Time) {
	for _, d := range of {
		key := d.Key()
		o := b.deltas[key]
		if o == nil || o.open == 0 {
			continue
		}
		for i := range d.Batches {
			if p := b.batches[d.Batches[i].Identity]; p != nil {
				p.in = slices.DeleteFunc(p.in, func(k string) bool { return k == key })
			}
		}
		o.open, o.spent = 0, now
	}
}

// Spent are the keys of deltas that nothing needs, and that queries which began before that can't read any more.
func (b *Book) Spent(now time.Time, grace time.Duration) (keys []string) {
	for key, o := range b.deltas {
		if !o.spent.IsZero() && !now.Before(o.spent.Add(grace)) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Deleted forgets a delta that is gone from the store.
func (b *Book) Deleted(key string) { delete(b.deltas, key) }

// Due gives the hours that are to be folded, the one first that has waited the longest.
func (b *Book) Due(foldAfter time.Duration, now time.Time) (out []*Hour) {
	for _, w := range b.hours {
		if now.Before(w.Next) || !w.Full && now.Before(w.Since.Add(foldAfter)) {
			continue
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(x, y *Hour) int {
		if c := x.Next.Compare(y.Next); c != 0 {
			return c
		}
		return int(x.Hour - y.Hour)
	})
	return out
}

// Wait leaves the hour alone until then, after it was tried.
func (b *Book) Wait(h timegrid.Hour, until time.Time, failed bool) {
	w := b.hours[h]
	if w == nil {
		return
	}
	w.Next = until
	if failed {
		w.Failures++
	} else {
		w.Failures = 0
	}
}

// ForgetWaits makes all waits end: the clock went back, and they would last until it is again where it was.
func (b *Book) ForgetWaits(now time.Time) {
	for _, w := range b.hours {
		w.Next = time.Time{}
		if w.Since.After(now) {
			w.Since = now
		}
	}
	for _, o := range b.deltas {
		if o.spent.After(now) {
			o.spent = now
		}
	}
}

// Hour has batches of deltas that its blocks lack, or is nil.
func (b *Book) Hour(h timegrid.Hour) *Hour { return b.hours[h] }

// Size is how many deltas there are, the batches in them that some block lacks, and the bytes of those.
func (b *Book) Size() (deltas, batches int, bytes uint64) {
	return len(b.deltas), len(b.batches), b.bytes
}

// live are the deltas that are needed, the smallest first.
func (b *Book) live() (out []*object) {
	for _, o := range b.deltas {
		if o.spent.IsZero() {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(x, y *object) int {
		if n := x.Size() - y.Size(); n != 0 {
			return int(n)
		}
		if x.Key() < y.Key() {
			return -1
		}
		return 1
	})
	return out
}

const (
	// maxDeltas of about one size: so many are written together as one. So a byte is written again once for each
	// eightfold growth, and there are a few times eight deltas.
	maxDeltas = 8
	// smallest is the size in bytes up to which deltas count as of one size.
	smallest = 2 << 10
)

// Together gives deltas whose batches are to be written again, in one with new ones of so many bytes.
func (b *Book) Together(fresh uint64) (out []*delta.Delta) {
	bySize := map[int][]*delta.Delta{}
	for _, o := range b.live() {
		bySize[level(o.Size())] = append(bySize[level(o.Size())], o.Delta)
	}
	bytes, batches := fresh, 0
	// What is written of one size is one more of the next.
	for at := 0; len(bySize[at]) >= maxDeltas-1; at++ {
		for _, d := range bySize[at] {
			bytes, batches = bytes+d.FrameBytes(), batches+len(d.Batches)
			if bytes > delta.MaxFrameBytes/2 || batches > delta.MaxBatches/2 {
				return out
			}
			out = append(out, d)
		}
	}
	return out
}

// level says how large a delta is: one more for each eightfold growth.
func level(size int64) (n int) {
	for ; size > smallest; size /= maxDeltas {
		n++
	}
	return n
}

// Open are the batches of a delta that some block lacks.
func (b *Book) Open(d *delta.Delta) (out []delta.Batch) {
	for i := range d.Batches {
		if b.batches[d.Batches[i].Identity] != nil {
			out = append(out, d.Batches[i])
		}
	}
	return out
}

// Crowd marks the hours of the smallest deltas as full while there are too many of them, so that they are folded.
func (b *Book) Crowd() {
	live := b.live()
	for i := 0; i+4*maxDeltas < len(live); i++ {
		b.FoldSoon(live[i].Delta)
	}
}

// FoldSoon marks the hours of a delta as full.
func (b *Book) FoldSoon(d *delta.Delta) {
	for i := range d.Batches {
		for _, h := range d.Batches[i].Hours {
			if w := b.hours[h]; w != nil {
				w.Full = true
			}
		}
	}
}

// Hours with batches of deltas that their blocks lack, ascending.
func (b *Book) Hours() []timegrid.Hour { return slices.Sorted(maps.Keys(b.hours)) }
