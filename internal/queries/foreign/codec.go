package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// Bounds of a chunk.
const (
	// floatsInChunk and histogramsInChunk are how many samples the writer puts into one.
	floatsInChunk, histogramsInChunk = 1024, 64
	// maxInChunk bounds what a reader takes, so that a decoded chunk stays small.
	maxInChunk = 4096
	// maxBuckets bounds the buckets of one histogram, and its spans.
	maxBuckets = 1 << 16
)

// Flags of a chunk.
const (
	hasFloats     = 1 << iota // all samples are floats, unless hasHistograms is set, too
	hasHistograms             // all samples are histograms, unless hasFloats is set, too
	hasStart                  // one start time for all
	hasStarts                 // one for each
	allFlags      = hasFloats | hasHistograms | hasStart | hasStarts
)

// Flags of a histogram.
const (
	sameLayout = 1 << iota // schema, zero threshold, spans and custom bounds of the one before
	gaugeHint
	allHistogramFlags = sameLayout | gaugeHint
)

// BadError: bytes that no encoder of this version writes.
type BadError struct{ Detail string }

func (e *BadError) Error() string { return "bad series of a region: " + e.Detail }

func bad(format string, args ...any) error { return &BadError{fmt.Sprintf(format, args...)} }

// Bad makes a *BadError of what is around series.
func Bad(format string, args ...any) error { return bad(format, args...) }

// columns are decoded samples. Their memory is used again.
type columns struct {
	t     []int64
	v     []float64
	h     []*histogram.FloatHistogram // nil or as long as t
	st    int64
	sts   []int64 // nil or as long as t
	kinds []byte
	prev  []float64 // counts of the histogram before
}

// appendChunk encodes samples [i, j) of a run: at most maxInChunk.
func appendChunk(b []byte, run *samples.Run, i, j int) []byte {
	flags := byte(0)
	for k := i; k < j; k++ {
		if run.H != nil && run.H[k] != nil {
			flags |= hasHistograms
		} else {
			flags |= hasFloats
		}
	}
	switch {
	case run.STs != nil:
		flags |= hasStarts
	case run.ST != 0:
		flags |= hasStart
	}
	b = append(b, flags)
	if flags&(hasFloats|hasHistograms) == hasFloats|hasHistograms {
		for k := i; k < j; k++ {
			kind := byte(0)
			if run.H[k] != nil {
				kind = 1
			}
			b = append(b, kind)
		}
	}
	b = appendTimes(b, run.T[i:j])
	switch {
	case flags&hasStart != 0:
		b = binary.AppendVarint(b, run.ST)
	case flags&hasStarts != 0:
		before := int64(0)
		for _, st := range run.STs[i:j] {
			b = binary.AppendVarint(b, st-before) // a difference that overflows is undone by the reader's
			before = st
		}
	}
	last := uint64(0)
	var prev *histogram.FloatHistogram
	for k := i; k < j; k++ {
		if run.H != nil && run.H[k] != nil {
			b = appendHistogram(b, run.H[k], prev)
			prev = run.H[k]
			continue
		}
		x := math.Float64bits(run.V[k])
		b, last = appendBits(b, x^last), x
	}
	return b
}

// appendTimes writes ascending times: the first, the first difference, and then how differences differ.
func appendTimes(b []byte, t []int64) []byte {
	b = binary.AppendVarint(b, t[0])
	delta := int64(0)
	for k := 1; k < len(t); k++ {
		d := t[k] - t[k-1]
		b = binary.AppendVarint(b, d-delta)
		delta = d
	}
	return b
}

// appendBits writes the bytes of x between its zero bytes: how many zero bytes stand at its low end and how many
// follow, four bits each, then those. Consecutive values of a counter differ in the middle of their bits.
func appendBits(b []byte, x uint64) []byte {
	if x == 0 {
		return append(b, 0)
	}
	low := bits.TrailingZeros64(x) / 8
	n := (bits.Len64(x)+7)/8 - low
	b = append(b, byte(low<<4|n))
	for x >>= 8 * low; n > 0; n-- {
		b = append(b, byte(x))
		x >>= 8
	}
	return b
}

func appendFloat(b []byte, v, before float64) []byte {
	return appendBits(b, math.Float64bits(v)^math.Float64bits(before))
}

func sameShape(a, b *histogram.FloatHistogram) bool {
	if b == nil || a.Schema != b.Schema || math.Float64bits(a.ZeroThreshold) != math.Float64bits(b.ZeroThreshold) ||
		len(a.PositiveBuckets) != len(b.PositiveBuckets) || len(a.NegativeBuckets) != len(b.NegativeBuckets) || len(a.CustomValues) != len(b.CustomValues) ||
		len(a.PositiveSpans) != len(b.PositiveSpans) || len(a.NegativeSpans) != len(b.NegativeSpans) {
		return false
	}
	for i := range a.PositiveSpans {
		if a.PositiveSpans[i] != b.PositiveSpans[i] {
			return false
		}
	}
	for i := range a.NegativeSpans {
		if a.NegativeSpans[i] != b.NegativeSpans[i] {
			return false
		}
	}
	for i := range a.CustomValues {
		if math.Float64bits(a.CustomValues[i]) != math.Float64bits(b.CustomValues[i]) {
			return false
		}
	}
	return true
}

func appendHistogram(b []byte, h, prev *histogram.FloatHistogram) []byte {
	flags := byte(0)
	if h.CounterResetHint == histogram.GaugeType {
		flags |= gaugeHint
	}
	same := sameShape(h, prev)
	if same {
		flags |= sameLayout
	}
	b = append(b, flags)
	if !same {
		prev = &histogram.FloatHistogram{}
		b = binary.AppendVarint(b, int64(h.Schema))
		b = appendFloat(b, h.ZeroThreshold, 0)
		for _, spans := range [][]histogram.Span{h.PositiveSpans, h.NegativeSpans} {
			b = binary.AppendUvarint(b, uint64(len(spans)))
			for _, s := range spans {
				b = binary.AppendUvarint(binary.AppendVarint(b, int64(s.Offset)), uint64(s.Length))
			}
		}
		b = binary.AppendUvarint(b, uint64(len(h.CustomValues)))
		for _, v := range h.CustomValues {
			b = appendFloat(b, v, 0)
		}
	}
	b = appendFloat(appendFloat(appendFloat(b, h.Count, prev.Count), h.Sum, prev.Sum), h.ZeroCount, prev.ZeroCount)
	counts := func(now, before []float64) {
		for i, v := range now {
			var p float64
			if same {
				p = before[i]
			}
			b = appendFloat(b, v, p)
		}
	}
	counts(h.PositiveBuckets, prev.PositiveBuckets)
	counts(h.NegativeBuckets, prev.NegativeBuckets)
	return b
}

// input reads bytes; after an error it gives zeros.
type input struct {
	b   []byte
	err error
}

var errShort = errors.New("it ends early, or a number is too long")

func (in *input) fail(err error) {
	if in.err == nil {
		in.err = err
	}
	in.b = nil
}

func (in *input) byte() byte {
	if len(in.b) == 0 {
		in.fail(errShort)
		return 0
	}
	x := in.b[0]
	in.b = in.b[1:]
	return x
}

func (in *input) uvarint() uint64 {
	x, n := binary.Uvarint(in.b)
	if n <= 0 {
		in.fail(errShort)
		return 0
	}
	in.b = in.b[n:]
	return x
}

func (in *input) varint() int64 {
	x, n := binary.Varint(in.b)
	if n <= 0 {
		in.fail(errShort)
		return 0
	}
	in.b = in.b[n:]
	return x
}

// count reads a number of things of which each takes a byte at least, so that memory for them is bounded by the input.
func (in *input) count(most int) int {
	x := in.uvarint()
	if x > uint64(most) || x > uint64(len(in.b)) {
		in.fail(fmt.Errorf("%d of something, more than fit", x))
		return 0
	}
	return int(x)
}

func (in *input) take(n int) []byte {
	if n < 0 || n > len(in.b) {
		in.fail(errShort)
		return nil
	}
	x := in.b[:n:n]
	in.b = in.b[n:]
	return x
}

func (in *input) bits() uint64 {
	head := in.byte()
	low, n := int(head>>4), int(head&15)
	if low+n > 8 || n == 0 && low != 0 {
		in.fail(fmt.Errorf("%d bytes of a float behind %d", n, low))
		return 0
	}
	x := uint64(0)
	for i, c := range in.take(n) {
		x |= uint64(c) << (8 * (low + i))
	}
	return x
}

func (in *input) float(before float64) float64 {
	return math.Float64frombits(in.bits() ^ math.Float64bits(before))
}

// decode reads a chunk of n samples. Histograms of a decoded chunk are new ones, as their readers keep them.
func (c *columns) decode(data []byte, n int) error {
	if n < 1 || n > maxInChunk {
		return bad("a chunk of %d samples", n)
	}
	in := input{b: data}
	flags := in.byte()
	if flags&^allFlags != 0 || flags&(hasFloats|hasHistograms) == 0 || flags&hasStart != 0 && flags&hasStarts != 0 {
		return bad("flags %x of a chunk", flags)
	}
	c.kinds = c.kinds[:0]
	mixed := flags&(hasFloats|hasHistograms) == hasFloats|hasHistograms
	if mixed {
		c.kinds = append(c.kinds, in.take(n)...)
		if in.err != nil {
			return bad("kinds: %v", in.err)
		}
	}
	if err := c.times(&in, n); err != nil {
		return err
	}
	c.st, c.sts = 0, c.sts[:0]
	switch {
	case flags&hasStart != 0:
		c.st = in.varint()
	case flags&hasStarts != 0:
		st := int64(0)
		for range n {
			st += in.varint()
			c.sts = append(c.sts, st)
		}
	}
	c.v, c.h = c.v[:0], c.h[:0]
	last := uint64(0)
	var prev *histogram.FloatHistogram
	for i := range n {
		histo := flags&hasFloats == 0
		if mixed {
			if c.kinds[i] > 1 {
				return bad("kind %d of a sample", c.kinds[i])
			}
			histo = c.kinds[i] == 1
		}
		if !histo {
			last ^= in.bits()
			c.v = append(c.v, math.Float64frombits(last))
			if flags&hasHistograms != 0 {
				c.h = append(c.h, nil)
			}
		} else {
			h, err := in.histogram(prev)
			if err != nil {
				return err
			}
			c.v, c.h, prev = append(c.v, 0), append(c.h, h), h
		}
		if in.err != nil {
			return bad("sample %d of %d: %v", i, n, in.err)
		}
	}
	if len(in.b) > 0 {
		return bad("%d bytes behind a chunk", len(in.b))
	}
	return nil
}

// times reads n times and wants them to ascend.
func (c *columns) times(in *input, n int) error {
	// Each takes a byte at least.
	if n > len(in.b) {
		return bad("%d samples in %d bytes", n, len(in.b))
	}
	c.t = c.t[:0]
	t, delta := in.varint(), int64(0)
	c.t = append(c.t, t)
	for range n - 1 {
		delta += in.varint()
		next := t + delta
		if delta <= 0 || next < t {
			return bad("times that do not ascend")
		}
		c.t, t = append(c.t, next), next
	}
	if in.err != nil {
		return bad("times: %v", in.err)
	}
	return nil
}

func (in *input) spans() []histogram.Span {
	n := in.count(maxBuckets)
	if n == 0 {
		return nil
	}
	out := make([]histogram.Span, n)
	for i := range out {
		offset, length := in.varint(), in.uvarint()
		if offset > math.MaxInt32 || offset < math.MinInt32 || i > 0 && offset < 0 || length > maxBuckets {
			in.fail(fmt.Errorf("a span of %d at %d", length, offset))
			return nil
		}
		out[i] = histogram.Span{Offset: int32(offset), Length: uint32(length)}
	}
	return out
}

// buckets is how many of them spans have.
func (in *input) buckets(spans []histogram.Span) int {
	n := 0
	for _, s := range spans {
		if n += int(s.Length); n > maxBuckets || n > len(in.b) {
			in.fail(fmt.Errorf("more than %d buckets, or than there are bytes", maxBuckets))
			return 0
		}
	}
	return n
}

func (in *input) histogram(prev *histogram.FloatHistogram) (*histogram.FloatHistogram, error) {
	flags := in.byte()
	if flags&^allHistogramFlags != 0 || flags&sameLayout != 0 && prev == nil {
		return nil, bad("flags %x of a histogram", flags)
	}
	h := &histogram.FloatHistogram{}
	if flags&gaugeHint != 0 {
		h.CounterResetHint = histogram.GaugeType
	}
	same := flags&sameLayout != 0
	if same {
		// Spans and custom values of histograms are shared, as nobody changes those of a sample.
		h.Schema, h.ZeroThreshold, h.CustomValues = prev.Schema, prev.ZeroThreshold, prev.CustomValues
		h.PositiveSpans, h.NegativeSpans = prev.PositiveSpans, prev.NegativeSpans
	} else {
		prev = &histogram.FloatHistogram{}
		schema := in.varint()
		if in.err == nil && (schema < math.MinInt32 || schema > math.MaxInt32 || !histogram.IsKnownSchema(int32(schema))) {
			return nil, bad("a histogram of schema %d", schema)
		}
		h.Schema, h.ZeroThreshold = int32(schema), in.float(0)
		h.PositiveSpans, h.NegativeSpans = in.spans(), in.spans()
		if n := in.count(maxBuckets); n > 0 {
			h.CustomValues = make([]float64, n)
			for i := range h.CustomValues {
				h.CustomValues[i] = in.float(0)
			}
		}
		if in.err == nil {
			if err := layoutError(h); err != nil {
				return nil, err
			}
		}
	}
	h.Count, h.Sum, h.ZeroCount = in.float(prev.Count), in.float(prev.Sum), in.float(prev.ZeroCount)
	counts := func(spans []histogram.Span, before []float64) []float64 {
		n := in.buckets(spans)
		if n == 0 {
			return nil
		}
		out := make([]float64, n)
		for i := range out {
			var p float64
			if same {
				p = before[i]
			}
			out[i] = in.float(p)
		}
		return out
	}
	h.PositiveBuckets = counts(h.PositiveSpans, prev.PositiveBuckets)
	h.NegativeBuckets = counts(h.NegativeSpans, prev.NegativeBuckets)
	if in.err != nil {
		return nil, bad("a histogram: %v", in.err)
	}
	return h, nil
}

// layoutError refuses layouts whose bounds can't be computed: the engine would panic or run long.
func layoutError(h *histogram.FloatHistogram) error {
	if math.IsNaN(h.ZeroThreshold) || h.ZeroThreshold < 0 {
		return bad("a zero threshold of %v", h.ZeroThreshold)
	}
	custom := histogram.IsCustomBucketsSchema(h.Schema)
	if !custom && len(h.CustomValues) > 0 {
		return bad("custom bounds of schema %d", h.Schema)
	}
	for i, v := range h.CustomValues {
		if math.IsNaN(v) || i > 0 && v <= h.CustomValues[i-1] {
			return bad("custom bounds that do not ascend")
		}
	}
	for _, spans := range [][]histogram.Span{h.PositiveSpans, h.NegativeSpans} {
		at := int64(0)
		for _, s := range spans {
			if at += int64(s.Offset); custom && at < 0 {
				return bad("a custom bucket of number %d", at)
			}
			if at += int64(s.Length); at > math.MaxInt32 || custom && at > int64(len(h.CustomValues))+1 {
				return bad("bucket %d, of %d custom bounds", at, len(h.CustomValues))
			}
		}
	}
	if custom && (len(h.NegativeSpans) > 0 || h.ZeroThreshold != 0) {
		return bad("custom buckets with negative ones or a zero bucket")
	}
	return nil
}
