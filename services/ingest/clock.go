package ingest

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// clock is an accept.Clock with the service's time of day.
type clock struct{ now func() time.Time }

// Now implements accept.Clock.
func (c clock) Now() time.Time { return c.now() }

// Sleep implements accept.Clock.
func (clock) Sleep(ctx context.Context, d time.Duration) error {
	return run.WallClock{}.Sleep(ctx, d)
}
