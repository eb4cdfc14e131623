package chunk

import (
	"encoding/binary"
	"math"
)

// Columns of floats. A column is written in the cheapest of some modes: as integers that its
// values follow from (integer_decimals.go), or as a function of another column.

// Modes of a float column: how values follow from integers, bit-exactly.
const (
	modeDecimal = 0x00 // + exponent e, 0 to 15: i / 10^e
	modeDyadic  = 0x10 // i * 2^s
	modeBits    = 0x11 // the value's bits
	modeCopy    = 0x12 // of a column before it
	modeSum     = 0x13 // c - x of a column before it, plus ulps
	modeScale   = 0x14 // x * m / d of a column before it, plus ulps
	modeDiff    = 0x15 // Last - First of the same series, plus ulps
	modeSame    = 0x16 // of an earlier column of the same series

	flagUlps    = 0x40 // decimal: integers to add to the bits follow
	flagPatches = 0x80 // values to put in afterwards follow

	// Numbers of columns that others of their series refer to.
	colFirst, colLast, colIncrease = 5, 6, 7
	// maxDepth bounds references to columns that are references.
	maxDepth = 4
)

// Bits a value from which columns are compared with others.
const (
	expensiveBits = 12
	// veryExpensiveBits is where other modes are tried next to exact decimals.
	veryExpensiveBits = 24
	// manyDigits after the point may be few and an error of the last place.
	manyDigits = 6
)

// writeColumn writes the float column col of slot i.
func (e *integerEncoder) writeColumn(i, col int) {
	s := &e.slots[i]
	bit := Mask(1) << col
	v := *s.c.float(bit)
	if bit == ColIncrease && e.writeIncrease(i, v) || bit&likeFirst != 0 && e.writeSame(i, col, v) {
		return
	}
	key, isFirst := columnKey{}, false
	if !e.noReferences && len(v) > 1 && !constant(v) {
		key = columnKey{columnHash(v), bit}
		j, ok := e.first[key]
		isFirst = !ok
		// The hash reads only some rows, so the columns are compared in full.
		if ok && sameBits(*e.slots[j].c.float(bit), v) {
			e.literals = append(e.literals, modeCopy)
			e.literals = binary.AppendUvarint(e.literals, uint64(i-j))
			s.depth[col] = e.slots[j].depth[col] + 1
			return
		}
	}
	e.writeFloats(v, i, col)
	// A column at the greatest depth is not offered to others: readers would refuse what refers to it.
	if isFirst && s.depth[col] < maxDepth {
		e.first[key] = i
	}
}

// likeFirst are columns that First or Last often is: what grows has its least value first.
const likeFirst = ColLast | ColSum | ColMin | ColMax

// writeSame writes a column as First or Last when it is that to the bit.
func (e *integerEncoder) writeSame(i, col int, v []float64) bool {
	s := &e.slots[i]
	for _, o := range [...]int{colFirst, colLast} {
		if o >= col || s.mask&(1<<o) == 0 || e.noReferences || s.depth[o]+1 > maxDepth || !sameBits(*s.c.float(1 << o), v) {
			continue
		}
		e.literals = append(e.literals, modeSame, byte(o))
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

// writeIncrease writes Increase as Last - First where that is nearly always exact.
func (e *integerEncoder) writeIncrease(i int, v []float64) bool {
	c := &e.slots[i].c
	if e.noReferences || len(c.First) != len(v) || len(c.Last) != len(v) || e.slots[i].depth[colFirst]+1 > maxDepth || e.slots[i].depth[colLast]+1 > maxDepth {
		return false
	}
	e.floats.grow(len(v))
	exact := 0
	for k, x := range v {
		d := int64(math.Float64bits(x) - math.Float64bits(c.Last[k]-c.First[k]))
		if e.floats.ints[k] = d; d == 0 {
			exact++
		}
	}
	// With more corrections than that, as of counters that reset often, they cost more than the increases
	// themselves.
	if exact < len(v)-len(v)/16 {
		return false
	}
	e.literals = append(e.literals, modeDiff)
	e.writeIntegers(e.floats.ints)
	e.slots[i].depth[colIncrease] = 1 + max(e.slots[i].depth[colFirst], e.slots[i].depth[colLast])
	return true
}

// writeFloats writes a float column in the cheapest mode that was found; slot -1 has no others to refer to.
func (e *integerEncoder) writeFloats(v []float64, slot, col int) {
	e.floats.grow(len(v))
	start := e.begin()
	exp, cost := e.writeDecimal(v)
	// Most columns are cheap; trying no other mode on them keeps writing fast.
	if exp >= 0 && cost <= expensiveBits*len(v) {
		return
	}
	if exp < 0 {
		cost = math.MaxInt // nothing was written
	}
	keep := func(later trial, c int) {
		if c >= cost {
			e.undo(later)
			return
		}
		e.replace(start, later)
		cost = c
	}
	if slot >= 0 && !e.noReferences {
		later := e.begin()
		// A reference must save at least half, since its readers decode another column as well.
		if e.writeReference(v, slot, col, min(cost, expensiveBits*len(v))/2) {
			e.replace(start, later)
			return
		}
	}
	if exp < 0 || exp >= manyDigits { // few digits need no second look
		later := e.begin()
		if c, ok := e.writeNearDecimal(v); ok {
			keep(later, c)
		}
	}
	if cost > veryExpensiveBits*len(v) && exp != 0 { // whole numbers have no shorter integers
		later := e.begin()
		if c, ok := e.writeDyadic(v); ok {
			keep(later, c)
		} else if exp > 0 {
			keep(later, e.writeBits(v))
		}
	}
	if cost == math.MaxInt {
		e.writeBits(v)
	}
}

// writeDecimal writes v as exact decimals; it returns the exponent, -1 when there is none and
// nothing was written, and about the bits.
func (e *integerEncoder) writeDecimal(v []float64) (exp, cost int) {
	exp, ok := e.floats.decimal(v)
	if !ok {
		return -1, 0
	}
	if exp == 0 {
		// Multiples of a power of two, such as sizes of memory, become smaller integers.
		if s := e.floats.shift(); s > 0 {
			return 0, e.writeScaled(modeDyadic, []byte{byte(2 * s)}, v)
		}
	}
	return exp, e.writeScaled(byte(modeDecimal+exp), nil, v)
}

func (e *integerEncoder) writeNearDecimal(v []float64) (cost int, ok bool) {
	exp, ok := e.floats.nearDecimal(v)
	if !ok {
		return 0, false
	}
	cost = e.writeScaled(byte(modeDecimal+exp)|flagUlps, nil, v)
	return cost + e.writeIntegers(e.floats.near), true
}

func (e *integerEncoder) writeDyadic(v []float64) (cost int, ok bool) {
	s, ok := e.floats.dyadic(v)
	if !ok {
		return 0, false
	}
	var shift [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(shift[:], zigzag(int64(s)))
	return e.writeScaled(modeDyadic, shift[:n], v), true
}

func (e *integerEncoder) writeBits(v []float64) (cost int) {
	for i, x := range v {
		e.floats.ints[i] = int64(math.Float64bits(x))
	}
	e.literals = append(e.literals, modeBits)
	return e.writeIntegers(e.floats.ints)
}

// writeScaled writes the mode, its parameter, patches, and the integers of the coder.
func (e *integerEncoder) writeScaled(mode byte, param []byte, v []float64) int {
	patches := e.floats.patches
	if len(patches) > 0 {
		mode |= flagPatches
	}
	start := len(e.literals)
	e.literals = append(append(e.literals, mode), param...)
	if len(patches) > 0 {
		e.literals = e.floats.appendPatches(e.literals, v)
	}
	return 8*(len(e.literals)-start) + e.writeIntegers(e.floats.ints)
}

// writeReference writes v as a function of the same column, an expensive one too, of an earlier slot with the same times,
// when one is found that takes less than limit bits.
func (e *integerEncoder) writeReference(v []float64, i, col, limit int) bool {
	s := &e.slots[i]
	keys := e.candidateKeys(v, i, col)
	for _, key := range keys {
		j, ok := e.candidates[key]
		if key == 0 || !ok {
			continue
		}
		o := &e.slots[j]
		// Keys may collide, so it must be checked that the slot has the same rows and this column.
		if o.times != s.times || o.mask&(1<<col) == 0 {
			continue
		}
		x := *o.c.float(1 << col)
		mode, p, q, ok := relate(v, x)
		if !ok {
			continue
		}
		if cap(e.ref) < len(v) {
			e.ref = make([]int64, len(v))
		}
		e.ref = e.ref[:len(v)]
		apply(mode, p, q, v, x, e.ref)
		mark := e.begin()
		e.literals = binary.AppendUvarint(append(e.literals, mode), uint64(i-int(j)))
		e.literals = appendFloat(e.literals, p)
		if mode == modeScale {
			e.literals = appendFloat(e.literals, q)
		}
		if c := e.writeIntegers(e.ref); c < limit {
			s.depth[col] = o.depth[col] + 1
			e.remember(keys, i, col)
			return true
		}
		e.undo(mark)
	}
	e.remember(keys, i, col)
	return false
}

// remember leaves a column to later ones, unless they already find one that is less deep.
func (e *integerEncoder) remember(keys [2]uint64, i, col int) {
	depth := e.slots[i].depth[col]
	if depth >= maxDepth {
		return
	}
	for _, key := range keys {
		if j, ok := e.candidates[key]; key != 0 && (!ok || depth <= e.slots[j].depth[col]) {
			e.candidates[key] = int32(i)
		}
	}
}

// candidateKeys are two numbers, 0 for none: v and x have the first in common when v = p - x,
// and the second when v = x * p / q, but for rounding at the border of a quantum.
func (e *integerEncoder) candidateKeys(v []float64, i, col int) (keys [2]uint64) {
	n := len(v)
	if n < minCandidateRows {
		return keys
	}
	z, a, b := v[0], v[n/3], v[n-1]
	if special(z) || special(a) || special(b) {
		return keys
	}
	h := (uint64(e.slots[i].times)<<8 | uint64(col)<<1 | 1) * 0x9e3779b97f4a7c15
	keys[0] = mix(mix(h, quantum(math.Abs(a-z))), quantum(math.Abs(b-z)))
	if z != 0 {
		keys[1] = mix(mix(h+1, quantum(a/z)), quantum(b/z))
	}
	return keys
}

// minCandidateRows is the least number of rows whose columns are compared.
const minCandidateRows = 8

// quantum keeps 20 bits of the mantissa.
func quantum(x float64) uint64 { return (math.Float64bits(x) + 1<<31) >> 32 }

func mix(h, x uint64) uint64 {
	h = (h ^ x) * 0x9e3779b97f4a7c15
	return h ^ h>>32
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
	if n < minCandidateRows || special(v[0]) || special(x[0]) {
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

// appendPatches writes the rows and bits of the patches.
func (f *floatCoder) appendPatches(dst []byte, v []float64) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(f.patches)))
	last := -1
	for _, i := range f.patches {
		dst = binary.AppendUvarint(dst, uint64(i-last-1))
		dst = appendFloat(dst, v[i])
		last = i
	}
	return dst
}

// columnHash is equal for equal columns; it looks at some rows only.
func columnHash(v []float64) uint64 {
	h := uint64(len(v)) ^ math.Float64bits(v[len(v)-1])
	for i := 0; i < len(v); i += 1 + len(v)/32 {
		h = (h ^ math.Float64bits(v[i])) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}

func sameBits(a, b []float64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float64bits(a[i]) != math.Float64bits(b[i]) {
			return false
		}
	}
	return true
}

// readFloats reads a float column; slot is -1 in a histogram, where no other column can be referred to.
func (d *integerDecoder) readFloats(c *cursor, out []float64, slot, col, depth int) {
	head := c.byte()
	if c.err != nil {
		return
	}
	mode := head &^ (flagPatches | flagUlps)
	switch {
	case mode <= modeDecimal+maxExponent, mode == modeDyadic && head&flagUlps == 0:
		d.readScaled(c, head, out)
	case head == modeBits:
		d.ints = grow(d.ints, len(out))
		c.integers(d.ints, d.table)
		for i, n := range d.ints {
			out[i] = math.Float64frombits(uint64(n))
		}
	case head >= modeCopy && head <= modeSame && slot >= 0:
		d.readReference(c, head, out, slot, col, depth)
	default:
		c.fail("values: unknown mode 0x%02x", head)
	}
}

func (d *integerDecoder) readScaled(c *cursor, head byte, out []float64) {
	mode := head &^ (flagPatches | flagUlps)
	scale := 1.0
	if mode == modeDyadic {
		s := c.zigzag()
		if s < minShift || s > maxShift {
			c.fail("values: power %d of two", s)
			return
		}
		// Within these bounds the power is a normal number, whose exponent bits are set directly.
		scale = math.Float64frombits(uint64(s+1023) << 52)
	}
	patches := cursor{}
	n := 0
	if head&flagPatches != 0 {
		n = c.count("patches", 9, len(out))
		// Patches come before the integers but are applied after them: this copy stays at their beginning.
		patches = *c
		for range n {
			c.uvarint()
			c.bytes(8)
		}
	}
	d.ints = grow(d.ints, len(out))
	if mode == modeDyadic {
		c.integers(d.ints, d.table)
		for i, x := range d.ints {
			out[i] = float64(x) * scale
		}
	} else {
		c.floats(out, d.ints, pow10[mode], d.table)
	}
	if head&flagUlps != 0 {
		c.integers(d.ints, d.table)
		if c.err == nil {
			addUlps(out, d.ints)
		}
	}
	row := -1
	for range n {
		// min keeps the sum from wrapping around; a row past the end is refused below.
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

// readReference reads a column that follows from another one.
func (d *integerDecoder) readReference(c *cursor, mode byte, out []float64, slot, col, depth int) {
	// References lead to earlier slots or lower columns, so they end. The bound excludes long chains, of
	// which every column would be decoded for each reader.
	if depth > maxDepth {
		c.fail("values: more than %d references to references", maxDepth)
		return
	}
	if mode == modeSame {
		o := int(c.byte())
		if c.err == nil && (o < colFirst || o >= col || d.slots[slot].mask&(1<<o) == 0) {
			c.fail("values: the same as column %d, which is not there", o)
		}
		d.readOther(c, out, slot, o, depth)
		return
	}
	if mode == modeDiff {
		if 1<<col != ColIncrease || d.slots[slot].mask&ColFirst == 0 || d.slots[slot].mask&ColLast == 0 {
			c.fail("values: difference of columns that are not there")
			return
		}
		d.readOther(c, out, slot, colLast, depth)
		d.scratch[depth] = grow(d.scratch[depth], len(out))
		y := d.scratch[depth]
		d.readOther(c, y, slot, colFirst, depth)
		for i := range out {
			out[i] -= y[i]
		}
		d.readUlps(c, out)
		return
	}
	back := c.below("reference to slot before", slot+1)
	if c.err == nil && (back == 0 || d.slots[slot-back].rows != len(out) || d.slots[slot-back].mask&(1<<col) == 0) {
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
	d.readOther(c, out, slot-back, col, depth)
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
	d.readUlps(c, out)
}

// readOther reads a column of another slot, or another column of this one.
func (d *integerDecoder) readOther(c *cursor, out []float64, slot, col, depth int) {
	if c.err != nil {
		return
	}
	o := cursor{b: d.cell(slot, col), reason: BadColumn}
	d.readFloats(&o, out, slot, col, depth+1)
	if err := o.end("the column"); err != nil {
		c.err = err
	}
}

func (d *integerDecoder) readUlps(c *cursor, out []float64) {
	if c.err != nil {
		return
	}
	d.ints = grow(d.ints, len(out))
	c.integers(d.ints, d.table)
	if c.err == nil {
		addUlps(out, d.ints)
	}
}
