package chunk

import (
	"bytes"
	"math"
	"math/bits"
)

// How integers follow from residuals; sums are modulo 2^64.
const (
	predictConst  = iota // all are the first parameter
	predictBase          // parameter + residual
	predictDelta         // the one before + drift + residual
	predictDelta2        // the one before + its delta + residual
	predictors
)

// stream is a sequence of integers that waits for its block's codes.
type stream struct {
	predictor uint8
	table     uint8
	p0, p1    int64
	syms      [2]int // range of coder.syms
	extras    int    // start in coder.extras
	residual  int
	hist      [2]int // range of coder.hist
	own       uint64 // Shannon's bound of its tokens, in logUnits
}

// tokenCount is how often a token stands in a stream.
type tokenCount struct {
	token byte
	n     uint32
}

// coder collects streams, groups those with similar tokens, and writes them.
type coder struct {
	streams []stream
	syms    []byte
	extras  []uint64
	old     []uint64 // scratch of runs
	hist    []tokenCount
	codes   []code
	count   [256]uint32 // all 0 between streams
	long    int         // bits that follow the tokens of the stream
	totals  [maxTables][tokens]uint32
}

func (c *coder) reset() {
	c.streams, c.syms, c.extras, c.hist, c.codes = c.streams[:0], c.syms[:0], c.extras[:0], c.hist[:0], c.codes[:0]
}

// add tokenizes v, which is not empty, and returns the stream's number and about how many bits it takes.
func (c *coder) add(v []int64) (int, int) {
	s := stream{}
	s.predictor, s.p0, s.p1 = predict(v)
	s.syms[0], s.extras, s.hist[0] = len(c.syms), len(c.extras), len(c.hist)
	cost := 8 * (1 + uvarintLen(zigzag(s.p0)))
	if s.predictor != predictConst {
		cost += c.tokenize(&s, v)
	}
	s.syms[1], s.hist[1] = len(c.syms), len(c.hist)
	c.streams = append(c.streams, s)
	return len(c.streams) - 1, cost
}

// drop takes back the last stream.
func (c *coder) drop() {
	s := &c.streams[len(c.streams)-1]
	c.syms, c.extras, c.hist = c.syms[:s.syms[0]], c.extras[:s.extras], c.hist[:s.hist[0]]
	c.streams = c.streams[:len(c.streams)-1]
}

// kill takes back an earlier stream, whose tokens stay.
func (c *coder) kill(i int) {
	s := &c.streams[i]
	s.predictor, s.hist[1], s.own = predictConst, s.hist[0], 0
}

// predict picks the predictor whose residuals have the fewest bits in all, and its parameters.
func predict(v []int64) (predictor uint8, p0, p1 int64) {
	n := len(v)
	first := v[0]
	if n == 1 {
		return predictConst, first, 0
	}
	k := 1
	for k < n && v[k] == first {
		k++
	}
	if k == n {
		return predictConst, first, 0
	}
	step := 3 // a third of the integers tell which predictor is best
	if n < 96 {
		step = 1
	}
	lo, hi := min(first, v[k]), max(first, v[k])
	for i := 1; i < n; i += step {
		lo, hi = min(lo, v[i]), max(hi, v[i])
	}
	// Half of an unsigned difference, since the whole may not fit in an int64.
	base := lo + int64(uint64(hi-lo)/2)
	drift := (v[n-1] - first) / int64(n-1)
	var b0, b1, b2 int
	for i := 2; i < n; i += step {
		x, y, z := v[i], v[i-1], v[i-2]
		d := x - y
		b0 += bits.Len64(zigzag(x - base))
		b1 += bits.Len64(zigzag(d - drift))
		b2 += bits.Len64(zigzag(d - y + z))
	}
	switch {
	// Ties go to differences, which readers decode fastest (see deltas).
	case b1 <= b0 && b1 <= b2:
		return predictDelta, first, drift
	case b2 <= b0:
		return predictDelta2, first, v[1] - first
	}
	return predictBase, base, 0
}

// residuals is the number of residuals of n integers.
func residuals(predictor uint8, n int) int {
	switch predictor {
	case predictBase:
		return n
	case predictDelta:
		return n - 1
	case predictDelta2:
		return n - 2
	}
	return 0
}

// minRun is the least number of zeros that a writer makes a run of.
const minRun = 4

// tokenize appends the tokens of the residuals and returns about their bits.
func (c *coder) tokenize(s *stream, v []int64) int {
	n := residuals(s.predictor, len(v))
	s.residual = n
	start := len(c.syms)
	// Grown once, so that the loops below write by index.
	if cap(c.syms)-start < n {
		c.syms = append(make([]byte, 0, 2*cap(c.syms)+n), c.syms...)
	}
	syms := c.syms[start : start+n]
	c.long = 0
	switch s.predictor {
	case predictBase:
		for i, x := range v {
			if u := zigzag(x - s.p0); u < directTokens {
				syms[i] = byte(u)
			} else {
				syms[i] = c.other(u)
			}
		}
	case predictDelta:
		last := s.p0 + s.p1
		for i, x := range v[1:] {
			u := zigzag(x - last)
			last = x + s.p1
			if u < directTokens {
				syms[i] = byte(u)
			} else {
				syms[i] = c.other(u)
			}
		}
	case predictDelta2:
		last, delta := v[1], s.p1
		for i, x := range v[2:] {
			u := zigzag(x - last - delta)
			delta = x - last
			last = x
			if u < directTokens {
				syms[i] = byte(u)
			} else {
				syms[i] = c.other(u)
			}
		}
	}
	extraBits := c.long
	// Runs pay only where most residuals are 0.
	if bytes.Count(syms, zeroToken) > n/2 {
		extraBits += c.runs(s, syms)
		syms = syms[:s.syms[1]]
	}
	c.syms = c.syms[:start+len(syms)]
	c.countTokens(s, syms)
	return extraBits + int(s.own/logUnit)
}

var zeroToken = []byte{0}

// longStream is the number of tokens from which on looking at every count is cheaper than
// remembering which are not 0.
const longStream = 512

// countTokens appends the histogram of a stream's tokens and sums its cost.
func (c *coder) countTokens(s *stream, syms []byte) {
	at := len(c.hist)
	if len(syms) < longStream {
		for _, t := range syms {
			if c.count[t]++; c.count[t] == 1 {
				c.hist = append(c.hist, tokenCount{token: t})
			}
		}
	} else {
		var odd [256]uint32 // a second counter spares waiting for the first
		k := 0
		for ; k+1 < len(syms); k += 2 {
			c.count[syms[k]]++
			odd[syms[k+1]]++
		}
		if k < len(syms) {
			c.count[syms[k]]++
		}
		for t := range tokens {
			if c.count[t] += odd[t]; c.count[t] > 0 {
				c.hist = append(c.hist, tokenCount{token: byte(t)})
			}
		}
	}
	s.own = uint64(len(syms)) * uint64(logOf(uint32(len(syms))))
	for i := at; i < len(c.hist); i++ {
		h := &c.hist[i]
		h.n, c.count[h.token] = c.count[h.token], 0
		s.own -= uint64(h.n) * uint64(logOf(h.n))
	}
}

// other gives the token of a residual that is no direct one, and keeps the bits that follow.
func (c *coder) other(u uint64) byte {
	t, extra, count := tokenOf(u)
	c.extras = append(c.extras, extra)
	c.long += int(count)
	return t
}

// runs replaces zeros in syms in place and leaves the new length in s.syms[1]. Extras of runs go between those of the other tokens.
func (c *coder) runs(s *stream, syms []byte) int {
	// Runs have extras, too, and extras must be in the order of the tokens: those there are so far are set
	// aside and merged in.
	c.old = append(c.old[:0], c.extras[s.extras:]...)
	old := c.old
	c.extras = c.extras[:s.extras]
	out, extraBits, next := 0, 0, 0
	for i := 0; i < len(syms); {
		t := syms[i]
		if t != 0 {
			if t >= directTokens {
				c.extras = append(c.extras, old[next])
				next++
			}
			syms[out] = t
			out++
			i++
			continue
		}
		run := i + 1
		for run < len(syms) && syms[run] == 0 {
			run++
		}
		zeros := run - i
		i = run
		for zeros >= minRun {
			class := min(bits.Len(uint(zeros))-1, maxRunClass)
			// A class covers 2^class to 2^(class+1)-1 zeros; more than the last class covers take several
			// tokens.
			take := min(zeros, 2<<class-1)
			zeros -= take
			syms[out] = byte(firstRun + class - 1)
			out++
			c.extras = append(c.extras, uint64(take-1<<class))
			extraBits += class
		}
		for range zeros {
			syms[out] = 0
			out++
		}
	}
	s.syms[1] = out
	return extraBits
}

// append writes stream i: a byte predictor | table<<3, the parameters, then the tokens
// with their bits, filled up to a byte.
func (c *coder) append(dst []byte, i int) []byte {
	s := &c.streams[i]
	if s.predictor == predictConst {
		return appendZigzag(append(dst, predictConst), s.p0)
	}
	dst = append(dst, s.predictor|s.table<<3)
	dst = appendZigzag(dst, s.p0)
	if s.predictor != predictBase {
		dst = appendZigzag(dst, s.p1)
	}
	k := &c.codes[s.table]
	extras := c.extras[s.extras:]
	w := bitWriter{dst: dst}
	for _, t := range c.syms[s.syms[0]:s.syms[1]] {
		w.put(uint64(k.value[t]), uint(k.bits[t]))
		if t < directTokens {
			continue
		}
		count := uint(tokenBits[t])
		x := extras[0]
		extras = extras[1:]
		// put takes at most 32 bits.
		if count > 32 {
			w.put(x&math.MaxUint32, 32)
			x >>= 32
			count -= 32
		}
		w.put(x, count)
	}
	w.flush()
	return w.dst
}

// integers fills out, which is not empty, from c. tables gives the decoding table of a number.
func (c *cursor) integers(out []int64, tables func(int) *table) {
	predictor, p0, p1, res := c.residuals(out, tables)
	// res is the end of out: every residual is replaced by its integer in place.
	switch predictor {
	case predictConst:
		for i := range out {
			out[i] = p0
		}
	case predictBase:
		for i, u := range res {
			res[i] = p0 + unzigzag(uint64(u))
		}
	case predictDelta:
		out[0] = p0
		for i, u := range res {
			p0 += p1 + unzigzag(uint64(u))
			res[i] = p0
		}
	case predictDelta2:
		out[0] = p0
		p0 += p1
		out[1] = p0
		for i, u := range res {
			p1 += unzigzag(uint64(u))
			p0 += p1
			res[i] = p0
		}
	}
}

// floats fills out, which is not empty, with integers from c divided by p; ints is scratch of the same length.
func (c *cursor) floats(out []float64, ints []int64, p float64, tables func(int) *table) {
	predictor, p0, p1, t := c.head(len(out), tables)
	res := ints[len(ints)-residuals(predictor, len(out)):]
	// Differences are the most frequent, so they are decoded and summed in one pass.
	if predictor == predictDelta {
		out[0] = float64(p0)
		c.skip(t, func(b []byte) int { return t.deltas(out[1:], b, p0, p1) })
	} else {
		c.skip(t, func(b []byte) int { return t.decode(res, b) })
	}
	switch predictor {
	case predictConst:
		x := float64(p0) / p
		for i := range out {
			out[i] = x
		}
		return
	case predictBase:
		for i, u := range res {
			out[i] = float64(p0 + unzigzag(uint64(u)))
		}
	case predictDelta2:
		out[0] = float64(p0)
		p0 += p1
		out[1] = float64(p0)
		rest := out[2:][:len(res)]
		for i, u := range res {
			p1 += unzigzag(uint64(u))
			p0 += p1
			rest[i] = float64(p0)
		}
	}
	if p != 1 {
		for i := range out {
			out[i] /= p
		}
	}
}

// head reads what stands before the residuals of n integers. The table is nil when there
// are none. After a failure the predictor is predictConst.
func (c *cursor) head(n int, tables func(int) *table) (predictor byte, p0, p1 int64, t *table) {
	head := c.byte()
	predictor = head & 7
	if predictor >= predictors || head>>7 != 0 || (predictor == predictConst && head != predictConst) {
		c.fail("integers: unknown mode 0x%02x", head)
		return predictConst, 0, 0, nil
	}
	if p0 = c.zigzag(); predictor == predictConst {
		return predictConst, p0, 0, nil
	}
	if predictor != predictBase {
		p1 = c.zigzag()
	}
	left := residuals(predictor, n)
	// A single value has no second difference.
	if left < 0 {
		c.fail("integers: %d values with predictor %d", n, predictor)
	}
	if left > 0 {
		if t = tables(int(head >> 3)); t == nil {
			c.fail("integers: no table %d", head>>3)
		}
	}
	if c.err != nil {
		return predictConst, 0, 0, nil
	}
	return predictor, p0, p1, t
}

// residuals are the integers up to their zigzagged residuals, which fill the end of out.
func (c *cursor) residuals(out []int64, tables func(int) *table) (predictor byte, p0, p1 int64, res []int64) {
	predictor, p0, p1, t := c.head(len(out), tables)
	res = out[len(out)-residuals(predictor, len(out)):]
	if c.skip(t, func(b []byte) int { return t.decode(res, b) }); c.err != nil {
		return predictConst, 0, 0, nil
	}
	return predictor, p0, p1, res
}

// skip goes past the bytes that decode uses, when there is a table at all.
func (c *cursor) skip(t *table, decode func([]byte) int) {
	if t == nil {
		return
	}
	used := decode(c.b[c.pos:])
	if used < 0 {
		c.fail("integers: residuals end early or run over")
		return
	}
	c.pos += used
}

// deltas fills out with the integers that follow last, as floats, and returns the number of
// bytes used, or -1.
func (t *table) deltas(out []float64, b []byte, last, drift int64) int {
	t.expect(len(out))
	r := bitReader{b: b}
	for i := 0; i < len(out); {
		if r.n < maxCodeBits {
			r.fill()
		}
		e := uint32(0)
		if t.wide {
			e = t.many[r.acc&(1<<maxCodeBits-1)]
		}
		// Four values are always written, of which the first n are valid. The next round overwrites the
		// others, which is cheaper than a branch for each.
		if n := int(e >> 4 & 15); n > 0 && i+maxMany <= len(out) {
			l := uint(e & 15)
			r.acc >>= l
			r.n -= l
			o := out[i : i+maxMany : i+maxMany]
			x := last + drift + unzigzag(uint64(e>>8&15))
			o[0] = float64(x)
			x += drift + unzigzag(uint64(e>>12&15))
			o[1] = float64(x)
			x += drift + unzigzag(uint64(e>>16&15))
			o[2] = float64(x)
			x += drift + unzigzag(uint64(e>>20&15))
			o[3] = float64(x)
			last += int64(n)*drift + int64(int32(e)>>24)
			i += n
			continue
		}
		// Either a token that is not direct, or so near the end that four values have no room.
		one := t.one[r.acc&(1<<maxCodeBits-1)]
		l := uint(one & 15)
		r.acc >>= l
		r.n -= l
		tok := one >> 4
		v := tokenBase[tok] + r.take(uint(tokenBits[tok]))
		if tok < firstRun {
			last += drift + unzigzag(v)
			out[i] = float64(last)
			i++
			continue
		}
		// A bad block may have a run that is longer than the rows that are left.
		if v > uint64(len(out)-i) {
			return -1
		}
		for k := range out[i : i+int(v)] {
			last += drift
			out[i+k] = float64(last)
		}
		i += int(v)
	}
	return r.end()
}

// decode fills out with zigzagged residuals and returns the number of bytes used, or -1.
func (t *table) decode(out []int64, b []byte) int {
	t.expect(len(out))
	r := bitReader{b: b}
	i := 0
	for t.wide && i+maxMany <= len(out) {
		if r.n < maxCodeBits {
			r.fill()
		}
		e := t.many[r.acc&(1<<maxCodeBits-1)]
		l := uint(e & 15)
		r.acc >>= l
		r.n -= l
		if n := int(e >> 4 & 15); n > 0 {
			o := out[i : i+maxMany : i+maxMany]
			o[0] = int64(e >> 8 & 15)
			o[1] = int64(e >> 12 & 15)
			o[2] = int64(e >> 16 & 15)
			o[3] = int64(e >> 20 & 15)
			i += n
			continue
		}
		if i = r.other(e>>8, out, i); i < 0 {
			return -1
		}
	}
	for i < len(out) {
		if r.n < maxCodeBits {
			r.fill()
		}
		e := t.one[r.acc&(1<<maxCodeBits-1)]
		l := uint(e & 15)
		r.acc >>= l
		r.n -= l
		if e < directTokens<<4 {
			out[i] = int64(e >> 4)
			i++
			continue
		}
		if i = r.other(uint32(e>>4), out, i); i < 0 {
			return -1
		}
	}
	return r.end()
}

// other reads what follows a token that is not direct, and puts its residuals at out[i:].
// It returns the next i, or -1 when there is no room.
func (r *bitReader) other(tok uint32, out []int64, i int) int {
	v := tokenBase[tok] + r.take(uint(tokenBits[tok]))
	if tok < firstRun {
		out[i] = int64(v)
		return i + 1
	}
	if v > uint64(len(out)-i) {
		return -1
	}
	clear(out[i : i+int(v)])
	return i + int(v)
}
