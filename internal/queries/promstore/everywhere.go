package promstore

import (
	"context"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/foreign"
)

// rolledEverywhere evaluates c in each region from that region's rolled rows. A value is that of all samples only where
// one region has all of them: so no series may be in two regions in the range, with a value or without. Else, and where a
// region can't evaluate the call, all are asked for samples.
func (q *Queryable) rolledEverywhere(ctx context.Context, c RangeCall) ([]RolledSeries, bool, error) {
	fn, known := rangeFuncs[c.Func]
	if !known || !plain(c) {
		return nil, false, nil
	}
	w := wantedOf(&c)
	asked := q.others.Select(w)
	undo := q.mark()
	found, ok, err := q.ownValues(ctx, c, w)
	if err != nil {
		return nil, false, err
	}
	if !ok {
		// The answers are not waited for: the next question is for samples, and some may be on their way.
		undo()
		return nil, false, nil
	}
	parts, err := asked.Wait(ctx)
	if err != nil {
		return nil, false, err
	}
	for i := range parts {
		if !parts[i].Values && len(parts[i].Series) > 0 {
			undo()
			return nil, false, nil
		}
	}
	if err := q.Reserve(foreignSize(parts)); err != nil {
		return nil, false, err
	}
	for i := range parts {
		values, ok, err := q.valuesOf(&parts[i], c, fn, len(found))
		if err != nil {
			return nil, false, err
		}
		if found, ok = disjoint(found, values, ok); !ok {
			undo()
			return nil, false, nil
		}
		if err := q.touch(w.Mint, w.Maxt, len(values)); err != nil {
			return nil, false, err
		}
	}
	found = slices.DeleteFunc(found, func(s RolledSeries) bool { return s.t == nil })
	sortByLabels(found)
	return found, true, nil
}

func wantedOf(c *RangeCall) Wanted {
	return Wanted{Matchers: c.Matchers, Mint: c.Start - c.Offset - c.Range + 1, Maxt: c.End - c.Offset, Hint: Hint{Func: c.Func, Range: c.Range}, Call: c}
}

// AskRolled asks other regions for what Rolled will want of them, so that several calls are not asked for one after the other.
func (q *Queryable) AskRolled(c RangeCall) {
	if _, known := rangeFuncs[c.Func]; known && plain(c) {
		q.ask(wantedOf(&c))
	}
}

// ownValues are the values of this region's series, those without a value among them.
func (q *Queryable) ownValues(ctx context.Context, c RangeCall, w Wanted) ([]RolledSeries, bool, error) {
	if q.without {
		return nil, true, q.touch(w.Mint, w.Maxt, 0)
	}
	found, ok, err := q.rolledHere(ctx, c, true)
	if err != nil || ok {
		return found, ok, err
	}
	// A region without such series has no rows of them, and needs none.
	own, err := q.ownSeries(ctx, w, true)
	if err != nil || len(own) > 0 {
		return nil, false, err
	}
	return nil, true, q.touch(w.Mint, w.Maxt, 0)
}

// mark returns what undoes the notes that are made from now on.
func (q *Queryable) mark() (undo func()) {
	q.mu.Lock()
	series := q.series
	q.mu.Unlock()
	if q.pub == nil {
		return func() { q.unmark(series) }
	}
	m := q.pub.Mark()
	return func() {
		q.pub.Undo(m)
		q.unmark(series)
	}
}

func (q *Queryable) unmark(series int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.series = series
}

// disjoint merges two sorted lists that have no series in common; false where they have.
func disjoint(a, b []RolledSeries, ok bool) ([]RolledSeries, bool) {
	if !ok || len(b) == 0 {
		return a, ok
	}
	out := make([]RolledSeries, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch order := labels.Compare(a[0].full, b[0].full); {
		case order == 0:
			return nil, false
		case order < 0:
			out, a = append(out, a[0]), a[1:]
		default:
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...), true
}

// valuesOf reads the values that a region sent. It is false where they are not at the times of the call, or too many beside
// the others.
func (q *Queryable) valuesOf(p *Part, c RangeCall, fn rangeFunc, others int) ([]RolledSeries, bool, error) {
	steps := int64(1)
	if c.Step > 0 {
		steps = (c.End-c.Start)/c.Step + 1
	}
	if steps*int64(len(p.Series)+others) > maxPrepared {
		return nil, false, nil
	}
	if err := q.Reserve(8 * steps * int64(len(p.Series))); err != nil {
		return nil, false, err
	}
	times := make([]int64, steps)
	for i := range times {
		times[i] = c.Start + int64(i)*c.Step
	}
	out := make([]RolledSeries, 0, len(p.Series))
	var runs foreign.Runs
	for i := range p.Series {
		s := RolledSeries{full: p.Series[i].Labels}
		if p.Series[i].Samples() == 0 {
			out = append(out, s)
			continue
		}
		if err := q.Check(); err != nil {
			return nil, false, err
		}
		var ok bool
		if s.labels, ok = fn.resultLabels(s.full); !ok {
			return nil, false, nil
		}
		s.t, s.v = times, make([]float64, steps)
		for k := range s.v {
			s.v[k] = staleNaN
		}
		runs.Reset(&p.Series[i], c.Start, c.End)
		for run, more := runs.Next(); more; run, more = runs.Next() {
			for k, t := range run.T {
				at := int64(0)
				if c.Step > 0 {
					at = (t - c.Start) / c.Step
				}
				if times[at] != t {
					return nil, false, nil
				}
				if run.H != nil && run.H[k] != nil {
					if s.h == nil {
						s.h = make([]*histogram.FloatHistogram, steps)
					}
					s.h[at] = run.H[k]
					continue
				}
				s.v[at] = run.V[k]
			}
		}
		out = append(out, s)
	}
	return out, true, nil
}

// Full are the labels of the series that the values are of.
func (s *RolledSeries) Full() labels.Labels { return s.full }

// Points are the values at the times that have one; h is nil for floats.
func (s *RolledSeries) Points() (t []int64, v []float64, h []*histogram.FloatHistogram) {
	return s.t, s.v, s.h
}

// RolledForOthers is RolledSeries for a region that asks this one: with the series that have no value.
func (q *Queryable) RolledForOthers(ctx context.Context, c RangeCall) ([]RolledSeries, bool, error) {
	return q.rolledHere(ctx, c, true)
}
