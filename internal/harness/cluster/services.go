package cluster

import (
	"context"
	"errors"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/harness/proc"
)

// Service is one process of a cluster, running or not.
type Service struct {
	Name string
	// Process is nil while it does not run.
	Process **proc.Process
	Start   func(context.Context) error
}

// Services are all processes but the agent, the store first.
func (c *Cluster) Services() []Service {
	all := []Service{{"objectstore", &c.Store, c.StartStore}}
	if c.o.Coordinator {
		all = append(all, Service{"coordinator", &c.Coordinator, c.StartCoordinator})
	}
	for i := range c.Collectors {
		all = append(all, Service{collectorName(i), &c.Collectors[i], func(ctx context.Context) error { return c.StartCollector(ctx, i) }})
	}
	all = append(all, Service{"reconciler", &c.Reconciler, c.StartReconciler})
	for i := range c.Rollups {
		all = append(all, Service{RollupName(i), &c.Rollups[i], func(ctx context.Context) error { return c.StartRollup(ctx, i) }})
	}
	return append(all, Service{"query", &c.Query, c.StartQuery})
}

// StartServices starts every service that does not run, the store before all others, which start side by side: some
// are ready only when others are.
func (c *Cluster) StartServices(ctx context.Context) error {
	if c.Store == nil {
		if err := c.StartStore(ctx); err != nil {
			return err
		}
	}
	var todo []Service
	for _, s := range c.Services() {
		if *s.Process == nil {
			todo = append(todo, s)
		}
	}
	return SideBySide(todo, func(s Service) error { return s.Start(ctx) })
}

// KillServices kills every service at once, and leaves the agent running.
func (c *Cluster) KillServices() {
	var running []Service
	for _, s := range c.Services() {
		if *s.Process != nil {
			running = append(running, s)
		}
	}
	_ = SideBySide(running, func(s Service) error { Kill(s.Process); return nil })
}

// SideBySide does something with all, at the same time, and gives all errors.
func SideBySide[T any](all []T, do func(T) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, x := range all {
		wg.Go(func() { errs[i] = do(x) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
