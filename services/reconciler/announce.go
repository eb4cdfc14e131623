package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/coordinator"
	"lightmetrics.dev/lightmetrics/pkg/rollup"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/work"
)

const (
	announceTimeout = 3 * time.Second
	announceBody    = `{"reason":"intake"}`
)

// announcer tells the owners of shards that their intake has grown, through the queue of
// pending work. At most one announcement of a shard waits; those that fail are dropped:
// owners list their intake anyway.
type announcer struct {
	queue interface {
		Send(ctx context.Context, topic string, body []byte, o work.SendOptions) error
	}
	failed func(err error)

	mu   sync.Mutex
	grew map[shard.ID]struct{}
	kick chan struct{}
}

func newAnnouncer(failed func(error)) *announcer {
	return &announcer{failed: failed, grew: map[shard.ID]struct{}{}, kick: make(chan struct{}, 1)}
}

// announce never waits.
func (a *announcer) announce(id shard.ID) {
	a.mu.Lock()
	a.grew[id] = struct{}{}
	a.mu.Unlock()
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// run sends announcements until ctx ends.
func (a *announcer) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.kick:
		}
		a.mu.Lock()
		grew := a.grew
		a.grew = map[shard.ID]struct{}{}
		a.mu.Unlock()
		for id := range grew {
			sctx, cancel := context.WithTimeout(ctx, announceTimeout)
			err := a.queue.Send(sctx, rollup.Topic(id), []byte(announceBody), work.SendOptions{DedupeKey: "intake"})
			cancel()
			if err != nil && ctx.Err() == nil {
				a.failed(err)
				break // the others would meet the same
			}
		}
	}
}

// announceIntake runs the announcer over the coordinator's queue.
func (s *Service) announceIntake(ctx context.Context) (err error) {
	conn, err := rpc.Dial(s.cfg.Intake.Coordinator.Address, s.cfg.Intake.Coordinator.Client)
	if err != nil {
		return fmt.Errorf("intake.coordinator: %w", err)
	}
	defer func() { _ = conn.Close() }()
	s.announcer.queue = coordinator.NewPendingWork(conn, announceTimeout)
	return s.announcer.run(ctx)
}
