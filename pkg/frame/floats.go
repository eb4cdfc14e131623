package frame

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// Modes of a series in the value column; docs/format/frame.md has the bytes.
// Every mode writes at least one byte for every value, so the length of the column bounds
// the number of values that a reader allocates for.
const (
	modePlain   = 0x00
	modeXOR     = 0x01
	modeDecimal = 0x10 // + exponent of ten, 0 to 15
	modeShift   = 0x40 // + exponent of two, 1 to 52

	maxExponent = 15
	maxShift    = 52
	// minShift is the smallest shift that is used: it saves at least a byte per value. Smaller
	// shifts would cost more, because mode bytes that differ between series compress worse.
	minShift = 8
	// driftRows is the number of values from which a drift saves more than its varint costs.
	driftRows = 8
)

// maxExact is the bound below which a float64 represents every integer exactly.
const maxExact = 1 << 53

var pow10 = [maxExponent + 1]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// appendValues encodes the values of one series, bit for bit, in the smallest of the
// modes, which it returns. ints is scratch memory of the same length.
func appendValues(dst []byte, v []float64, ints []int64) ([]byte, byte) {
	if exp, ok := scale(v, ints); ok {
		mode := byte(modeDecimal + exp)
		if exp == 0 {
			if s := commonShift(ints); s >= minShift {
				mode = modeShift + byte(s)
				for i := range ints {
					ints[i] >>= s
				}
			}
		}
		start := len(dst)
		dst = appendIntegers(dst, ints)
		if len(dst)-start <= 6*len(v) {
			return dst, mode
		}
		// Over 6 bytes a value: only then is XOR or plain worth comparing.
		if size := len(dst) - start; size > xorLen(v) || size > 8*len(v) {
			dst = dst[:start]
		} else {
			return dst, mode
		}
	}
	if xorLen(v) < 8*len(v) {
		return appendXOR(dst, v), modeXOR
	}
	for _, x := range v {
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(x))
	}
	return dst, modePlain
}

// scale finds the smallest exponent e such that every value is exactly an
// integer over 10^e, and fills ints. Negative zero, NaN and infinities have no such exponent.
func scale(v []float64, ints []int64) (int, bool) {
	exp, last := 0, 0
	for i := 0; i < len(v); i++ {
		for {
			n, ok := integer(v[i], exp)
			if ok {
				ints[i] = n
				break
			}
			if exp++; exp > maxExponent || !(math.Abs(v[i])*pow10[exp] < maxExact) {
				return 0, false
			}
			last = i
		}
	}
	for i := range last { // values before it were scaled by a smaller exponent
		n, ok := integer(v[i], exp)
		if !ok {
			return 0, false
		}
		ints[i] = n
	}
	return exp, true
}

func integer(x float64, exp int) (int64, bool) {
	s := x * pow10[exp]
	// Negated, so that NaN is refused as well.
	if !(math.Abs(s) < maxExact) {
		return 0, false
	}
	n := int64(math.RoundToEven(s))
	return n, math.Float64bits(float64(n)/pow10[exp]) == math.Float64bits(x)
}

func commonShift(ints []int64) int {
	var all int64
	for _, n := range ints {
		all |= n
	}
	if all == 0 {
		return 0
	}
	return min(bits.TrailingZeros64(uint64(all)), maxShift)
}

// appendIntegers writes the first value, the drift when there are at least
// driftRows values, then each difference minus the drift; all as zigzag varints. The drift is what a counter with a steady rate grows by.
func appendIntegers(dst []byte, ints []int64) []byte {
	dst = appendZigzag(dst, ints[0])
	var drift int64
	if len(ints) >= driftRows {
		drift = bestDrift(ints)
		dst = appendZigzag(dst, drift)
	}
	for i := 1; i < len(ints); i++ {
		dst = appendZigzag(dst, ints[i]-ints[i-1]-drift)
	}
	return dst
}

// bestDrift is the mean difference when that makes the varints shorter, else 0.
func bestDrift(ints []int64) int64 {
	mean := (ints[len(ints)-1] - ints[0]) / int64(len(ints)-1)
	if mean == 0 {
		return 0
	}
	with, without := uvarintLen(zigzag(mean)), 1
	for i := 1; i < len(ints); i++ {
		d := ints[i] - ints[i-1]
		with += uvarintLen(zigzag(d - mean))
		without += uvarintLen(zigzag(d))
	}
	if with < without {
		return mean
	}
	return 0
}

// xorLen is the size of v in XOR mode.
func xorLen(v []float64) int {
	n, last := 0, uint64(0)
	for _, x := range v {
		u := math.Float64bits(x)
		if d := u ^ last; d != 0 {
			n += 8 - bits.LeadingZeros64(d)/8 - bits.TrailingZeros64(d)/8
		}
		n++
		last = u
	}
	return n
}

// appendXOR writes each value's bits XOR those of the value before (the first:
// of 0) as a control byte (trailing zero bytes in the high half, significant
// bytes in the low half; 0 for equal values) and the significant bytes.
func appendXOR(dst []byte, v []float64) []byte {
	last := uint64(0)
	for _, x := range v {
		u := math.Float64bits(x)
		d := u ^ last
		last = u
		if d == 0 {
			dst = append(dst, 0)
			continue
		}
		tz := bits.TrailingZeros64(d) / 8
		n := 8 - bits.LeadingZeros64(d)/8 - tz
		dst = append(dst, byte(tz<<4|n))
		for d >>= 8 * tz; n > 0; n-- {
			dst = append(dst, byte(d))
			d >>= 8
		}
	}
	return dst
}
