package objstore

import (
	"context"
	"sync"
	"time"
)

// timeout is a context that ends after a while, as that of context.WithTimeout. But its timer is started only when
// somebody waits for it: a back end that sets deadlines on its connections needs none. Each request has one.
type timeout struct {
	context.Context // the caller's
	at              time.Time

	mu     sync.Mutex
	timed  context.Context // nil before it was waited for
	cancel context.CancelFunc
}

func withTimeout(ctx context.Context, d time.Duration) *timeout {
	return &timeout{Context: ctx, at: time.Now().Add(d)}
}

// Untimed gives the context of a request's caller, which may end by its own deadline, and the deadline of the request;
// the zero time stands for none.
// For back ends that keep the deadline by themselves.
func Untimed(ctx context.Context) (context.Context, time.Time) {
	if t, ok := ctx.(*timeout); ok {
		return t.Context, t.at
	}
	return ctx, time.Time{}
}

// Deadline implements context.Context.
func (t *timeout) Deadline() (time.Time, bool) {
	if earlier, ok := t.Context.Deadline(); ok && earlier.Before(t.at) {
		return earlier, true
	}
	return t.at, true
}

// Done implements context.Context.
func (t *timeout) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timed == nil {
		t.timed, t.cancel = context.WithDeadline(t.Context, t.at)
	}
	return t.timed.Done()
}

// Err implements context.Context.
func (t *timeout) Err() error {
	t.mu.Lock()
	timed := t.timed
	t.mu.Unlock()
	if timed != nil {
		return timed.Err()
	}
	if err := t.Context.Err(); err != nil {
		return err
	}
	if !time.Now().Before(t.at) {
		return context.DeadlineExceeded
	}
	return nil
}

// Value implements context.Context. The context with the timer answers too, so that package context finds it when
// others are derived from this one.
func (t *timeout) Value(key any) any {
	t.mu.Lock()
	timed := t.timed
	t.mu.Unlock()
	if timed != nil {
		return timed.Value(key)
	}
	return t.Context.Value(key)
}

// end frees the timer.
func (t *timeout) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cancel != nil {
		t.cancel()
	}
}
