package backlog

import (
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// UnreadableWait is about how long a batch whose frame can't be read is left out at first. It
// doubles with each try, up to six times.
const UnreadableWait = 5 * time.Minute

// Unreadable are the pending batches whose frames could not be read. Plans go without them
// until then, so that one lost frame does not hold up its whole hour.
type Unreadable struct {
	// Jitter gives numbers of 0 to 1. Waits that differ spread the tries of many batches
	// that were lost together.
	Jitter func() float64

	of map[identity.Batch]unreadable
}

type unreadable struct {
	until time.Time
	tries int
	// needs is the batch whose frame is gone where it is not the batch's own.
	needs *accepted.Batch
}

// Add notes that the batch's frame could not be read, once more or for the first time.
func (u *Unreadable) Add(id identity.Batch, now time.Time) {
	u.wait(id, u.of[id].needs, now)
}

// AddNeeding is Add for a batch that can't be rolled up before the frame of another one is back.
func (u *Unreadable) AddNeeding(id identity.Batch, other accepted.Batch, now time.Time) {
	u.wait(id, &other, now)
}

// Needs is the batch that a listed one was added with; nil: it is its own frame that can't be read.
func (u *Unreadable) Needs(id identity.Batch) *accepted.Batch { return u.of[id].needs }

func (u *Unreadable) wait(id identity.Batch, needs *accepted.Batch, now time.Time) {
	if u.of == nil {
		u.of = map[identity.Batch]unreadable{}
	}
	l := u.of[id]
	l.tries++
	l.needs = needs
	l.until = now.Add(retry.Policy{Base: UnreadableWait, Cap: UnreadableWait << 6}.Wait(l.tries, u.Jitter()))
	u.of[id] = l
}

// Due reports whether the batch is one of them, and whether its frame is to be tried again.
func (u *Unreadable) Due(id identity.Batch, now time.Time) (listed, due bool) {
	l, ok := u.of[id]
	return ok, ok && !now.Before(l.until)
}

// Tries is how often the batch's frame could not be read.
func (u *Unreadable) Tries(id identity.Batch) int { return u.of[id].tries }

// Remove forgets a batch: its frame can be read, or the batch was evicted.
func (u *Unreadable) Remove(id identity.Batch) { delete(u.of, id) }

// Len is how many there are.
func (u *Unreadable) Len() int { return len(u.of) }

// ForgetWaits makes all of them due: the clock went back.
func (u *Unreadable) ForgetWaits() {
	for id, l := range u.of {
		l.until = time.Time{}
		u.of[id] = l
	}
}
