package promstore

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// evaluation evaluates one call, series by series. It reuses its memory.
type evaluation struct {
	c          RangeCall
	fn         rangeFunc
	mint, maxt int64
	times      []int64

	empty bool // series without a value are wanted, too

	left *atomic.Int64 // values that may still be prepared, by all evaluations of the call

	acc       accumulator
	hists     histogramAccumulator
	native    bool // the series is one of histograms
	stretches []stretch
	columns   []chunk.Columns
	keys      [][]int64
	runs      runs
	// Samples of the series, which stretches refer to.
	t []int64
	v []float64
}

// stretch is rows or samples; keys are the ends of the buckets, or the samples' times.
type stretch struct {
	keys  []int64
	cols  *chunk.Columns // nil for samples
	first int            // row of the first key
	v     []float64
	h     []*histogram.FloatHistogram // in place of v
}

// series returns a value for each time, and whether there is any. For a series of histograms
// it also returns a histogram for each time that has one.
func (e *evaluation) series(in *rolledInput) (values []float64, hists []*histogram.FloatHistogram, any bool, err error) {
	if e.acc == nil {
		e.acc = e.fn.new()
		if e.fn.histograms != nil {
			e.hists = e.fn.histograms()
		}
	}
	e.stretches, e.native = e.stretches[:0], false
	if in.rolled != nil {
		if err := e.rows(in.rolled); err != nil {
			return nil, nil, false, err
		}
	}
	if in.live != nil || in.published != nil {
		if err := e.samples(&in.merged); err != nil {
			return nil, nil, false, err
		}
	}
	if len(e.stretches) == 0 {
		return nil, nil, false, nil
	}
	// Rows and samples come from different places, and accumulators want them in time order.
	slices.SortFunc(e.stretches, func(a, b stretch) int { return int(min(max(a.keys[0]-b.keys[0], -1), 1)) })
	values = make([]float64, len(e.times))
	if e.native {
		hists = make([]*histogram.FloatHistogram, len(e.times))
	}
	// Ranges move forward with the steps, so their beginning is never searched again.
	from, row := 0, 0 // the first that may lie in the range
	for i, t := range e.times {
		end := t - e.c.Offset
		start := end - e.c.Range
		for from < len(e.stretches) && e.stretches[from].keys[row] <= start {
			if row++; row == len(e.stretches[from].keys) {
				from, row = from+1, 0
			}
		}
		r := rollup.Range{StartMS: start, EndMS: end}
		var v float64
		var ok bool
		if e.native {
			e.hists.reset()
			e.addHistograms(from, row, end)
			hists[i], err = e.hists.value(r)
			if hists[i] != nil {
				ok = true
				// The size of a histogram is known only once it is made, so it is counted against the
				// bound here.
				e.left.Add(-int64(8 + len(hists[i].PositiveBuckets) + len(hists[i].NegativeBuckets)))
			}
		} else {
			e.acc.reset()
			e.add(from, row, end)
			v, ok, err = e.acc.value(r)
		}
		switch {
		case e.left.Load() < 0:
			return nil, nil, false, errNotRolled
		case errors.Is(err, rollup.ErrInexact):
			return nil, nil, false, errNotRolled
		case err != nil:
			return nil, nil, false, err
		case !ok:
			// For the engine a stale marker ends the series at this step, as an empty range would.
			v = staleNaN
		}
		values[i], any = v, any || ok
	}
	return values, hists, any, nil
}

// add passes to the accumulator what lies from row of stretch k on, up to and including the
// time end (milliseconds).
func (e *evaluation) add(k, row int, end int64) {
	for ; k < len(e.stretches); k, row = k+1, 0 {
		s := &e.stretches[k]
		for ; row < len(s.keys); row++ {
			if s.keys[row] > end {
				return
			}
			switch {
			case s.cols != nil:
				e.acc.row(s.cols, s.first+row)
			case s.h != nil:
				e.acc.sample(s.keys[row], 0) // it only counts
			default:
				e.acc.sample(s.keys[row], s.v[row])
			}
		}
	}
}

// addHistograms is add for a series of histograms.
func (e *evaluation) addHistograms(k, row int, end int64) {
	for ; k < len(e.stretches); k, row = k+1, 0 {
		s := &e.stretches[k]
		for ; row < len(s.keys); row++ {
			if s.keys[row] > end {
				return
			}
			if s.cols != nil {
				e.hists.row(s.cols, s.first+row)
			} else {
				e.hists.sample(s.keys[row], s.h[row])
			}
		}
	}
}

// same reports that what is read now is of the same kind as what was read before. A mixture
// of floats and histograms is left to the engine.
func (e *evaluation) same(native bool) bool {
	if len(e.stretches) == 0 {
		e.native = native
	}
	return e.native == native && (!native || e.hists != nil)
}

// readable reports that columns of floats are there.
func (e *evaluation) readable(c *chunk.Columns) bool {
	return (e.fn.want&chunk.ColLast == 0 || c.Last != nil) && (!e.fn.gauge || c.Min != nil || c.Max != nil) && (!e.fn.counter || c.Increase != nil)
}

// rows decodes the rolled rows of all parts.
func (e *evaluation) rows(r *published.Rolled) error {
	for len(e.columns) < r.Parts() {
		e.columns, e.keys = append(e.columns, chunk.Columns{}), append(e.keys, nil)
	}
	for i := range r.Parts() {
		cols, from, to, ok, err := r.Rows(i, e.mint, e.maxt, e.fn.want, &e.columns[i])
		switch {
		case err != nil:
			return err
		case !ok:
			return errNotRolled
		case from >= to:
			continue
		// Rows of floats and of histograms are counted alike.
		case e.fn.counts:
		case !e.same(native(r.Type(i))):
			return errNotRolled
		case e.native && !e.hists.readable(cols), !e.native && !e.readable(cols):
			return errNotRolled // what the type does not tell
		}
		keys := e.keys[i][:0]
		for _, ns := range cols.T[from:to] {
			keys = append(keys, ns/1e6)
		}
		e.keys[i] = keys
		e.stretches = append(e.stretches, stretch{keys: keys, cols: cols, first: from})
	}
	return nil
}

// samples copies the raw samples but for stale markers.
func (e *evaluation) samples(m *merged) error {
	e.runs.reset(m, e.mint, e.maxt)
	e.t, e.v = e.t[:0], e.v[:0]
	for {
		run, ok := e.runs.Next()
		if !ok {
			return e.runs.Err()
		}
		// What a run refers to is good until the next one, so it is copied.
		var s stretch
		if run.H == nil {
			s = e.floats(&run)
		} else {
			s = either(&run)
		}
		switch {
		case len(s.keys) == 0:
			continue
		case e.fn.counts && s.h != nil && s.v == nil, e.fn.counts && s.h == nil:
		// With both kinds in one run, v and h no longer have the indexes of keys.
		case s.h != nil && s.v != nil, !e.same(s.h != nil), s.h != nil && !e.hists.samples(s.h):
			return errNotRolled
		}
		e.stretches = append(e.stretches, s)
	}
}

// floats takes a run without histograms to the memory of e.
func (e *evaluation) floats(run *samples.Run) stretch {
	from := len(e.t)
	if !samples.AnyStale(run.V) {
		e.t, e.v = append(e.t, run.T...), append(e.v, run.V...)
	} else {
		for i, v := range run.V {
			if !value.IsStaleNaN(v) {
				e.t, e.v = append(e.t, run.T[i]), append(e.v, v)
			}
		}
	}
	if from == len(e.t) {
		return stretch{}
	}
	return stretch{keys: e.t[from:len(e.t):len(e.t)], v: e.v[from:len(e.v):len(e.v)]}
}

// either copies a run that has histograms, and perhaps floats beside them.
func either(run *samples.Run) (s stretch) {
	for i, t := range run.T {
		if h := run.H[i]; h == nil && !value.IsStaleNaN(run.V[i]) {
			s.keys, s.v = append(s.keys, t), append(s.v, run.V[i])
		} else if h != nil && !value.IsStaleNaN(h.Sum) {
			s.keys, s.h = append(s.keys, t), append(s.h, h.Copy())
		}
	}
	return s
}
