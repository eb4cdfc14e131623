package live

import (
	"slices"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// floatHistogram copies a frame's histogram. Deltas and gauges carry the gauge hint:
// a smaller count after a greater one is no reset.
func floatHistogram(h *series.Histogram, t series.Type) *histogram.FloatHistogram {
	f := &histogram.FloatHistogram{
		Schema:          h.Schema,
		ZeroThreshold:   h.ZeroThreshold,
		ZeroCount:       h.ZeroCount,
		Count:           h.Count,
		Sum:             h.Sum,
		PositiveSpans:   spans(h.PositiveSpans),
		PositiveBuckets: slices.Clone(h.PositiveBuckets),
		NegativeSpans:   spans(h.NegativeSpans),
		NegativeBuckets: slices.Clone(h.NegativeBuckets),
		CustomValues:    slices.Clone(h.CustomValues),
	}
	if t == series.HistogramGauge || t == series.HistogramDelta {
		f.CounterResetHint = histogram.GaugeType
	}
	return f
}

func spans(flat []int32) []histogram.Span {
	if len(flat) == 0 {
		return nil
	}
	out := make([]histogram.Span, len(flat)/2)
	for i := range out {
		out[i] = histogram.Span{Offset: flat[2*i], Length: uint32(flat[2*i+1])}
	}
	return out
}
