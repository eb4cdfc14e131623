// Package storeclock asks the object store what time it is. What is removed for its age is
// gone for good, so nothing is removed by a worker's own clock alone.
package storeclock

import (
	"context"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// MaxAhead of the store's time is taken for a clock that is right. Blocks stay for a day at
// least, so nothing is removed early by more than a small part of that.
const MaxAhead = 5 * time.Minute

// AheadError refuses to remove what is too old by a clock that the store does not confirm.
type AheadError struct{ Ahead time.Duration }

func (e *AheadError) Error() string {
	return fmt.Sprintf("this machine's clock is %v ahead of the store's: nothing is removed for its age", e.Ahead.Round(time.Second))
}

// Store is what a Clock needs of the object store.
type Store interface {
	objstore.Putter
	objstore.Header
}

// Clock compares this machine's clock with the store's.
type Clock struct {
	Store Store
	Now   func() time.Time
	// Observe is called with how far Now is ahead of the store's time, whenever that was asked.
	Observe func(ahead time.Duration)
}

// Confirmed is the time by which something may be removed because it is old: the store's, or
// this machine's where that is earlier. It is *AheadError where they are far apart.
func (c Clock) Confirmed(ctx context.Context) (time.Time, error) {
	stored, ahead, err := c.ask(ctx)
	if err != nil {
		return stored, err
	}
	if ahead > MaxAhead {
		return stored, &AheadError{ahead}
	}
	if ahead < 0 {
		// The earlier of two clocks never removes anything that the other one would keep.
		return stored.Add(ahead), nil
	}
	return stored, nil
}

// ask gives the store's time, by an object that it writes, and how far Now is ahead of it.
func (c Clock) ask(ctx context.Context) (stored time.Time, ahead time.Duration, err error) {
	// Now is asked before the store is: an answer that takes long makes this clock seem behind,
	// which removes less, and never ahead.
	now := c.Now()
	info, err := c.Store.Put(ctx, layout.RollupClockKey, []byte("{}"), objstore.PutOptions{ContentType: "application/json"})
	if err == nil && info.LastModified.IsZero() {
		// S3 does not say in the answer to a PUT when it wrote the object.
		info, err = c.Store.Head(ctx, layout.RollupClockKey)
	}
	if err != nil {
		return stored, 0, fmt.Errorf("ask the store's time: %w", err)
	}
	ahead = now.Sub(info.LastModified)
	c.Observe(ahead)
	return info.LastModified, ahead, nil
}
