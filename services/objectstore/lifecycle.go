package objectstore

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/lifecycle"
)

// runLifecycle carries out the lifecycle rules of buckets until ctx ends: at the start, and every interval.
func (s *Service) runLifecycle(ctx context.Context, eng *engine.Engine, m *metrics) error {
	runner := &lifecycle.Runner{Engine: eng, Log: s.deps.Telemetry.Log, Wait: s.lifecycleWait,
		Observe: func(action string, n int) { m.lifecycle.WithLabelValues(action).Add(float64(n)) },
		Locked:  func(n int) { m.lifecycleLocked.Add(float64(n)) }}
	t := time.NewTicker(s.cfg.LifecycleInterval)
	defer t.Stop()
	for {
		runner.Pass(ctx, s.deps.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// lifecycleWait waits for the time that n deletions may take at lifecycle_rate.
func (s *Service) lifecycleWait(ctx context.Context, n int) error {
	t := time.NewTimer(time.Duration(n) * time.Second / time.Duration(s.cfg.LifecycleRate))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
