package live

import (
	"slices"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Held says who has the records of a batch.
type Held uint8

// Where the records of a batch are.
const (
	Unknown   Held = iota // nothing is known about blocks: the store is the only place
	Published             // blocks hold all of its records
	OnlyHere              // some of its records are in no block yet
)

// Cover looks for a batch in the blocks of the hours in which it has samples. Once it has returned Published,
// every later query must read the batch there. It is called under the store's lock and must not call the store.
type Cover func(id identity.Batch, hours []timegrid.Hour) Held

// SetCover makes the store keep batches before the history window as long as c returns OnlyHere, within the memory
// bound. Call it before the first Insert.
func (s *Store) SetCover(c Cover) { s.cover = c }

func (s *Store) heldBy(id identity.Batch, hours []timegrid.Hour) Held {
	if s.cover == nil {
		return Unknown
	}
	return s.cover(id, hours)
}

// missing reports that blocks exist, and that none has the batch.
func (s *Store) missing(id identity.Batch, hours []timegrid.Hour) bool {
	return s.heldBy(id, hours) == OnlyHere
}

func (s *Store) heapOf(b *batch) *batchHeap {
	if b.late {
		return &s.late
	}
	return &s.full
}

// oldest of the batches with columns.
func (s *Store) oldest() *batch {
	if s.late.Len() > 0 && (s.full.Len() == 0 || s.late.top().maxT <= s.full.top().maxT) {
		return s.late.top()
	}
	return s.full.top()
}

// dropCovered drops late batches that blocks have by now.
func (s *Store) dropCovered() {
	s.lost.forget(func(id identity.Batch, hours []timegrid.Hour) bool { return s.heldBy(id, hours) == Published })
	// Collected first, since evicting changes the list.
	var done []*batch
	for _, b := range s.late.list {
		if !s.missing(b.Identity, b.hours) {
			done = append(done, b)
		}
	}
	if len(done) == 0 {
		return
	}
	s.version++
	for _, b := range done {
		s.evict(b)
		s.forget(b)
	}
	s.vacuum()
}

// lateHours are the late batches by the hours that have samples of them, so that a query looks at the hours that it
// asks for.
type lateHours map[timegrid.Hour]map[*batch]struct{}

func (l lateHours) add(b *batch) {
	for _, h := range b.hours {
		if l[h] == nil {
			l[h] = map[*batch]struct{}{}
		}
		l[h][b] = struct{}{}
	}
}

func (l lateHours) remove(b *batch) {
	for _, h := range b.hours {
		if delete(l[h], b); len(l[h]) == 0 {
			delete(l, h)
		}
	}
}

// Late returns the hours, ascending, of the batches that the snapshot sees although they lie before the window.
func (p *Snapshot) Late() []timegrid.Hour {
	s := p.store
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]timegrid.Hour, 0, len(s.lateHours))
	for h, batches := range s.lateHours {
		for b := range batches {
			if b.visible(p.version) {
				out = append(out, h)
				break
			}
		}
	}
	slices.Sort(out)
	return out
}

// EachLate calls fn for those batches of an hour, in no order, until it returns false; it returns what fn returned last.
// fn must not call the store.
func (p *Snapshot) EachLate(h timegrid.Hour, fn func(identity.Batch) bool) bool {
	s := p.store
	s.mu.RLock()
	defer s.mu.RUnlock()
	for b := range s.lateHours[h] {
		if b.visible(p.version) && !fn(b.Identity) {
			return false
		}
	}
	return true
}

// hoursOf returns the hours that have samples of b, ascending.
func hoursOf(b *frame.Batch) []timegrid.Hour {
	var out []timegrid.Hour
	for i := range b.Groups {
		for _, t := range b.Groups[i].Timestamps {
			h := timegrid.HourOfNS(t)
			// Times ascend within a group, so only a change of the hour needs a search.
			if n := len(out); n > 0 && out[n-1] == h {
				continue
			}
			if at, ok := slices.BinarySearch(out, h); !ok {
				out = slices.Insert(out, at, h)
			}
		}
	}
	return out
}
