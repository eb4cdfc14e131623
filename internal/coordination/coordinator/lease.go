package coordinator

import (
	"context"
	"sync"
	"time"
)

// lease is a session as the worker sees it: its context ends when no renewal was
// answered in time. Times are monotonic, so that setting the clock does not matter.
type lease struct {
	token  string
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	deadline time.Time
	timer    *time.Timer
}

// margin is the part of the TTL that the worker does without: clocks run at different
// speeds, and work needs a moment to stop.
const margin = 10

func newLease(ctx context.Context, token string, sent time.Time, ttl time.Duration) *lease {
	l := &lease{token: token, deadline: deadline(sent, ttl)}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	l.timer = time.AfterFunc(time.Until(l.deadline), l.expire)
	return l
}

// deadline counts from before the message was sent, as etcd counts from after it came.
func deadline(sent time.Time, ttl time.Duration) time.Time { return sent.Add(ttl - ttl/margin) }

// extend moves the deadline on. A lease that has expired stays so.
func (l *lease) extend(sent time.Time, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := deadline(sent, ttl); d.After(l.deadline) && l.ctx.Err() == nil && time.Now().Before(l.deadline) {
		l.deadline = d
		l.timer.Reset(time.Until(d))
	}
}

func (l *lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !time.Now().Before(l.deadline) { // else it was extended meanwhile
		l.cancel(ErrLeaseExpired)
	}
}

func (l *lease) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !time.Now().Before(l.deadline) {
		l.cancel(ErrLeaseExpired)
	}
	return context.Cause(l.ctx)
}

// end stops the timer and ends the context.
func (l *lease) end(cause error) {
	l.timer.Stop()
	l.cancel(cause)
}
