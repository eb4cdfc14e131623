package rollup

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// reprocess does operators' orders to give accepted batches to the workers again, one at a
// time, until ctx ends. Every worker takes their messages; no shard needs to be owned.
func (s *Service) reprocess(ctx context.Context) error {
	w, err := work.NewWorker(s.queue, s.table, reprocess.NewHandler(s.store, s.run, s.cfg.Shards, 0), work.Config{
		Topic: reprocess.Topic, Owner: s.run + ".reprocess", Hold: s.cfg.Jobs.Hold, TimeLimit: s.cfg.Jobs.TimeLimit,
	}, s.now)
	if err != nil {
		return fmt.Errorf("rollup: %w", err)
	}
	for ctx.Err() == nil {
		o, err := w.Step(ctx)
		if o != work.Idle {
			s.m.reprocessed.WithLabelValues(string(o)).Inc()
		}
		switch {
		case err != nil && ctx.Err() == nil:
			s.log.Warn("an order to reprocess is not done", "outcome", o, "error", err)
		case o == work.Completed, o == work.HandedOver:
			s.log.Info("reprocessing", "outcome", o)
			continue
		}
		_ = run.WallClock{}.Sleep(ctx, min(s.cfg.Intake.Interval, pollMessages)) // the loop's condition says when it was cut short
	}
	return ctx.Err()
}
