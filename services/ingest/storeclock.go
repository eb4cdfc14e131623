package ingest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// storeClock compares this machine's clock with the store's, by the times in answers to
// creates, so it needs no requests of its own.
//
// A collector whose clock is behind would take the present for the future, and refuse for
// ever the batches of senders whose clocks are right. So checks use the later of both clocks;
// a clock that is ahead only allows more.
type storeClock struct {
	objstore.Store
	now    func() time.Time
	behind atomic.Int64 // nanoseconds, by the last create; negative: ahead
}

// Unwrap implements what objstore.Unwrap looks for.
func (c *storeClock) Unwrap() objstore.Store { return c.Store }

// Create implements objstore.Creator.
func (c *storeClock) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	info, err := c.Store.Create(ctx, key, body, o)
	if err == nil && !info.LastModified.IsZero() {
		// The store's time is from before the answer, and rounded down to a second, so the real
		// difference is at least this.
		c.behind.Store(int64(info.LastModified.Sub(c.now())))
	}
	return info, err
}

// probe compares the clocks before the first batch, with an object that it writes and removes.
func (c *storeClock) probe(ctx context.Context, key string) error {
	if _, err := c.Create(ctx, key, []byte("{}"), objstore.PutOptions{ContentType: "application/json"}); err != nil {
		return fmt.Errorf("read the store's time: %w", err)
	}
	return c.Delete(ctx, key)
}

// latest is the later of this machine's time and the store's.
func (c *storeClock) latest() time.Time {
	return c.now().Add(max(time.Duration(c.behind.Load()), 0))
}
