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
	return Sleep(ctx, d)
}
