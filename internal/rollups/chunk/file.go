package chunk

import (
	"encoding/binary"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// chunkMagic starts a chunk: 0x89 "LMC", version 1, zeros.
var chunkMagic = []byte{0x89, 'L', 'M', 'C', 1, 0, 0, 0}

// footerMagic starts a footer.
var footerMagic = []byte{0x89, 'L', 'M', 'F', 1}

// Range is bytes [Offset, Offset+Length) of a chunk.
type Range struct{ Offset, Length int64 }

// End is the offset after the last byte.
func (r Range) End() int64 { return r.Offset + r.Length }

// footer lists the blocks of a chunk, in the order of their bytes.
type footer struct{ values, times []Range }

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

// readFooter reads the bytes of a chunk from its footer's offset to its end.
func readFooter(b []byte, offset int64, lim Limits) (*footer, error) {
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
	// Only lengths are stored. Blocks follow each other from the header on, so they can neither overlap
	// nor leave gaps.
	at := int64(len(chunkMagic))
	f := &footer{}
	f.values, at = c.ranges(at, "blocks of values")
	f.times, at = c.ranges(at, "blocks of times")
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
		// Offsets are signed, so the sum must stay within an int64.
		if l == 0 || l > uint64(math.MaxInt64-at) {
			c.fail("%s: length %d at %d", what, l, at)
			return nil, at
		}
		rs = append(rs, Range{at, int64(l)})
		at += int64(l)
	}
	return rs, at
}

// checkHeader checks the first 8 bytes of a chunk.
func checkHeader(b []byte) error {
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

// Verify checks a chunk and its index by their bytes alone: the header, the footer and the
// checksum of every block; that the index is of this chunk and names the same blocks; and
// that every row of every series can be decoded, and lies within the times that the index
// says. A reader never needs the header and the footer, so nothing else would notice that
// they are wrong. It returns the index. Errors are *Error.
func Verify(chunk, index []byte, lim Limits) (*Index, error) {
	lim = lim.orDefault()
	if err := checkHeader(chunk); err != nil {
		return nil, err
	}
	x, err := ReadIndex(index, lim)
	if err != nil {
		return nil, err
	}
	// The chunk is sliced at FooterOffset below. ReadIndex compared that with the size in the index, so
	// this size must be the chunk's own.
	if id := identity.Sum(chunk); x.Chunk != id || x.Size != int64(len(chunk)) {
		return nil, refuse(BadIndex, "it is of a chunk %s of %d bytes, this is %s of %d", x.Chunk, x.Size, id, len(chunk))
	}
	f, err := readFooter(chunk[x.FooterOffset:], x.FooterOffset, lim)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(f.values, x.blocks) || !slices.Equal(f.times, x.timeBlocks) {
		return nil, refuse(BadFooter, "it has other blocks than the index")
	}
	return x, verifySeries(x, chunk, lim)
}

func verifySeries(x *Index, chunk []byte, lim Limits) error {
	d := NewDecoder(x, lim)
	d.Put(0, chunk)
	var c Columns
	for i := range x.Len() {
		ref := x.Series(i)
		n, err := d.Series(i, math.MinInt64, math.MaxInt64, AllColumns, &c)
		if err != nil {
			return err
		}
		// Every part has a row (ReadIndex refuses others), so T is not empty once the numbers are equal.
		if n != ref.Rows || c.T[0] != ref.MinT || c.T[n-1] != ref.MaxT {
			return refuse(BadIndex, "series %d has %d rows, the index says %d from %d to %d", i, n, ref.Rows, ref.MinT, ref.MaxT)
		}
	}
	return nil
}
