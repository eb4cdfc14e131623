package reconciler

import (
	"hash/maphash"
	"sync"
)

// seen is a bounded set of keys: it keeps at least the newest limit/2. It stores 64-bit
// hashes under a random seed; two different keys have the same hash with probability 2^-64.
type seen struct {
	limit int
	seed  maphash.Seed

	mu       sync.Mutex
	new, old map[uint64]struct{}
}

func newSeen(limit int) *seen {
	return &seen{limit: limit, seed: maphash.MakeSeed(), new: map[uint64]struct{}{}}
}

func (s *seen) add(key string) {
	h := maphash.String(s.seed, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.new) >= s.limit/2 { // drop the older half at once
		s.old, s.new = s.new, map[uint64]struct{}{}
	}
	s.new[h] = struct{}{}
}

func (s *seen) has(key string) bool {
	h := maphash.String(s.seed, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.new[h]
	if !ok {
		_, ok = s.old[h]
	}
	return ok
}
