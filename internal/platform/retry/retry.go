// Package retry makes attempts with exponential back-off between them, by a clock and
// randomness that are handed in: the one back-off of the deterministic core packages and
// of the object store's decorators. A simulation that gives its own clock drives every
// wait and every attempt.
package retry

import (
	"context"
	"fmt"
	"time"
)

// Clock is time as the caller sees it.
type Clock interface {
	Now() time.Time
	// Sleep waits for d, or returns the context's error.
	Sleep(ctx context.Context, d time.Duration) error
}

// Policy bounds the attempts at one thing.
type Policy struct {
	// Attempts in all; 1 never tries again.
	Attempts int
	// Base is the wait before the second attempt. It doubles per attempt, up to Cap.
	Base, Cap time.Duration
	// Elapsed since the first attempt began, past which no other begins; 0 is no bound.
	Elapsed time.Duration
}

// Validate refuses what could not work.
func (p Policy) Validate() error {
	switch {
	case p.Attempts < 1 || p.Attempts > 100:
		return fmt.Errorf("attempts is %d, not 1 to 100", p.Attempts)
	case p.Base <= 0 || p.Cap < p.Base:
		return fmt.Errorf("back-off of %s up to %s, want 0 < base <= cap", p.Base, p.Cap)
	case p.Elapsed < 0:
		return fmt.Errorf("elapsed time %s is negative", p.Elapsed)
	}
	return nil
}

// Wait is the time between attempt number n, counted from 1, and the next one: a point of
// the upper half of the back-off, so that clients that failed together do not come back
// together. jitter is 0 to 1; 1 is the whole back-off.
func (p Policy) Wait(n int, jitter float64) time.Duration {
	d := p.Base
	// The loop ends at the cap, so that doubling never overflows, however many attempts there are.
	for i := 1; i < n && d < p.Cap; i++ {
		d *= 2
	}
	d = min(d, p.Cap)
	return d/2 + time.Duration(jitter*float64(d-d/2))
}

// Retrier makes attempts. It has no state and is safe for concurrent use if Clock and
// Jitter are.
type Retrier struct {
	Policy Policy
	Clock  Clock
	// Jitter gives numbers of 0 to 1, such as math/rand/v2.Float64; nil takes whole waits.
	Jitter func() float64
}

// Do calls f until it succeeds, until again reports that another attempt cannot help, or until the
// policy or the context ends it. It returns f's last error and never the context's: an attempt may
// have had an effect, and f's error says what is known of it.
func (r Retrier) Do(ctx context.Context, f func(context.Context) error, again func(error) bool) error {
	err := f(ctx)
	if err == nil || !again(err) || r.Policy.Attempts <= 1 {
		return err
	}
	start := r.Clock.Now()
	for n := 1; ; {
		if ctx.Err() != nil {
			return err
		}
		wait := r.Policy.Wait(n, r.jitter())
		at := r.Clock.Now().Add(wait)
		if r.Policy.Elapsed > 0 && at.Sub(start) > r.Policy.Elapsed {
			return fmt.Errorf("%d attempts in %s: %w", n, r.Policy.Elapsed, err)
		}
		// There is no time for another attempt before the deadline, so waiting for it would be useless.
		if deadline, ok := ctx.Deadline(); ok && !at.Before(deadline) {
			return err
		}
		if e := r.Clock.Sleep(ctx, wait); e != nil {
			return err
		}
		n++
		if err = f(ctx); err == nil || !again(err) {
			return err
		}
		if n >= r.Policy.Attempts {
			return fmt.Errorf("%d attempts: %w", n, err)
		}
	}
}

func (r Retrier) jitter() float64 {
	if r.Jitter == nil {
		return 1
	}
	return r.Jitter()
}
