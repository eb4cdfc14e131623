package chunk

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// This file has the primitives of the format: varints, bits and floats. They know nothing
// of blocks, columns and codecs.

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

// bitReader reads what bitWriter wrote. Past the end it reads zeros, and end returns -1.
type bitReader struct {
	b   []byte
	pos int // next byte to load; may run past len(b)
	acc uint64
	n   uint
}

// fill loads at least 56 bits.
func (r *bitReader) fill() {
	if r.pos+8 <= len(r.b) {
		// pos moves by whole bytes, so the bits of a byte that fits in part stay in acc above n. The next
		// call loads the same bits to the same place, which changes nothing.
		r.acc |= binary.LittleEndian.Uint64(r.b[r.pos:]) << r.n
		adv := (63 - r.n) >> 3
		r.pos += int(adv)
		r.n += adv * 8
		return
	}
	// Near the end the bytes are loaded one by one. pos runs past the end, so that end() can tell that
	// bits were read which do not exist.
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
	// fill guarantees 56 bits only.
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
	// Whole bytes that were loaded but not used belong to the next field.
	used := r.pos - int(r.n/8)
	if used > len(r.b) {
		return -1
	}
	return used
}

// cursor reads fields from a buffer; the first failure sticks and empties it.
type cursor struct {
	b      []byte
	pos    int
	reason Reason
	err    error
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = refuse(c.reason, format, args...)
	}
	// An empty cursor ends the loops of callers that check for an error only after several fields.
	c.pos = len(c.b)
}

func (c *cursor) left() int { return len(c.b) - c.pos }

func (c *cursor) uvarint() uint64 {
	// Most numbers of the format take one byte.
	if c.pos < len(c.b) && c.b[c.pos] < 0x80 {
		c.pos++
		return uint64(c.b[c.pos-1])
	}
	u, n := binary.Uvarint(c.b[c.pos:])
	if n <= 0 {
		c.fail("ends within a number, or a number over 64 bits, at byte %d", c.pos)
		return 0
	}
	c.pos += n
	return u
}

func (c *cursor) zigzag() int64 { return unzigzag(c.uvarint()) }

// count reads a number of things of at least per bytes each, at most limit.
func (c *cursor) count(what string, per, limit int) int {
	u := c.uvarint()
	// Compared before the conversion, and divided instead of multiplied: a bad number must not overflow.
	if c.err == nil && (u > uint64(limit) || (per > 0 && u > uint64(c.left()/per))) {
		c.fail("%d %s with %d bytes left, limit %d", u, what, c.left(), limit)
		return 0
	}
	return int(u)
}

// below reads a number under limit.
func (c *cursor) below(what string, limit int) int {
	u := c.uvarint()
	if c.err == nil && u >= uint64(limit) {
		c.fail("%s %d of %d", what, u, limit)
	}
	if c.err != nil {
		return 0
	}
	return int(u)
}

func (c *cursor) byte() byte {
	if c.pos >= len(c.b) {
		c.fail("ends at byte %d", c.pos)
		return 0
	}
	c.pos++
	return c.b[c.pos-1]
}

func (c *cursor) u64() uint64 {
	if c.left() < 8 {
		c.fail("ends within 8 bytes at byte %d", c.pos)
		return 0
	}
	c.pos += 8
	return binary.LittleEndian.Uint64(c.b[c.pos-8:])
}

func (c *cursor) bytes(n int) []byte {
	if n < 0 || n > c.left() {
		c.fail("%d bytes wanted at byte %d, %d left", n, c.pos, c.left())
		return nil
	}
	c.pos += n
	// The capacity ends with the field, so that an append by the caller can't overwrite the next one.
	return c.b[c.pos-n : c.pos : c.pos]
}

func (c *cursor) end(what string) error {
	if c.err == nil && c.pos != len(c.b) {
		c.fail("%d bytes after %s", c.left(), what)
	}
	return c.err
}

func appendFloat(dst []byte, x float64) []byte {
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(x))
}

// grow gives s the length n; what was in it may be lost.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
