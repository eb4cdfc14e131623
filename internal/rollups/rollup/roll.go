package rollup

import (
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/util/kahansum"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Roller rolls raw series up. It caches the buckets of the times that it saw, since series of one agent share
// them. It is not for concurrent use.
type Roller struct {
	res   timegrid.Resolution
	finer *Roller // to the next finer resolution, from whose rows gauges are made; nil for the finest
	fine  chunk.Series
	seen  map[*int64]*grid
	*grid
	ints     []int64
	decimals []decimalRow
	slab     []float64
}

// grid has the buckets of a series' times.
type grid struct {
	all     []int64 // all times of the series
	t       []int64 // the times that count: of several samples in a millisecond the last
	rows    []int   // the rows of t in all; nil when they are the same
	buckets []bucket
	ends    []int64 // of the buckets, Unix nanoseconds
	plain   *plain
}

// plain are the columns that all series of a grid share if they have no stale markers.
type plain struct {
	of            *int64 // FirstT of the finer rows, nil for samples
	count, stale  []uint32
	firstT, lastT []int64
	zero          []float64
}

// maxGrids bounds the grids that a roller caches.
const maxGrids = 4096

// bucket is the range [from, to) of samples.
type bucket struct{ from, to int }

// NewRoller makes a roller to res, which must not be Raw.
func NewRoller(res timegrid.Resolution) *Roller {
	r := &Roller{res: res, seen: map[*int64]*grid{}}
	if res > timegrid.OneMinute {
		// Resolutions are numbered from the finest, so each is made from the one below it.
		r.finer = NewRoller(res - 1)
	}
	return r
}

// Roll returns s in buckets. Of samples in the same millisecond only the last counts, as in a query. The result
// refers to the labels and histograms of s, and shares columns with other results.
func (r *Roller) Roll(s *chunk.Series) chunk.Series {
	var out chunk.Series
	r.RollInto(&out, s, nil)
	return out
}

// RollInto is Roll into out. fine may have the rows of s in the next finer resolution: then gauges are made from those,
// so that the samples are read only once.
func (r *Roller) RollInto(out, s, fine *chunk.Series) {
	*out = chunk.Series{ID: s.ID}
	gauge := s.H == nil && s.Type != series.Counter
	if gauge && r.finer != nil && fine == nil {
		// Nobody wants the finer rows, and sums of decimals are the same whatever they are made from.
		if r.useGrid(s.T); r.decimalGauges(pick(s.V, r.rows), &out.Columns, true) {
			out.T = r.ends
			return
		}
		r.finer.RollInto(&r.fine, s, nil)
		fine = &r.fine
	}
	if gauge && r.finer != nil {
		r.useGrid(fine.T)
		out.T = r.ends
		r.coarse(&fine.Columns, &out.Columns)
		return
	}
	r.useGrid(s.T)
	out.T = r.ends
	switch {
	case s.H != nil:
		r.own(&out.Columns)
		r.histograms(s.H, out)
	case gauge:
		r.gauges(pick(s.V, r.rows), &out.Columns)
	default:
		r.counters(pick(s.V, r.rows), &out.Columns)
	}
}

// own gives c counts and times of its own.
func (r *Roller) own(c *chunk.Columns) {
	n := len(r.buckets)
	c.Count, c.Stale = make([]uint32, n), make([]uint32, n)
	c.FirstT, c.LastT = make([]int64, n), make([]int64, n)
}

// share gives c the counts and times that all series without stale markers have.
func (r *Roller) share(c *chunk.Columns) {
	// of is set in columns made from finer rows, which are not those of samples.
	if r.plain == nil || r.plain.of != nil {
		r.plain = newPlain(len(r.buckets))
		for i, b := range r.buckets {
			r.plain.count[i] = uint32(b.to - b.from)
			r.plain.firstT[i], r.plain.lastT[i] = r.t[b.from], r.t[b.to-1]
		}
	}
	r.plain.shareWith(c)
}

func newPlain(n int) *plain {
	return &plain{count: make([]uint32, n), stale: make([]uint32, n), firstT: make([]int64, n), lastT: make([]int64, n), zero: make([]float64, n)}
}

func (p *plain) shareWith(c *chunk.Columns) {
	c.Count, c.Stale, c.FirstT, c.LastT = p.count, p.stale, p.firstT, p.lastT
}

// columns allocates columns with a row for each bucket from a common slab.
func (r *Roller) columns(cs ...*[]float64) {
	n := len(r.buckets)
	if len(r.slab) < n*len(cs) {
		r.slab = make([]float64, max(slabValues, n*len(cs)))
	}
	for _, c := range cs {
		// Capped, so that an append to one column can't run into the next.
		*c, r.slab = r.slab[:n:n], r.slab[n:]
	}
}

// slabValues is how many values a slab has.
const slabValues = 8 << 10

// useGrid finds the buckets of t, or makes them.
func (r *Roller) useGrid(t []int64) {
	if len(t) == 0 {
		r.grid = &grid{}
		return // no rows, and no first element to identify them by
	}
	// Series that share their times share the slice, so its address identifies it. The length is compared because
	// a longer series may begin with the same slice.
	if g := r.grid; g != nil && len(g.all) == len(t) && &g.all[0] == &t[0] {
		return
	}
	if g := r.seen[&t[0]]; g != nil && len(g.all) == len(t) {
		r.grid = g
		return
	}
	// Clearing loses no data: a grid that is needed later is computed a second time.
	if len(r.seen) >= maxGrids {
		clear(r.seen)
	}
	r.grid = newGrid(t, r.res)
	r.seen[&t[0]] = r.grid
}

func newGrid(t []int64, res timegrid.Resolution) *grid {
	g := &grid{all: t}
	for i := 1; i < len(t); i++ {
		if timegrid.Millisecond(t[i]) == timegrid.Millisecond(t[i-1]) {
			// Queries see milliseconds, of which only the last sample counts. Most series have no such
			// rows, and then no copy is made.
			g.rows = lastOfMillisecond(t)
			break
		}
	}
	g.t = pick(t, g.rows)
	end := int64(math.MinInt64)
	for i, ns := range g.t {
		ms := timegrid.Millisecond(ns)
		if i == 0 || ms > end {
			end = res.BucketEnd(ms)
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
		if i+1 == len(t) || timegrid.Millisecond(t[i+1]) != timegrid.Millisecond(t[i]) {
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

// nanos converts a millisecond; it saturates at the end of the last bucket that can be represented.
func nanos(ms int64) int64 {
	if ms > math.MaxInt64/nsPerMS {
		return math.MaxInt64
	}
	return ms * nsPerMS
}

const nsPerMS = 1_000_000

// hasStale reports whether a value is a stale marker.
func hasStale(v []float64) bool {
	for _, x := range v {
		if value.IsStaleNaN(x) {
			return true
		}
	}
	return false
}

func (r *Roller) counters(v []float64, c *chunk.Columns) {
	r.columns(&c.First, &c.Last, &c.Increase)
	// Nearly all series are without stale markers; the loop for them has no test of each value.
	if !hasStale(v) {
		r.share(c)
		for i, b := range r.buckets {
			first, prev, resets := v[b.from], v[b.from], 0.0
			for _, x := range v[b.from+1 : b.to] {
				if x < prev {
					resets += prev
				}
				prev = x
			}
			c.First[i], c.Last[i], c.Increase[i] = first, prev, prev-first+resets
		}
		return
	}
	r.own(c)
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
			// The value fell, so the counter was reset, and what it had reached is added.
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
	if r.decimalGauges(v, c, false) {
		return
	}
	r.columns(&c.First, &c.Last, &c.Sum, &c.Min, &c.Max, &c.SumC)
	stale := hasStale(v)
	if stale {
		r.own(c)
	} else {
		r.share(c)
	}
	for i, b := range r.buckets {
		first, last, count := 0, 0, uint32(0)
		var lo, hi, sum, comp float64
		for k, x := range v[b.from:b.to] {
			if stale && value.IsStaleNaN(x) {
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
		if stale {
			c.Count[i], c.Stale[i] = count, uint32(b.to-b.from)-count
		}
		if count == 0 {
			continue
		}
		if stale {
			c.FirstT[i], c.LastT[i] = r.t[first], r.t[last]
		}
		c.First[i], c.Last[i], c.Min[i], c.Max[i], c.Sum[i], c.SumC[i] = v[first], v[last], lo, hi, sum, comp
	}
}

// maxDecimal bounds integer sums: up to 2^53 every integer is a float64.
const maxDecimal = 1 << 53

// maxUnique bounds integers of 15 digits: no two decimals of so many round to one float64, so what is read back from
// sums is what was summed.
const maxUnique = 1_000_000_000_000_000

// decimalRow is a bucket of decimals: integers over the power of ten of their column.
type decimalRow struct{ sum, lo, hi int64 }

// decimalGauges sums decimal values as integers: the result is the float64 next to their sum and needs no
// compensation. It is false, and leaves c as it is, when v has other values, stale markers among them, or too large ones.
//
// With asCoarse the rows are, to the bit, those that coarse makes of finer ones, or it is false: the sums of all parts of a
// bucket are below maxUnique then, so finer sums would be read back as they are; and least and greatest values are values
// of samples in any case.
func (r *Roller) decimalGauges(v []float64, c *chunk.Columns, asCoarse bool) bool {
	if cap(r.ints) < len(v) {
		r.ints = make([]int64, len(v))
	}
	ints := r.ints[:len(v)]
	exp, ok := chunk.Decimals(v, ints)
	if !ok {
		return false
	}
	r.decimals = slices.Grow(r.decimals[:0], len(r.buckets))
	for _, b := range r.buckets {
		all := ints[b.from:b.to]
		// Checked before the sum, which could overflow an int64 with more values.
		if len(all) > maxSummed {
			return false
		}
		d := decimalRow{lo: all[0], hi: all[0]}
		for _, n := range all {
			d.sum += n
			d.lo, d.hi = min(d.lo, n), max(d.hi, n)
		}
		if d.sum <= -maxDecimal || d.sum >= maxDecimal || asCoarse && max(-d.lo, d.hi) >= maxUnique/int64(len(all)) {
			return false
		}
		r.decimals = append(r.decimals, d)
	}
	r.columns(&c.First, &c.Last, &c.Sum, &c.Min, &c.Max)
	for i, b := range r.buckets {
		d := &r.decimals[i]
		c.First[i], c.Last[i] = v[b.from], v[b.to-1]
		c.Min[i], c.Max[i] = chunk.FromDecimal(d.lo, exp), chunk.FromDecimal(d.hi, exp)
		c.Sum[i] = chunk.FromDecimal(d.sum, exp)
	}
	r.share(c)
	c.SumC = r.plain.zero
	return true
}

// maxSummed: so many integers below 2^53 do not overflow 64 bits.
const maxSummed = 1 << 10

// lesser and greater prefer any number to NaN, as min_over_time and max_over_time do.
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

func (r *Roller) histograms(h []series.Histogram, out *chunk.Series) {
	h = pick(h, r.rows)
	n := len(r.buckets)
	out.FirstH, out.LastH = make([]series.Histogram, n), make([]series.Histogram, n)
	merged := make([]series.Histogram, n)
	// Deltas and gauges are summed; of cumulative histograms the increase is kept.
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
			hs = append(hs, samples.Unreduced(&h[k], out.Type))
		}
		out.Count[i], out.Stale[i] = uint32(len(hs)), uint32(b.to-b.from-len(hs))
		if len(hs) == 0 {
			continue
		}
		out.FirstT[i], out.LastT[i] = r.t[first], r.t[last]
		out.FirstH[i], out.LastH[i] = h[first], h[last]
		if m := merge(hs); m != nil {
			merged[i] = samples.Histogram(m)
		} else {
			merged[i] = incompatible()
		}
	}
}

func cumulative(t series.Type) bool {
	return t != series.HistogramDelta && t != series.HistogramGauge
}
