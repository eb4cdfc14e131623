package chunk

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Kinds of blocks: the first byte of a block.
const (
	kindValues = 1
	kindTimes  = 2
)

// checksumBytes end every block, footer and index.
const checksumBytes = 4

func seal(dst []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// piece of a cell: bytes of blockWriter.lits, or a stream.
type piece struct {
	stream   int // -1 for bytes
	from, to int
}

// slot is a series' rows in the block that is being written.
type slot struct {
	c     Columns
	set   int // of times; slots with the same one have the same rows
	mask  Mask
	cells [2]int // range of blockWriter.cells
	depth [columns]uint8
}

// blockWriter encodes one block of values after the other.
type blockWriter struct {
	slots  []slot
	cells  []int // end of each cell's pieces
	pieces []piece
	lits   []byte
	litAt  int // start of bytes that are not in a piece yet
	coder  coder
	floats floatCoder
	ref    []int64
	first  map[columnKey]int // slot of the first column with a hash
	body   []byte
	lens   []int
	dear   []dearColumn
	// Settings of measurements.
	noRefs bool
}

// dearColumn is a float column that costs more than dearBits a value by itself.
type dearColumn struct{ slot, col, set int }

type columnKey struct {
	hash uint64
	col  Mask
}

func (w *blockWriter) reset() {
	clear(w.slots)
	w.slots, w.cells, w.pieces, w.lits, w.litAt = w.slots[:0], w.cells[:0], w.pieces[:0], w.lits[:0], 0
	w.dear = w.dear[:0]
	w.coder.reset()
	if w.first == nil {
		w.first = map[columnKey]int{}
	}
	clear(w.first)
}

// add appends a slot.
func (w *blockWriter) add(c Columns, set int) {
	w.slots = append(w.slots, slot{c: c, set: set, mask: c.mask() &^ timeColumns})
	i := len(w.slots) - 1
	s := &w.slots[i]
	s.cells[0] = len(w.cells)
	for col := range columns {
		bit := Mask(1) << col
		if s.mask&bit == 0 {
			continue
		}
		switch {
		case bit&histColumns != 0:
			w.histograms(*s.c.hist(bit))
		case bit&countColumns != 0:
			w.counts(*s.c.count(bit))
		case bit == ColStart:
			w.starts(s.c.Start)
		default:
			w.column(i, col)
		}
		w.flush()
		w.cells = append(w.cells, len(w.pieces))
	}
	s.cells[1] = len(w.cells)
}

// flush makes a piece of the bytes since the last one.
func (w *blockWriter) flush() {
	if len(w.lits) > w.litAt {
		w.pieces = append(w.pieces, piece{-1, w.litAt, len(w.lits)})
		w.litAt = len(w.lits)
	}
}

func (w *blockWriter) stream(i int) {
	w.flush()
	w.pieces = append(w.pieces, piece{stream: i})
}

func (w *blockWriter) integers(v []int64) int {
	i, cost := w.coder.add(v)
	w.stream(i)
	return cost
}

func (w *blockWriter) counts(v []uint32) {
	w.floats.grow(len(v))
	for i, n := range v {
		w.floats.ints[i] = int64(n)
	}
	w.integers(w.floats.ints)
}

// starts writes the greatest common divisor and the multiples of it.
func (w *blockWriter) starts(v []int64) {
	w.floats.grow(len(v))
	copy(w.floats.ints, v)
	w.lits = binary.AppendUvarint(w.lits, divideAll(w.floats.ints))
	w.integers(w.floats.ints)
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
		return -uint64(v)
	}
	return uint64(v)
}

// Bits a value from which columns are compared with others.
const (
	dearBits = 12
	// veryDearBits is where other modes are tried next to exact decimals.
	veryDearBits = 24
	// manyDigits after the point may be few and an error of the last place.
	manyDigits = 6
)

// column writes the float column col of slot i.
func (w *blockWriter) column(i, col int) {
	s := &w.slots[i]
	bit := Mask(1) << col
	v := *s.c.float(bit)
	if bit == ColIncrease && w.increase(i, v) {
		return
	}
	key := columnKey{}
	if !w.noRefs && len(v) > 1 && !constant(v) {
		key = columnKey{columnHash(v), bit}
		if j, ok := w.first[key]; ok && sameBits(*w.slots[j].c.float(bit), v) {
			w.lits = append(w.lits, modeCopy)
			w.lits = binary.AppendUvarint(w.lits, uint64(i-j))
			s.depth[col] = w.slots[j].depth[col] + 1
			return
		}
	}
	w.values(v, i, col)
	if _, ok := w.first[key]; !ok && key.col != 0 && s.depth[col] < maxDepth {
		w.first[key] = i
	}
}

func constant(v []float64) bool {
	u := math.Float64bits(v[0])
	for _, x := range v[1:] {
		if math.Float64bits(x) != u {
			return false
		}
	}
	return true
}

// increase writes Increase as Last - First where that is nearly always exact.
func (w *blockWriter) increase(i int, v []float64) bool {
	c := &w.slots[i].c
	if w.noRefs || len(c.First) != len(v) || len(c.Last) != len(v) || w.slots[i].depth[5]+1 > maxDepth || w.slots[i].depth[6]+1 > maxDepth {
		return false
	}
	w.floats.grow(len(v))
	exact := 0
	for k, x := range v {
		d := int64(math.Float64bits(x) - math.Float64bits(c.Last[k]-c.First[k]))
		if w.floats.ints[k] = d; d == 0 {
			exact++
		}
	}
	if exact < len(v)-len(v)/16 {
		return false
	}
	w.lits = append(w.lits, modeDiff)
	w.integers(w.floats.ints)
	w.slots[i].depth[7] = 1 + max(w.slots[i].depth[5], w.slots[i].depth[6])
	return true
}

// values writes a float column in the cheapest mode that was found; slot -1 has no others to refer to.
func (w *blockWriter) values(v []float64, slot, col int) {
	w.floats.grow(len(v))
	w.flush() // so that undo finds the end of the pieces before this column
	pieces, lits := len(w.pieces), len(w.lits)
	undo := func(streams int) {
		for range streams {
			w.coder.drop()
		}
		w.pieces, w.lits, w.litAt = w.pieces[:pieces], w.lits[:lits], lits
	}
	exp, cost := w.decimal(v)
	if exp >= 0 && cost <= dearBits*len(v) {
		return
	}
	best := tryBits
	if exp >= 0 {
		best = tryDecimal
		undo(1)
	} else {
		cost = math.MaxInt
	}
	if slot >= 0 {
		w.dear = append(w.dear, dearColumn{slot, col, w.slots[slot].set})
		if !w.noRefs && w.refer(v, slot, col, min(cost, dearBits*len(v))/2) {
			return
		}
	}
	if exp < 0 || exp >= manyDigits { // few digits need no second look
		if c, ok := w.nearDecimal(v); ok {
			undo(2)
			if c < cost {
				best, cost = tryNear, c
			}
		}
	}
	if cost > veryDearBits*len(v) {
		if c, ok := w.dyadic(v); ok {
			undo(1)
			if c < cost {
				best, cost = tryDyadic, c
			}
		} else if best != tryBits {
			c := w.bits(v)
			undo(1)
			if c < cost {
				best = tryBits
			}
		}
	}
	switch best {
	case tryDecimal:
		w.decimal(v)
	case tryNear:
		w.nearDecimal(v)
	case tryDyadic:
		w.dyadic(v)
	default:
		w.bits(v)
	}
}

// What values tries.
const (
	tryDecimal = iota
	tryNear
	tryDyadic
	tryBits
)

// decimal writes v as exact decimals; it returns the exponent, -1 when there is none and
// nothing was written, and about the bits.
func (w *blockWriter) decimal(v []float64) (exp, cost int) {
	e, ok := w.floats.decimal(v)
	if !ok {
		return -1, 0
	}
	if e == 0 {
		if s := w.floats.shift(); s > 0 {
			return 0, w.scaled(modeDyadic, []byte{byte(2 * s)}, v)
		}
	}
	return e, w.scaled(byte(modeDecimal+e), nil, v)
}

func (w *blockWriter) nearDecimal(v []float64) (cost int, ok bool) {
	e, ok := w.floats.nearDecimal(v)
	if !ok {
		return 0, false
	}
	cost = w.scaled(byte(modeDecimal+e)|flagUlps, nil, v)
	return cost + w.integers(w.floats.near), true
}

func (w *blockWriter) dyadic(v []float64) (cost int, ok bool) {
	s, ok := w.floats.dyadic(v)
	if !ok {
		return 0, false
	}
	var shift [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(shift[:], zigzag(int64(s)))
	return w.scaled(modeDyadic, shift[:n], v), true
}

func (w *blockWriter) bits(v []float64) (cost int) {
	for i, x := range v {
		w.floats.ints[i] = int64(math.Float64bits(x))
	}
	w.lits = append(w.lits, modeBits)
	return w.integers(w.floats.ints)
}

// scaled writes the mode, its parameter, patches, and the integers of the coder.
func (w *blockWriter) scaled(mode byte, param []byte, v []float64) int {
	patches := w.floats.patches
	if len(patches) > 0 {
		mode |= flagPatches
	}
	start := len(w.lits)
	w.lits = append(append(w.lits, mode), param...)
	if len(patches) > 0 {
		w.lits = w.floats.appendPatches(w.lits, v)
	}
	return 8*(len(w.lits)-start) + w.integers(w.floats.ints)
}

// refer writes v as a function of the same column, dear too, of an earlier slot with the same times,
// when one is found that takes less than limit bits.
func (w *blockWriter) refer(v []float64, i, col, limit int) bool {
	s := &w.slots[i]
	for k := len(w.dear) - 1; k >= 0; k-- {
		d := w.dear[k]
		j := d.slot
		if d.set != s.set || d.col != col || j >= i {
			continue
		}
		o := &w.slots[j]
		if o.depth[col]+1 > maxDepth {
			continue
		}
		x := *o.c.float(1 << col)
		mode, p, q, ok := relate(v, x)
		if !ok {
			continue
		}
		if cap(w.ref) < len(v) {
			w.ref = make([]int64, len(v))
		}
		w.ref = w.ref[:len(v)]
		apply(mode, p, q, v, x, w.ref)
		mark, lit := len(w.pieces), len(w.lits)
		w.lits = binary.AppendUvarint(append(w.lits, mode), uint64(i-j))
		w.lits = appendFloat(w.lits, p)
		if mode == modeScale {
			w.lits = appendFloat(w.lits, q)
		}
		if c := w.integers(w.ref); c < limit {
			s.depth[col] = o.depth[col] + 1
			return true
		}
		w.coder.drop()
		w.pieces, w.lits, w.litAt = w.pieces[:mark], w.lits[:lit], lit
	}
	return false
}

// apply leaves the distances from the relation to v in out.
func apply(mode byte, p, q float64, v, x []float64, out []int64) {
	for k := range v {
		y := p - x[k]
		if mode == modeScale {
			y = x[k] * p / q
		}
		out[k] = int64(math.Float64bits(v[k]) - math.Float64bits(y))
	}
}

// relate finds v = p - x or v = x * p / q by a few rows.
func relate(v, x []float64) (mode byte, p, q float64, ok bool) {
	n := len(v)
	if n < 8 || special(v[0]) || special(x[0]) {
		return 0, 0, 0, false
	}
	rows := [...]int{n / 3, n / 2, n - 1, n / 5}
	holds := func(y func(float64) float64) bool {
		for _, r := range rows {
			if _, ok := ulps(v[r], y(x[r]), 2); !ok {
				return false
			}
		}
		return true
	}
	c := v[0] + x[0]
	if holds(func(x float64) float64 { return c - x }) {
		return modeSum, c, 0, true
	}
	if v[0] == 0 || x[0] == 0 {
		return 0, 0, 0, false
	}
	// Is the quotient the same at all? A quick look before exact candidates.
	k := v[0] / x[0]
	for _, r := range rows {
		if d := v[r] - x[r]*k; !(math.Abs(d) <= math.Abs(v[r])*1e-12) {
			return 0, 0, 0, false
		}
	}
	for _, m := range [...]float64{100, 1} {
		if d := math.RoundToEven(m * x[0] / v[0]); d != 0 && !math.IsInf(d, 0) && holds(func(x float64) float64 { return x * m / d }) {
			return modeScale, m, d, true
		}
	}
	if holds(func(x float64) float64 { return x * k }) {
		return modeScale, k, 1, true
	}
	return 0, 0, 0, false
}

// finish appends the block to dst.
func (w *blockWriter) finish(dst []byte, kind byte) []byte {
	start := len(dst)
	w.coder.group()
	dst = append(dst, kind, byte(len(w.coder.codes)))
	for i := range w.coder.codes {
		dst = w.coder.codes[i].append(dst)
	}
	w.body, w.lens = w.body[:0], w.lens[:0]
	from := 0
	for _, to := range w.cells {
		n := len(w.body)
		for _, p := range w.pieces[from:to] {
			if p.stream < 0 {
				w.body = append(w.body, w.lits[p.from:p.to]...)
			} else {
				w.body = w.coder.append(w.body, p.stream)
			}
		}
		w.lens = append(w.lens, len(w.body)-n)
		from = to
	}
	// Directory: runs of slots with equal rows and columns, then the cells' lengths.
	dst = binary.AppendUvarint(dst, uint64(len(w.slots)))
	for i := 0; i < len(w.slots); {
		s := &w.slots[i]
		n := 1
		for i+n < len(w.slots) && w.slots[i+n].mask == s.mask && w.slots[i+n].c.Rows() == s.c.Rows() {
			n++
		}
		dst = binary.AppendUvarint(dst, uint64(n))
		dst = binary.AppendUvarint(dst, uint64(s.c.Rows()))
		dst = binary.AppendUvarint(dst, uint64(s.mask))
		i += n
	}
	for _, n := range w.lens {
		dst = binary.AppendUvarint(dst, uint64(n))
	}
	return seal(append(dst, w.body...), start)
}

// size is about the bytes that the block has so far.
func (w *blockWriter) size() int { return len(w.coder.syms)/3 + len(w.lits) + 4*len(w.coder.extras) }
