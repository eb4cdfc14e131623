package run

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
)

// Each call is made once, not too many at a time, and the first error ends the others' context.
func TestEach(t *testing.T) {
	var running, most, calls atomic.Int64
	err := Each(3)(t.Context(), 50, func(context.Context, int) error {
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		calls.Add(1)
		running.Add(-1)
		return nil
	})
	if err != nil || calls.Load() != 50 || most.Load() > 3 {
		t.Errorf("%d calls, %d at once, %v", calls.Load(), most.Load(), err)
	}
	broken := errors.New("broken")
	err = Each(2)(t.Context(), 2, func(ctx context.Context, i int) error {
		if i == 0 {
			return broken
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, broken) {
		t.Error(err)
	}
}
