package ingest

import (
	"slices"
	"sync"
)

// slots are a number of places that senders share. A place that comes free goes to the
// sender whose turn it is, among those who wait and have less than their share; one
// sender's own waiters are served in order.
type slots struct {
	n    int // places
	most int // of one sender

	mu      sync.Mutex
	taken   int
	by      map[string]int             // places that a sender has
	waiting map[string][]chan struct{} // closed when the place is given
	turns   []string                   // the senders who wait, next first
}

// newSlots gives one sender at most two thirds of the places, so that the others need
// not wait until it is done.
func newSlots(n int) slots {
	return slots{n: n, most: max((2*n+2)/3, 1), by: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// take waits for a place; false when gone was closed first.
func (s *slots) take(sender string, gone <-chan struct{}) bool {
	s.mu.Lock()
	if s.taken < s.n && s.by[sender] < s.most {
		s.taken++
		s.by[sender]++
		s.mu.Unlock()
		return true
	}
	mine := make(chan struct{})
	if len(s.waiting[sender]) == 0 {
		s.turns = append(s.turns, sender)
	}
	s.waiting[sender] = append(s.waiting[sender], mine)
	s.mu.Unlock()
	select {
	case <-mine:
		return true
	case <-gone:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting[sender], mine)
	if i < 0 { // given meanwhile
		s.release(sender)
		return false
	}
	s.waiting[sender] = slices.Delete(s.waiting[sender], i, i+1)
	s.settle(sender)
	return false
}

// give takes a place back and passes it on.
func (s *slots) give(sender string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(sender)
}

// release is give under the lock.
func (s *slots) release(sender string) {
	s.taken--
	if s.by[sender]--; s.by[sender] == 0 {
		delete(s.by, sender)
	}
	for s.taken < s.n {
		i := slices.IndexFunc(s.turns, func(t string) bool { return s.by[t] < s.most })
		if i < 0 {
			return
		}
		next := s.turns[i]
		s.taken++
		s.by[next]++
		close(s.waiting[next][0])
		s.waiting[next] = s.waiting[next][1:]
		s.turns = append(slices.Delete(s.turns, i, i+1), next) // behind all others
		s.settle(next)
	}
}

// settle forgets a sender whom nobody waits for any more.
func (s *slots) settle(sender string) {
	if len(s.waiting[sender]) > 0 {
		return
	}
	delete(s.waiting, sender)
	s.turns = slices.DeleteFunc(s.turns, func(t string) bool { return t == sender })
}
