package objstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/retry"
)

// Policy has the deadline and the attempts of requests to a store. No decision about data depends on it.
type Policy struct {
	// Timeout of one request, including its body.
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

// Validate checks the bounds.
func (p Policy) Validate() error {
	if p.Timeout <= 0 {
		return fmt.Errorf("store: timeout %s is not positive", p.Timeout)
	}
	if err := p.Retry.Validate(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// WithPolicy adds to s a deadline for each request and further attempts for each operation;
// clock does the waiting. onRetry is called with the error of each attempt that is followed
// by another one; it may be nil. jitter is that of retry.Retrier.
func WithPolicy(s Store, p Policy, clock retry.Clock, jitter func() float64, onRetry func(Op, error)) Store {
	return Retry(Deadline(s, p.Timeout), retry.Retrier{Policy: p.Retry, Clock: clock, Jitter: jitter}, onRetry)
}

// Deadline cancels each request to s after limit. A write that it cancels is ErrUnknown, a
// read ErrUnavailable, as with any other cancelled context. But the error wraps no context
// error: the caller's context has not ended, and it is the store that did not answer.
func Deadline(s Store, limit time.Duration) Store {
	return Decorate(s, func(ctx context.Context, op Op, do func(context.Context) error) error {
		// The deadline is for each attempt, since this decorator lies below Retry.
		bounded := withTimeout(ctx, limit)
		defer bounded.end()
		err := do(bounded)
		// When the caller's own context has ended, the error says so already, and the caller needs to see
		// it.
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		// A read that was cancelled has changed nothing; a write may have been applied, or may be at any
		// later time.
		cause := ErrUnavailable
		if op.Writes() {
			cause = ErrUnknown
		}
		if bounded.Err() == nil { // a shorter deadline of the back end's own, such as that of a connection
			return &Error{Op: op.Name, Key: op.Key, Err: fmt.Errorf("%w: %v", cause, err)}
		}
		return &Error{Op: op.Name, Key: op.Key, Err: fmt.Errorf("%w: no answer within %s", cause, limit)}
	})
}

// Retry makes further attempts at each operation of s, as r says, while its error is one
// that another attempt may not have.
//
// A write whose outcome is unknown is sent again with the same key, bytes and condition.
// The next answer is returned as it is. nil is exact, because a conditional write succeeds
// once. But ErrExists and ErrPreconditionFailed may be caused by the caller's own earlier
// attempt, and a refusal says nothing about that attempt, which may still be applied. So
// every error of an operation with an attempt of unknown outcome wraps ErrUnknown as well
// as the error of the last attempt. A caller that needs to know whose write it was reads
// the object and compares: only the caller knows what makes a record its own.
func Retry(s Store, r retry.Retrier, onRetry func(Op, error)) Store {
	return Decorate(s, func(ctx context.Context, op Op, do func(context.Context) error) error {
		// The first attempt stands here, and not in Do, since hardly any is followed by another one.
		last := do(ctx)
		if last == nil || !retryable(last) {
			return last
		}
		unknown, first := errors.Is(last, ErrUnknown), true
		err := r.Do(ctx, func(ctx context.Context) error {
			if first {
				first = false
				return last
			}
			// It is called at the start of the next attempt and not after a failure, so that the last
			// failure, which nothing follows, is not counted.
			if onRetry != nil {
				onRetry(op, last)
			}
			last = do(ctx)
			// Remembered over all attempts: a later clear refusal says nothing about the attempt without
			// an answer.
			unknown = unknown || errors.Is(last, ErrUnknown)
			return last
		}, retryable)
		if err != nil && unknown && op.Writes() && !errors.Is(err, ErrUnknown) {
			return fmt.Errorf("%w (after an attempt that ended with %w)", err, ErrUnknown)
		}
		return err
	})
}

// retryable reports whether another attempt can have another outcome. A checksum mismatch
// can: the bytes may have been damaged on the way to or from the store.
func retryable(err error) bool {
	for _, final := range []error{ErrNotFound, ErrExists, ErrPreconditionFailed, ErrDenied, ErrNoBucket, ErrInvalid} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}
