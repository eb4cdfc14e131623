package chunk

import "encoding/binary"

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
	c.pos = len(c.b)
}

func (c *cursor) left() int { return len(c.b) - c.pos }

func (c *cursor) uvarint() uint64 {
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
	return c.b[c.pos-n : c.pos : c.pos]
}

func (c *cursor) end(what string) error {
	if c.err == nil && c.pos != len(c.b) {
		c.fail("%d bytes after %s", c.left(), what)
	}
	return c.err
}
