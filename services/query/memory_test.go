package query_test

import (
	"context"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/query"
)

// TestMemoryLimitFollowsWhatIsHeld: the process may take what its samples need and what
// queries may take, not as much again in garbage, and not what no sample needs yet.
func TestMemoryLimitFollowsWhatIsHeld(t *testing.T) {
	a := newAuthority(t)
	limits := func(change func(*query.Config)) (*query.Service, <-chan int64) {
		cfg := query.DefaultConfig()
		cfg.HTTP.Listen, cfg.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
		cfg.Follow.PollInterval = 20 * time.Millisecond
		change(&cfg)
		set := make(chan int64, 1)
		s, err := query.New(cfg, query.Deps{Store: a, Telemetry: telemetry.Discard(), SetMemoryLimit: func(n int64) {
			select {
			case set <- n:
			default:
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return s, set
	}

	const queries = 100 << 20
	_, set := limits(func(c *query.Config) { c.Limits.Memory = queries })
	empty := <-set
	if most := int64(queries + 300<<20); empty < queries || empty > most {
		t.Errorf("with nothing in memory: %d, want what queries may take and a little: at most %d", empty, most)
	}
	a.accept(a.build(host, 1, time.Now(), point{"m", 1, time.Now()}))
	for grown := range set {
		if grown > empty {
			break
		}
	}

	_, set = limits(func(c *query.Config) { c.MemoryLimit = 7 << 20 })
	if got := <-set; got != 7<<20 {
		t.Errorf("with memory_limit: %d", got)
	}
}
