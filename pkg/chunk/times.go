package chunk

import "encoding/binary"

// Times of rows stand in blocks of their own, once for all series that share them.
const (
	cellT = iota
	cellFirstT
	cellLastT
	timeCells
)

// timeSet is the times of some series' rows.
type timeSet struct{ t, first, last []int64 }

// timeAddress is where a set is in memory.
type timeAddress struct {
	t, first, last *int64
	rows           int
}

func (s timeSet) address() timeAddress {
	a := timeAddress{t: &s.t[0], rows: len(s.t)}
	if s.first != nil {
		a.first = &s.first[0]
	}
	if s.last != nil {
		a.last = &s.last[0]
	}
	return a
}

// addTimes appends a slot to a block of times.
func (w *blockWriter) addTimes(s timeSet) {
	sl := slot{c: Columns{T: s.t}, mask: 1 << cellT}
	sl.cells[0] = len(w.cells)
	f := &w.floats
	f.grow(len(s.t))
	write := func() {
		w.lits = binary.AppendUvarint(w.lits, divideAll(f.ints))
		w.integers(f.ints)
		w.cells = append(w.cells, len(w.pieces))
	}
	copy(f.ints, s.t)
	write()
	for k, other := range [...][]int64{s.first, s.last} {
		if other == nil {
			continue
		}
		sl.mask |= 1 << (cellFirstT + k)
		for i, t := range s.t {
			f.ints[i] = t - other[i]
		}
		write()
	}
	sl.cells[1] = len(w.cells)
	w.slots = append(w.slots, sl)
}

// readTimes fills the time columns of into from slot i of a block of times.
func (b *block) readTimes(i int, into *Columns) error {
	s := &b.slots[i]
	if s.mask&(1<<cellT) == 0 {
		return refuse(BadBlock, "times without T")
	}
	into.T = grow(into.T, s.rows)
	c := cursor{b: b.cell(i, cellT), reason: BadColumn}
	b.multiples(&c, into.T)
	if err := c.end("T"); err != nil {
		return err
	}
	for k := 1; k < len(into.T); k++ {
		if into.T[k] <= into.T[k-1] {
			return refuse(BadColumn, "T of row %d is not after that of row %d", k, k-1)
		}
	}
	for k, p := range [...]*[]int64{&into.FirstT, &into.LastT} {
		col := cellFirstT + k
		if s.mask&(1<<col) == 0 {
			continue
		}
		*p = grow(*p, s.rows)
		c := cursor{b: b.cell(i, col), reason: BadColumn}
		b.multiples(&c, *p)
		if err := c.end("times"); err != nil {
			return err
		}
		for r := range *p {
			(*p)[r] = into.T[r] - (*p)[r]
		}
	}
	return nil
}

// equal reports whether two sets are the same.
func (s timeSet) equal(o timeSet) bool {
	return sameTimes(s.t, o.t) && sameTimes(s.first, o.first) && sameTimes(s.last, o.last)
}

func sameTimes(a, b []int64) bool {
	if len(a) != len(b) || (a == nil) != (b == nil) {
		return false
	}
	if len(a) > 0 && &a[0] == &b[0] {
		return true
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func (s timeSet) hash() uint64 {
	h := uint64(len(s.t))
	for _, v := range [...][]int64{s.t, s.first, s.last} {
		h = h*31 + uint64(len(v))
		for _, x := range v {
			h = (h ^ uint64(x)) * 0x9e3779b97f4a7c15
			h ^= h >> 32
		}
	}
	return h
}

// slice of rows [from, to).
func (c *Columns) slice(from, to int) Columns {
	if from == 0 && to == len(c.T) {
		return *c
	}
	out := Columns{T: c.T[from:to]}
	cut(&out.Start, c.Start, from, to)
	cut(&out.FirstT, c.FirstT, from, to)
	cut(&out.LastT, c.LastT, from, to)
	for i := range columns {
		bit := Mask(1) << i
		switch {
		case bit == ColStart:
		case bit&histColumns != 0:
			cut(out.hist(bit), *c.hist(bit), from, to)
		case bit&countColumns != 0:
			cut(out.count(bit), *c.count(bit), from, to)
		default:
			cut(out.float(bit), *c.float(bit), from, to)
		}
	}
	return out
}

func cut[T any](dst *[]T, src []T, from, to int) {
	if src != nil {
		*dst = src[from:to]
	}
}
