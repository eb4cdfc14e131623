package objstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTimeouts: whoever waits for the context of a request, or asks it, learns of its end at the same time.
func TestTimeouts(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		caller, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		ctx := withTimeout(caller, time.Minute)
		if at, ok := ctx.Deadline(); !ok || at.Sub(start) != time.Minute || ctx.Err() != nil || ctx.Value(key{}) != "v" {
			t.Errorf("deadline %v, %v", at, ctx.Err())
		}
		if base, at := Untimed(ctx); base != caller || at.Sub(start) != time.Minute {
			t.Errorf("without the timeout: %v, %v", base, at)
		}
		waited := withTimeout(caller, time.Minute)
		derived, end := context.WithCancel(waited)
		defer end()
		<-waited.Done()
		if time.Since(start) != time.Minute || !errors.Is(waited.Err(), context.DeadlineExceeded) || waited.Value(key{}) != "v" {
			t.Errorf("after %v: %v", time.Since(start), waited.Err())
		}
		if <-derived.Done(); !errors.Is(derived.Err(), context.DeadlineExceeded) {
			t.Error(derived.Err())
		}
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || caller.Err() != nil {
			t.Errorf("not waited for: %v", ctx.Err())
		}
		waited.end()
		ctx.end()

		short, end2 := context.WithTimeout(caller, time.Second)
		defer end2()
		if at, _ := withTimeout(short, time.Minute).Deadline(); time.Until(at) != time.Second {
			t.Errorf("the caller's deadline is %v earlier", time.Until(at))
		}
		asked, waiting := withTimeout(caller, time.Minute), withTimeout(caller, time.Minute)
		defer waiting.end()
		done := waiting.Done()
		cancel()
		if <-done; !errors.Is(asked.Err(), context.Canceled) || !errors.Is(waiting.Err(), context.Canceled) {
			t.Errorf("%v, %v after the caller's end", asked.Err(), waiting.Err())
		}
	})
}
