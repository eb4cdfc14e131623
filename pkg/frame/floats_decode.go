package frame

import (
	"encoding/binary"
	"math"
)

// decodeValues fills out, series-major with rows values per series, from modes (one
// byte per series) and all of b. The caller has checked that len(out) <= len(b).
func decodeValues(out []float64, rows int, modes, b []byte) error {
	pos := 0
	for s, mode := range modes {
		series := out[s*rows : (s+1)*rows]
		switch {
		case mode >= modeDecimal && mode <= modeDecimal+maxExponent:
			pos = decodeIntegers(series, b, pos)
			if mode > modeDecimal && pos >= 0 {
				// Divided, and not multiplied by 1/p: the encoder has checked that the division gives back
				// the very bits of the value.
				p := pow10[mode-modeDecimal]
				for i := range series {
					series[i] /= p
				}
			}
		case mode > modeShift && mode <= modeShift+maxShift:
			pos = decodeIntegers(series, b, pos)
			if pos >= 0 {
				p := float64(uint64(1) << (mode - modeShift))
				for i := range series {
					series[i] *= p
				}
			}
		case mode == modeXOR:
			pos = decodeXOR(series, b, pos)
		case mode == modePlain:
			pos = decodePlain(series, b, pos)
		default:
			return refuse(BadColumn, "values: series %d has unknown mode 0x%02x", s, mode)
		}
		if pos < 0 {
			return refuse(BadColumn, "values: column ends or is malformed in series %d", s)
		}
	}
	if pos != len(b) {
		return refuse(BadColumn, "values: %d bytes after the last series", len(b)-pos)
	}
	return nil
}

// decodeIntegers returns the position after the series, or -1. Sums are modulo 2^64.
func decodeIntegers(out []float64, b []byte, pos int) int {
	u, pos := uvarint(b, pos)
	if pos < 0 {
		return -1
	}
	acc := unzigzag(u)
	out[0] = float64(acc)
	var drift int64
	if len(out) >= driftRows {
		if u, pos = uvarint(b, pos); pos < 0 {
			return -1
		}
		drift = unzigzag(u)
	}
	out = out[1:]
	for i := range out {
		if uint(pos) >= uint(len(b)) {
			return -1
		}
		u := uint64(b[pos])
		pos++
		if u >= 0x80 {
			// Most differences take one or two bytes, so these are decoded here and the rest by a call.
			if pos < len(b) && b[pos] < 0x80 {
				u = u&0x7f | uint64(b[pos])<<7
				pos++
			} else {
				v, n := binary.Uvarint(b[pos-1:])
				if n <= 0 {
					return -1
				}
				u = v
				pos += n - 1
			}
		}
		acc += drift + unzigzag(u)
		out[i] = float64(acc)
	}
	return pos
}

func decodeXOR(out []float64, b []byte, pos int) int {
	last := uint64(0)
	for i := range out {
		if uint(pos) >= uint(len(b)) {
			return -1
		}
		c := b[pos]
		pos++
		if c != 0 {
			tz, n := int(c>>4), int(c&0x0f)
			// More than 8 bytes would be shifted out below without an error.
			if n == 0 || tz+n > 8 || n > len(b)-pos {
				return -1
			}
			var d uint64
			for k := n - 1; k >= 0; k-- {
				d = d<<8 | uint64(b[pos+k])
			}
			pos += n
			last ^= d << (8 * tz)
		}
		out[i] = math.Float64frombits(last)
	}
	return pos
}

func decodePlain(out []float64, b []byte, pos int) int {
	if len(b)-pos < 8*len(out) {
		return -1
	}
	for i := range out {
		out[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[pos:]))
		pos += 8
	}
	return pos
}
