package accept

import (
	"errors"
	"fmt"
	"time"
)

// Policy bounds one Accept call. Nothing in it decides safety: no age, no clock.
type Policy struct {
	// Attempts at one step (a create, a read) before the call ends with a RetryError.
	Attempts int
	// BackoffBase and BackoffCap of the exponential backoff between attempts; the
	// wait is drawn from its upper half.
	BackoffBase, BackoffCap time.Duration
	// Generations of a blob that one call tries.
	Generations int
	// RequestTimeout of one request to the store.
	RequestTimeout time.Duration
	// Deadline of one call, by the protocol's clock: past it, no further attempt starts.
	Deadline time.Duration
	// RetryAfter is the hint in a RetryError.
	RetryAfter time.Duration
}

// DefaultPolicy is the policy of a collector.
func DefaultPolicy() Policy {
	return Policy{
		Attempts:       5,
		BackoffBase:    25 * time.Millisecond,
		BackoffCap:     time.Second,
		Generations:    8,
		RequestTimeout: 10 * time.Second,
		Deadline:       30 * time.Second,
		RetryAfter:     time.Second,
	}
}

// Validate checks the bounds.
func (p Policy) Validate() error {
	switch {
	case p.Attempts < 1 || p.Attempts > 100:
		return fmt.Errorf("attempts is %d, not 1 to 100", p.Attempts)
	case p.Generations < 1 || p.Generations > 1000:
		return fmt.Errorf("generations is %d, not 1 to 1000", p.Generations)
	case p.BackoffBase <= 0 || p.BackoffCap < p.BackoffBase:
		return errors.New("backoff needs 0 < base <= cap")
	case p.RequestTimeout <= 0 || p.Deadline <= 0:
		return errors.New("request timeout and deadline must be positive")
	case p.RetryAfter < 0:
		return errors.New("retry-after is negative")
	}
	return nil
}
