// Package samples has samples of a series as PromQL reads them: in milliseconds, with
// Prometheus' histograms. What is in memory (internal/queries/live) and what is published (internal/queries/published)
// come as the same runs, and internal/queries/promstore merges them.
package samples

import (
	"sort"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Run is a stretch of samples of a series; times ascend strictly, also from run to run.
type Run struct {
	T []int64 // milliseconds
	// V are floats; where H is not nil and has an entry, the sample is that histogram.
	V []float64
	H []*histogram.FloatHistogram
	// ST is the start of the accumulation, milliseconds, 0 when unknown; STs by sample when they differ.
	ST  int64
	STs []int64
	// Before is the histogram that stands before T[0] in the series, also one before
	// the range; nil when there is none or it is not known.
	Before *histogram.FloatHistogram
}

// Last is the last histogram; nil when there is none.
func (r *Run) Last() *histogram.FloatHistogram {
	if len(r.H) == 0 {
		return nil
	}
	return r.H[len(r.H)-1]
}

// Cut leaves the samples of [mint, maxt], in milliseconds.
func (r *Run) Cut(mint, maxt int64) {
	i, j := Between(r.T, mint, maxt)
	if i > 0 && r.H != nil {
		r.Before = r.H[i-1]
	}
	r.T = r.T[i:j]
	if r.V != nil {
		r.V = r.V[i:j]
	}
	if r.H != nil {
		r.H = r.H[i:j]
	}
	if r.STs != nil {
		r.STs = r.STs[i:j]
	}
}

// Take cuts the first n samples off and returns them.
func (r *Run) Take(n int) Run {
	head := *r
	split(&head.T, &r.T, n)
	split(&head.V, &r.V, n)
	split(&head.H, &r.H, n)
	split(&head.STs, &r.STs, n)
	return head
}

func split[E any](head, rest *[]E, n int) {
	if *rest != nil {
		*head, *rest = (*rest)[:n], (*rest)[n:]
	}
}

// Between gives the indexes [i, j) of the times in [from, to]; t ascends.
func Between(t []int64, from, to int64) (i, j int) {
	n := len(t)
	if n == 0 || t[0] >= from && t[n-1] <= to {
		return 0, n
	}
	i = sort.Search(n, func(k int) bool { return t[k] >= from })
	return i, i + sort.Search(n-i, func(k int) bool { return t[i+k] > to })
}

// FloatHistogram shows h to Prometheus code; the bucket counts are shared. Histograms of
// deltas and gauges carry the gauge hint: a smaller count after a greater one is no reset.
func FloatHistogram(h *series.Histogram, t series.Type) *histogram.FloatHistogram {
	f := &histogram.FloatHistogram{
		Schema: h.Schema, ZeroThreshold: h.ZeroThreshold, ZeroCount: h.ZeroCount, Count: h.Count, Sum: h.Sum,
		PositiveSpans: spans(h.PositiveSpans), PositiveBuckets: h.PositiveBuckets,
		NegativeSpans: spans(h.NegativeSpans), NegativeBuckets: h.NegativeBuckets,
		CustomValues: h.CustomValues,
	}
	if t == series.HistogramGauge || t == series.HistogramDelta {
		f.CounterResetHint = histogram.GaugeType
	}
	return f
}

// Histogram is the inverse of FloatHistogram; the bucket counts are shared.
func Histogram(f *histogram.FloatHistogram) series.Histogram {
	return series.Histogram{
		Schema: f.Schema, ZeroThreshold: f.ZeroThreshold, ZeroCount: f.ZeroCount, Count: f.Count, Sum: f.Sum,
		PositiveSpans: flat(f.PositiveSpans), PositiveBuckets: f.PositiveBuckets,
		NegativeSpans: flat(f.NegativeSpans), NegativeBuckets: f.NegativeBuckets,
		CustomValues: f.CustomValues,
	}
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

func flat(spans []histogram.Span) []int32 {
	if len(spans) == 0 {
		return nil
	}
	out := make([]int32, 0, 2*len(spans))
	for _, s := range spans {
		out = append(out, s.Offset, int32(s.Length))
	}
	return out
}
