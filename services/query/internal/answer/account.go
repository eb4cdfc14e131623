package answer

import (
	"context"
	"sync/atomic"

	"github.com/prometheus/prometheus/promql"
)

// pointBytes is what a float of the engine takes, histogramBytes about what a histogram does.
const (
	pointBytes     = 16
	histogramBytes = 512
)

// step is the least that is reserved at once for the engine's samples: they are counted
// while they are read, and asking the budget for each would be slow.
const step = 1 << 20

// account reserves what a query holds, and ends it in the middle of a series: the engine
// looks at its context once a series, and a series may take minutes. It is the
// promstore.Guard of a session.
type account struct {
	*Reservation
	over    atomic.Bool // its time is
	ctx     context.Context
	query   promql.Query // that runs; read by its own goroutine alone
	samples int64        // bytes reserved for the engine's samples; of that goroutine too
}

// watch ends what reads under the account when ctx does; call stop afterwards.
func (a *account) watch(ctx context.Context) (stop func() bool) {
	a.ctx = ctx
	a.over.Store(ctx.Err() != nil)
	return context.AfterFunc(ctx, func() { a.over.Store(true) })
}

// Check is called by the engine's goroutine between samples.
func (a *account) Check() error {
	if a.over.Load() {
		return a.ctx.Err()
	}
	if a.query == nil {
		return nil
	}
	// Results of operators and functions are not points of a selector.
	need := int64(a.query.Stats().Samples.PeakSamples) * pointBytes
	if need <= a.samples {
		return nil
	}
	more := max(need-a.samples, step)
	if err := a.Grow(more); err != nil {
		return err
	}
	a.samples += more
	return nil
}

// Points reserves for what the engine makes of a series that it begins to read.
func (a *account) Points(n int64, histograms bool) error {
	bytes := n * pointBytes
	if histograms {
		bytes = n * histogramBytes
	}
	if err := a.Grow(bytes); err != nil {
		return err
	}
	a.samples += bytes
	return nil
}

// reset gives back what was reserved, for another try.
func (a *account) reset() {
	a.Release()
	a.query, a.samples = nil, 0
}

// Reserve takes bytes that are held until the query ends.
func (a *account) Reserve(bytes int64) error { return a.Grow(bytes) }
