package maintain

import (
	"context"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
)

// Reprocessing gives accepted batches to the workers again when an operator asks for it. Every
// worker takes the messages; no shard needs to be owned.
type Reprocessing struct {
	Worker  *work.Worker
	Metrics *metrics.Metrics
	Log     *slog.Logger
	// Poll is the time between two polls that find nothing.
	Poll time.Duration
}

// Run takes one message at a time, until ctx ends.
func (r *Reprocessing) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		o, err := r.Worker.Step(ctx)
		if o != work.Idle {
			r.Metrics.Reprocessed.WithLabelValues(string(o)).Inc()
		}
		switch {
		case err != nil && ctx.Err() == nil:
			r.Log.Warn("a request to reprocess is not done", "outcome", o, "error", err)
		case o == work.Completed, o == work.HandedOver:
			r.Log.Info("reprocessing", "outcome", o)
			continue // there may be more
		}
		_ = run.WallClock{}.Sleep(ctx, r.Poll) // the loop's condition says when it was cut short
	}
	return ctx.Err()
}
