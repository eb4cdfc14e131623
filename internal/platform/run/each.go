package run

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Each gives a function that calls fn for 0 to n-1, at most atOnce at a time, and returns the first error, which ends the
// context of the other calls.
func Each(atOnce int) func(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	return func(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(max(atOnce, 1))
		for i := range n {
			g.Go(func() error { return fn(gctx, i) })
		}
		return g.Wait()
	}
}
