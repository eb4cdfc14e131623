package chunk

import (
	"encoding/binary"
	"math/bits"
)

func zigzag(v int64) uint64   { return uint64(v<<1) ^ uint64(v>>63) }
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

func appendZigzag(dst []byte, v int64) []byte { return binary.AppendUvarint(dst, zigzag(v)) }

// uvarintLen is the number of bytes of u as a varint.
func uvarintLen(u uint64) int { return (bits.Len64(u|1) + 6) / 7 }

// bitWriter appends bits, the first one lowest, to whole bytes.
type bitWriter struct {
	dst []byte
	acc uint64
	n   uint // bits in acc, under 32 between calls of put
}

// put appends the low count bits of v, whose other bits are 0; count is at most 32.
func (w *bitWriter) put(v uint64, count uint) {
	w.acc |= v << w.n
	if w.n += count; w.n >= 32 {
		w.dst = binary.LittleEndian.AppendUint32(w.dst, uint32(w.acc))
		w.acc >>= 32
		w.n -= 32
	}
}

// flush fills the last byte with 0 bits.
func (w *bitWriter) flush() {
	for ; w.n > 0; w.n -= min(w.n, 8) {
		w.dst = append(w.dst, byte(w.acc))
		w.acc >>= 8
	}
}

// bitReader reads what bitWriter wrote. Past the end it reads zeros; over tells.
type bitReader struct {
	b   []byte
	pos int // next byte to load; may run past len(b)
	acc uint64
	n   uint
}

// fill loads at least 56 bits.
func (r *bitReader) fill() {
	if r.pos+8 <= len(r.b) {
		r.acc |= binary.LittleEndian.Uint64(r.b[r.pos:]) << r.n
		adv := (63 - r.n) >> 3
		r.pos += int(adv)
		r.n += adv * 8
		return
	}
	for r.n <= 56 {
		if r.pos < len(r.b) {
			r.acc |= uint64(r.b[r.pos]) << r.n
		}
		r.pos++
		r.n += 8
	}
}

// take reads count bits, at most 64.
func (r *bitReader) take(count uint) uint64 {
	if count > 32 {
		low := r.take(32)
		return low | r.take(count-32)<<32
	}
	if r.n < count {
		r.fill()
	}
	v := r.acc & (1<<count - 1)
	r.acc >>= count
	r.n -= count
	return v
}

// end is the position after the last byte of which a bit was read, or -1 when that is
// past the end.
func (r *bitReader) end() int {
	used := r.pos - int(r.n/8)
	if used > len(r.b) {
		return -1
	}
	return used
}
