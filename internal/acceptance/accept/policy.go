package accept

import (
	"errors"
	"fmt"
	"time"
)

// Policy bounds one Accept call. Safety does not depend on it: it has no ages and no clock.
type Policy struct {
	// Generations is how many generations of a blob one call tries.
	Generations int
	// RetryAfter is the hint in every RetryError.
	RetryAfter time.Duration
}

// DefaultPolicy is the policy of a collector.
func DefaultPolicy() Policy { return Policy{Generations: 8, RetryAfter: time.Second} }

// Validate checks the bounds.
func (p Policy) Validate() error {
	if p.Generations < 1 || p.Generations > 1000 {
		return fmt.Errorf("generations is %d, not 1 to 1000", p.Generations)
	}
	if p.RetryAfter < 0 {
		return errors.New("retry-after is negative")
	}
	return nil
}
