package chunk

import (
	"encoding/binary"
	"math"
)

// refer writes v as a function of the same column, dear too, of an earlier slot with the same times,
// when one is found that takes less than limit bits.
func (w *blockWriter) refer(v []float64, i, col, limit int) bool {
	s := &w.slots[i]
	for k := len(w.dear) - 1; k >= 0; k-- {
		d := w.dear[k]
		j := d.slot
		if d.set != s.set || d.col != col || j >= i {
			continue
		}
		o := &w.slots[j]
		if o.depth[col]+1 > maxDepth {
			continue
		}
		x := *o.c.float(1 << col)
		mode, p, q, ok := relate(v, x)
		if !ok {
			continue
		}
		if cap(w.ref) < len(v) {
			w.ref = make([]int64, len(v))
		}
		w.ref = w.ref[:len(v)]
		apply(mode, p, q, v, x, w.ref)
		mark, lit := len(w.pieces), len(w.lits)
		w.lits = binary.AppendUvarint(append(w.lits, mode), uint64(i-j))
		w.lits = appendFloat(w.lits, p)
		if mode == modeScale {
			w.lits = appendFloat(w.lits, q)
		}
		if c := w.integers(w.ref); c < limit {
			s.depth[col] = o.depth[col] + 1
			return true
		}
		w.coder.drop()
		w.pieces, w.lits, w.litAt = w.pieces[:mark], w.lits[:lit], lit
	}
	return false
}

// apply leaves the distances from the relation to v in out.
func apply(mode byte, p, q float64, v, x []float64, out []int64) {
	for k := range v {
		y := p - x[k]
		if mode == modeScale {
			y = x[k] * p / q
		}
		out[k] = int64(math.Float64bits(v[k]) - math.Float64bits(y))
	}
}

// relate finds v = p - x or v = x * p / q by a few rows.
func relate(v, x []float64) (mode byte, p, q float64, ok bool) {
	n := len(v)
	if n < 8 || special(v[0]) || special(x[0]) {
		return 0, 0, 0, false
	}
	rows := [...]int{n / 3, n / 2, n - 1, n / 5}
	holds := func(y func(float64) float64) bool {
		for _, r := range rows {
			if _, ok := ulps(v[r], y(x[r]), 2); !ok {
				return false
			}
		}
		return true
	}
	c := v[0] + x[0]
	if holds(func(x float64) float64 { return c - x }) {
		return modeSum, c, 0, true
	}
	if v[0] == 0 || x[0] == 0 {
		return 0, 0, 0, false
	}
	// Is the quotient the same at all? A quick look before exact candidates.
	k := v[0] / x[0]
	for _, r := range rows {
		if d := v[r] - x[r]*k; !(math.Abs(d) <= math.Abs(v[r])*1e-12) {
			return 0, 0, 0, false
		}
	}
	for _, m := range [...]float64{100, 1} {
		if d := math.RoundToEven(m * x[0] / v[0]); d != 0 && !math.IsInf(d, 0) && holds(func(x float64) float64 { return x * m / d }) {
			return modeScale, m, d, true
		}
	}
	if holds(func(x float64) float64 { return x * k }) {
		return modeScale, k, 1, true
	}
	return 0, 0, 0, false
}
