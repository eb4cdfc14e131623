package promstore

import (
	"fmt"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// iterator is a cursor as the engine wants it. Its type parameter is always int64:
// go vet takes Seek(int64) for a wrong io.Seeker, Seek(T) it does not.
type iterator[T int64] struct{ cursor }

var _ chunkenc.Iterator = (*iterator[int64])(nil)

// Seek moves to the first sample at or after t; it never moves back.
func (it *iterator[T]) Seek(t T) chunkenc.ValueType { return it.seek(int64(t)) }

// cursor reads the runs of a series one after the other.
type cursor struct {
	read *reading // nil of what was prepared
	err  error    // of the guard
	runs runs
	run  samples.Run
	i    int
	done bool
}

func (it *cursor) reset(r *reading, m *merged) {
	it.read, it.err = r, nil
	it.runs.reset(m, r.mint, r.maxt)
	it.run, it.i, it.done = samples.Run{}, -1, false
	// The number of steps bounds the points of a series. Where every sample is a point, nextRun counts
	// them run by run instead.
	if g := r.q.guard; g != nil && !r.all {
		it.fail(g.Points(r.points(m), false))
	}
}

// fail ends the cursor when there is an error.
func (it *cursor) fail(err error) {
	if err != nil {
		it.err, it.done, it.run = err, true, samples.Run{}
	}
}

// Next moves to the next sample.
func (it *cursor) Next() chunkenc.ValueType {
	if it.i++; it.i < len(it.run.T) {
		if it.i%checkSamples == 0 && !it.mayContinue() {
			return chunkenc.ValNone
		}
		return it.kind()
	}
	return it.nextRun()
}

// mayContinue asks the guard; after its error the cursor is at its end.
func (it *cursor) mayContinue() bool {
	if it.read != nil && it.err == nil {
		it.fail(it.read.q.Check())
	}
	return it.err == nil
}

func (it *cursor) nextRun() chunkenc.ValueType {
	if it.done || !it.mayContinue() {
		return chunkenc.ValNone
	}
	run, ok := it.runs.Next()
	if !ok {
		it.done, it.run = true, samples.Run{}
		return chunkenc.ValNone
	}
	it.run, it.i = run, 0
	if it.read != nil && it.read.q.guard != nil && (it.read.all || run.H != nil) {
		if it.fail(it.read.q.guard.Points(int64(len(run.T)), run.H != nil)); it.err != nil {
			return chunkenc.ValNone
		}
	}
	return it.kind()
}

func (it *cursor) kind() chunkenc.ValueType {
	if it.run.H != nil && it.run.H[it.i] != nil {
		return chunkenc.ValFloatHistogram
	}
	return chunkenc.ValFloat
}

func (it *cursor) seek(t int64) chunkenc.ValueType {
	for {
		// i is -1 before the first sample.
		from := max(it.i, 0)
		if n := len(it.run.T); from < n && it.run.T[n-1] >= t {
			if it.run.T[from] < t {
				from += sort.Search(n-from, func(k int) bool { return it.run.T[from+k] >= t })
			}
			it.i = from
			return it.kind()
		}
		// This run ends too early. What ends before t is left out before it is decoded.
		it.runs.SkipTo(t)
		if it.nextRun() == chunkenc.ValNone {
			return chunkenc.ValNone
		}
	}
}

// At is the current float.
func (it *cursor) At() (int64, float64) { return it.run.T[it.i], it.run.V[it.i] }

// AtHistogram can't be: histograms are kept with float counts (see Next).
func (it *cursor) AtHistogram(*histogram.Histogram) (int64, *histogram.Histogram) {
	panic(fmt.Errorf("promstore: integer histogram asked for at %d", it.AtT()))
}

// AtFloatHistogram copies the current histogram, with a hint whether it is a counter
// reset against the one before it.
func (it *cursor) AtFloatHistogram(h *histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	cur, before := it.run.H[it.i], it.run.Before
	if it.i > 0 {
		before = it.run.H[it.i-1]
	}
	if h == nil {
		h = cur.Copy()
	} else {
		cur.CopyTo(h)
	}
	if h.CounterResetHint != histogram.GaugeType {
		// The stored hint compares with the sample that the agent took before; here another one may come
		// before it, because batches are masked or merged.
		h.CounterResetHint = histogram.UnknownCounterReset
		if before != nil && !value.IsStaleNaN(before.Sum) && !value.IsStaleNaN(h.Sum) && !h.DetectReset(before) {
			h.CounterResetHint = histogram.NotCounterReset
		}
	}
	return it.run.T[it.i], h
}

// AtT is the time of the current sample, milliseconds.
func (it *cursor) AtT() int64 { return it.run.T[it.i] }

// AtST is the start of the accumulation, milliseconds; 0 when unknown.
func (it *cursor) AtST() int64 {
	if it.run.STs != nil {
		return it.run.STs[it.i]
	}
	return it.run.ST
}

// Err is a *LimitError of what is decoded, the guard's error, or nil.
func (it *cursor) Err() error {
	if it.err != nil {
		return it.err
	}
	return it.runs.Err()
}
