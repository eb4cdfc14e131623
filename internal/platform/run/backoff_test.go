package run

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestBackoff: waits double up to the longest, each in its upper half, and differ.
func TestBackoff(t *testing.T) {
	const first, most = 100 * time.Millisecond, 3 * time.Second
	seen := map[time.Duration]bool{}
	for range 50 {
		b := NewBackoff(first, most)
		for range 2 {
			want := first
			for n := range 12 {
				d := b.Next()
				if d < want/2 || d > want+time.Microsecond {
					t.Fatalf("wait %d is %s, want %s to %s", n, d, want/2, want)
				}
				seen[d] = true
				want = min(2*want, most)
			}
			b.Reset()
		}
	}
	if len(seen) < 1000 {
		t.Errorf("only %d different waits of 1,200", len(seen))
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if err := Sleep(ctx, time.Nanosecond); err != nil {
		t.Error(err)
	}
	cancel()
	if err := NewBackoff(time.Hour, time.Hour).Sleep(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
