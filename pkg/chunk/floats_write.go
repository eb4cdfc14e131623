package chunk

import (
	"encoding/binary"
	"math"
)

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
	if bit == ColIncrease && w.increase(i, v) || bit&likeFirst != 0 && w.same(i, col, v) {
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

// likeFirst are columns that First or Last often is: what grows has its least value first.
const likeFirst = ColLast | ColSum | ColMin | ColMax

// same writes a column as First or Last when it is that to the bit.
func (w *blockWriter) same(i, col int, v []float64) bool {
	s := &w.slots[i]
	for _, o := range [...]int{colFirst, colLast} {
		if o >= col || s.mask&(1<<o) == 0 || w.noRefs || s.depth[o]+1 > maxDepth || !sameBits(*s.c.float(1 << o), v) {
			continue
		}
		w.lits = append(w.lits, modeSame, byte(o))
		s.depth[col] = s.depth[o] + 1
		return true
	}
	return false
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
	if w.noRefs || len(c.First) != len(v) || len(c.Last) != len(v) || w.slots[i].depth[colFirst]+1 > maxDepth || w.slots[i].depth[colLast]+1 > maxDepth {
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
	w.slots[i].depth[colIncrease] = 1 + max(w.slots[i].depth[colFirst], w.slots[i].depth[colLast])
	return true
}

// values writes a float column in the cheapest mode that was found; slot -1 has no others to refer to.
func (w *blockWriter) values(v []float64, slot, col int) {
	w.floats.grow(len(v))
	start := w.begin()
	exp, cost := w.decimal(v)
	if exp >= 0 && cost <= dearBits*len(v) {
		return
	}
	if exp < 0 {
		cost = math.MaxInt // nothing was written
	}
	keep := func(later trial, c int) {
		if c >= cost {
			w.undo(later)
			return
		}
		w.replace(start, later)
		cost = c
	}
	if slot >= 0 && !w.noRefs {
		later := w.begin()
		if w.refer(v, slot, col, min(cost, dearBits*len(v))/2) {
			w.replace(start, later)
			return
		}
	}
	if exp < 0 || exp >= manyDigits { // few digits need no second look
		later := w.begin()
		if c, ok := w.nearDecimal(v); ok {
			keep(later, c)
		}
	}
	if cost > veryDearBits*len(v) && exp != 0 { // whole numbers have no shorter integers
		later := w.begin()
		if c, ok := w.dyadic(v); ok {
			keep(later, c)
		} else if exp > 0 {
			keep(later, w.bits(v))
		}
	}
	if cost == math.MaxInt {
		w.bits(v)
	}
}

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
