package rollup

import (
	"math"

	"github.com/prometheus/prometheus/util/kahansum"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
)

// GaugeRange computes the *_over_time functions and delta of a gauge over a range from rolled rows, raw samples,
// or both, added in time order. The zero value is ready. Sums are those of the engine except for the order of
// summation: the last bit of a float may differ.
type GaugeRange struct {
	interval
	first, last float64
	min, max    float64
	sum, comp   float64
}

// AddRow adds row i of the columns of a gauge.
func (g *GaugeRange) AddRow(c *chunk.Columns, i int) {
	if c.Count[i] == 0 {
		return
	}
	g.add(c.First[i], c.Last[i], c.Min[i], c.Max[i], c.Count[i], c.FirstT[i], c.LastT[i])
	g.sum, g.comp = kahansum.Inc(c.Sum[i], g.sum, g.comp)
	if comp := g.comp + c.SumC[i]; finite(comp) {
		g.comp = comp
	}
}

// AddSample adds a raw sample at t (Unix nanoseconds) that is no stale marker.
func (g *GaugeRange) AddSample(t int64, v float64) {
	g.add(v, v, v, v, 1, t, t)
	g.sum, g.comp = kahansum.Inc(v, g.sum, g.comp)
}

func (g *GaugeRange) add(first, last, lo, hi float64, count uint32, firstT, lastT int64) {
	if g.count == 0 {
		g.first, g.min, g.max = first, lo, hi
	}
	g.last, g.min, g.max = last, lesser(g.min, lo), greater(g.max, hi)
	g.interval.add(count, firstT, lastT)
}

// Count of the samples; when it is 0 the other results mean nothing.
func (g *GaugeRange) Count() uint64 { return g.count }

// First value.
func (g *GaugeRange) First() float64 { return g.first }

// Last value.
func (g *GaugeRange) Last() float64 { return g.last }

// Min of the values; NaN only when all are.
func (g *GaugeRange) Min() float64 { return g.min }

// Max of the values; NaN only when all are.
func (g *GaugeRange) Max() float64 { return g.max }

// Sum of the values.
func (g *GaugeRange) Sum() float64 {
	// As the engine does it: the compensation of a sum that overflowed means nothing.
	if math.IsInf(g.sum, 0) {
		return g.sum
	}
	return g.sum + g.comp
}

// Avg of the values. ErrInexact when the sum overflows but the mean may not.
func (g *GaugeRange) Avg() (float64, error) {
	if math.IsInf(g.sum, 0) && !math.IsInf(g.min, 0) && !math.IsInf(g.max, 0) {
		return 0, ErrInexact
	}
	n := float64(g.count)
	if math.IsInf(g.sum, 0) {
		return g.sum, nil
	}
	return g.sum/n + g.comp/n, nil
}

// Delta over r; false when there are less than two samples.
func (g *GaugeRange) Delta(r Range) (float64, bool) {
	if g.count < 2 {
		return 0, false
	}
	return (g.last - g.first) * g.factor(r, -1), true
}
