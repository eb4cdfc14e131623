package promstore

import (
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// histogramAccumulator adds the rows and native histograms of one range in time order.
// It keeps the samples that it is given, and never changes them.
type histogramAccumulator interface {
	reset()
	// readable reports that the columns have what row needs. samples reports that the engine
	// would evaluate these samples without an annotation.
	readable(c *chunk.Columns) bool
	samples(h []*histogram.FloatHistogram) bool
	row(c *chunk.Columns, i int)
	sample(ms int64, h *histogram.FloatHistogram)
	// value over the range, which the caller owns; nil when there is none.
	value(r rollup.Range) (*histogram.FloatHistogram, error)
}

func gaugeHint(h *histogram.FloatHistogram) bool { return h.CounterResetHint == histogram.GaugeType }

// histogramCounter is rate or increase.
type histogramCounter struct {
	rollup.HistogramRange
	rate bool
}

func (a *histogramCounter) reset()                         { a.HistogramRange = rollup.HistogramRange{} }
func (a *histogramCounter) readable(c *chunk.Columns) bool { return c.IncreaseH != nil }
func (a *histogramCounter) samples(h []*histogram.FloatHistogram) bool {
	return !slices.ContainsFunc(h, gaugeHint)
}
func (a *histogramCounter) row(c *chunk.Columns, i int) { a.AddRow(c, i) }
func (a *histogramCounter) sample(ms int64, h *histogram.FloatHistogram) {
	a.AddFloat(ms*1e6, h)
}

func (a *histogramCounter) value(r rollup.Range) (*histogram.FloatHistogram, error) {
	if a.rate {
		return a.Rate(r)
	}
	return a.Increase(r)
}

// histogramLast is last_over_time of cumulative ones.
type histogramLast struct{ h *histogram.FloatHistogram }

func (a *histogramLast) reset()                         { a.h = nil }
func (a *histogramLast) readable(c *chunk.Columns) bool { return c.LastH != nil }
func (a *histogramLast) samples(h []*histogram.FloatHistogram) bool {
	return !slices.ContainsFunc(h, gaugeHint)
}

func (a *histogramLast) row(c *chunk.Columns, i int) {
	if c.Count[i] > 0 {
		a.h = samples.FloatHistogram(&c.LastH[i], series.HistogramCumulative)
	}
}

func (a *histogramLast) sample(_ int64, h *histogram.FloatHistogram) { a.h = h }

func (a *histogramLast) value(rollup.Range) (*histogram.FloatHistogram, error) {
	if a.h == nil {
		return nil, nil
	}
	// Copied, since one sample may be the last of several ranges and the caller owns the value.
	return a.h.Copy(), nil
}

// histogramSum is sum_over_time of deltas and gauges: of one layout, since what the engine
// does where layouts meet depends on the order.
type histogramSum struct {
	sum, comp *histogram.FloatHistogram
	first     *histogram.FloatHistogram
	inexact   bool
}

func (a *histogramSum) reset()                         { *a = histogramSum{} }
func (a *histogramSum) readable(c *chunk.Columns) bool { return c.SumH != nil }
func (a *histogramSum) samples(h []*histogram.FloatHistogram) bool {
	return !slices.ContainsFunc(h, func(h *histogram.FloatHistogram) bool { return !gaugeHint(h) })
}

func (a *histogramSum) row(c *chunk.Columns, i int) {
	if c.Count[i] > 0 {
		a.add(samples.FloatHistogram(&c.SumH[i], series.HistogramGauge))
	}
}

func (a *histogramSum) sample(_ int64, h *histogram.FloatHistogram) { a.add(h) }

func (a *histogramSum) add(h *histogram.FloatHistogram) {
	if a.sum == nil {
		a.first, a.sum = h, h.Copy()
		a.inexact = math.IsNaN(h.Sum) || math.IsInf(h.Sum, 0)
		return
	}
	if a.inexact = a.inexact || math.IsNaN(h.Sum) || math.IsInf(h.Sum, 0) || h.ZeroThreshold != a.first.ZeroThreshold ||
		h.UsesCustomBuckets() != a.first.UsesCustomBuckets() || !slices.Equal(h.CustomValues, a.first.CustomValues); a.inexact {
		return
	}
	var err error
	if a.comp, _, _, err = a.sum.KahanAdd(h, a.comp); err != nil {
		a.inexact = true
	}
}

func (a *histogramSum) value(rollup.Range) (*histogram.FloatHistogram, error) {
	switch {
	case a.sum == nil:
		return nil, nil
	case a.inexact:
		return nil, rollup.ErrInexact
	}
	// The compensation of Kahan's summation is added once at the end, as the engine does it.
	if a.comp != nil {
		if _, _, _, err := a.sum.Add(a.comp); err != nil {
			return nil, rollup.ErrInexact
		}
	}
	return a.sum.Compact(0), nil
}
