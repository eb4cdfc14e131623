package send

import (
	"context"
	"errors"
	"sync"
)

// ErrUnreachable: no collector could be reached; what is pending stays on disk.
var ErrUnreachable = errors.New("no collector can be reached")

// drain is the last try before a stop. Back-offs end when it begins, so that each
// collector is tried at once; it is lost when none of them opens a stream.
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

// Drain waits until nothing is pending, ctx ends, or no collector can be reached, which
// is ErrUnreachable. For once, before the end of Run.
func (s *Sender) Drain(ctx context.Context) error {
	s.stopping.once.Do(func() { close(s.stopping.begun) })
	for {
		changed := s.queue.Changed()
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

// checkBegun reports, once, that a drain has begun.
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

// begin ends a wait when a drain begins; never again after that.
func (d *drain) begin() <-chan struct{} {
	if d.seen {
		return nil
	}
	return d.begun
}

// noteSession notes the end of a session.
func (d *drain) noteSession(targets int) {
	switch {
	case !d.seen || d.failed >= targets: // not asked, or told already
	case d.opened:
		d.failed = 0
	default:
		if d.failed++; d.failed == targets {
			close(d.unreachable)
		}
	}
}
