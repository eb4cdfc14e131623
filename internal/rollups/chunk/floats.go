package chunk

import "slices"

// FloatsEncoder writes blocks of columns of floats that somebody keeps in memory: bytes of the format's blocks of
// values, without a chunk around them. It reuses its memory.
type FloatsEncoder struct {
	w     blockWriter
	times []int64
}

// Append appends a block of columns that have the same number of rows, one after the other in values. There is at least
// one row, and at most 65,536 rows or columns.
func (e *FloatsEncoder) Append(dst []byte, values []float64, rows int) []byte {
	if e.w.enc == nil {
		e.w = blockWriter{encoding: Integers, enc: codecOf(Integers).newEncoder()}
	}
	e.w.reset()
	// The times themselves are not part of a block of values; a column takes its number of rows from them.
	e.times = slices.Grow(e.times[:0], rows)[:rows]
	for ; len(values) > 0; values = values[rows:] {
		e.w.addValues(&Columns{T: e.times, V: values[:rows]}, 0)
	}
	dst = e.w.finish(dst, kindValues)
	e.w.reset() // so that the values are not kept in memory
	return dst
}

// FloatsDecoder reads such blocks, one after the other. It reuses its memory.
type FloatsDecoder struct {
	b   block
	lim Limits
	c   Columns
}

// Open begins a block, which must not change until the next. Errors are *Error.
func (d *FloatsDecoder) Open(raw []byte) error {
	if d.lim == (Limits{}) {
		d.lim = Limits{}.orDefault()
	}
	return d.b.parse(raw, codecOf, &d.lim)
}

// Append appends the values of column i. Errors are *Error.
func (d *FloatsDecoder) Append(dst []float64, i int) ([]float64, error) {
	if i >= len(d.b.slots) || d.b.kind != kindValues {
		return dst, refuse(BadBlock, "no column %d", i)
	}
	n, rows := len(dst), d.b.slots[i].rows
	dst = slices.Grow(dst, rows)
	// The codec fills memory that is large enough and makes no other.
	d.c.V = dst[n : n : n+rows]
	if err := d.b.readValues(i, ColV, &d.c); err != nil {
		return dst, err
	}
	return dst[:n+len(d.c.V)], nil
}
