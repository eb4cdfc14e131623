package chunk

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
)

// block is a parsed block. It reuses its memory.
type block struct {
	kind   byte
	slots  []slotHead
	ends   []uint32 // of the cells in body
	body   []byte
	codes  []code
	tables []*table
	spare  []*table

	lim     Limits
	ints    []int64
	column  []float64
	scratch [maxDepth + 2][]float64
}

type slotHead struct {
	rows int
	mask Mask
	cell int // number of its first cell
}

// parse checks a whole block and reads its directory. raw is kept until the next parse.
func (b *block) parse(raw []byte, lim *Limits) error {
	b.lim = *lim
	for i, t := range b.tables {
		if t != nil {
			b.spare = append(b.spare, t)
			b.tables[i] = nil
		}
	}
	b.slots, b.ends, b.codes, b.tables = b.slots[:0], b.ends[:0], b.codes[:0], b.tables[:0]
	payload, err := unseal(raw, lim.BlockBytes)
	if err != nil {
		return err
	}
	c := cursor{b: payload, reason: BadBlock}
	b.kind = c.byte()
	if c.err == nil && b.kind != kindValues && b.kind != kindTimes {
		c.fail("unknown kind %d", b.kind)
	}
	n := int(c.byte())
	if n > maxTables {
		c.fail("%d codes", n)
	}
	for range n {
		if c.err != nil {
			return c.err
		}
		b.codes = append(b.codes, code{})
		b.codes[len(b.codes)-1].read(&c)
	}
	all := Mask(1)<<columns - 1
	if b.kind == kindTimes {
		all = 1<<timeCells - 1
	}
	// A slot has a cell, and a cell's length takes a byte.
	slots := c.count("slots", 1, lim.BlockSeries)
	cells := 0
	b.slots = slices.Grow(b.slots, slots)
	for len(b.slots) < slots && c.err == nil {
		run := c.uvarint()
		rows := c.uvarint()
		mask := c.uvarint()
		if c.err != nil {
			break
		}
		if run == 0 || run > uint64(slots-len(b.slots)) || rows == 0 || rows > uint64(lim.Rows) || mask == 0 || mask > uint64(all) {
			c.fail("%d slots with %d rows and columns %#x", run, rows, mask)
			break
		}
		for range run {
			b.slots = append(b.slots, slotHead{int(rows), Mask(mask), cells})
			cells += popcount(Mask(mask))
		}
	}
	if c.err == nil && cells > c.left() {
		c.fail("%d columns in %d bytes", cells, c.left())
	}
	if c.err != nil {
		return c.err
	}
	b.ends = slices.Grow(b.ends, cells)
	end := uint64(0)
	for range cells {
		if end += min(c.uvarint(), math.MaxUint32); end > uint64(len(payload)) {
			c.fail("columns run over the block")
			break
		}
		b.ends = append(b.ends, uint32(end))
	}
	if c.err == nil && end != uint64(c.left()) {
		c.fail("columns of %d bytes, %d left", end, c.left())
	}
	if c.err != nil {
		return c.err
	}
	b.body = payload[c.pos:]
	b.tables = slices.Grow(b.tables, n)[:n]
	clear(b.tables)
	return nil
}

func popcount(m Mask) int {
	n := 0
	for ; m != 0; m &= m - 1 {
		n++
	}
	return n
}

// unseal checks the checksum at the end and returns what is before it.
func unseal(raw []byte, limit int) ([]byte, error) {
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

// table of a number, built at its first use; nil when there is none.
func (b *block) table(i int) *table {
	if i >= len(b.codes) {
		return nil
	}
	if b.tables[i] == nil {
		t := new(table)
		if n := len(b.spare); n > 0 {
			t, b.spare = b.spare[n-1], b.spare[:n-1]
		}
		t.build(&b.codes[i])
		b.tables[i] = t
	}
	return b.tables[i]
}

// cell gives the bytes of a column of a slot that has it.
func (b *block) cell(i, col int) []byte {
	s := &b.slots[i]
	k := s.cell + popcount(s.mask&(1<<col-1))
	from := uint32(0)
	if k > 0 {
		from = b.ends[k-1]
	}
	return b.body[from:b.ends[k]]
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// read fills into with the columns of slot i that want asks for; T, FirstT and LastT are
// not touched, columns that are not there or not wanted become nil. The memory of
// into is used again.
func (b *block) read(i int, want Mask, into *Columns) error {
	s := &b.slots[i]
	for col := range columns {
		bit := Mask(1) << col
		c := cursor{reason: BadColumn}
		has := s.mask&want&bit != 0
		if has {
			c.b = b.cell(i, col)
		}
		switch {
		case bit&histColumns != 0:
			p := into.hist(bit)
			if !has {
				*p = nil
				continue
			}
			c.reason = BadHistogram
			*p = grow(*p, s.rows)
			var arena histArena
			b.histograms(&c, *p, &arena, b.lim.HistogramValues)
		case bit&countColumns != 0:
			p := into.count(bit)
			if !has {
				*p = nil
				continue
			}
			*p = grow(*p, s.rows)
			b.counts(&c, *p)
		case bit == ColStart:
			if !has {
				into.Start = nil
				continue
			}
			into.Start = grow(into.Start, s.rows)
			b.multiples(&c, into.Start)
		default:
			p := into.float(bit)
			if !has {
				*p = nil
				continue
			}
			*p = grow(*p, s.rows)
			b.values(&c, *p, i, col, 0)
		}
		if err := c.end("the column"); err != nil {
			return err
		}
	}
	return nil
}

func (b *block) counts(c *cursor, out []uint32) {
	b.ints = grow(b.ints, len(out))
	c.integers(b.ints, b.table)
	if c.err != nil {
		return
	}
	for i, n := range b.ints {
		if n < 0 || n > math.MaxUint32 {
			c.fail("count %d", n)
			return
		}
		out[i] = uint32(n)
	}
}

// multiples reads a unit and multiples of it.
func (b *block) multiples(c *cursor, out []int64) {
	unit := c.uvarint()
	if c.err != nil || unit == 0 || unit > math.MaxInt64 {
		c.fail("unit %d", unit)
		return
	}
	c.integers(out, b.table)
	if c.err != nil || unit == 1 {
		return
	}
	limit := math.MaxInt64 / int64(unit)
	for i, n := range out {
		if (n > limit || n < -limit) && n*int64(unit)/int64(unit) != n {
			c.fail("%d times %d overflows", n, unit)
			return
		}
		out[i] = n * int64(unit)
	}
}

// values reads a float column; slot is -1 in a histogram, where no other column can be referred to.
func (b *block) values(c *cursor, out []float64, slot, col, depth int) {
	head := c.byte()
	if c.err != nil {
		return
	}
	mode := head &^ (flagPatches | flagUlps)
	switch {
	case mode <= modeDecimal+maxExponent, mode == modeDyadic && head&flagUlps == 0:
		b.scaled(c, head, out)
	case head == modeBits:
		b.ints = grow(b.ints, len(out))
		c.integers(b.ints, b.table)
		for i, n := range b.ints {
			out[i] = math.Float64frombits(uint64(n))
		}
	case head >= modeCopy && head <= modeSame && slot >= 0:
		b.reference(c, head, out, slot, col, depth)
	default:
		c.fail("values: unknown mode 0x%02x", head)
	}
}

func (b *block) scaled(c *cursor, head byte, out []float64) {
	mode := head &^ (flagPatches | flagUlps)
	scale := 1.0
	if mode == modeDyadic {
		s := c.zigzag()
		if s < minShift || s > maxShift {
			c.fail("values: power %d of two", s)
			return
		}
		scale = math.Float64frombits(uint64(s+1023) << 52)
	}
	patches := cursor{}
	n := 0
	if head&flagPatches != 0 {
		n = c.count("patches", 9, len(out))
		patches = *c
		for range n {
			c.uvarint()
			c.bytes(8)
		}
	}
	b.ints = grow(b.ints, len(out))
	if mode == modeDyadic {
		c.integers(b.ints, b.table)
		for i, x := range b.ints {
			out[i] = float64(x) * scale
		}
	} else {
		c.floats(out, b.ints, pow10[mode], b.table)
	}
	if head&flagUlps != 0 {
		c.integers(b.ints, b.table)
		if c.err == nil {
			addUlps(out, b.ints)
		}
	}
	row := -1
	for range n {
		row += int(min(patches.uvarint(), uint64(len(out)))) + 1
		u := patches.u64()
		if c.err != nil || row >= len(out) {
			c.fail("values: patch of row %d", row)
			return
		}
		out[row] = math.Float64frombits(u)
	}
}

func addUlps(out []float64, ulps []int64) {
	for i, k := range ulps {
		out[i] = math.Float64frombits(math.Float64bits(out[i]) + uint64(k))
	}
}

// reference reads a column that follows from another one.
func (b *block) reference(c *cursor, mode byte, out []float64, slot, col, depth int) {
	if depth > maxDepth {
		c.fail("values: more than %d references to references", maxDepth)
		return
	}
	if mode == modeSame {
		o := int(c.byte())
		if c.err == nil && (o < colFirst || o >= col || b.slots[slot].mask&(1<<o) == 0) {
			c.fail("values: the same as column %d, which is not there", o)
		}
		b.other(c, out, slot, o, depth)
		return
	}
	if mode == modeDiff {
		if 1<<col != ColIncrease || b.slots[slot].mask&ColFirst == 0 || b.slots[slot].mask&ColLast == 0 {
			c.fail("values: difference of columns that are not there")
			return
		}
		b.other(c, out, slot, colLast, depth)
		b.scratch[depth] = grow(b.scratch[depth], len(out))
		y := b.scratch[depth]
		b.other(c, y, slot, colFirst, depth)
		for i := range out {
			out[i] -= y[i]
		}
		b.ulps(c, out)
		return
	}
	back := c.below("reference to slot before", slot+1)
	if c.err == nil && (back == 0 || b.slots[slot-back].rows != len(out) || b.slots[slot-back].mask&(1<<col) == 0) {
		c.fail("values: reference to a column that is not there")
	}
	var p, q float64
	switch mode {
	case modeSum:
		p = math.Float64frombits(c.u64())
	case modeScale:
		p, q = math.Float64frombits(c.u64()), math.Float64frombits(c.u64())
	}
	if c.err != nil {
		return
	}
	b.other(c, out, slot-back, col, depth)
	switch mode {
	case modeCopy:
		return
	case modeSum:
		for i, x := range out {
			out[i] = p - x
		}
	case modeScale:
		for i, x := range out {
			out[i] = x * p / q
		}
	}
	b.ulps(c, out)
}

// other reads a column of another slot, or another column of this one.
func (b *block) other(c *cursor, out []float64, slot, col, depth int) {
	if c.err != nil {
		return
	}
	o := cursor{b: b.cell(slot, col), reason: BadColumn}
	b.values(&o, out, slot, col, depth+1)
	if err := o.end("the column"); err != nil {
		c.err = err
	}
}

func (b *block) ulps(c *cursor, out []float64) {
	if c.err != nil {
		return
	}
	b.ints = grow(b.ints, len(out))
	c.integers(b.ints, b.table)
	if c.err == nil {
		addUlps(out, b.ints)
	}
}
