package run

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Backoff gives the waits of a loop that tries again for as long as it runs. The first wait is about
// first, each next one about twice as long, and none is longer than most. Each is a random value
// of its upper half, so that processes that failed together do not try again together. Not for concurrent use. Core packages use internal/platform/retry, whose clock and
// randomness are handed in.
type Backoff struct{ exponential backoff.ExponentialBackOff }

// NewBackoff begins with the shortest wait. It needs 0 < first <= most.
func NewBackoff(first, most time.Duration) *Backoff {
	// The library's wait is c ± c/3. With c = 3/4 of ours that is the upper half of ours.
	return &Backoff{backoff.ExponentialBackOff{
		InitialInterval: first * 3 / 4, MaxInterval: most * 3 / 4, Multiplier: 2, RandomizationFactor: 1. / 3,
	}}
}

// Next is how long to wait now.
func (b *Backoff) Next() time.Duration { return b.exponential.NextBackOff() }

// Reset goes back to the shortest wait: for what has worked again.
func (b *Backoff) Reset() { b.exponential.Reset() }

// Sleep waits for Next, or returns the context's error when it ends first.
func (b *Backoff) Sleep(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Sleep waits for d, or returns the context's error when it ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
