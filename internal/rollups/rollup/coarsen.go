package rollup

import (
	"github.com/prometheus/prometheus/util/kahansum"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
)

// coarse makes the rows of a gauge from finer ones; the grid is over their ends.
func (r *Roller) coarse(fine, c *chunk.Columns) {
	r.columns(&c.First, &c.Last, &c.Sum, &c.Min, &c.Max)
	if !r.plainOf(fine) {
		r.columns(&c.SumC)
		r.coarseStale(fine, c)
		return
	}
	r.plain.shareWith(c)
	for i, b := range r.buckets {
		lo, hi := fine.Min[b.from], fine.Max[b.from]
		for k := b.from + 1; k < b.to; k++ {
			lo, hi = lesser(lo, fine.Min[k]), greater(hi, fine.Max[k])
		}
		c.First[i], c.Last[i], c.Min[i], c.Max[i] = fine.First[b.from], fine.Last[b.to-1], lo, hi
	}
	// Exact sums need no column of compensations.
	if r.decimalSums(fine, c) {
		return
	}
	r.columns(&c.SumC)
	for i, b := range r.buckets {
		c.Sum[i], c.SumC[i] = sumRows(fine, b.from, b.to)
	}
}

// plainOf reports whether the rows have no stale marker, and finds the columns that all such rows share.
func (r *Roller) plainOf(fine *chunk.Columns) bool {
	if len(r.buckets) == 0 {
		return false
	}
	// Series of one timeline share their columns, so the address of the first element identifies them.
	if r.plain != nil && r.plain.of == &fine.FirstT[0] {
		return true
	}
	for _, n := range fine.Stale {
		if n > 0 {
			return false
		}
	}
	p := newPlain(len(r.buckets))
	p.of = &fine.FirstT[0]
	for i, b := range r.buckets {
		for _, n := range fine.Count[b.from:b.to] {
			p.count[i] += n
		}
		p.firstT[i], p.lastT[i] = fine.FirstT[b.from], fine.LastT[b.to-1]
	}
	r.plain = p
	return true
}

// decimalSums sums decimal values as integers. It is false when there are others.
func (r *Roller) decimalSums(fine, c *chunk.Columns) bool {
	for _, x := range fine.SumC {
		if x != 0 { // true for NaN as well
			return false
		}
	}
	if cap(r.ints) < len(fine.Sum) {
		r.ints = make([]int64, len(fine.Sum))
	}
	ints := r.ints[:len(fine.Sum)]
	exp, ok := chunk.Decimals(fine.Sum, ints)
	if !ok {
		return false
	}
	for i, b := range r.buckets {
		sum := int64(0)
		for _, n := range ints[b.from:b.to] { // at most 60 rows, so no overflow
			sum += n
		}
		// Beyond 2^53 the integer is no longer the nearest float64, and the compensated sum is better.
		if sum <= -maxDecimal || sum >= maxDecimal {
			return false
		}
		c.Sum[i] = chunk.FromDecimal(sum, exp)
	}
	c.SumC = r.plain.zero
	return true
}

// sumRows sums rows with their compensations.
func sumRows(fine *chunk.Columns, from, to int) (sum, comp float64) {
	for k := from; k < to; k++ {
		if fine.Count[k] == 0 {
			continue
		}
		sum, comp = kahansum.Inc(fine.Sum[k], sum, comp)
		// An infinite or NaN compensation would spoil a sum that is itself still right.
		if both := comp + fine.SumC[k]; finite(both) {
			comp = both
		}
	}
	return sum, comp
}

// coarseStale makes rows when some samples are stale markers, which have no values.
func (r *Roller) coarseStale(fine, c *chunk.Columns) {
	r.own(c)
	for i, b := range r.buckets {
		for k := b.from; k < b.to; k++ {
			c.Stale[i] += fine.Stale[k]
			// A row of stale markers only: its zeros are no values.
			if fine.Count[k] == 0 {
				continue
			}
			if c.Count[i] == 0 {
				c.First[i], c.Min[i], c.Max[i], c.FirstT[i] = fine.First[k], fine.Min[k], fine.Max[k], fine.FirstT[k]
			}
			c.Count[i] += fine.Count[k]
			c.Last[i], c.LastT[i] = fine.Last[k], fine.LastT[k]
			c.Min[i], c.Max[i] = lesser(c.Min[i], fine.Min[k]), greater(c.Max[i], fine.Max[k])
		}
		c.Sum[i], c.SumC[i] = sumRows(fine, b.from, b.to)
	}
}
