package coordinator

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/work"
)

// What is left of an operator's completed runs is kept for a month.
const (
	forgetPrefix = "reprocess"
	forgetAfter  = 30 * 24 * time.Hour
	forgetEvery  = time.Hour
)

// forget drops what is left of old runs, so that etcd does not grow with them. One
// coordinator does it; two would be harmless.
func (s *Service) forget(ctx context.Context, q work.Queue, t work.Table) error {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		if s.Leading() {
			n, err := forgetOld(ctx, q, t, s.now())
			switch {
			case err != nil && ctx.Err() == nil:
				s.log.Warn("old runs are still remembered; tried again later", "error", err)
			case n.Forgot > 0:
				s.log.Info("forgot old runs", "logs", n.Forgot)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func forgetOld(ctx context.Context, q work.Queue, t work.Table, now time.Time) (work.Swept, error) {
	// No attempt is left to any row: pending runs are their operator's to resume.
	return work.Sweep{Queue: q, Table: t, Prefix: forgetPrefix, Forget: forgetAfter}.Run(ctx, now)
}
