package chunk

import (
	"math"
	"math/bits"
)

// Tokens of residuals. A residual is zigzagged to u: u below 16 is token u; others have
// the token of their bit length and the bit below the highest, and their other bits
// follow. A run token stands for many zeros.
const (
	directTokens = 16
	firstRun     = directTokens + 2*(64-4) // 136
	maxRunClass  = 15
	tokens       = firstRun + maxRunClass // 151

	maxCodeBits = 10
	maxTables   = 15
)

// tokenOf gives the token of u, and the bits that follow it.
func tokenOf(u uint64) (token byte, extra uint64, count uint) {
	if u < directTokens {
		return byte(u), 0, 0
	}
	n := uint(bits.Len64(u))
	return byte(directTokens + 2*(n-5) + uint(u>>(n-2)&1)), u & (1<<(n-2) - 1), n - 2
}

// tokenBase and tokenBits are what a token adds its following bits to, and their number.
var tokenBase, tokenBits = func() (base [tokens]uint64, count [tokens]uint8) {
	for t := range tokens {
		switch {
		case t < directTokens:
			base[t] = uint64(t)
		case t < firstRun:
			n := 5 + (t-directTokens)/2
			base[t] = uint64(2+(t-directTokens)%2) << (n - 2)
			count[t] = uint8(n - 2)
		default: // number of zeros
			base[t] = 1 << (t - firstRun + 1)
			count[t] = uint8(t - firstRun + 1)
		}
	}
	return base, count
}()

// code is a canonical Huffman code of tokens. With one token it takes no bits.
type code struct {
	bits  [tokens]uint8  // length; 0 when the token has none
	value [tokens]uint16 // lowest bit first
	used  int
	only  int // the token, when used is 1
}

// build makes the code from how often each token stands. Lengths are at most maxCodeBits.
func (c *code) build(counts *[tokens]uint32) {
	*c = code{}
	var order [tokens]int16
	n := sortByCount(counts, &order)
	c.used = n
	if n == 1 {
		c.only = int(order[0])
	}
	if n < 2 {
		return
	}
	perLength := codeLengths(counts, order[:n])
	perLength.complete()
	// order ascends by count, so the longest codes are those of the rarest tokens.
	i := 0
	for l := maxCodeBits; l > 0; l-- {
		for range perLength[l] {
			c.bits[order[i]] = uint8(l)
			i++
		}
	}
	c.assign()
}

// sortByCount fills order with the tokens that stand at all, by count, then by number.
func sortByCount(counts *[tokens]uint32, order *[tokens]int16) (n int) {
	for t, k := range counts {
		if k == 0 {
			continue
		}
		i := n
		for i > 0 && counts[order[i-1]] > k {
			order[i] = order[i-1]
			i--
		}
		order[i] = int16(t)
		n++
	}
	return n
}

// lengthCounts is how many tokens have codes of a length.
type lengthCounts [maxCodeBits + 1]int

// codeLengths builds Huffman's tree of at least two tokens from two queues: leaves by count,
// and inner nodes in the order of their making. Longer codes count as maxCodeBits.
func codeLengths(counts *[tokens]uint32, order []int16) (perLength lengthCounts) {
	n := len(order)
	var weight [2 * tokens]uint64
	var parent [2 * tokens]int16
	for i, t := range order {
		weight[i] = uint64(counts[t])
	}
	leaf, inner := 0, n
	for next := n; next < 2*n-1; next++ {
		for range 2 {
			pick := leaf
			if leaf >= n || (inner < next && weight[inner] < weight[leaf]) {
				pick = inner
				inner++
			} else {
				leaf++
			}
			weight[next] += weight[pick]
			parent[pick] = int16(next)
		}
	}
	var depth [2 * tokens]uint8
	// A node has a lower number than its parent, so depths follow from the root downwards.
	for i := 2*n - 3; i >= 0; i-- {
		depth[i] = depth[parent[i]] + 1
		if i < n {
			perLength[min(depth[i], maxCodeBits)]++
		}
	}
	return perLength
}

// complete changes lengths, of which too long ones were cut, to those of a code that uses
// every prefix once: the sum of 2^-length is 1.
func (p *lengthCounts) complete() {
	sum := 0
	for l, k := range p {
		if l > 0 {
			sum += k << (maxCodeBits - l)
		}
	}
	// Lengthen the longest codes that are shorter than the limit until the sum fits.
	for sum > 1<<maxCodeBits {
		l := maxCodeBits - 1
		for p[l] == 0 {
			l--
		}
		p[l]--
		p[l+1]++
		sum -= 1 << (maxCodeBits - l - 1)
	}
	// That may have freed too much: shorten the longest.
	for l := maxCodeBits; sum < 1<<maxCodeBits; {
		if p[l] == 0 || sum+1<<(maxCodeBits-l) > 1<<maxCodeBits {
			l--
			continue
		}
		p[l]--
		p[l-1]++
		sum += 1 << (maxCodeBits - l)
	}
}

// assign gives each token with a length its value: canonical, in order of length and
// token, bits reversed. It reports whether the lengths make a code: no prefix
// is left unused, none used twice.
func (c *code) assign() bool {
	var perLength [maxCodeBits + 1]int
	for _, l := range c.bits {
		perLength[l]++
	}
	var next [maxCodeBits + 2]int
	for l := 1; l <= maxCodeBits; l++ {
		next[l+1] = (next[l] + perLength[l]) << 1
	}
	// This is the sum of 2^-length, scaled: it is 1 exactly when every prefix is used once.
	if next[maxCodeBits+1] != 2<<maxCodeBits {
		return false
	}
	for t, l := range c.bits {
		if l > 0 {
			c.value[t] = bits.Reverse16(uint16(next[l])) >> (16 - l)
			next[l]++
		}
	}
	return true
}

// append writes the lengths: the number of tokens, then a byte each: how many tokens were
// left out before it (15: 15 or more, less 15 in a further byte), times 16, plus the length.
func (c *code) append(dst []byte) []byte {
	dst = append(dst, byte(c.used))
	last := -1
	for t := range c.bits {
		if c.bits[t] == 0 && (c.used != 1 || t != c.only) {
			continue
		}
		gap := t - last - 1
		dst = append(dst, byte(min(gap, 15))<<4|c.bits[t])
		if gap >= 15 {
			dst = append(dst, byte(gap-15))
		}
		last = t
	}
	return dst
}

// read is the inverse of append.
func (c *code) read(r *cursor) {
	*c = code{used: int(r.byte())}
	if c.used == 0 || c.used > tokens {
		r.fail("a code of %d tokens", c.used)
		return
	}
	t := -1
	for range c.used {
		b := r.byte()
		gap := int(b >> 4)
		if gap == 15 {
			gap += int(r.byte())
		}
		t += gap + 1
		if r.err != nil {
			return
		}
		if t >= tokens || b&15 > maxCodeBits || (b&15 == 0) != (c.used == 1) {
			r.fail("a code with length %d of token %d", b&15, t)
			return
		}
		c.bits[t] = b & 15
		c.only = t
	}
	if c.used > 1 && !c.assign() {
		r.fail("lengths of a code that is not complete")
	}
}

// table decodes: both are indexed by the next maxCodeBits bits.
type table struct {
	one  [1 << maxCodeBits]uint16 // token<<4 | length
	many [1 << maxCodeBits]uint32
	// wide: many is filled. That takes as long as reading some hundred integers one by one, so it waits until so
	// many were read.
	wide bool
	read int
}

// manyAfter is how many integers are read with a table before many is filled.
const manyAfter = 512

// expect is called before integers are read.
func (t *table) expect(n int) {
	if t.read += n; !t.wide && t.read >= manyAfter {
		t.widen()
	}
}

// An entry of many has its length in bits 0 to 3, its number of direct tokens in bits 4 to
// 7, these in bits 8 to 23, 4 bits each, and the sum of their residuals, signed, in bits 24
// to 31. With number 0 it is a single other token.
const maxMany = 4

func (t *table) build(c *code) {
	if c.used == 1 {
		for i := range t.one {
			t.one[i] = uint16(c.only) << 4
		}
	} else {
		for tok, l := range c.bits {
			if l == 0 {
				continue
			}
			e := uint16(tok)<<4 | uint16(l)
			// The code is in the low bits of the index, so its entry repeats for every value of the bits
			// above.
			for i := int(c.value[tok]); i < len(t.one); i += 1 << l {
				t.one[i] = e
			}
		}
	}
	t.wide, t.read = false, 0
}

// widen fills many.
func (t *table) widen() {
	t.wide = true
	for i := range t.many {
		e := t.one[i]
		length := uint32(e & 15)
		if e >= directTokens<<4 {
			t.many[i] = uint32(e>>4)<<8 | length
			continue
		}
		toks, n := uint32(e>>4)<<8, uint32(1)
		sum := unzigzag(uint64(e >> 4))
		for n < maxMany {
			next := t.one[i>>length]
			l := length + uint32(next&15)
			// The index ends within a code that reaches beyond maxCodeBits, so that one is read in the
			// next step.
			if next >= directTokens<<4 || l > maxCodeBits {
				break
			}
			toks |= uint32(next>>4) << (8 + 4*n)
			sum += unzigzag(uint64(next >> 4))
			length = l
			n++
		}
		t.many[i] = uint32(sum)<<24 | toks | n<<4 | length
	}
}

// group gives every stream a table of tokens and builds the codes: first each stream in turn
// takes the table that is cheapest so far, or a new one; then, with the codes of all tables
// known, each takes the cheapest again.
func (c *coder) group() {
	tables := c.collectTables()
	c.codes = c.codes[:0]
	for t := range tables {
		c.codes = append(c.codes, code{})
		c.codes[t].build(&c.totals[t])
		// Counted again below, as streams may move to another table.
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
			if k := c.codes[t].cost(hist); k < cost {
				best, cost = t, k
			}
		}
		c.take(s, best)
	}
	c.compact(tables)
}

// take adds a stream's tokens to a table.
func (c *coder) take(s *stream, table int) {
	s.table = uint8(table)
	for _, h := range c.hist[s.hist[0]:s.hist[1]] {
		c.totals[table][h.token] += h.n
	}
}

// cost is the bits of the tokens in this code, the greatest number when it lacks one.
func (c *code) cost(hist []tokenCount) uint64 {
	sum := uint64(0)
	for _, h := range hist {
		l := c.bits[h.token]
		if l == 0 && (c.used != 1 || c.only != int(h.token)) {
			return math.MaxUint64
		}
		sum += uint64(h.n) * uint64(l)
	}
	return sum
}

// collectTables puts every stream into a table and returns how many there are.
func (c *coder) collectTables() (tables int) {
	var costs tokenCosts
	for i := range c.streams {
		s := &c.streams[i]
		hist := c.hist[s.hist[0]:s.hist[1]]
		if len(hist) == 0 {
			continue
		}
		// A table of its own costs Shannon's bound and a code of about a byte a token.
		limit := s.own + uint64(8*len(hist))<<logBits
		if tables == maxTables {
			limit = math.MaxUint64
		}
		best, sum := costs.cheapest(hist, tables, limit)
		if best < 0 {
			best = tables
			clear(c.totals[best][:])
			tables++
		}
		c.take(s, best)
		costs.update(best, sum, &c.totals[best])
	}
	return tables
}

// tokenCosts are estimates of what a token costs in each table, in logUnits, side by side.
type tokenCosts struct {
	costs [tokens][maxTables + 1]uint32
	sums  [maxTables]uint32 // of tokens in the table
	next  [maxTables]uint32 // the sum at which the costs are estimated again
}

// cheapest gives the table where the tokens cost least, -1 when none is under the limit, and
// the number of tokens.
func (k *tokenCosts) cheapest(hist []tokenCount, tables int, limit uint64) (best int, sum uint32) {
	var all [maxTables + 1]uint64
	for _, h := range hist {
		sum += h.n
		row := &k.costs[h.token]
		for t := range tables {
			all[t] += uint64(h.n) * uint64(row[t])
		}
	}
	best = -1
	for t, cost := range all[:tables] {
		if cost < limit {
			best, limit = t, cost
		}
	}
	return best, sum
}

// update counts n further tokens of a table. Costs follow when it has grown by half.
func (k *tokenCosts) update(t int, n uint32, totals *[tokens]uint32) {
	if k.sums[t] += n; k.sums[t] < k.next[t] {
		return
	}
	k.next[t] = k.sums[t] + k.sums[t]/2
	sum := logOf(k.sums[t] + 1)
	rare := sum + 2*logUnit
	for tok, n := range totals {
		if n == 0 {
			k.costs[tok][t] = rare
		} else {
			k.costs[tok][t] = sum - logOf(n)
		}
	}
}

// compact drops tables that nothing uses and builds the others from what they have now.
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

// Costs count in 1/1024 of a bit: whole numbers are the same on every machine.
const (
	logBits = 10
	logUnit = 1 << logBits
	logs    = 1 << 12
)

var logTable = func() (t [logs]uint32) {
	for i := 1; i < logs; i++ {
		t[i] = uint32(math.Round(math.Log2(float64(i)) * logUnit))
	}
	return t
}()

// logOf is about log2(n) in logUnits; n is not 0.
func logOf(n uint32) uint32 {
	if n < logs {
		return logTable[n]
	}
	shift := bits.Len32(n) - bits.Len32(logs-1)
	return logTable[n>>shift] + uint32(shift)<<logBits
}
