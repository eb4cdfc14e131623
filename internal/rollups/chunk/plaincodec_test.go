package chunk

import (
	"encoding/binary"
	"math"
	"math/bits"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// plainCodec is a second codec, for tests only: every column is its length and its values as
// varints. It shows what a codec needs (docs/contributing.md), and that blocks of two codecs
// can stand in one chunk.
type plainCodec struct{}

// plain is an encoding that no program of ours writes.
const plain Encoding = 250

// testCodecs are those of the program and plainCodec.
func testCodecs(e Encoding) codec {
	if e == plain {
		return plainCodec{}
	}
	return codecOf(e)
}

func (plainCodec) encoding() Encoding        { return plain }
func (plainCodec) newEncoder() columnEncoder { return &plainEncoder{} }
func (plainCodec) newDecoder() columnDecoder { return &plainDecoder{} }

type plainEncoder struct{ payload, column []byte }

func (e *plainEncoder) reset() { e.payload = e.payload[:0] }

func (e *plainEncoder) appendPayload(dst []byte) []byte { return append(dst, e.payload...) }

func (e *plainEncoder) endColumn() {
	e.payload = binary.AppendUvarint(e.payload, uint64(len(e.column)))
	e.payload = append(e.payload, e.column...)
	e.column = e.column[:0]
}

func (e *plainEncoder) addTimes(c *Columns) {
	for _, v := range [...][]int64{c.T, c.FirstT, c.LastT} {
		if v != nil {
			e.integers(v)
			e.endColumn()
		}
	}
}

func (e *plainEncoder) integers(v []int64) {
	last := int64(0)
	for _, x := range v {
		e.column = appendZigzag(e.column, x-last)
		last = x
	}
}

func (e *plainEncoder) floats(v ...float64) {
	for _, x := range v { // the low bits of most floats are zeros
		e.column = binary.AppendUvarint(e.column, bits.Reverse64(math.Float64bits(x)))
	}
}

func (e *plainEncoder) addValues(c *Columns, _ int) {
	for col := range columns {
		bit := Mask(1) << col
		switch {
		case c.mask()&bit == 0:
			continue
		case bit&histColumns != 0:
			for _, h := range *c.hist(bit) {
				e.histogram(&h)
			}
		case bit&countColumns != 0:
			for _, n := range *c.count(bit) {
				e.column = binary.AppendUvarint(e.column, uint64(n))
			}
		case bit == ColStart:
			e.integers(c.Start)
		default:
			e.floats(*c.float(bit)...)
		}
		e.endColumn()
	}
}

func (e *plainEncoder) histogram(h *series.Histogram) {
	e.column = appendZigzag(e.column, int64(h.Schema))
	e.floats(h.ZeroThreshold, h.ZeroCount, h.Count, h.Sum)
	for _, spans := range [...][]int32{h.PositiveSpans, h.NegativeSpans} {
		e.column = binary.AppendUvarint(e.column, uint64(len(spans)))
		for _, x := range spans {
			e.column = appendZigzag(e.column, int64(x))
		}
	}
	for _, v := range [...][]float64{h.PositiveBuckets, h.NegativeBuckets, h.CustomValues} {
		e.column = binary.AppendUvarint(e.column, uint64(len(v)))
		e.floats(v...)
	}
}

type plainDecoder struct {
	slots   []slotHead
	columns [][]byte
	lim     Limits
}

func (d *plainDecoder) open(payload []byte, slots []slotHead, lim *Limits) error {
	d.slots, d.columns, d.lim = slots, d.columns[:0], *lim
	c := cursor{b: payload, reason: BadBlock}
	for _, s := range slots {
		for range s.mask.count() {
			d.columns = append(d.columns, c.bytes(c.count("bytes", 1, lim.BlockBytes)))
		}
	}
	return c.end("the columns")
}

// column gives a column of a slot; nil when it has none.
func (d *plainDecoder) column(i, col int) *cursor {
	s := &d.slots[i]
	if s.mask&(1<<col) == 0 {
		return nil
	}
	return &cursor{b: d.columns[s.column+(s.mask&(1<<col-1)).count()], reason: BadColumn}
}

func (d *plainDecoder) readTimes(i int, into *Columns) error {
	for col, p := range [...]*[]int64{&into.T, &into.FirstT, &into.LastT} {
		if c := d.column(i, col); c != nil {
			*p = grow(*p, d.slots[i].rows)
			if err := plainIntegers(c, *p); err != nil {
				return err
			}
		}
	}
	return nil
}

func plainIntegers(c *cursor, out []int64) error {
	last := int64(0)
	for i := range out {
		last += c.zigzag()
		out[i] = last
	}
	return c.end("the integers")
}

func plainFloats(c *cursor, out ...*float64) {
	for _, p := range out {
		*p = math.Float64frombits(bits.Reverse64(c.uvarint()))
	}
}

func (d *plainDecoder) readValues(i int, want Mask, into *Columns) error {
	rows := d.slots[i].rows
	for col := range columns {
		bit := Mask(1) << col
		var c *cursor
		if want&bit != 0 {
			c = d.column(i, col)
		}
		var err error
		switch {
		case bit&histColumns != 0:
			err = d.readHistograms(c, rows, into.hist(bit))
		case bit&countColumns != 0:
			p := into.count(bit)
			if c == nil {
				*p = nil
				continue
			}
			*p = grow(*p, rows)
			for k := range *p {
				(*p)[k] = uint32(c.below("count", math.MaxUint32+1))
			}
			err = c.end("the counts")
		case bit == ColStart:
			if c == nil {
				into.Start = nil
				continue
			}
			into.Start = grow(into.Start, rows)
			err = plainIntegers(c, into.Start)
		default:
			p := into.float(bit)
			if c == nil {
				*p = nil
				continue
			}
			*p = grow(*p, rows)
			for k := range *p {
				plainFloats(c, &(*p)[k])
			}
			err = c.end("the floats")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *plainDecoder) readHistograms(c *cursor, rows int, p *[]series.Histogram) error {
	if c == nil {
		*p = nil
		return nil
	}
	c.reason = BadHistogram
	*p = make([]series.Histogram, rows)
	limit := d.lim.HistogramValues
	for i := range *p {
		h := &(*p)[i]
		h.Schema = int32(c.zigzag())
		plainFloats(c, &h.ZeroThreshold, &h.ZeroCount, &h.Count, &h.Sum)
		for _, spans := range [...]*[]int32{&h.PositiveSpans, &h.NegativeSpans} {
			for range c.count("span entries", 1, 1<<16) {
				*spans = append(*spans, int32(c.zigzag()))
			}
		}
		for _, v := range [...]*[]float64{&h.PositiveBuckets, &h.NegativeBuckets, &h.CustomValues} {
			n := c.count("buckets", 1, limit)
			limit -= n
			for range n {
				*v = append(*v, 0)
				plainFloats(c, &(*v)[len(*v)-1])
			}
		}
	}
	return c.end("the histograms")
}
