// Package samples has samples of a series in the form in which PromQL reads them: times in
// milliseconds, Prometheus' histograms. Samples in memory (internal/queries/live) and
// published ones (internal/queries/published) have this form, and internal/queries/promstore
// merges them.
package samples

import (
	"slices"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Run is consecutive samples of a series. Times are strictly ascending, also from one run to the next.
type Run struct {
	T []int64 // milliseconds
	// V has the floats. If H is not nil and its entry is not nil, the sample is that histogram.
	V []float64
	H []*histogram.FloatHistogram
	// ST is the start of the accumulation in milliseconds, 0 if unknown. STs has one per sample, if they differ.
	ST  int64
	STs []int64
	// Before is the histogram before T[0] in the series, even if it is before the requested
	// range; nil if there is none or it is not known. A counter reset at T[0] shows only against it.
	Before *histogram.FloatHistogram
}

// Last is the last histogram; nil if there is none.
func (r *Run) Last() *histogram.FloatHistogram {
	if len(r.H) == 0 {
		return nil
	}
	return r.H[len(r.H)-1]
}

// Cut keeps only the samples in [mint, maxt], in milliseconds.
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

// Take removes the first n samples from the run and returns them.
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

// Between returns the indexes [i, j) of the times in [from, to]; t is ascending.
func Between(t []int64, from, to int64) (i, j int) {
	n := len(t)
	if n == 0 || t[0] >= from && t[n-1] <= to {
		return 0, n
	}
	i = sort.Search(n, func(k int) bool { return t[k] >= from })
	return i, i + sort.Search(n-i, func(k int) bool { return t[i+k] > to })
}

// AnyStale reports whether one of the values is a stale marker.
func AnyStale(vs []float64) bool {
	for _, v := range vs {
		// Markers are NaN, and hardly any other value is.
		if v != v && value.IsStaleNaN(v) {
			return true
		}
	}
	return false
}

// FloatHistogram converts h for evaluation by Prometheus code; the bucket counts are shared, except where they are reduced. A
// schema above 8 is reserved: nothing there computes bounds of its buckets, so they become those of schema 8, as where
// Prometheus reads or takes one in. Histograms of deltas and gauges get the gauge hint, because in them a smaller count after a
// greater one is no counter reset.
func FloatHistogram(h *series.Histogram, t series.Type) *histogram.FloatHistogram {
	f := Unreduced(h, t)
	f.PositiveSpans, f.NegativeSpans = withoutEmpty(f.PositiveSpans), withoutEmpty(f.NegativeSpans)
	if f.Schema > histogram.ExponentialSchemaMax {
		f.PositiveBuckets, f.NegativeBuckets = slices.Clone(f.PositiveBuckets), slices.Clone(f.NegativeBuckets)
		if f.ReduceResolution(histogram.ExponentialSchemaMax) != nil {
			// Spans that are not those of the buckets; no frame with such a histogram is accepted, and no sum has one.
			return &histogram.FloatHistogram{CounterResetHint: f.CounterResetHint, Count: f.Count, Sum: f.Sum}
		}
	}
	return f
}

// Unreduced is FloatHistogram with the schema of h, for what is stored and not evaluated.
func Unreduced(h *series.Histogram, t series.Type) *histogram.FloatHistogram {
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

// Histogram is the inverse of Unreduced; the bucket counts are shared.
func Histogram(f *histogram.FloatHistogram) series.Histogram {
	return series.Histogram{
		Schema: f.Schema, ZeroThreshold: f.ZeroThreshold, ZeroCount: f.ZeroCount, Count: f.Count, Sum: f.Sum,
		PositiveSpans: flat(f.PositiveSpans), PositiveBuckets: f.PositiveBuckets,
		NegativeSpans: flat(f.NegativeSpans), NegativeBuckets: f.NegativeBuckets,
		CustomValues: f.CustomValues,
	}
}

// withoutEmpty leaves out spans without buckets, of which some of Prometheus' functions take the first bucket. It changes s.
func withoutEmpty(s []histogram.Span) []histogram.Span {
	out, skipped := s[:0], int32(0)
	for _, one := range s {
		if one.Length == 0 {
			skipped += one.Offset
			continue
		}
		out = append(out, histogram.Span{Offset: one.Offset + skipped, Length: one.Length})
		skipped = 0
	}
	return out
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
