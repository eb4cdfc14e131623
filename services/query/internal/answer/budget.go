package answer

import (
	"fmt"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
)

// budget is the memory in bytes that all running queries and unsent answers share.
type budget struct {
	max int64

	mu   sync.Mutex
	used int64
}

// MemoryError: other queries hold so much of limits.memory that this one can't continue.
type MemoryError struct{ Max int64 }

func (e *MemoryError) Error() string {
	return fmt.Sprintf("query needs more memory than running queries leave of limits.memory of %d", e.Max)
}

func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Reservation is one holder's part of the budget. It is safe for concurrent use, and must be released.
type Reservation struct {
	b    *budget
	held int64 // under the budget's lock
}

// Grow reserves more bytes. It never waits: a query that waited for memory while holding some could wait for ever.
// Errors: *promstore.LimitError when this holder alone would exceed the limit, else *MemoryError.
func (r *Reservation) Grow(bytes int64) error {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case bytes <= b.max-b.used:
		b.used += bytes
		r.held += bytes
		return nil
	// Even alone the query would not fit, so trying again can't help.
	case bytes > b.max-r.held:
		return &promstore.LimitError{Limit: "limits.memory", Max: b.max}
	}
	return &MemoryError{b.max}
}

// Release gives everything back; a second call does nothing.
func (r *Reservation) Release() {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.b.used -= r.held
	r.held = 0
}
