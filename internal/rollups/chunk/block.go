package chunk

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"slices"
)

// A block is: kind, encoding, directory, the codec's payload, checksum. The directory names
// the slots: the rows of each, and which columns it has.

// Kinds of blocks: the first byte of a block.
const (
	kindValues = 1
	kindTimes  = 2
)

// Columns of a slot of times, as bits in its mask.
const (
	maskT Mask = 1 << iota
	maskFirstT
	maskLastT

	allTimes = maskT | maskFirstT | maskLastT
)

// allValues are the columns that a slot of values may have.
const allValues = Mask(1)<<columns - 1

// slotHead is a slot in the directory of a block.
type slotHead struct {
	rows int
	mask Mask
	// column is the number of the slot's first column in the block.
	column int
}

func (m Mask) count() int { return bits.OnesCount32(uint32(m)) }

// blockWriter writes one block after the other.
type blockWriter struct {
	encoding Encoding
	enc      columnEncoder
	slots    []slotHead
}

func (w *blockWriter) reset() {
	w.slots = w.slots[:0]
	w.enc.reset()
}

// addValues appends a slot with the columns of c; times is the number of its set of times.
func (w *blockWriter) addValues(c *Columns, times int) {
	w.slots = append(w.slots, slotHead{rows: c.Rows(), mask: c.mask() &^ timeColumns})
	w.enc.addValues(c, times)
}

// addTimes appends a slot with T, FirstT and LastT of c.
func (w *blockWriter) addTimes(c *Columns) {
	mask := maskT
	if c.FirstT != nil {
		mask |= maskFirstT
	}
	if c.LastT != nil {
		mask |= maskLastT
	}
	w.slots = append(w.slots, slotHead{rows: c.Rows(), mask: mask})
	w.enc.addTimes(c)
}

// finish appends the block to dst.
func (w *blockWriter) finish(dst []byte, kind byte) []byte {
	start := len(dst)
	dst = append(dst, kind, byte(w.encoding))
	dst = binary.AppendUvarint(dst, uint64(len(w.slots)))
	for i := 0; i < len(w.slots); {
		s := &w.slots[i]
		n := 1
		// column is not set while writing, so slots are equal when their rows and masks are. Most series
		// of a block have the same, which makes the directory a few bytes.
		for i+n < len(w.slots) && w.slots[i+n] == *s {
			n++
		}
		dst = binary.AppendUvarint(dst, uint64(n))
		dst = binary.AppendUvarint(dst, uint64(s.rows))
		dst = binary.AppendUvarint(dst, uint64(s.mask))
		i += n
	}
	return seal(w.enc.appendPayload(dst), start)
}

// block is a parsed block. It reuses its memory, and one decoder of each codec that it met.
type block struct {
	kind     byte
	encoding Encoding
	slots    []slotHead
	dec      columnDecoder
	decoders map[Encoding]columnDecoder
}

// parse checks a whole block and reads its directory. raw is kept until the next parse.
func (b *block) parse(raw []byte, known codecs, lim *Limits) error {
	b.slots = b.slots[:0]
	payload, err := unseal(raw, lim.BlockBytes)
	if err != nil {
		return err
	}
	c := cursor{b: payload, reason: BadBlock}
	b.kind, b.encoding = c.byte(), Encoding(c.byte())
	// The columns that a mask may name depend on the kind of the block.
	all := allValues
	switch {
	case c.err != nil:
		return c.err
	case b.kind == kindTimes:
		all = allTimes
	case b.kind != kindValues:
		c.fail("unknown kind %d", b.kind)
		return c.err
	}
	if err := b.choose(known); err != nil {
		return err
	}
	if err := b.directory(&c, all, lim); err != nil {
		return err
	}
	return b.dec.open(c.b[c.pos:], b.slots, lim)
}

// choose takes the decoder of the block's encoding.
func (b *block) choose(known codecs) error {
	if b.dec = b.decoders[b.encoding]; b.dec != nil {
		return nil
	}
	k := known(b.encoding)
	if k == nil {
		return refuse(UnknownEncoding, "block in encoding %d", b.encoding)
	}
	// Kept for the next block in this encoding, with the buffers and tables that it has by then.
	b.dec = k.newDecoder()
	if b.decoders == nil {
		b.decoders = map[Encoding]columnDecoder{}
	}
	b.decoders[b.encoding] = b.dec
	return nil
}

// directory reads the slots. Every slot has a column, and every column a byte of payload: so
// runs of slots can't claim more memory than the block's bytes account for.
func (b *block) directory(c *cursor, all Mask, lim *Limits) error {
	n := c.count("slots", 1, lim.BlockSeries)
	total := 0
	b.slots = slices.Grow(b.slots, n)
	for len(b.slots) < n && c.err == nil {
		run, rows, mask := c.uvarint(), c.uvarint(), c.uvarint()
		if c.err != nil {
			break
		}
		// Checked before the conversions below, which would otherwise cut off high bits of what a bad
		// block says.
		if run == 0 || run > uint64(n-len(b.slots)) || rows == 0 || rows > uint64(lim.Rows) || mask == 0 || mask > uint64(all) {
			c.fail("%d slots with %d rows and columns %#x", run, rows, mask)
			break
		}
		for range run {
			b.slots = append(b.slots, slotHead{int(rows), Mask(mask), total})
			total += Mask(mask).count()
		}
	}
	if c.err == nil && b.kind == kindTimes && slices.ContainsFunc(b.slots, func(s slotHead) bool { return s.mask&maskT == 0 }) {
		c.fail("times without T")
	}
	// Checked here, before a codec takes memory for its columns.
	if c.err == nil && total > c.left() {
		c.fail("%d columns in %d bytes", total, c.left())
	}
	return c.err
}

// readValues fills into with the columns of slot i that want asks for.
func (b *block) readValues(i int, want Mask, into *Columns) error {
	return b.dec.readValues(i, want, into)
}

// readTimes fills the time columns of into from slot i of a block of times. Those that the
// slot does not have become nil.
func (b *block) readTimes(i int, into *Columns) error {
	mask := b.slots[i].mask
	if mask&maskFirstT == 0 {
		into.FirstT = nil
	}
	if mask&maskLastT == 0 {
		into.LastT = nil
	}
	if err := b.dec.readTimes(i, into); err != nil {
		return err
	}
	// Readers search T in halves, which needs it to ascend; codecs leave this check to the caller.
	for k := 1; k < len(into.T); k++ {
		if into.T[k] <= into.T[k-1] {
			return refuse(BadColumn, "T of row %d is not after that of row %d", k, k-1)
		}
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksumBytes end every block, footer and index.
const checksumBytes = 4

// seal appends the checksum of dst from start on.
func seal(dst []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// unseal checks the checksum at the end and returns what is before it.
func unseal(raw []byte, limit int) ([]byte, error) {
	// The size comes first, so that bytes far too long cost no pass over all of them.
	if len(raw) > limit {
		return nil, refuse(TooLarge, "%d bytes, at most %d", len(raw), limit)
	}
	n := len(raw) - checksumBytes
	if n < 0 {
		return nil, refuse(Truncated, "%d bytes", len(raw))
	}
	if got, want := crc32.Checksum(raw[:n], castagnoli), binary.LittleEndian.Uint32(raw[n:]); got != want {
		return nil, refuse(ChecksumMismatch, "CRC32C of %d bytes is %08x, recorded %08x", n, got, want)
	}
	return raw[:n], nil
}
