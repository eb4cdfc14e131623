package run

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// A loop that ends by a context of its own has failed: nobody else would say that it is gone.
func TestLoopThatIsCanceledAloneEndsTheGroup(t *testing.T) {
	g := NewGroup(t.Context())
	g.Go("follower", func(context.Context) error { return fmt.Errorf("the stream ended: %w", context.Canceled) })
	g.Go("server", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	if err := g.Wait(); !errors.Is(err, context.Canceled) || err.Error() != "follower: the stream ended: context canceled" {
		t.Errorf("%v", err)
	}
}

func TestGroupEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	g := NewGroup(ctx)
	g.Go("server", func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("drained: %w", ctx.Err()) })
	cancel()
	if err := g.Wait(); err != nil {
		t.Errorf("%v", err)
	}
}
