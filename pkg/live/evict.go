package live

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

// Expire drops what lies wholly before the history window at now. Insert does it too.
func (s *Store) Expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	s.dropCovered()
}

func (s *Store) expire(now time.Time) {
	horizon := s.Horizon(now)
	old := false
	for len(s.full) > 0 && s.full[0].maxT < horizon {
		if !old {
			s.version++
			old = true
		}
		b := s.full[0]
		if s.missing(b.Identity, b.hours) {
			heap.Pop(&s.full)
			b.late = true
			heap.Push(&s.late, b)
			continue
		}
		s.evict(b)
		s.forget(b)
	}
	for len(s.ghosts) > 0 && s.ghosts[0].maxT < horizon {
		b := heap.Pop(&s.ghosts).(*batch)
		s.bytes -= ghostBytes
		s.forget(b)
	}
	s.vacuum()
}

// shrink evicts the oldest samples until the bounds hold. Their identities stay
// known, as ghosts, which still mask what they won; those may take a quarter of the memory.
func (s *Store) shrink() {
	if !s.over() {
		return
	}
	s.version++
	for s.over() && len(s.late)+len(s.full)+len(s.ghosts) > 0 {
		if int64(len(s.ghosts))*ghostBytes > s.cfg.MaxBytes/4 || len(s.late)+len(s.full) == 0 {
			b := heap.Pop(&s.ghosts).(*batch)
			s.bytes -= ghostBytes
			s.forget(b)
			continue
		}
		b := s.oldest()
		switch held := s.held(b.Identity, b.hours); {
		case held == Published: // read there
		case b.late:
			s.lose(b)
		default:
			s.lostThrough = max(s.lostThrough, b.maxT)
		}
		s.evict(b)
		heap.Push(&s.ghosts, b)
		s.bytes += ghostBytes
		s.vacuum()
	}
}

func (s *Store) over() bool {
	return s.bytes > s.cfg.MaxBytes || len(s.series) > s.cfg.MaxSeries
}

// evict marks b removed since this version; vacuum takes its columns away.
func (s *Store) evict(b *batch) {
	heap.Remove(s.heapOf(b), b.heapAt)
	b.removed.Store(s.version)
	s.bytes -= b.bytes
	s.samples -= int64(b.Identity.Count())
	s.removed = append(s.removed, b)
}

func (s *Store) unghost(b *batch) {
	heap.Remove(&s.ghosts, b.heapAt)
	s.bytes -= ghostBytes
}

// forget drops the identity.
func (s *Store) forget(b *batch) {
	boot := b.Identity.BootOf()
	x := s.boots[boot]
	if x.remove(b); len(x.batches) == 0 {
		delete(s.boots, boot)
	}
}

// oldestOpen is the smallest version that a snapshot reads.
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
		for _, g := range sh.groups {
			g.segments = slices.DeleteFunc(slices.Clone(g.segments), func(seg *segment) bool { return seg.gone(oldest) })
		}
	}
}

// gone: no snapshot from oldest on sees a row.
func (s *segment) gone(oldest uint64) bool {
	for _, p := range s.parts {
		if r := p.batch.removed.Load(); r == 0 || r > oldest {
			return false
		}
	}
	return true
}
