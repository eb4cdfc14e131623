package foreign

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/prometheus/prometheus/model/histogram"
)

// Flags of a histogram.
const (
	sameLayout = 1 << iota // schema, zero threshold, spans and custom bounds of the one before
	gaugeHint
	allHistogramFlags = sameLayout | gaugeHint
)

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

// evaluable is h, or h with fewer buckets where nothing could compute their bounds.
func evaluable(h *histogram.FloatHistogram) *histogram.FloatHistogram {
	if h.Schema <= histogram.ExponentialSchemaMax {
		return h
	}
	// An error leaves a histogram that readers refuse: no frame with one is accepted.
	h = h.Copy()
	_ = h.ReduceResolution(histogram.ExponentialSchemaMax)
	return h
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
		if in.err == nil && (schema < math.MinInt32 || schema > math.MaxInt32 || !histogram.IsKnownSchema(int32(schema)) || schema > int64(histogram.ExponentialSchemaMax)) {
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
