package rollup

import (
	"slices"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// HistogramRange computes increase and rate of a cumulative histogram over a range from rolled rows, raw samples,
// or both, added in time order: what the PromQL engine gives for the raw samples, at the smallest schema of the
// range. Histograms with different zero thresholds or custom bounds are ErrInexact. The zero value is ready.
type HistogramRange struct {
	interval
	first, last *histogram.FloatHistogram
	// change is the increase from first to last, except its Sum; nil is no increase.
	change  *histogram.FloatHistogram
	resets  float64 // of Sum
	inexact bool
}

// AddRow adds row i of the columns of a cumulative histogram.
func (c *HistogramRange) AddRow(cols *chunk.Columns, i int) {
	if cols.Count[i] == 0 {
		return
	}
	first := samples.FloatHistogram(&cols.FirstH[i], series.HistogramCumulative)
	last := samples.FloatHistogram(&cols.LastH[i], series.HistogramCumulative)
	c.add(first, cols.Count[i], cols.FirstT[i], cols.LastT[i])
	if cols.Count[i] > 1 {
		inc := samples.FloatHistogram(&cols.IncreaseH[i], series.HistogramGauge)
		c.resets += inc.Sum - (last.Sum - first.Sum)
		c.addIncrease(inc.Copy())
		c.checkLayout(last)
	}
	c.last = last
}

// AddSample adds a raw sample at t (Unix nanoseconds) that is no stale marker.
func (c *HistogramRange) AddSample(t int64, h *series.Histogram) {
	c.AddFloat(t, samples.FloatHistogram(h, series.HistogramCumulative))
}

// AddFloat adds a raw sample in Prometheus' form; it is kept and must not be changed.
func (c *HistogramRange) AddFloat(t int64, h *histogram.FloatHistogram) {
	c.add(h, 1, t, t)
	c.last = h
}

func (c *HistogramRange) add(first *histogram.FloatHistogram, count uint32, firstT, lastT int64) {
	if c.count == 0 {
		c.first = first
	}
	c.checkLayout(first)
	if c.count > 0 {
		step := first.Copy()
		if first.DetectReset(c.last) {
			c.resets += c.last.Sum
			// PromQL ignores the layout of what is before a reset at the start of the range.
			if c.count > 1 {
				c.lower(step, c.last)
			}
			c.addIncrease(step)
		} else if _, _, _, err := step.Sub(c.last); err != nil {
			c.inexact = true
		} else {
			c.addIncrease(step)
		}
	}
	c.interval.add(count, firstT, lastT)
}

// lower reduces h to the schema of o when that is smaller.
func (c *HistogramRange) lower(h, o *histogram.FloatHistogram) {
	if h.UsesCustomBuckets() != o.UsesCustomBuckets() {
		c.inexact = true
	} else if o.Schema < h.Schema && h.ReduceResolution(o.Schema) != nil {
		c.inexact = true
	}
}

// addIncrease adds to the increase.
func (c *HistogramRange) addIncrease(by *histogram.FloatHistogram) {
	by.CounterResetHint = histogram.GaugeType
	c.checkLayout(by)
	if c.change == nil {
		c.change = by
	} else if _, _, _, err := c.change.Add(by); err != nil {
		c.inexact = true
	}
}

// checkLayout notes a histogram that can't be combined exactly with the first.
func (c *HistogramRange) checkLayout(h *histogram.FloatHistogram) {
	c.inexact = c.inexact || !finite(h.Sum) || h.ZeroThreshold != c.first.ZeroThreshold ||
		h.UsesCustomBuckets() != c.first.UsesCustomBuckets() || !slices.Equal(h.CustomValues, c.first.CustomValues)
}

// Increase over r; nil when there are less than two samples. Error: ErrInexact.
func (c *HistogramRange) Increase(r Range) (*histogram.FloatHistogram, error) { return c.scaled(r, 1) }

// Rate per second over r; nil when there are less than two samples. Error: ErrInexact.
func (c *HistogramRange) Rate(r Range) (*histogram.FloatHistogram, error) {
	return c.scaled(r, r.Seconds())
}

func (c *HistogramRange) scaled(r Range, seconds float64) (*histogram.FloatHistogram, error) {
	if c.count < 2 {
		return nil, nil
	}
	if c.inexact {
		return nil, ErrInexact
	}
	h := c.change.Copy()
	// The sum is computed from first, last and resets as the engine does it; adding up the steps would round
	// differently.
	h.Sum = c.last.Sum - c.first.Sum + c.resets
	if !finite(h.Sum) {
		return nil, ErrInexact
	}
	toZero := -1.0
	if h.Count > 0 && c.first.Count >= 0 {
		toZero = c.first.Count / h.Count
	}
	h.Mul(c.factor(r, toZero) / seconds)
	return h.Compact(0), nil
}
