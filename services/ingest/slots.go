package ingest

import (
	"slices"
	"sync"
)

// slots is a counting semaphore that senders share fairly. A slot that becomes free goes to
// the waiting sender whose turn it is, of those that have less than their share; the waiters
// of one sender are served in order.
type slots struct {
	n    int // number of slots
	most int // most slots of one sender

	mu      sync.Mutex
	taken   int
	by      map[string]int             // slots that a sender has
	waiting map[string][]chan struct{} // closed when the waiter gets its slot
	turns   []string                   // the senders that wait, next first
}

// newSlots gives one sender at most two thirds of the slots, so that the others need
// not wait until it is done.
func newSlots(n int) slots {
	return slots{n: n, most: max((2*n+2)/3, 1), by: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// take waits for a slot; false if gone was closed first.
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
	if i < 0 { // this waiter got a slot in the meantime, which nobody will use
		s.release(sender)
		return false
	}
	s.waiting[sender] = slices.Delete(s.waiting[sender], i, i+1)
	s.forgetIfIdle(sender)
	return false
}

// give returns a slot, which goes to the next waiter.
func (s *slots) give(sender string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(sender)
}

// release is give for callers that hold the lock.
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
		s.turns = append(slices.Delete(s.turns, i, i+1), next) // the sender's next turn is after all others
		s.forgetIfIdle(next)
	}
}

// forgetIfIdle removes a sender without waiters.
func (s *slots) forgetIfIdle(sender string) {
	if len(s.waiting[sender]) > 0 {
		return
	}
	delete(s.waiting, sender)
	s.turns = slices.DeleteFunc(s.turns, func(t string) bool { return t == sender })
}
