package chunk

// integers fills out, which is not empty, from c. tables gives the decoding table of a number.
func (c *cursor) integers(out []int64, tables func(int) *table) {
	predictor, p0, p1, res := c.residuals(out, tables)
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
	r := bitReader{b: b}
	for i := 0; i < len(out); {
		if r.n < maxCodeBits {
			r.fill()
		}
		e := t.many[r.acc&(1<<maxCodeBits-1)]
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
	r := bitReader{b: b}
	i := 0
	for i+maxMany <= len(out) {
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
