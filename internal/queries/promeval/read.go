package promeval

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// memory is what series are read with. Queries use it one after the other.
type memory struct {
	readers []reader
	results []result
}

var memories = sync.Pool{New: func() any { return &memory{} }}

// use returns readers of an evaluation, and results.
func (m *memory) use(e *evaluation, readers, results int) ([]reader, []result) {
	m.readers, m.results = slices.Grow(m.readers[:0], readers)[:readers], slices.Grow(m.results[:0], results)[:results]
	for i := range m.readers {
		r := &m.readers[i]
		*r = reader{evaluation: e, t: r.t, v: r.v}
	}
	return m.readers, m.results
}

// release ends the use. What was reserved is not kept, nor what refers to samples.
func (m *memory) release() {
	for i := range m.readers {
		r := &m.readers[i]
		if *r = (reader{t: r.t, v: r.v}); cap(r.t) >= keepAtOnce || cap(r.v) >= keepAtOnce {
			r.t, r.v = nil, nil
		}
	}
	for i := range m.results {
		res := &m.results[i]
		if res.err = nil; cap(res.points) > 8*taskPoints {
			res.points = nil
		}
	}
	memories.Put(m)
}

// result is the points of some consecutive series. It is made by one goroutine and taken by another.
type result struct {
	points []point
	series []seriesResult
	err    error // of the series after these
}

// seriesResult is a series of a result.
type seriesResult struct {
	end  int // of its points
	most int // samples that were in memory for it
}

// read reads series [from, to) of a selection.
func (res *result) read(ctx context.Context, r *reader, sel *promstore.Selection, from, to int, span int64) {
	res.points, res.series, res.err = res.points[:0], res.series[:0], nil
	for i := from; i < to; i++ {
		if res.err = errors.Join(ctx.Err(), r.q.Check()); res.err != nil {
			return
		}
		r.runs.Reset(sel, i)
		r.points, r.first, r.most = res.points, len(res.points), 0
		res.err = r.series(span)
		if res.points = r.points; res.err != nil {
			return
		}
		res.series = append(res.series, seriesResult{len(res.points), r.most})
	}
}

// reader makes the points of one series after the other.
type reader struct {
	*evaluation // which does not change while series are read, but for what only takeAll uses

	runs promstore.Reader
	t    []int64 // samples of the runs before that the next windows need
	v    []float64
	// reserved is how many such samples memory was reserved for.
	reserved int
	w        window
	points   []point
	first    int // of the series that is read, in points
	most     int
	work     int // samples since the last check
}

// series reads a series and makes its points.
func (r *reader) series(span int64) error {
	r.t, r.v = r.t[:0], r.v[:0]
	step := 0
	for step < r.steps {
		begin := r.at.Start + int64(step)*r.at.Step - r.offset - span
		r.runs.SkipTo(begin + 1)
		run, ok := r.runs.Next()
		if !ok {
			if err := r.runs.Err(); err != nil {
				return err
			}
			_, err := r.windows(r.t, r.v, step, span, true)
			return err
		}
		if run.H != nil {
			return ErrOther
		}
		t, v := run.T, run.V
		// A stale marker ends an instant, and is no sample of a range.
		if stale := r.fn != nil && samples.AnyStale(v); stale {
			for i := range t {
				if !value.IsStaleNaN(v[i]) {
					r.t, r.v = append(r.t, t[i]), append(r.v, v[i])
				}
			}
			t, v = r.t, r.v
		} else if len(r.t) > 0 {
			r.t, r.v = append(r.t, t...), append(r.v, v...)
			t, v = r.t, r.v
		}
		var err error
		if step, err = r.windows(t, v, step, span, false); err != nil {
			return err
		}
		rest := after(t, 0, r.at.Start+int64(step)*r.at.Step-r.offset-span)
		r.t, r.v = append(r.t[:0], t[rest:]...), append(r.v[:0], v[rest:]...)
		if err := r.keep(); err != nil {
			return err
		}
	}
	return nil
}

// keepAtOnce is how much larger the memory for samples gets before more of it is reserved.
const keepAtOnce = 4096

// keep reserves the memory of samples that wait for their windows.
func (r *reader) keep() error {
	if err := r.q.Check(); err != nil {
		return err
	}
	more := cap(r.t) - r.reserved
	if more < keepAtOnce {
		return nil
	}
	r.reserved += more
	return r.q.Reserve(2 * 8 * int64(more))
}

// checkWork is how many samples are taken into windows between two checks.
const checkWork = 1 << 14

// windows makes the points of all steps from step on whose samples are complete: those that end with the samples that are
// given, or all when these are the last. It returns the next step.
func (r *reader) windows(t []int64, v []float64, step int, span int64, last bool) (int, error) {
	if len(t) == 0 {
		if last {
			step = r.steps
		}
		return step, nil
	}
	low, high := 0, 0
	for ; step < r.steps; step++ {
		end := r.at.Start + int64(step)*r.at.Step - r.offset
		if !last && end > t[len(t)-1] {
			return step, nil
		}
		if high = after(t, high, end); high == 0 {
			continue
		}
		size := len(r.points) - r.first
		if r.fn == nil {
			// The last sample counts if it is not too old.
			if x := v[high-1]; t[high-1] > end-span && !value.IsStaleNaN(x) {
				r.points = append(r.points, point{int32(step), x})
				r.work++
			}
		} else if low = after(t, low, end-span); low < high {
			r.w = window{end - span, end, t[low:high], v[low:high]}
			if x, ok := r.fn.of(&r.w); ok {
				r.points = append(r.points, point{int32(step), x})
			}
			size = high - low
			r.work += size
		}
		if r.most = max(r.most, size); size > r.at.MaxSamples {
			return step, ErrTooMany
		}
		if r.work > checkWork {
			r.work = 0
			if err := r.q.Check(); err != nil {
				return step, err
			}
		}
	}
	return step, nil
}
