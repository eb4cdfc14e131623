package answer

import (
	"context"
	"sync/atomic"

	"github.com/prometheus/prometheus/promql"
)

// pointBytes is the size of a float sample of the engine, histogramBytes about that of a histogram.
const (
	pointBytes     = 16
	histogramBytes = 512
)

// step is the least amount that is reserved at once for the engine's samples: they are counted while they are
// read, and asking the budget for each would be slow.
const step = 1 << 20

// account reserves what a query holds, and can end the query in the middle of a series: the engine checks its
// context once for each series, and a series may take minutes. It is the promstore.Guard of a session.
type account struct {
	*Reservation
	over    atomic.Bool // the context is done
	ctx     context.Context
	query   promql.Query // that the engine runs, nil outside it; read by its goroutine only
	samples int64        // bytes reserved for the engine's samples; same goroutine
}

// watch makes Check fail once ctx is done; call stop afterwards.
func (a *account) watch(ctx context.Context) (stop func() bool) {
	a.ctx = ctx
	a.over.Store(ctx.Err() != nil)
	return context.AfterFunc(ctx, func() { a.over.Store(true) })
}

// Check is called between samples: by the engine's goroutine, or without the engine by several, which change nothing here.
func (a *account) Check() error {
	// An atomic flag, because asking the context takes a lock and this runs between samples.
	if a.over.Load() {
		return a.ctx.Err()
	}
	if a.query == nil {
		return nil
	}
	// The engine counts the samples that it holds. The results of operators and functions are among them, which
	// Points never saw.
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

// Points reserves memory for what the engine makes of a series that it begins to read.
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

// reset releases what was reserved, for another attempt.
func (a *account) reset() {
	a.Release()
	a.query, a.samples = nil, 0
}

// Reserve takes bytes that are held until the query ends.
func (a *account) Reserve(bytes int64) error { return a.Grow(bytes) }
