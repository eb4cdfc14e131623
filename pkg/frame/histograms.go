package frame

import (
	"encoding/binary"
	"math"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// histograms reads the n histograms of g.
func (r *reader) histograms(g *Group, n int, f *fields) error {
	g.Histograms = g.Histograms[:0]
	for i := range n {
		start := f.pos
		body := f.bytes(11)
		if f.err != nil {
			return f.err
		}
		if f.pos == start {
			return refuse(BadColumn, "%d histograms for %d records", i, n)
		}
		// A histogram may be as short as two bytes in the payload, so its memory is charged one by one.
		if err := r.spend(1, histogramCost); err != nil {
			return err
		}
		g.Histograms = append(g.Histograms, series.Histogram{})
		if err := r.histogram(&g.Histograms[i], body); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) histogram(h *series.Histogram, body []byte) error {
	f := fields{b: body}
	schema := unzigzag(f.uvarint(1))
	if schema != int64(int32(schema)) {
		return refuse(BadHistogram, "schema %d", schema)
	}
	h.Schema = int32(schema)
	for i, v := range [...]*float64{&h.ZeroThreshold, &h.ZeroCount, &h.Count, &h.Sum} {
		*v = math.Float64frombits(f.fixed64(2 + i))
	}
	var err error
	if h.PositiveSpans, err = r.spans(f.bytes(6)); err != nil {
		return err
	}
	if h.PositiveBuckets, err = r.floats(f.bytes(7)); err != nil {
		return err
	}
	if h.NegativeSpans, err = r.spans(f.bytes(8)); err != nil {
		return err
	}
	if h.NegativeBuckets, err = r.floats(f.bytes(9)); err != nil {
		return err
	}
	if h.CustomValues, err = r.floats(f.bytes(10)); err != nil {
		return err
	}
	if err := f.end("histogram"); err != nil {
		return err
	}
	return validateHistogram(h)
}

// spans reads a column of spans into arena memory; nil for an empty column.
func (r *reader) spans(col []byte) ([]int32, error) {
	n := countVarints(col)
	if err := r.spend(n, 4); err != nil || n == 0 {
		return nil, err
	}
	a := &r.b.arena.spans
	if cap(*a)-len(*a) < n {
		*a = make([]int32, 0, max(n, 2*cap(*a)))
	}
	l, pos := len(*a), 0
	*a = (*a)[:l+n]
	out := (*a)[l : l+n : l+n]
	for i := range out {
		var u uint64
		u, pos = uvarint(col, pos)
		v := unzigzag(u)
		if pos < 0 || v != int64(int32(v)) {
			return nil, refuse(BadHistogram, "span entry %d is out of range", i)
		}
		out[i] = int32(v)
	}
	if pos != len(col) {
		return nil, refuse(BadHistogram, "spans end within a varint")
	}
	return out, nil
}

// floats reads a column of doubles into arena memory; nil for an empty column.
func (r *reader) floats(col []byte) ([]float64, error) {
	n := len(col) / 8
	if len(col)%8 != 0 {
		return nil, refuse(BadHistogram, "column of doubles has %d bytes", len(col))
	}
	if err := r.spend(n, 8); err != nil || n == 0 {
		return nil, err
	}
	a := &r.b.arena.floats
	if cap(*a)-len(*a) < n {
		*a = make([]float64, 0, max(n, 2*cap(*a)))
	}
	l := len(*a)
	*a = (*a)[:l+n]
	out := (*a)[l : l+n : l+n]
	for i := range out {
		out[i] = math.Float64frombits(binary.LittleEndian.Uint64(col[8*i:]))
	}
	return out, nil
}
