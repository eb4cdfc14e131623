package chunk

import (
	"encoding/binary"
	"math"
	"slices"
)

// integerCodec is the codec of Integers: the column's values become integers
// (integer_decimals.go, integer_floats.go, integer_histograms.go), the integers become a
// prediction and residuals in tokens (integer_streams.go), and tokens are written in one of
// the block's Huffman codes (integer_huffman.go). This file has the payload of a block: the
// codes, the length of every column, and the columns.
type integerCodec struct {
	noReferences bool // for measurements
}

func (integerCodec) encoding() Encoding { return Integers }

func (c integerCodec) newEncoder() columnEncoder {
	return &integerEncoder{noReferences: c.noReferences}
}

func (integerCodec) newDecoder() columnDecoder { return &integerDecoder{} }

// Columns of a slot of times, by number.
const (
	cellT = iota
	cellFirstT
	cellLastT
)

// integerEncoder encodes one block after the other. Codes are made when all columns of a
// block are known: until then a column is a list of pieces.
type integerEncoder struct {
	slots    []integerSlot
	cells    []int // end of each column's pieces
	pieces   []piece
	literals []byte
	start    int // of literals that are not in a piece yet
	coder    coder
	floats   floatCoder
	ref      []int64
	first    map[columnKey]int // slot of the first column with a hash
	body     []byte
	lengths  []int
	// candidates are slots of expensive columns, by what later ones may have in common with them.
	candidates   map[uint64]int32
	noReferences bool
}

// integerSlot is a slot of values of the block that is being written.
type integerSlot struct {
	c     Columns
	times int // number of the set; slots with the same one have the same rows
	mask  Mask
	// depth of each column: how many references lead to a column that is none.
	depth [columns]uint8
}

// piece of a column: bytes of the encoder's literals, or a stream.
type piece struct {
	stream   int // -1 for literals
	from, to int
}

type columnKey struct {
	hash uint64
	col  Mask
}

func (e *integerEncoder) reset() {
	// Slots refer to the caller's columns, which a reused writer must not keep in memory.
	clear(e.slots)
	e.slots, e.cells, e.pieces, e.literals, e.start = e.slots[:0], e.cells[:0], e.pieces[:0], e.literals[:0], 0
	e.coder.reset()
	if e.first == nil {
		e.first, e.candidates = map[columnKey]int{}, map[uint64]int32{}
	}
	clear(e.first)
	clear(e.candidates)
}

func (e *integerEncoder) addValues(c *Columns, times int) {
	e.slots = append(e.slots, integerSlot{c: *c, times: times, mask: c.mask() &^ timeColumns})
	i := len(e.slots) - 1
	s := &e.slots[i]
	for col := range columns {
		bit := Mask(1) << col
		if s.mask&bit == 0 {
			continue
		}
		switch {
		case bit&histColumns != 0:
			e.writeHistograms(*s.c.hist(bit))
		case bit&countColumns != 0:
			e.writeCounts(*s.c.count(bit))
		case bit == ColStart:
			e.floats.grow(len(s.c.Start))
			copy(e.floats.ints, s.c.Start)
			e.writeMultiples()
		default:
			e.writeColumn(i, col)
		}
		e.endColumn()
	}
}

func (e *integerEncoder) addTimes(c *Columns) {
	e.floats.grow(len(c.T))
	copy(e.floats.ints, c.T)
	e.writeMultiples()
	e.endColumn()
	for _, other := range [...][]int64{c.FirstT, c.LastT} {
		if other == nil {
			continue
		}
		// The first and last sample lie shortly before the end of their bucket, so the distance is a
		// smaller number than the time.
		for i, t := range c.T {
			e.floats.ints[i] = t - other[i]
		}
		e.writeMultiples()
		e.endColumn()
	}
}

func (e *integerEncoder) endColumn() {
	e.flush()
	e.cells = append(e.cells, len(e.pieces))
}

// flush makes a piece of the bytes since the last one.
func (e *integerEncoder) flush() {
	if len(e.literals) > e.start {
		e.pieces = append(e.pieces, piece{-1, e.start, len(e.literals)})
		e.start = len(e.literals)
	}
}

// trial is where a column, or a further way to write it, begins.
type trial struct{ pieces, lits, streams int }

func (e *integerEncoder) begin() trial {
	e.flush()
	return trial{len(e.pieces), len(e.literals), len(e.coder.streams)}
}

// undo takes back what was written since t.
func (e *integerEncoder) undo(t trial) {
	// Streams share buffers, so they can only be removed from the last one back.
	for len(e.coder.streams) > t.streams {
		e.coder.drop()
	}
	e.pieces, e.literals, e.start = e.pieces[:t.pieces], e.literals[:t.lits], t.lits
}

// replace leaves what was written since later in the place of what was written since t.
func (e *integerEncoder) replace(t, later trial) {
	e.flush()
	// Streams of the first attempt lie below later ones in the shared buffers and can't be removed.
	// Emptied, they cost nothing.
	for i := t.streams; i < later.streams; i++ {
		e.coder.kill(i)
	}
	n := copy(e.pieces[t.pieces:], e.pieces[later.pieces:])
	e.pieces = e.pieces[:t.pieces+n]
}

func (e *integerEncoder) addStream(i int) {
	e.flush()
	e.pieces = append(e.pieces, piece{stream: i})
}

func (e *integerEncoder) writeIntegers(v []int64) int {
	i, cost := e.coder.add(v)
	e.addStream(i)
	return cost
}

func (e *integerEncoder) writeCounts(v []uint32) {
	e.floats.grow(len(v))
	for i, n := range v {
		e.floats.ints[i] = int64(n)
	}
	e.writeIntegers(e.floats.ints)
}

// writeMultiples writes the greatest common divisor of e.floats.ints and the multiples of it.
func (e *integerEncoder) writeMultiples() {
	e.literals = binary.AppendUvarint(e.literals, divideAll(e.floats.ints))
	e.writeIntegers(e.floats.ints)
}

// divideAll divides by the greatest common divisor, and returns that.
func divideAll(v []int64) uint64 {
	unit := uint64(0)
	for _, x := range v {
		a, b := magnitude(x), unit
		for b != 0 {
			a, b = b, a%b
		}
		if unit = a; unit == 1 {
			return 1
		}
	}
	// 0 when all are 0; the magnitude of the least int64 is no int64.
	if unit == 0 || unit > math.MaxInt64 {
		return 1
	}
	for i := range v {
		v[i] /= int64(unit)
	}
	return unit
}

func magnitude(v int64) uint64 {
	if v < 0 {
		// Negated as an unsigned number, since the least int64 has no positive counterpart.
		return -uint64(v)
	}
	return uint64(v)
}

// appendPayload makes the codes and writes them, the lengths of the columns, and these.
func (e *integerEncoder) appendPayload(dst []byte) []byte {
	e.coder.group()
	dst = append(dst, byte(len(e.coder.codes)))
	for i := range e.coder.codes {
		dst = e.coder.codes[i].append(dst)
	}
	e.body, e.lengths = e.body[:0], e.lengths[:0]
	// Columns are collected in body first: the lengths of all come before them.
	from := 0
	for _, to := range e.cells {
		n := len(e.body)
		for _, p := range e.pieces[from:to] {
			if p.stream < 0 {
				e.body = append(e.body, e.literals[p.from:p.to]...)
			} else {
				e.body = e.coder.append(e.body, p.stream)
			}
		}
		e.lengths = append(e.lengths, len(e.body)-n)
		from = to
	}
	for _, n := range e.lengths {
		dst = binary.AppendUvarint(dst, uint64(n))
	}
	return append(dst, e.body...)
}

// integerDecoder reads one block after the other. Tables of codes are built when a column
// first wants them.
type integerDecoder struct {
	slots  []slotHead
	ends   []uint32 // of the columns in body
	body   []byte
	codes  []code
	tables []*table
	spare  []*table

	lim     Limits
	ints    []int64
	column  []float64
	scratch [maxDepth + 2][]float64
}

func (d *integerDecoder) open(payload []byte, slots []slotHead, lim *Limits) error {
	d.lim, d.slots = *lim, slots
	for i, t := range d.tables {
		if t != nil {
			d.spare = append(d.spare, t)
			d.tables[i] = nil
		}
	}
	d.ends, d.codes, d.tables = d.ends[:0], d.codes[:0], d.tables[:0]
	c := cursor{b: payload, reason: BadBlock}
	n := int(c.byte())
	if n > maxTables {
		c.fail("%d codes", n)
	}
	for range n {
		if c.err != nil {
			return c.err
		}
		d.codes = append(d.codes, code{})
		d.codes[len(d.codes)-1].read(&c)
	}
	if err := d.lengths(&c); err != nil {
		return err
	}
	d.body = payload[c.pos:]
	d.tables = slices.Grow(d.tables, n)[:n]
	clear(d.tables)
	return nil
}

func (d *integerDecoder) lengths(c *cursor) error {
	n := 0
	if k := len(d.slots); k > 0 {
		n = d.slots[k-1].column + d.slots[k-1].mask.count()
	}
	if c.err == nil && n > c.left() {
		c.fail("%d columns in %d bytes", n, c.left())
	}
	if c.err != nil {
		return c.err
	}
	d.ends = slices.Grow(d.ends, n)
	end := uint64(0)
	for range n {
		// min keeps the sum from wrapping around.
		if end += min(c.uvarint(), math.MaxUint32); end > uint64(len(c.b)) {
			c.fail("columns run over the block")
			break
		}
		d.ends = append(d.ends, uint32(end))
	}
	if c.err == nil && end != uint64(c.left()) {
		c.fail("columns of %d bytes, %d left", end, c.left())
	}
	return c.err
}

// table of a number, built at its first use; nil when there is none.
func (d *integerDecoder) table(i int) *table {
	if i >= len(d.codes) {
		return nil
	}
	if d.tables[i] == nil {
		var t *table
		if n := len(d.spare); n > 0 {
			t, d.spare = d.spare[n-1], d.spare[:n-1]
		} else {
			t = new(table)
		}
		t.build(&d.codes[i])
		d.tables[i] = t
	}
	return d.tables[i]
}

// cell gives the bytes of a column of a slot that has it.
func (d *integerDecoder) cell(i, col int) []byte {
	s := &d.slots[i]
	// The columns of a slot lie in the order of their bits.
	k := s.column + (s.mask & (1<<col - 1)).count()
	from := uint32(0)
	if k > 0 {
		from = d.ends[k-1]
	}
	return d.body[from:d.ends[k]]
}

func (d *integerDecoder) readValues(i int, want Mask, into *Columns) error {
	s := &d.slots[i]
	for col := range columns {
		bit := Mask(1) << col
		c := cursor{reason: BadColumn}
		has := s.mask&want&bit != 0
		if has {
			c.b = d.cell(i, col)
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
			// A new arena for each column, since the rows keep its memory when the decoder is reused.
			var arena histArena
			d.readHistograms(&c, *p, &arena, d.lim.HistogramValues)
		case bit&countColumns != 0:
			p := into.count(bit)
			if !has {
				*p = nil
				continue
			}
			*p = grow(*p, s.rows)
			d.readCounts(&c, *p)
		case bit == ColStart:
			if !has {
				into.Start = nil
				continue
			}
			into.Start = grow(into.Start, s.rows)
			d.readMultiples(&c, into.Start)
		default:
			p := into.float(bit)
			if !has {
				*p = nil
				continue
			}
			*p = grow(*p, s.rows)
			d.readFloats(&c, *p, i, col, 0)
		}
		if err := c.end("the column"); err != nil {
			return err
		}
	}
	return nil
}

// readTimes reads T and, where they are there, what it is ahead of FirstT and of LastT.
func (d *integerDecoder) readTimes(i int, into *Columns) error {
	s := &d.slots[i]
	into.T = grow(into.T, s.rows)
	c := cursor{b: d.cell(i, cellT), reason: BadColumn}
	d.readMultiples(&c, into.T)
	if err := c.end("T"); err != nil {
		return err
	}
	for k, p := range [...]*[]int64{&into.FirstT, &into.LastT} {
		col := cellFirstT + k
		if s.mask&(1<<col) == 0 {
			continue
		}
		*p = grow(*p, s.rows)
		c := cursor{b: d.cell(i, col), reason: BadColumn}
		d.readMultiples(&c, *p)
		if err := c.end("times"); err != nil {
			return err
		}
		for r := range *p {
			(*p)[r] = into.T[r] - (*p)[r]
		}
	}
	return nil
}

func (d *integerDecoder) readCounts(c *cursor, out []uint32) {
	d.ints = grow(d.ints, len(out))
	c.integers(d.ints, d.table)
	if c.err != nil {
		return
	}
	for i, n := range d.ints {
		if n < 0 || n > math.MaxUint32 {
			c.fail("count %d", n)
			return
		}
		out[i] = uint32(n)
	}
}

// readMultiples reads a unit and multiples of it.
func (d *integerDecoder) readMultiples(c *cursor, out []int64) {
	unit := c.uvarint()
	if c.err != nil || unit == 0 || unit > math.MaxInt64 {
		c.fail("unit %d", unit)
		return
	}
	c.integers(out, d.table)
	if c.err != nil || unit == 1 {
		return
	}
	limit := math.MaxInt64 / int64(unit)
	for i, n := range out {
		// The product can only wrap around beyond the limit, and the division shows whether it did.
		if (n > limit || n < -limit) && n*int64(unit)/int64(unit) != n {
			c.fail("%d times %d overflows", n, unit)
			return
		}
		out[i] = n * int64(unit)
	}
}
