package objstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/retry"
)

// Policy is how requests to a store are made. Nothing in it decides anything.
type Policy struct {
	// Timeout of one request, its body included.
	Timeout time.Duration
	// Retry bounds the attempts at one operation.
	Retry retry.Policy
}

// DefaultPolicy of a service.
func DefaultPolicy() Policy {
	return Policy{
		Timeout: 20 * time.Second,
		Retry:   retry.Policy{Attempts: 5, Base: 25 * time.Millisecond, Cap: time.Second},
	}
}

// Validate refuses what could not work.
func (p Policy) Validate() error {
	if p.Timeout <= 0 {
		return fmt.Errorf("store: timeout %s is not positive", p.Timeout)
	}
	if err := p.Retry.Validate(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// WithPolicy is s with a deadline for each request and with attempts at each operation,
// waiting by clock. onRetry hears of each attempt that is followed by another one, with
// its error; it may be nil. jitter is retry.Retrier's.
func WithPolicy(s Store, p Policy, clock retry.Clock, jitter func() float64, onRetry func(Op, error)) Store {
	return Retry(Deadline(s, p.Timeout), retry.Retrier{Policy: p.Retry, Clock: clock, Jitter: jitter}, onRetry)
}

// Deadline ends each request to s after timeout. A write that it cuts short is ErrUnknown, a
// read ErrUnavailable, as of any other end of the context. Unlike those, the error wraps no
// error of a context: the caller's still has time, and the store is who did not answer.
func Deadline(s Store, timeout time.Duration) Store {
	return Decorate(s, func(ctx context.Context, op Op, do func(context.Context) error) error {
		bounded, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		err := do(bounded)
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		cause := ErrUnavailable
		if op.Writes() {
			cause = ErrUnknown
		}
		if bounded.Err() == nil { // a shorter deadline of the back end's own, such as that of a connection
			return &Error{Op: op.Name, Key: op.Key, Err: fmt.Errorf("%w: %v", cause, err)}
		}
		return &Error{Op: op.Name, Key: op.Key, Err: fmt.Errorf("%w: no answer within %s", cause, timeout)}
	})
}

// Retry makes the attempts of r at each operation of s, as long as its error can be mended
// by another one.
//
// A write whose outcome is unknown is sent again with the same key, bytes and condition.
// What then comes back is given as it is, and nothing is guessed: nil is exact, since a
// conditional write succeeds once; but ErrExists and ErrPreconditionFailed may have met
// the caller's own earlier attempt, and a refusal says nothing of that attempt, which may
// still land. So every error of an operation that had an attempt of unknown outcome wraps
// ErrUnknown too, beside what the last attempt said. Who needs to know whose write it was
// reads it and compares: only the caller knows what makes a record its own.
func Retry(s Store, r retry.Retrier, onRetry func(Op, error)) Store {
	return Decorate(s, func(ctx context.Context, op Op, do func(context.Context) error) error {
		unknown := false
		var last error
		err := r.Do(ctx, func(ctx context.Context) error {
			if last != nil && onRetry != nil {
				onRetry(op, last)
			}
			last = do(ctx)
			unknown = unknown || errors.Is(last, ErrUnknown)
			return last
		}, mendable)
		if err != nil && unknown && op.Writes() && !errors.Is(err, ErrUnknown) {
			return fmt.Errorf("%w (after an attempt that ended with %w)", err, ErrUnknown)
		}
		return err
	})
}

// mendable reports whether another attempt can end otherwise. A checksum that does not
// match may be of bytes that were damaged on the way, to the store or from it.
func mendable(err error) bool {
	for _, final := range []error{ErrNotFound, ErrExists, ErrPreconditionFailed, ErrDenied, ErrNoBucket, ErrInvalid} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}
