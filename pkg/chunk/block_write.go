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
	kin    map[uint64]int32 // slots of dear columns by what later ones may have in common with them
	// Settings of measurements.
	noRefs bool
}

type columnKey struct {
	hash uint64
	col  Mask
}

func (w *blockWriter) reset() {
	clear(w.slots)
	w.slots, w.cells, w.pieces, w.lits, w.litAt = w.slots[:0], w.cells[:0], w.pieces[:0], w.lits[:0], 0
	w.coder.reset()
	if w.first == nil {
		w.first, w.kin = map[columnKey]int{}, map[uint64]int32{}
	}
	clear(w.first)
	clear(w.kin)
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

// trial is where a column, or a further way to write it, begins.
type trial struct{ pieces, lits, streams int }

func (w *blockWriter) begin() trial {
	w.flush()
	return trial{len(w.pieces), len(w.lits), len(w.coder.streams)}
}

// undo takes back what was written since t.
func (w *blockWriter) undo(t trial) {
	for len(w.coder.streams) > t.streams {
		w.coder.drop()
	}
	w.pieces, w.lits, w.litAt = w.pieces[:t.pieces], w.lits[:t.lits], t.lits
}

// replace leaves what was written since later in the place of what was written since t.
func (w *blockWriter) replace(t, later trial) {
	w.flush()
	for i := t.streams; i < later.streams; i++ {
		w.coder.kill(i)
	}
	n := copy(w.pieces[t.pieces:], w.pieces[later.pieces:])
	w.pieces = w.pieces[:t.pieces+n]
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
