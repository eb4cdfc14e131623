package send

import (
	"context"
	"errors"
	"sync"
)

// ErrUnreachable: no collector could be reached; what is pending stays on disk.
var ErrUnreachable = errors.New("no collector can be reached")

// drain is the last attempt to send before a stop. When it begins, back-offs end, so that each
// collector is tried at once. When none of them opens a stream, it ends as unreachable.
type drain struct {
	once        sync.Once
	begun       chan struct{}
	unreachable chan struct{}

	// Owned by the sender's loop.
	seen   bool
	opened bool // the last session had its welcome
	failed int  // sessions in a row without one, since hurried
}

func newDrain() drain { return drain{begun: make(chan struct{}), unreachable: make(chan struct{})} }

// Drain waits until nothing is pending, ctx ends, or no collector can be reached, which is
// ErrUnreachable. It may be called once, before Run ends.
func (s *Sender) Drain(ctx context.Context) error {
	s.stopping.once.Do(func() { close(s.stopping.begun) })
	for {
		changed := s.queue.Changed() // taken before the check, so that no change is missed
		if s.queue.Stats().Pending == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-s.stopping.unreachable:
			return ErrUnreachable
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// checkBegun reports that a drain has begun, the first time that it is called after that.
func (d *drain) checkBegun() bool {
	select {
	case <-d.begun:
		first := !d.seen
		d.seen = true
		return first
	default:
		return false
	}
}

// hasBegun reports whether a drain has begun; anybody may call it.
func (d *drain) hasBegun() bool {
	select {
	case <-d.begun:
		return true
	default:
		return false
	}
}

// wake is closed when a drain begins; nil once the sender has seen that, so that it waits again.
func (d *drain) wake() <-chan struct{} {
	if d.seen {
		return nil
	}
	return d.begun
}

// noteSession notes the end of a session. After as many sessions without a stream as there are
// collectors, all of them were tried.
func (d *drain) noteSession(targets int) {
	switch {
	case !d.seen || d.failed >= targets: // no drain, or unreachable is closed already
	case d.opened:
		d.failed = 0
	default:
		if d.failed++; d.failed == targets {
			close(d.unreachable)
		}
	}
}
