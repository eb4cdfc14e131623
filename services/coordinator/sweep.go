package coordinator

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

const (
	sweepEvery = time.Minute
	// sweepGrace is how long an order may rest until its message counts as lost: longer
	// than any message of a job that failed waits.
	sweepGrace = 5 * time.Minute
	// What is left of an operator's completed orders is kept for a month.
	forgetAfter = 30 * 24 * time.Hour
)

// sweep finds operators' orders whose message was lost, and drops what is left of old ones,
// so that etcd does not grow with them. The coordinator that leads does it; two would be
// harmless. Snapshots need none: the owner of a shard sees to their messages.
func (s *Service) sweep(ctx context.Context, q work.Queue, t work.Table) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if s.Leading() {
			n, err := sweepOrders(ctx, q, t, s.now())
			switch {
			case err != nil && ctx.Err() == nil:
				s.log.Warn("orders to reprocess are looked at again later", "error", err)
			case n.Sent+n.Forgot > 0:
				s.log.Info("orders to reprocess", "messages_sent_again", n.Sent, "forgotten", n.Forgot)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func sweepOrders(ctx context.Context, q work.Queue, t work.Table, now time.Time) (work.Swept, error) {
	return work.Sweep{Queue: q, Table: t, Prefix: reprocess.LogPrefix, Grace: sweepGrace, MaxAttempts: work.DefaultMaxAttempts, Forget: forgetAfter}.Run(ctx, now)
}
