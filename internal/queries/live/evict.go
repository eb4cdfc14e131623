package live

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

// Expire drops batches that lie entirely before the history window at now. Insert does it too. It also merges what no more
// batches came for lately.
func (s *Store) Expire(now time.Time) {
	s.mu.Lock()
	s.expire(now)
	s.dropCovered()
	rounds := len(s.filling)
	s.mu.Unlock()
	for s.closeWaiting(&rounds) {
	}
}

func (s *Store) expire(now time.Time) {
	s.clock = now.UnixMilli()
	horizon := s.Horizon(now)
	old := false
	for s.full.Len() > 0 && s.full.top().maxT < horizon {
		// One new version for all that expire now: snapshots of earlier versions still see them.
		if !old {
			s.version++
			old = true
		}
		b := s.full.top()
		// No block has the batch yet, so it is kept beyond the window as a late one.
		if s.missing(b.Identity, b.hours) {
			heap.Pop(&s.full)
			b.late = true
			heap.Push(&s.late, b)
			s.lateHours.add(b)
			continue
		}
		s.evict(b)
		s.forget(b)
	}
	for s.placeholders.Len() > 0 && s.placeholders.top().maxT < horizon {
		s.evictPlaceholder()
	}
	s.vacuum()
}

// shrink evicts batches until the bounds hold. Their identities stay known as placeholders, which still mask what
// they won; those may take a quarter of the memory.
func (s *Store) shrink(now time.Time) {
	if !s.over() {
		return
	}
	s.version++
	for s.over() && s.newest.Len()+s.placeholders.Len() > 0 {
		// Without this bound placeholders could fill the memory until every batch is evicted for them.
		if int64(s.placeholders.Len())*placeholderBytes > s.cfg.MaxBytes/4 || s.newest.Len() == 0 {
			s.evictPlaceholder()
			continue
		}
		b, why := s.victim(now)
		*why++
		// What a block holds is not lost, as queries read it there.
		if s.heldBy(b.Identity, b.hours) != Published {
			s.lost.add(b)
		}
		s.evict(b)
		s.makePlaceholder(b)
	}
	s.vacuum()
}

// victim is the batch that is evicted next, and the counter of why: first what lies in the far future, then the
// oldest of the agent that is farthest beyond its share, then the oldest of all.
func (s *Store) victim(now time.Time) (*batch, *uint64) {
	// The oldest go first below, so samples of a clock that runs far ahead would otherwise stay longest.
	if b := s.newest.top(); s.cfg.Future > 0 && b.maxT > now.Add(s.cfg.Future).UnixMilli() {
		return b, &s.evicted.Future
	}
	if a := s.heaviest(); a != nil {
		return a.batches.top(), &s.evicted.Agent
	}
	return s.oldest(), &s.evicted.Oldest
}

func (s *Store) over() bool {
	return s.bytes > s.cfg.MaxBytes || s.seriesHeld > s.cfg.MaxSeries
}

// evict marks b as removed since this version; vacuum frees its columns once no snapshot sees them.
func (s *Store) evict(b *batch) {
	heap.Remove(s.heapOf(b), int(b.at[slotRole]))
	if b.late {
		s.lateHours.remove(b)
	}
	heap.Remove(&s.newest, int(b.at[slotNewest]))
	heap.Remove(&b.agent.batches, int(b.at[slotAgent]))
	b.shape.disturb(b)
	b.removed.Store(s.version)
	s.release(b.shape)
	s.charge(b.agent, -b.bytes, 0)
	s.samples -= int64(b.Identity.Count())
	s.removed = append(s.removed, b)
}

// makePlaceholder keeps the identity of a batch without columns, so that what it won of others stays masked.
func (s *Store) makePlaceholder(b *batch) {
	heap.Push(&s.placeholders, b)
	s.bytes += placeholderBytes + b.overlapBytes()
}

func (s *Store) dropPlaceholder(b *batch) {
	heap.Remove(&s.placeholders, int(b.at[slotRole]))
	s.bytes -= placeholderBytes + b.overlapBytes()
}

func (s *Store) evictPlaceholder() {
	b := s.placeholders.top()
	s.dropPlaceholder(b)
	s.forget(b)
}

// forget drops the identity.
func (s *Store) forget(b *batch) {
	boot := b.Identity.BootOf()
	x := s.boots[boot]
	if x.remove(b); len(x.batches) == 0 {
		delete(s.boots, boot)
	}
}

// oldestOpen is the lowest version that a snapshot reads.
func (s *Store) oldestOpen() uint64 {
	v := uint64(math.MaxUint64)
	for o := range s.open {
		v = min(v, o)
	}
	return v
}

// vacuum takes removed batches out of the index once no snapshot can see them.
func (s *Store) vacuum() {
	if len(s.removed) == 0 {
		return
	}
	oldest := s.oldestOpen()
	shapes := map[*shape]struct{}{}
	s.removed = slices.DeleteFunc(s.removed, func(b *batch) bool {
		// The oldest open snapshot is from before the removal and still sees the columns.
		if b.removed.Load() > oldest {
			return false
		}
		b.shape.batches--
		shapes[b.shape] = struct{}{}
		return true
	})
	for sh := range shapes {
		if sh.batches == 0 {
			s.dropShape(sh)
			continue
		}
		// Readers hold the old slice, so it is replaced and not changed.
		for _, g := range sh.groups {
			g.segments = slices.DeleteFunc(slices.Clone(g.segments), func(seg *segment) bool {
				gone := seg.gone(oldest)
				if gone {
					s.hasPacked(seg, -1)
				}
				return gone
			})
		}
	}
}

// gone reports that no snapshot from version oldest on sees a row of the segment.
func (s *segment) gone(oldest uint64) bool {
	for i := range s.parts {
		if r := s.parts[i].batch.removed.Load(); r == 0 || r > oldest {
			return false
		}
	}
	return true
}
