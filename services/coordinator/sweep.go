package coordinator

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

const (
	sweepEvery = time.Minute
	// sweepGrace is the age at which the message of a request counts as lost: longer than any message of a failed
	// job is hidden.
	sweepGrace = 5 * time.Minute
	// forgetAfter is how long the results of completed requests are kept.
	forgetAfter = 30 * 24 * time.Hour
)

// sweep sends the lost messages of operators' requests to reprocess again, and removes the results of old requests, so
// that etcd does not grow with them. Jobs of snapshots need no sweep: the owner of their shard sends lost messages again.
func (s *Service) sweep(ctx context.Context, q work.Queue, t work.Table) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		// One coordinator is enough. Two that sweep at once, while the leader changes, do no harm: a message that is
		// sent twice is deleted when its job is done.
		if s.Leading() {
			n, err := sweepRequests(ctx, q, t, s.now())
			switch {
			case err != nil && ctx.Err() == nil:
				s.log.Warn("requests to reprocess could not be swept; the next sweep tries again", "error", err)
			case n.Sent+n.Forgot > 0:
				s.log.Info("requests to reprocess", "messages_sent_again", n.Sent, "forgotten", n.Forgot)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func sweepRequests(ctx context.Context, q work.Queue, t work.Table, now time.Time) (work.Swept, error) {
	return work.Sweep{Queue: q, Table: t, Prefix: reprocess.LogPrefix, Grace: sweepGrace, MaxAttempts: work.DefaultMaxAttempts, Forget: forgetAfter}.Run(ctx, now)
}
