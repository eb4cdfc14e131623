// Package run starts and stops the loops of a service. Goroutines are started only here or inside a
// Run method, so that each has an owner that waits for it.
package run

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
)

// Group runs loops until one fails or the context ends, then cancels the others and
// waits. The happens-before: everything done before Go is seen by the loop;
// everything a loop did is seen after Wait.
type Group struct {
	eg  *errgroup.Group
	ctx context.Context
}

// NewGroup makes a group below ctx.
func NewGroup(ctx context.Context) *Group {
	eg, ctx := errgroup.WithContext(ctx)
	return &Group{eg: eg, ctx: ctx}
}

// Context ends when the group stops.
func (g *Group) Context() context.Context { return g.ctx }

// Go starts a loop. A loop ends with nil or the context's error when its context
// ends; any other error stops the group, and so does one of a context that ended without the
// group's: a loop must not be missed in silence. A panic becomes an error with its stack.
func (g *Group) Go(name string, loop func(context.Context) error) {
	g.eg.Go(func() (err error) {
		defer func() {
			// A panic of one loop stops the service in order, instead of ending the process at once.
			if r := recover(); r != nil {
				err = fmt.Errorf("%s: panic: %v\n%s", name, r, debug.Stack())
			}
		}()
		err = loop(g.ctx)
		if err == nil || errors.Is(err, context.Canceled) && g.ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("%s: %w", name, err)
	})
}

// Wait waits for all loops and gives the first error.
func (g *Group) Wait() error { return g.eg.Wait() }
