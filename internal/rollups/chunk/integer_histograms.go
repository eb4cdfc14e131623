package chunk

import (
	"encoding/binary"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// A column of histograms: segments of rows with one layout (schema, zero threshold, spans,
// bounds), and in each one float column for the count, the sum, the zero count and every bucket.

// writeHistograms writes a column.
func (e *integerEncoder) writeHistograms(v []series.Histogram) {
	segments := 1
	for i := range v[1:] {
		if !sameLayout(&v[i], &v[i+1]) {
			segments++
		}
	}
	e.literals = binary.AppendUvarint(e.literals, uint64(segments))
	column := make([]float64, len(v))
	for len(v) > 0 {
		n := 1
		for n < len(v) && sameLayout(&v[0], &v[n]) {
			n++
		}
		rows := v[:n]
		v = v[n:]
		e.writeLayout(&rows[0], n)
		column = column[:n]
		write := func(get func(h *series.Histogram) float64) {
			for i := range rows {
				column[i] = get(&rows[i])
			}
			e.writeFloats(column, -1, 0)
		}
		write(func(h *series.Histogram) float64 { return h.Count })
		write(func(h *series.Histogram) float64 { return h.Sum })
		write(func(h *series.Histogram) float64 { return h.ZeroCount })
		for b := range rows[0].PositiveBuckets {
			write(func(h *series.Histogram) float64 { return h.PositiveBuckets[b] })
		}
		for b := range rows[0].NegativeBuckets {
			write(func(h *series.Histogram) float64 { return h.NegativeBuckets[b] })
		}
	}
}

func sameLayout(a, b *series.Histogram) bool {
	return a.Schema == b.Schema && math.Float64bits(a.ZeroThreshold) == math.Float64bits(b.ZeroThreshold) &&
		len(a.PositiveBuckets) == len(b.PositiveBuckets) && len(a.NegativeBuckets) == len(b.NegativeBuckets) &&
		slices.Equal(a.PositiveSpans, b.PositiveSpans) && slices.Equal(a.NegativeSpans, b.NegativeSpans) && sameBits(a.CustomValues, b.CustomValues)
}

func (e *integerEncoder) writeLayout(h *series.Histogram, rows int) {
	b := binary.AppendUvarint(e.literals, uint64(rows))
	b = appendZigzag(b, int64(h.Schema))
	b = appendFloat(b, h.ZeroThreshold)
	for _, spans := range [...][]int32{h.PositiveSpans, h.NegativeSpans} {
		b = binary.AppendUvarint(b, uint64(len(spans)))
		for _, x := range spans {
			b = appendZigzag(b, int64(x))
		}
	}
	b = binary.AppendUvarint(b, uint64(len(h.CustomValues)))
	for _, x := range h.CustomValues {
		b = appendFloat(b, x)
	}
	e.literals = b
}

// histArena is memory that a decoded column lends to its rows.
type histArena struct {
	floats []float64
	spans  []int32
}

// readHistograms fills out; the arena's memory stays with the rows. limit bounds buckets and bounds in all.
func (d *integerDecoder) readHistograms(c *cursor, out []series.Histogram, a *histArena, limit int) {
	segments := c.count("segments", 1, len(out))
	for len(out) > 0 && segments > 0 {
		segments--
		n := c.uvarint()
		if c.err != nil || n == 0 || n > uint64(len(out)) || (segments == 0 && n != uint64(len(out))) {
			c.fail("histograms: segment of %d rows, %d left", n, len(out))
			return
		}
		limit = d.readSegment(c, out[:n], a, limit)
		if c.err != nil {
			return
		}
		out = out[n:]
	}
	if len(out) > 0 || segments > 0 {
		c.fail("histograms: %d rows without a segment, %d segments without rows", len(out), segments)
	}
}

func (d *integerDecoder) readSegment(c *cursor, rows []series.Histogram, a *histArena, limit int) int {
	schema := c.zigzag()
	var h series.Histogram
	h.ZeroThreshold = math.Float64frombits(c.u64())
	if h.Schema = int32(schema); schema != int64(h.Schema) {
		c.fail("histograms: schema %d", schema)
		return 0
	}
	var buckets [2]int
	for k, spans := range [...]*[]int32{&h.PositiveSpans, &h.NegativeSpans} {
		*spans, buckets[k] = a.readSpans(c)
	}
	custom := c.count("bounds", 8, limit)
	if c.err != nil {
		return 0
	}
	h.CustomValues = take(&a.floats, custom)
	for i := range h.CustomValues {
		h.CustomValues[i] = math.Float64frombits(c.u64())
	}
	// Every bucket has a column of at least 2 bytes.
	perRow := buckets[0] + buckets[1]
	if limit -= custom; perRow > c.left()/2 || perRow > limit/len(rows) {
		c.fail("histograms: %d rows of %d buckets, limit %d", len(rows), perRow, limit)
		return 0
	}
	limit -= perRow * len(rows)
	for i := range rows {
		// The rows of a segment share spans and bounds; only the buckets are their own.
		rows[i] = h
		rows[i].PositiveBuckets = take(&a.floats, buckets[0])
		rows[i].NegativeBuckets = take(&a.floats, buckets[1])
	}
	if cap(d.column) < len(rows) {
		d.column = make([]float64, len(rows))
	}
	column := d.column[:len(rows)]
	read := func(set func(h *series.Histogram, x float64)) {
		d.readFloats(c, column, -1, 0, 0)
		if c.err != nil {
			return
		}
		for i := range rows {
			set(&rows[i], column[i])
		}
	}
	read(func(h *series.Histogram, x float64) { h.Count = x })
	read(func(h *series.Histogram, x float64) { h.Sum = x })
	read(func(h *series.Histogram, x float64) { h.ZeroCount = x })
	for k := range buckets[0] {
		read(func(h *series.Histogram, x float64) { h.PositiveBuckets[k] = x })
	}
	for k := range buckets[1] {
		read(func(h *series.Histogram, x float64) { h.NegativeBuckets[k] = x })
	}
	return limit
}

// readSpans gives spans and the number of buckets in them.
func (a *histArena) readSpans(c *cursor) ([]int32, int) {
	n := c.count("span entries", 1, 1<<16)
	if n%2 != 0 {
		c.fail("histograms: span without a length")
	}
	if c.err != nil {
		return nil, 0
	}
	spans := takeSpans(&a.spans, n)
	total := int64(0)
	for i := range spans {
		x := c.zigzag()
		// Only the first offset may be negative: it is the index of the first bucket, later ones are gaps.
		if x != int64(int32(x)) || (i%2 == 1 && x < 0) || (i > 0 && x < 0) {
			c.fail("histograms: span entry %d", x)
			return nil, 0
		}
		if spans[i] = int32(x); i%2 == 1 {
			total += x
		}
	}
	// The caller refuses a number that is too large; here it only must not overflow.
	return spans, int(min(total, math.MaxInt32))
}

// take lends n entries; nil for none.
func take(arena *[]float64, n int) []float64 {
	if n == 0 {
		return nil
	}
	a := *arena
	if cap(a)-len(a) < n {
		// The full piece stays with the rows that use it.
		a = make([]float64, 0, max(n, min(2*cap(a), 1<<16)))
	}
	*arena = a[:len(a)+n]
	return a[len(a) : len(a)+n : len(a)+n]
}

func takeSpans(arena *[]int32, n int) []int32 {
	if n == 0 {
		return nil
	}
	a := *arena
	if cap(a)-len(a) < n {
		a = make([]int32, 0, max(n, min(2*cap(a), 1<<12)))
	}
	*arena = a[:len(a)+n]
	return a[len(a) : len(a)+n : len(a)+n]
}
