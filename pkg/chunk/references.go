package chunk

import (
	"encoding/binary"
	"math"
)

// refer writes v as a function of the same column, dear too, of an earlier slot with the same times,
// when one is found that takes less than limit bits.
func (w *blockWriter) refer(v []float64, i, col, limit int) bool {
	s := &w.slots[i]
	keys := w.kinKeys(v, i, col)
	for _, key := range keys {
		j, ok := w.kin[key]
		if key == 0 || !ok {
			continue
		}
		o := &w.slots[j]
		if o.set != s.set || o.mask&(1<<col) == 0 {
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
		mark := w.begin()
		w.lits = binary.AppendUvarint(append(w.lits, mode), uint64(i-int(j)))
		w.lits = appendFloat(w.lits, p)
		if mode == modeScale {
			w.lits = appendFloat(w.lits, q)
		}
		if c := w.integers(w.ref); c < limit {
			s.depth[col] = o.depth[col] + 1
			w.remember(keys, i, col)
			return true
		}
		w.undo(mark)
	}
	w.remember(keys, i, col)
	return false
}

// remember leaves a column to later ones, unless they already find one that is less deep.
func (w *blockWriter) remember(keys [2]uint64, i, col int) {
	depth := w.slots[i].depth[col]
	if depth >= maxDepth {
		return
	}
	for _, key := range keys {
		if j, ok := w.kin[key]; key != 0 && (!ok || depth <= w.slots[j].depth[col]) {
			w.kin[key] = int32(i)
		}
	}
}

// kinKeys are two numbers, 0 for none: v and x have the first in common when v = p - x,
// and the second when v = x * p / q, but for rounding at the border of a quantum.
func (w *blockWriter) kinKeys(v []float64, i, col int) (keys [2]uint64) {
	n := len(v)
	if n < minKin {
		return keys
	}
	z, a, b := v[0], v[n/3], v[n-1]
	if special(z) || special(a) || special(b) {
		return keys
	}
	h := (uint64(w.slots[i].set)<<8 | uint64(col)<<1 | 1) * 0x9e3779b97f4a7c15
	keys[0] = mix(mix(h, quantum(math.Abs(a-z))), quantum(math.Abs(b-z)))
	if z != 0 {
		keys[1] = mix(mix(h+1, quantum(a/z)), quantum(b/z))
	}
	return keys
}

// minKin is the least number of rows whose columns are compared.
const minKin = 8

// quantum keeps 20 bits of the mantissa.
func quantum(x float64) uint64 { return (math.Float64bits(x) + 1<<31) >> 32 }

func mix(h, x uint64) uint64 {
	h = (h ^ x) * 0x9e3779b97f4a7c15
	return h ^ h>>32
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
	if n < minKin || special(v[0]) || special(x[0]) {
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
