package frame

import (
	"encoding/binary"
	"math"
)

// The timestamp column: the unit (uvarint, at least 1) that divides every
// timestamp, then, divided by it: the first timestamp (zigzag), the first
// difference (uvarint), the differences of the differences (zigzag).

// appendTimestamps encodes ts, which is not empty and strictly increasing.
func appendTimestamps(dst []byte, ts []int64) []byte {
	unit := commonUnit(ts)
	dst = binary.AppendUvarint(dst, unit)
	dst = appendZigzag(dst, divide(ts[0], unit))
	var last uint64
	for i := 1; i < len(ts); i++ {
		d := (uint64(ts[i]) - uint64(ts[i-1])) / unit
		if i == 1 {
			dst = binary.AppendUvarint(dst, d)
		} else {
			dst = appendZigzag(dst, int64(d-last))
		}
		last = d
	}
	return dst
}

// commonUnit is the greatest common divisor of all timestamps; 1 if that is 0.
func commonUnit(ts []int64) uint64 {
	unit := magnitude(ts[0])
	for i := 1; i < len(ts) && unit != 1; i++ {
		a, b := unit, uint64(ts[i])-uint64(ts[i-1])
		for b != 0 {
			a, b = b, a%b
		}
		unit = a
	}
	// All timestamps are 0, or the unit does not fit into the divisor of the reader.
	if unit == 0 || unit > math.MaxInt64 {
		return 1
	}
	return unit
}

func magnitude(v int64) uint64 {
	if v < 0 {
		return -uint64(v)
	}
	return uint64(v)
}

func divide(v int64, unit uint64) int64 { return v / int64(unit) }

// decodeTimestamps fills out, which is not empty, from all of b.
func decodeTimestamps(out []int64, b []byte) error {
	unit, pos := uvarint(b, 0)
	if pos < 0 || unit == 0 || unit > math.MaxInt64 {
		return refuse(BadColumn, "timestamps: bad unit")
	}
	first, pos := uvarint(b, pos)
	if pos < 0 {
		return refuse(BadColumn, "timestamps: column ends in row 0")
	}
	t, ok := multiply(unzigzag(first), int64(unit))
	if !ok {
		return refuse(BadColumn, "timestamps: row 0 overflows")
	}
	out[0] = t
	var delta uint64
	for i := 1; i < len(out); i++ {
		var u uint64
		if u, pos = uvarint(b, pos); pos < 0 {
			return refuse(BadColumn, "timestamps: column ends in row %d", i)
		}
		if i == 1 {
			delta = u
		} else {
			delta += uint64(unzigzag(u))
		}
		// The distance to the largest int64, unsigned, because it can exceed an int64.
		room := uint64(math.MaxInt64) - uint64(t)
		if delta == 0 || delta > room/unit {
			return refuse(BadColumn, "timestamps: row %d is not after row %d", i, i-1)
		}
		t = int64(uint64(t) + delta*unit)
		out[i] = t
	}
	if pos != len(b) {
		return refuse(BadColumn, "timestamps: %d bytes after %d rows", len(b)-pos, len(out))
	}
	return nil
}

func multiply(a, b int64) (int64, bool) {
	p := a * b
	if a != 0 && (p/a != b || (a == -1 && b == math.MinInt64)) {
		return 0, false
	}
	return p, true
}
