package coordinator

import (
	"context"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/trace"
)

const (
	// maxTraces is how many traces are read at once, and traceRequests how many requests of one for each kind of record of a region: a
	// manifest may have a frame of 1 MiB with it, and many people may ask for a trace.
	maxTraces, traceRequests = 2, 16
	// traceMargin is how long before the caller's deadline a trace ends, so that what was found by then is answered.
	traceMargin = 10 * time.Second
)

// Trace implements coordinator.Regional. What could not be read before the caller's deadline is said in the result, and so is all of it
// where others are read for so long.
func (v *identities) Trace(ctx context.Context, q trace.Query) trace.Result {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-min(traceMargin, time.Until(end)/4)))
		defer cancel()
	}
	select {
	case v.tracing <- struct{}{}:
		defer func() { <-v.tracing }()
	case <-ctx.Done(): // each request fails by it
	}
	q.Parallel = func(n int, fn func(int)) {
		atOnce(traceRequests, n, func(i int) bool {
			fn(i)
			return true
		})
	}
	traced := slices.Clone(v.traced)
	for i, r := range traced {
		traced[i].Store = &tracedStore{Store: r.Store, patience: tracePatience}
	}
	return trace.Find(ctx, traced, q)
}
