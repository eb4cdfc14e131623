package coordinator

import (
	"context"
	"sync"
	"time"
)

// lease is a session as the worker sees it: its context ends when no renewal was answered in time. Times are
// monotonic, so setting the system clock has no effect.
type lease struct {
	token  string
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	deadline time.Time
	timer    *time.Timer
}

// margin: one part in so many of the TTL is not used, as clocks run at different speeds and work needs a moment to
// stop.
const margin = 10

func newLease(ctx context.Context, token string, sent time.Time, ttl time.Duration) *lease {
	l := &lease{token: token, deadline: deadline(sent, ttl)}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	l.timer = time.AfterFunc(time.Until(l.deadline), l.expire)
	return l
}

// deadline counts from before the message was sent, while etcd counts from after it arrived: so the worker stops
// first.
func deadline(sent time.Time, ttl time.Duration) time.Time { return sent.Add(ttl - ttl/margin) }

// extend moves the deadline. A lease that has expired stays expired: its shards may be granted to others.
func (l *lease) extend(sent time.Time, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Answers may come out of order, and an older one must not shorten the lease.
	if d := deadline(sent, ttl); d.After(l.deadline) && l.ctx.Err() == nil && time.Now().Before(l.deadline) {
		l.deadline = d
		l.timer.Reset(time.Until(d))
	}
}

func (l *lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !time.Now().Before(l.deadline) { // otherwise it was extended while the timer fired
		l.cancel(ErrLeaseExpired)
	}
}

func (l *lease) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// After a pause of the process no timer may have run yet.
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
