package chunk

import (
	"encoding/binary"
	"math"
)

// chunkMagic starts a chunk: 0x89 "LMC", version 1, zeros.
var chunkMagic = []byte{0x89, 'L', 'M', 'C', 1, 0, 0, 0}

// footerMagic starts a footer.
var footerMagic = []byte{0x89, 'L', 'M', 'F', 1}

// Range is bytes [Offset, Offset+Length) of a chunk.
type Range struct{ Offset, Length int64 }

// End is the offset after the last byte.
func (r Range) End() int64 { return r.Offset + r.Length }

// Footer lists the blocks of a chunk, in the order of their bytes.
type Footer struct {
	Values, Times []Range
}

func appendFooter(dst []byte, values, times []Range) []byte {
	start := len(dst)
	dst = append(dst, footerMagic...)
	for _, rs := range [...][]Range{values, times} {
		dst = binary.AppendUvarint(dst, uint64(len(rs)))
		for _, r := range rs {
			dst = binary.AppendUvarint(dst, uint64(r.Length))
		}
	}
	return seal(dst, start)
}

// ReadFooter reads the bytes of a chunk from its footer's offset to its end. A chunk can
// be read without its index only as a whole, block by block: to check it.
func ReadFooter(b []byte, offset int64, lim Limits) (*Footer, error) {
	lim = lim.orDefault()
	b, err := unseal(b, lim.FooterBytes)
	if err != nil {
		return nil, err
	}
	c := cursor{b: b, reason: BadFooter}
	if m := c.bytes(len(footerMagic)); c.err != nil || string(m[:4]) != string(footerMagic[:4]) {
		return nil, refuse(BadMagic, "no footer here")
	} else if m[4] != footerMagic[4] {
		return nil, refuse(UnsupportedVersion, "footer version %d", m[4])
	}
	at := int64(len(chunkMagic))
	f := &Footer{}
	f.Values, at = c.ranges(at, "blocks of values")
	f.Times, at = c.ranges(at, "blocks of times")
	if err := c.end("the footer"); err != nil {
		return nil, err
	}
	if at != offset {
		return nil, refuse(BadFooter, "blocks end at %d, the footer stands at %d", at, offset)
	}
	return f, nil
}

// ranges reads lengths of ranges that follow each other from at on.
func (c *cursor) ranges(at int64, what string) ([]Range, int64) {
	n := c.count(what, 1, c.left())
	rs := make([]Range, 0, n)
	for range n {
		l := c.uvarint()
		if l == 0 || l > uint64(math.MaxInt64-at) {
			c.fail("%s: length %d at %d", what, l, at)
			return nil, at
		}
		rs = append(rs, Range{at, int64(l)})
		at += int64(l)
	}
	return rs, at
}

// CheckHeader checks the first 8 bytes of a chunk.
func CheckHeader(b []byte) error {
	switch {
	case len(b) < len(chunkMagic):
		return refuse(Truncated, "%d bytes", len(b))
	case string(b[:4]) != string(chunkMagic[:4]):
		return refuse(BadMagic, "not a chunk")
	case string(b[4:8]) != string(chunkMagic[4:]):
		return refuse(UnsupportedVersion, "chunk version %d", b[4])
	}
	return nil
}
