package rollup

import (
	"math"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/util/kahansum"

	"lightmetrics.dev/lightmetrics/pkg/chunk"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// Roller rolls raw series up. It remembers the buckets of times that it saw, since series
// of one agent share them. Not for concurrent use.
type Roller struct {
	w    window.Window
	seen map[*int64]*grid
	*grid
}

// grid is the buckets of the times of a series.
type grid struct {
	all     []int64 // as the series has them
	t       []int64 // those that count: of samples in one millisecond the last
	rows    []int   // their rows, when those are not all; else nil
	buckets []bucket
	ends    []int64 // of the buckets, Unix nanoseconds
}

// maxGrids bounds what a roller remembers.
const maxGrids = 4096

// bucket is the range [from, to) of samples.
type bucket struct{ from, to int }

// NewRoller makes a roller to w, which is not Raw.
func NewRoller(w window.Window) *Roller { return &Roller{w: w, seen: map[*int64]*grid{}} }

// Roll gives s in buckets. Of samples in the same millisecond only the last counts, as in
// a query. The result refers to the labels and histograms of s, and shares T with others.
func (r *Roller) Roll(s *chunk.Series) chunk.Series {
	r.look(s.T)
	out := chunk.Series{Agent: s.Agent, Labels: s.Labels, Type: s.Type, Unit: s.Unit}
	n := len(r.buckets)
	out.T = r.ends
	out.Count, out.Stale = make([]uint32, n), make([]uint32, n)
	out.FirstT, out.LastT = make([]int64, n), make([]int64, n)
	switch {
	case s.H != nil:
		r.histograms(s.H, &out)
	case s.Type == frame.Counter:
		r.counters(pick(s.V, r.rows), &out.Columns)
	default:
		r.gauges(pick(s.V, r.rows), &out.Columns)
	}
	return out
}

// look finds the buckets of t.
func (r *Roller) look(t []int64) {
	if len(t) == 0 {
		r.grid = &grid{}
		return
	}
	if g := r.seen[&t[0]]; g != nil && len(g.all) == len(t) {
		r.grid = g
		return
	}
	if len(r.seen) >= maxGrids {
		clear(r.seen)
	}
	r.grid = newGrid(t, r.w)
	r.seen[&t[0]] = r.grid
}

func newGrid(t []int64, w window.Window) *grid {
	g := &grid{all: t}
	for i := 1; i < len(t); i++ {
		if window.Millisecond(t[i]) == window.Millisecond(t[i-1]) {
			g.rows = lastOfMillisecond(t)
			break
		}
	}
	g.t = pick(t, g.rows)
	end := int64(math.MinInt64)
	for i, ns := range g.t {
		ms := window.Millisecond(ns)
		if i == 0 || ms > end {
			end = w.BucketEnd(ms)
			g.buckets = append(g.buckets, bucket{i, i})
			g.ends = append(g.ends, nanos(end))
		}
		g.buckets[len(g.buckets)-1].to = i + 1
	}
	return g
}

func lastOfMillisecond(t []int64) []int {
	rows := make([]int, 0, len(t))
	for i := range t {
		if i+1 == len(t) || window.Millisecond(t[i+1]) != window.Millisecond(t[i]) {
			rows = append(rows, i)
		}
	}
	return rows
}

func pick[T any](all []T, rows []int) []T {
	if rows == nil {
		return all
	}
	out := make([]T, len(rows))
	for i, row := range rows {
		out[i] = all[row]
	}
	return out
}

// nanos of a millisecond; the last bucket of representable time ends with it.
func nanos(ms int64) int64 {
	if ms > math.MaxInt64/nsPerMS {
		return math.MaxInt64
	}
	return ms * nsPerMS
}

const nsPerMS = 1_000_000

func (r *Roller) counters(v []float64, c *chunk.Columns) {
	n := len(r.buckets)
	columns := make([]float64, 3*n)
	c.First, c.Last, c.Increase = columns[:n:n], columns[n:2*n:2*n], columns[2*n:]
	for i, b := range r.buckets {
		first, last, count := 0, 0, uint32(0)
		var prev, resets float64
		for k, x := range v[b.from:b.to] {
			if value.IsStaleNaN(x) {
				continue
			}
			if count == 0 {
				first, prev = b.from+k, x
			}
			if x < prev {
				resets += prev
			}
			count++
			last, prev = b.from+k, x
		}
		c.Count[i], c.Stale[i] = count, uint32(b.to-b.from)-count
		if count > 0 {
			c.FirstT[i], c.LastT[i] = r.t[first], r.t[last]
			c.First[i], c.Last[i], c.Increase[i] = v[first], v[last], v[last]-v[first]+resets
		}
	}
}

func (r *Roller) gauges(v []float64, c *chunk.Columns) {
	n := len(r.buckets)
	columns := make([]float64, 6*n)
	c.First, c.Last, c.Sum = columns[:n:n], columns[n:2*n:2*n], columns[2*n:3*n:3*n]
	c.SumC, c.Min, c.Max = columns[3*n:4*n:4*n], columns[4*n:5*n:5*n], columns[5*n:]
	for i, b := range r.buckets {
		first, last, count := 0, 0, uint32(0)
		var lo, hi, sum, comp float64
		for k, x := range v[b.from:b.to] {
			if value.IsStaleNaN(x) {
				continue
			}
			if count == 0 {
				first, lo, hi = b.from+k, x, x
			}
			count++
			last = b.from + k
			lo, hi = lesser(lo, x), greater(hi, x)
			sum, comp = kahansum.Inc(x, sum, comp)
		}
		c.Count[i], c.Stale[i] = count, uint32(b.to-b.from)-count
		if count > 0 {
			c.FirstT[i], c.LastT[i] = r.t[first], r.t[last]
			c.First[i], c.Last[i], c.Min[i], c.Max[i], c.Sum[i], c.SumC[i] = v[first], v[last], lo, hi, sum, comp
		}
	}
}

// lesser and greater take NaN for the worst, as min_over_time and max_over_time do.
func lesser(a, b float64) float64 {
	if b < a || math.IsNaN(a) {
		return b
	}
	return a
}

func greater(a, b float64) float64 {
	if b > a || math.IsNaN(a) {
		return b
	}
	return a
}

func (r *Roller) histograms(h []frame.Histogram, out *chunk.Series) {
	h = pick(h, r.rows)
	n := len(r.buckets)
	out.FirstH, out.LastH = make([]frame.Histogram, n), make([]frame.Histogram, n)
	merged := make([]frame.Histogram, n)
	merge := total
	if cumulative(out.Type) {
		out.IncreaseH, merge = merged, increase
	} else {
		out.SumH = merged
	}
	var hs []*histogram.FloatHistogram
	for i, b := range r.buckets {
		first, last := 0, 0
		hs = hs[:0]
		for k := b.from; k < b.to; k++ {
			if staleHistogram(&h[k]) {
				continue
			}
			if len(hs) == 0 {
				first = k
			}
			last = k
			hs = append(hs, FloatHistogram(&h[k], out.Type))
		}
		out.Count[i], out.Stale[i] = uint32(len(hs)), uint32(b.to-b.from-len(hs))
		if len(hs) == 0 {
			continue
		}
		out.FirstT[i], out.LastT[i] = r.t[first], r.t[last]
		out.FirstH[i], out.LastH[i] = h[first], h[last]
		if m := merge(hs); m != nil {
			merged[i] = frameHistogram(m)
		} else {
			merged[i] = incompatible()
		}
	}
}

func cumulative(t frame.MetricType) bool {
	return t != frame.HistogramDelta && t != frame.HistogramGauge
}
