package rollup

import (
	"math"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// incompatible is stored when histograms can't be subtracted or summed: exponential and custom buckets in one
// bucket of time. Its sum is NaN, so that no result that uses it counts as exact.
func incompatible() series.Histogram { return series.Histogram{Sum: math.NaN()} }

func staleHistogram(h *series.Histogram) bool { return value.IsStaleNaN(h.Sum) }

// increase computes what PromQL's increase does with histograms before it extrapolates: the last minus the first,
// at the smallest schema among them, plus everything that was lost in resets. It is nil when they are not
// compatible.
func increase(hs []*histogram.FloatHistogram) *histogram.FloatHistogram {
	prev, last := hs[0], hs[len(hs)-1]
	if len(hs) > 1 && hs[1].DetectReset(prev) {
		// PromQL ignores what is before a reset at the start, whatever its layout.
		prev = &histogram.FloatHistogram{Schema: hs[1].Schema, CustomValues: hs[1].CustomValues}
	}
	custom := prev.UsesCustomBuckets()
	schema := min(last.Schema, prev.Schema)
	for _, h := range hs[1:] {
		if h.UsesCustomBuckets() != custom {
			return nil
		}
		schema = min(schema, h.Schema)
	}
	inc := last.CopyToSchema(schema)
	if _, _, _, err := inc.Sub(prev); err != nil {
		return nil
	}
	for _, h := range hs[1:] {
		if h.DetectReset(prev) {
			if _, _, _, err := inc.Add(prev); err != nil {
				return nil
			}
		}
		prev = h
	}
	// As in the engine: a difference is no counter, so no reset may be detected in it.
	inc.CounterResetHint = histogram.GaugeType
	return inc.Compact(0)
}

// total sums histograms as PromQL's sum_over_time does; it is nil when they are not compatible.
func total(hs []*histogram.FloatHistogram) *histogram.FloatHistogram {
	sum := hs[0].Copy()
	var comp *histogram.FloatHistogram
	for _, h := range hs[1:] {
		var err error
		if comp, _, _, err = sum.KahanAdd(h, comp); err != nil {
			return nil
		}
	}
	if comp != nil {
		if _, _, _, err := sum.Add(comp); err != nil {
			return nil
		}
	}
	return sum.Compact(0)
}
