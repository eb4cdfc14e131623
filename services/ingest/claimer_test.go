package ingest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// answering is a linearizer that does what a test says.
type answering func(context.Context) error

func (a answering) Do(ctx context.Context, ops []claims.Op) []linearizer.Result {
	err := a(ctx)
	if err == nil {
		return []linearizer.Result{{Answer: claims.Answer{Outcome: claims.Held}}}
	}
	return []linearizer.Result{{Err: err}}
}

func (answering) List(context.Context, identity.Batch) (claims.Answer, error) {
	return claims.Answer{}, nil
}

func (answering) Scan(context.Context, claims.Scan, time.Duration) (claims.Page, error) {
	return claims.Page{}, nil
}

// TestWhatCountsAgainstTheLinearizer: only what it had its time for. A batch whose time a slow store has used, a sender that has left and
// a change that was never sent say nothing of it.
func TestWhatCountsAgainstTheLinearizer(t *testing.T) {
	const attempt = 10 * time.Second
	hangs := func(sent error, takes time.Duration) func(*time.Time) answering {
		return func(now *time.Time) answering {
			return func(ctx context.Context) error {
				*now = now.Add(takes)
				<-ctx.Done()
				return fmt.Errorf("%w: %w", sent, ctx.Err())
			}
		}
	}
	says := func(err error) func(*time.Time) answering {
		return func(*time.Time) answering { return func(context.Context) error { return err } }
	}
	for name, c := range map[string]struct {
		do      func(*time.Time) answering
		left    time.Duration // of the batch's time; 0: the sender leaves
		counts  bool
		timeout time.Duration
	}{
		"refused":                           {says(claims.ErrUnavailable), time.Minute, true, attempt},
		"unknown":                           {says(claims.ErrUnknown), time.Minute, true, attempt},
		"answered":                          {says(nil), time.Minute, false, attempt},
		"an answer that is a refusal":       {says(claims.ErrTooMany), time.Minute, false, attempt},
		"a refusal of the caller":           {says(claims.ErrDenied), time.Minute, false, attempt},
		"many wait here":                    {says(claims.ErrFull), time.Minute, false, attempt},
		"hangs for its whole time":          {hangs(claims.ErrUnknown, attempt), time.Minute, true, time.Millisecond},
		"hangs for the rest of the batch's": {hangs(claims.ErrUnknown, attempt), time.Millisecond, true, attempt},
		"the batch has little time left":    {hangs(claims.ErrUnknown, attempt/2), time.Millisecond, false, attempt},
		"the sender leaves":                 {hangs(claims.ErrUnknown, attempt), 0, false, attempt},
		"never sent":                        {hangs(claims.ErrCanceled, attempt), time.Minute, false, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			l := newClaimer(c.do(&now), "eu", c.timeout, func() time.Time { return now }, newGlobalMetrics())
			for i := range breakerFailures {
				ctx, cancel := context.WithTimeout(t.Context(), c.left)
				if c.left == 0 {
					ctx, cancel = context.WithCancel(t.Context())
					cancel()
				}
				_, _ = l.Change(ctx, accept.ClaimChange{Step: accept.TakeClaim})
				cancel()
				if open := l.breaker.open(); open != (c.counts && i == breakerFailures-1) {
					t.Fatalf("after %d calls: open %v", i+1, open)
				}
			}
		})
	}
}

// TestAProbeThatWasNotSent: it is no failure, others may ask again, and not at once.
func TestAProbeThatWasNotSent(t *testing.T) {
	var b breaker
	now := time.Unix(1000, 0)
	for range breakerFailures {
		p, _ := b.ask(now)
		b.failed(p, now)
	}
	now = now.Add(breakerProbe)
	p, ok := b.ask(now)
	if !ok || !p.probe {
		t.Fatalf("%+v, %v", p, ok)
	}
	b.left(p, now)
	if b.allows(now) || !b.allows(now.Add(breakerProbe)) {
		t.Error("the next probe is due at once, or never")
	}
}
