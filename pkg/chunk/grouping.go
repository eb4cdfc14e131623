package chunk

import "math"

// group gives every stream a table and builds the codes.
func (c *coder) group() {
	tables := 0
	// Costs of a token by table, side by side.
	var costs [tokens][maxTables + 1]uint32
	var sums, next [maxTables]uint32 // of tokens; and when to look at the costs again
	recost := func(t int, n uint32) {
		if sums[t] += n; sums[t] < next[t] {
			return
		}
		next[t] = sums[t] + sums[t]/2
		sum := logOf(sums[t] + 1)
		rare := sum + 2*logUnit
		for tok, k := range c.totals[t] {
			if k == 0 {
				costs[tok][t] = rare
			} else {
				costs[tok][t] = sum - logOf(k)
			}
		}
	}
	for i := range c.streams {
		s := &c.streams[i]
		hist := c.hist[s.hist[0]:s.hist[1]]
		if len(hist) == 0 {
			continue
		}
		sum := uint32(0)
		var all [maxTables + 1]uint64
		for _, h := range hist {
			sum += h.n
			row := &costs[h.token]
			for t := range tables {
				all[t] += uint64(h.n) * uint64(row[t])
			}
		}
		best, cost := -1, s.own+uint64(8*len(hist))<<logBits
		if tables == maxTables {
			cost = math.MaxUint64
		}
		for t, k := range all[:tables] {
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
