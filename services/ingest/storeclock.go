package ingest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// storeClock compares this machine's clock with the store's, by the time that answers to
// creates carry. It costs no requests.
//
// A collector whose clock is behind would take the present for the future and refuse,
// for ever, batches of senders that are right. So what is judged by time is judged by the
// later of both clocks; one that is ahead only lets more in.
type storeClock struct {
	objstore.Store
	now    func() time.Time
	behind atomic.Int64 // nanoseconds, by the last create; negative: ahead
}

// Unwrap is for objstore.Unwrap.
func (c *storeClock) Unwrap() objstore.Store { return c.Store }

// Create implements objstore.Creator.
func (c *storeClock) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	info, err := c.Store.Create(ctx, key, body, o)
	if err == nil && !info.LastModified.IsZero() {
		// The store's time is older than the answer and rounded down to a second, so the
		// difference is at least this.
		c.behind.Store(int64(info.LastModified.Sub(c.now())))
	}
	return info, err
}

// ask compares the clocks before the first batch is judged, by an object that it writes and removes.
func (c *storeClock) ask(ctx context.Context, key string) error {
	if _, err := c.Create(ctx, key, []byte("{}"), objstore.PutOptions{ContentType: "application/json"}); err != nil {
		return fmt.Errorf("ask the store's time: %w", err)
	}
	return c.Delete(ctx, key)
}

// latest is the later of this machine's time and the store's.
func (c *storeClock) latest() time.Time {
	return c.now().Add(max(time.Duration(c.behind.Load()), 0))
}
