// Package maintain does what a worker does beside its shards' hours: it merges blocks into
// larger ones, removes what is too old, collects what nobody names any more, and gives
// accepted batches to the workers again when an operator asks for that. It also copies the records of blocks for readers
// of many hours.
package maintain

import (
	"context"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
)

// interval is how often the clock is asked whether something is due.
const interval = 10 * time.Second

// every calls do again and again until ctx ends; what fails is counted and tried again.
func every(ctx context.Context, name string, m *metrics.Metrics, log *slog.Logger, do func(context.Context) error) error {
	for {
		if err := (run.WallClock{}).Sleep(ctx, interval); err != nil {
			return err
		}
		if err := do(ctx); err != nil && ctx.Err() == nil {
			m.MaintenanceFails.WithLabelValues(name).Inc()
			log.Warn("maintenance failed; it is tried again", "what", name, "error", err)
		}
	}
}
