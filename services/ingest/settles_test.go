package ingest

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// settlesOf is a linearizer that settles, after a while.
type settlesOf func(context.Context, []claims.Op) error

func (f settlesOf) Do(ctx context.Context, ops []claims.Op) []linearizer.Result {
	out := make([]linearizer.Result, len(ops))
	err := f(ctx, ops)
	for i := range out {
		out[i] = linearizer.Result{Answer: claims.Answer{Outcome: claims.Decided}, Err: err}
	}
	return out
}

func (settlesOf) List(context.Context, identity.Batch) (claims.Answer, error) {
	return claims.Answer{}, claims.ErrUnavailable
}

func (settlesOf) Scan(context.Context, claims.Scan, time.Duration) (claims.Page, error) {
	return claims.Page{}, claims.ErrUnavailable
}

// A collector settles as fast as it accepts: batches that share calls wait for no others.
func TestSettlesKeepUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var settled, calls atomic.Int64
		l := newClaimer(settlesOf(func(_ context.Context, ops []claims.Op) error {
			time.Sleep(10 * time.Millisecond)
			settled.Add(int64(len(ops)))
			calls.Add(1)
			return nil
		}), "eu", time.Minute, time.Now, newGlobalMetrics())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.settle(ctx) }()
		const batches = 10_000
		for range batches { // 2,000 a second
			time.Sleep(time.Second / 2000)
			l.Settle(accept.ClaimChange{Step: accept.SettleClaim})
		}
		time.Sleep(2 * settleEvery)
		if n := settled.Load(); n != batches || calls.Load() > batches/50 {
			t.Errorf("%d of %d are settled, in %d calls", n, batches, calls.Load())
		}
		cancel()
		<-ended
	})
}

// What is left at the end is settled; not for longer than settleLast, also where no coordinator answers.
func TestSettlesEnd(t *testing.T) {
	for name, hangs := range map[string]bool{"answers": false, "hangs": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newClaimer(settlesOf(func(ctx context.Context, _ []claims.Op) error {
					wait := time.Millisecond
					if hangs {
						wait = 30 * time.Second
					}
					select {
					case <-time.After(wait):
					case <-ctx.Done():
						return ctx.Err()
					}
					if hangs {
						return claims.ErrUnknown
					}
					return nil
				}), "eu", time.Minute, time.Now, newGlobalMetrics())
				for range settleQueue + 1 {
					l.Settle(accept.ClaimChange{Step: accept.SettleClaim})
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- l.settle(ctx) }()
				time.Sleep(settleEvery / 2)
				began := time.Now()
				cancel()
				<-ended
				if took := time.Since(began); took > settleLast {
					t.Errorf("ended after %v", took)
				}
				count := func(outcome string) int { return int(testutil.ToFloat64(l.m.settles.WithLabelValues(outcome))) }
				if n := count("settled") + count("failed") + count("dropped"); n != settleQueue+1 || (count("settled") == settleQueue) == hangs {
					t.Errorf("%d settled, %d failed, %d dropped", count("settled"), count("failed"), count("dropped"))
				}
			})
		})
	}
}
