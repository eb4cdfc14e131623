package rollup

import (
	"math"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/pkg/chunk"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// Coarsen rolls rolled rows up further, to w, whose width is a multiple of theirs. It
// gives what Roll gives for the raw samples, but for the rounding of sums and of increases
// with resets; an increase that the finer rows do not determine is NaN.
func Coarsen(s *chunk.Series, w window.Window) chunk.Series {
	out := chunk.Series{Agent: s.Agent, Labels: s.Labels, Type: s.Type, Unit: s.Unit}
	for from := 0; from < s.Rows(); {
		end := w.BucketEnd(window.Millisecond(s.T[from]))
		to := from + 1
		for to < s.Rows() && window.Millisecond(s.T[to]) <= end {
			to++
		}
		out.T = append(out.T, nanos(end))
		appendCoarse(&s.Columns, from, to, s.Type, &out.Columns)
		from = to
	}
	return out
}

// appendCoarse appends the other columns of one row made of rows [from, to).
func appendCoarse(c *chunk.Columns, from, to int, typ frame.MetricType, out *chunk.Columns) {
	var stale uint32
	first, last, n := -1, -1, uint32(0)
	for i := from; i < to; i++ {
		stale += c.Stale[i]
		if n += c.Count[i]; c.Count[i] == 0 {
			continue
		}
		if last = i; first < 0 {
			first = i
		}
	}
	out.Count, out.Stale = append(out.Count, n), append(out.Stale, stale)
	out.FirstT, out.LastT = append(out.FirstT, pickAt(c.FirstT, first)), append(out.LastT, pickAt(c.LastT, last))
	switch {
	case c.FirstH != nil:
		out.FirstH, out.LastH = append(out.FirstH, pickAt(c.FirstH, first)), append(out.LastH, pickAt(c.LastH, last))
		if c.IncreaseH != nil {
			out.IncreaseH = append(out.IncreaseH, coarseIncrease(c, from, to, n))
		} else {
			out.SumH = append(out.SumH, coarseSum(c, from, to, typ))
		}
	case c.Increase != nil:
		var r CounterRange
		for i := from; i < to; i++ {
			r.AddRow(c, i)
		}
		out.First, out.Last = append(out.First, r.first), append(out.Last, r.last)
		inc := r.last - r.first + r.resets
		if r.inexact {
			inc = math.NaN()
		}
		out.Increase = append(out.Increase, inc)
	default:
		var g GaugeRange
		for i := from; i < to; i++ {
			g.AddRow(c, i)
		}
		out.First, out.Last = append(out.First, g.first), append(out.Last, g.last)
		out.Min, out.Max = append(out.Min, g.min), append(out.Max, g.max)
		out.Sum, out.SumC = append(out.Sum, g.sum), append(out.SumC, g.comp)
	}
}

// pickAt is the zero value where there is no such row.
func pickAt[T any](column []T, i int) (v T) {
	if i >= 0 {
		v = column[i]
	}
	return v
}

func coarseIncrease(c *chunk.Columns, from, to int, count uint32) frame.Histogram {
	var r HistogramRange
	for i := from; i < to; i++ {
		r.AddRow(c, i)
	}
	switch {
	case count == 0:
		return frame.Histogram{}
	case r.inexact:
		return incompatible()
	case r.change == nil:
		return frameHistogram(increase([]*histogram.FloatHistogram{r.first}))
	}
	h := r.change.Copy()
	h.Sum = r.last.Sum - r.first.Sum + r.resets
	return frameHistogram(h.Compact(0))
}

func coarseSum(c *chunk.Columns, from, to int, typ frame.MetricType) frame.Histogram {
	var hs []*histogram.FloatHistogram
	for i := from; i < to; i++ {
		if c.Count[i] > 0 {
			hs = append(hs, FloatHistogram(&c.SumH[i], typ))
		}
	}
	if len(hs) == 0 {
		return frame.Histogram{}
	}
	if sum := total(hs); sum != nil {
		return frameHistogram(sum)
	}
	return incompatible()
}
