package chunk

import (
	"encoding/binary"
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
	predictor  uint8
	table      uint8
	p0, p1     int64
	syms       [2]int // range of coder.syms
	extras     int    // start in coder.extras
	residual   int
	hist       [2]int // range of coder.hist
	extraTotal int    // bits
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
	count   [tokens]uint32
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

// predict picks the predictor whose residuals have the fewest bits in all, and its parameters.
func predict(v []int64) (predictor uint8, p0, p1 int64) {
	n := len(v)
	first := v[0]
	if n == 1 {
		return predictConst, first, 0
	}
	lo, hi := first, first
	for _, x := range v[1:] {
		lo, hi = min(lo, x), max(hi, x)
	}
	if lo == hi {
		return predictConst, first, 0
	}
	base := lo + int64(uint64(hi-lo)/2)
	drift := (v[n-1] - first) / int64(n-1)
	// A third of the residuals tell which is best.
	var b0, b1, b2 int
	step := 3
	if n < 96 {
		step = 1
	}
	for i := 2; i < n; i += step {
		x, y, z := v[i], v[i-1], v[i-2]
		d := x - y
		b0 += bits.Len64(zigzag(x - base))
		b1 += bits.Len64(zigzag(d - drift))
		b2 += bits.Len64(zigzag(d - y + z))
	}
	switch {
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
	if cap(c.syms)-start < n {
		c.syms = append(make([]byte, 0, 2*cap(c.syms)+n), c.syms...)
	}
	syms := c.syms[start : start+n]
	var extraBits int
	put := func(i int, u uint64) {
		if u < directTokens {
			syms[i] = byte(u)
			return
		}
		t, extra, count := tokenOf(u)
		syms[i] = t
		c.extras = append(c.extras, extra)
		extraBits += int(count)
	}
	switch s.predictor {
	case predictBase:
		for i, x := range v {
			put(i, zigzag(x-s.p0))
		}
	case predictDelta:
		last := s.p0
		for i, x := range v[1:] {
			put(i, zigzag(x-last-s.p1))
			last = x
		}
	case predictDelta2:
		last, delta := v[1], s.p1
		for i, x := range v[2:] {
			put(i, zigzag(x-last-delta))
			delta = x - last
			last = x
		}
	}
	clear(c.count[:])
	for _, t := range syms {
		c.count[t]++
	}
	if int(c.count[0]) > n/2 {
		extraBits += c.runs(s, syms)
		syms = syms[:s.syms[1]]
	}
	c.syms = c.syms[:start+len(syms)]
	s.extraTotal = extraBits
	// Shannon's bound, by the token.
	cost := float64(extraBits)
	total := math.Log2(float64(len(syms)))
	for t, k := range c.count {
		if k > 0 {
			cost += float64(k) * (total - math.Log2(float64(k)))
			c.hist = append(c.hist, tokenCount{byte(t), k})
		}
	}
	return int(cost)
}

// runs replaces zeros in syms in place, keeps c.count, and leaves the new length in
// s.syms[1]. Extras of runs go between those of the other tokens.
func (c *coder) runs(s *stream, syms []byte) int {
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
			take := min(zeros, 2<<class-1)
			c.count[0] -= uint32(take)
			zeros -= take
			syms[out] = byte(firstRun + class - 1)
			c.count[syms[out]]++
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

// group gives every stream a table and builds the codes.
func (c *coder) group() {
	tables := 0
	var costs [maxTables][tokens]float32
	var sums, next [maxTables]float32 // of tokens; and when to look at the costs again
	recost := func(t int, n float32) {
		if sums[t] += n; sums[t] < next[t] {
			return
		}
		next[t] = sums[t] * 1.5
		sum := float64(sums[t])
		rare := float32(math.Log2(sum+1) + 2)
		for tok, k := range c.totals[t] {
			costs[t][tok] = rare
			if k > 0 {
				costs[t][tok] = min(rare, float32(math.Log2((sum+1)/float64(k))))
			}
		}
	}
	for i := range c.streams {
		s := &c.streams[i]
		hist := c.hist[s.hist[0]:s.hist[1]]
		if len(hist) == 0 {
			continue
		}
		var own, sum float32
		for _, h := range hist {
			sum += float32(h.n)
		}
		for _, h := range hist {
			own += float32(h.n)*float32(math.Log2(float64(sum/float32(h.n)))) + 8
		}
		best, cost := -1, own
		if tables == maxTables {
			cost = math.MaxFloat32
		}
		for t := range tables {
			var k float32
			for _, h := range hist {
				k += float32(h.n) * costs[t][h.token]
			}
			if k < cost {
				best, cost = t, k
			}
		}
		if best < 0 {
			best = tables
			clear(c.totals[best][:])
			tables++
		}
		s.table = uint8(best)
		for _, h := range hist {
			c.totals[best][h.token] += h.n
		}
		recost(best, sum)
	}
	// Once more, now that every table has been seen.
	c.codes = c.codes[:0]
	for t := range tables {
		c.codes = append(c.codes, code{})
		c.codes[t].build(&c.totals[t])
		clear(c.totals[t][:])
	}
	for i := range c.streams {
		s := &c.streams[i]
		hist := c.hist[s.hist[0]:s.hist[1]]
		if len(hist) == 0 {
			continue
		}
		best, cost := int(s.table), uint64(math.MaxUint64)
		for t := range tables {
			k := uint64(0)
			for _, h := range hist {
				l := c.codes[t].bits[h.token]
				if l == 0 && (c.codes[t].used != 1 || c.codes[t].only != int(h.token)) {
					k = math.MaxUint64
					break
				}
				k += uint64(h.n) * uint64(l)
			}
			if k < cost {
				best, cost = t, k
			}
		}
		s.table = uint8(best)
		for _, h := range hist {
			c.totals[best][h.token] += h.n
		}
	}
	c.compact(tables)
}

// compact drops tables that nothing uses and builds the others anew.
func (c *coder) compact(tables int) {
	var to [maxTables]uint8
	c.codes = c.codes[:0]
	for t := range tables {
		to[t] = uint8(len(c.codes))
		var k code
		if k.build(&c.totals[t]); k.used > 0 {
			c.codes = append(c.codes, k)
		}
	}
	for i := range c.streams {
		c.streams[i].table = to[c.streams[i].table]
	}
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
	head := c.byte()
	predictor := head & 7
	if predictor >= predictors || head>>7 != 0 || (predictor == predictConst && head != predictConst) {
		c.fail("integers: unknown mode 0x%02x", head)
		return
	}
	p0 := c.zigzag()
	if predictor == predictConst {
		for i := range out {
			out[i] = p0
		}
		return
	}
	var p1 int64
	if predictor != predictBase {
		p1 = c.zigzag()
	}
	n := residuals(predictor, len(out))
	if c.err != nil {
		return
	}
	if n < 0 {
		c.fail("integers: %d values with predictor %d", len(out), predictor)
		return
	}
	res := out[len(out)-n:]
	if n > 0 {
		t := tables(int(head >> 3))
		if t == nil {
			c.fail("integers: no table %d", head>>3)
			return
		}
		used := t.decode(res, c.b[c.pos:])
		if used < 0 {
			c.fail("integers: residuals end early or run over")
			return
		}
		c.pos += used
	}
	switch predictor {
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

// decode fills out with zigzagged residuals and returns the number of bytes used, or -1.
func (t *table) decode(out []int64, b []byte) int {
	if len(out) == 0 {
		return 0
	}
	r := bitReader{b: b}
	for i := 0; i < len(out); {
		if r.n < maxCodeBits {
			r.fill()
		}
		e := t.entry[r.acc&(1<<maxCodeBits-1)]
		l := uint(e & 15)
		r.acc >>= l
		r.n -= l
		tok := e >> 4
		if tok < directTokens {
			out[i] = int64(tok)
			i++
			continue
		}
		v := tokenBase[tok] + r.take(uint(tokenBits[tok]))
		if tok < firstRun {
			out[i] = int64(v)
			i++
			continue
		}
		if v > uint64(len(out)-i) {
			return -1
		}
		clear(out[i : i+int(v)])
		i += int(v)
	}
	return r.end()
}

// floats fills out, which is not empty, with integers from c divided by p; ints is scratch of the same length.
func (c *cursor) floats(out []float64, ints []int64, p float64, tables func(int) *table) {
	if c.pos < len(c.b) && c.b[c.pos] == predictConst {
		c.pos++
		x := float64(c.zigzag()) / p
		for i := range out {
			out[i] = x
		}
		return
	}
	c.integers(ints, tables)
	if p == 1 {
		for i, x := range ints {
			out[i] = float64(x)
		}
		return
	}
	for i, x := range ints {
		out[i] = float64(x) / p
	}
}

func appendFloat(dst []byte, x float64) []byte {
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(x))
}
