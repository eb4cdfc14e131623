package chunk

import (
	"math"
	"math/bits"
)

const (
	maxExponent = 15
	// maxExact bounds integers that every float64 up to them can hold.
	maxExact = 1 << 53
	// maxNear bounds decimals with ulps: beyond it, every float would be near one.
	maxNear  = 1 << 48
	nearUlps = 15
	// Powers of two that multiply exactly.
	minShift, maxShift = -1022, 900
	// maxDyadic bounds integers of the dyadic mode.
	maxDyadic = 62
)

var pow10 = [maxExponent + 1]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

const signBit = 1 << 63

// special are the values that are patched into a column of others: NaN, infinities and -0.
func special(x float64) bool {
	u := math.Float64bits(x)
	return u == signBit || u&^signBit >= 0x7ff<<52
}

// floatCoder turns floats into integers.
type floatCoder struct {
	ints, near []int64
	patches    []int // rows
}

func (f *floatCoder) grow(n int) {
	if cap(f.ints) < n {
		f.ints, f.near = make([]int64, n), make([]int64, n)
	}
	f.ints, f.near = f.ints[:n], f.near[:n]
}

// patch leaves row i to the patches: the integer before it stands in. It reports whether
// patches are few enough to pay.
func (f *floatCoder) patch(i int) bool {
	f.patches = append(f.patches, i)
	// The integer of the row before predicts well, so a patched row costs almost nothing in the stream.
	f.ints[i] = 0
	if i > 0 {
		f.ints[i] = f.ints[i-1]
	}
	f.near[i] = 0
	// A patch takes nine bytes or more, so with many of them another mode is smaller.
	return len(f.patches) <= len(f.ints)/4+1
}

// fillPatches gives patched rows at the start the first integer that is there.
func (f *floatCoder) fillPatches() {
	n := 0
	for n < len(f.patches) && f.patches[n] == n {
		n++
	}
	if n == 0 || n == len(f.ints) {
		return
	}
	for i := range n {
		f.ints[i] = f.ints[n]
	}
	for _, i := range f.patches[n:] {
		f.ints[i] = f.ints[i-1]
	}
}

// decimal fills ints with v * 10^e for the least e for which that is exact.
func (f *floatCoder) decimal(v []float64) (e int, ok bool) {
	for {
		var at int
		if e == 0 {
			at = f.wholes(v)
		} else {
			at = f.scaled(v, pow10[e])
		}
		switch {
		case at == len(v):
			f.fillPatches()
			return e, true
		case at < 0:
			return 0, false
		}
		// v[at] wants more digits. What fits fewer fits those too, or nothing fits.
		if e = exponent(v[at], e+1); e < 0 {
			return 0, false
		}
	}
}

// wholes fills ints with v and returns the row of the first value that is no whole number;
// len(v) when there is none, -1 when there are too many patches.
func (f *floatCoder) wholes(v []float64) int {
	f.patches = f.patches[:0]
	for i, x := range v {
		n := int64(x)
		switch {
		// One unsigned comparison checks both bounds. -0 would come back as 0, so a zero is compared by
		// its bits.
		case float64(n) == x && uint64(n+maxExact) < 2*maxExact && (n != 0 || math.Float64bits(x) == 0):
			f.ints[i] = n
		case !special(x):
			return i
		case !f.patch(i):
			return -1
		}
	}
	return len(v)
}

// scaled does the same for v * p, p a power of ten.
func (f *floatCoder) scaled(v []float64, p float64) int {
	f.patches = f.patches[:0]
	for i, x := range v {
		s := x * p
		n := int64(math.RoundToEven(s))
		switch {
		// Checked by what the reader computes, bit for bit: a product that rounds to an integer may divide
		// to a neighbour of x.
		case math.Float64bits(float64(n)/p) == math.Float64bits(x) && math.Abs(s) < maxExact:
			f.ints[i] = n
		case !special(x):
			return i
		case !f.patch(i):
			return -1
		}
	}
	return len(v)
}

// Decimals fills ints, as long as v, with v * 10^exp for the least exp from 0 to 15 for which
// float64(ints[i]) / 10^exp is v[i] to the bit for all of them, and ints are below 2^53. False
// when there is none; -0, infinities and NaN have none.
func Decimals(v []float64, ints []int64) (exp int, ok bool) {
	i := 0
	for ; i < len(v); i++ {
		x := v[i]
		n := int64(x)
		if float64(n) != x || uint64(n+maxExact) >= 2*maxExact || n == 0 && math.Float64bits(x) != 0 {
			break
		}
		ints[i] = n
	}
	for i < len(v) {
		if special(v[i]) {
			return 0, false
		}
		if exp = exponent(v[i], exp+1); exp < 0 {
			return 0, false
		}
		p := pow10[exp]
		for i = 0; i < len(v); i++ {
			s := v[i] * p
			n := int64(math.RoundToEven(s))
			if math.Float64bits(float64(n)/p) != math.Float64bits(v[i]) || !(math.Abs(s) < maxExact) {
				break
			}
			ints[i] = n
		}
	}
	return exp, true
}

// FromDecimal is n / 10^exp, exp from 0 to 15.
func FromDecimal(n int64, exp int) float64 {
	if exp == 0 {
		return float64(n)
	}
	return float64(n) / pow10[exp]
}

// shift divides ints by the greatest power of two in all, at most 2^52, and returns its exponent.
func (f *floatCoder) shift() int {
	var all int64
	for _, n := range f.ints {
		// One odd integer decides, which most columns have within their first rows.
		if all |= n; all&1 != 0 {
			return 0
		}
	}
	if all == 0 {
		return 0
	}
	s := min(bits.TrailingZeros64(uint64(all)), 52)
	for i := range f.ints {
		f.ints[i] >>= s
	}
	return s
}

// exponent is the least e, from e on, such that x is exactly an integer over 10^e; -1 when none is.
func exponent(x float64, e int) int {
	for ; e <= maxExponent; e++ {
		s := x * pow10[e]
		// Written as a negation so that NaN is refused, too.
		if !(math.Abs(s) < maxExact) {
			return -1
		}
		if math.Float64bits(math.RoundToEven(s)/pow10[e]) == math.Float64bits(x) {
			return e
		}
	}
	return -1
}

// nearDecimal fills ints and near such that v is ints / 10^e plus near units of the last place.
func (f *floatCoder) nearDecimal(v []float64) (int, bool) {
	const probes = 16
	// A few rows rule out most exponents before a whole column is converted.
	step := max(1, len(v)/probes)
	for e := 0; e <= maxExponent; e++ {
		fits := true
		for i := 0; i < len(v) && fits; i += step {
			if special(v[i]) {
				continue
			}
			s := v[i] * pow10[e]
			if !(math.Abs(s) < maxNear) {
				return 0, false
			}
			_, ok := ulps(v[i], math.RoundToEven(s)/pow10[e], nearUlps)
			fits = ok
		}
		if fits {
			return e, f.nearDecimalAt(v, e)
		}
	}
	return 0, false
}

func (f *floatCoder) nearDecimalAt(v []float64, e int) bool {
	f.patches = f.patches[:0]
	for i, x := range v {
		if special(x) {
			if !f.patch(i) {
				return false
			}
			continue
		}
		s := x * pow10[e]
		if !(math.Abs(s) < maxNear) {
			return false
		}
		n := math.RoundToEven(s)
		k, ok := ulps(x, n/pow10[e], nearUlps)
		if !ok {
			return false
		}
		// -0 as an integer is 0: its bits are far from x.
		if n == 0 && x != 0 {
			return false
		}
		f.ints[i], f.near[i] = int64(n), k
	}
	f.fillPatches()
	return true
}

// ulps is the distance in the last place from y to x.
func ulps(x, y float64, limit int64) (int64, bool) {
	k := int64(math.Float64bits(x) - math.Float64bits(y))
	return k, k >= -limit && k <= limit
}

// dyadic fills ints with v * 2^-s for the greatest s for which that is exact.
func (f *floatCoder) dyadic(v []float64) (int, bool) {
	f.patches = f.patches[:0]
	low, top := math.MaxInt, math.MinInt
	for _, x := range v {
		if x == 0 || special(x) {
			continue
		}
		m, e := mantissa(x)
		tz := bits.TrailingZeros64(m)
		low, top = min(low, e+tz), max(top, e+bits.Len64(m))
	}
	// low is above top when no row is a finite number other than 0.
	if low > top || top-low > maxDyadic || low < minShift || low > maxShift {
		return 0, false
	}
	for i, x := range v {
		if special(x) {
			if !f.patch(i) {
				return 0, false
			}
			continue
		}
		m, e := mantissa(x)
		if e < low {
			m >>= low - e
		} else {
			m <<= e - low
		}
		f.ints[i] = int64(m)
		if x < 0 {
			f.ints[i] = -f.ints[i]
		}
	}
	f.fillPatches()
	return low, true
}

// mantissa and exponent: |x| = m * 2^e; x is finite.
func mantissa(x float64) (uint64, int) {
	u := math.Float64bits(x)
	m, e := u&(1<<52-1), int(u>>52&0x7ff)
	// Subnormal numbers have no implicit highest bit.
	if e == 0 {
		return m, -1074
	}
	return m | 1<<52, e - 1075
}
