package run

import (
	"context"
	"time"
)

// WallClock is the machine's clock, for parts that take their clock from outside.
type WallClock struct{}

// Now is the time of day.
func (WallClock) Now() time.Time { return time.Now() }

// Sleep waits for d or the context's end.
func (WallClock) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
