package promstore

import (
	"errors"
	"math"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// errNotRolled: the rolled rows do not give what the samples would.
var errNotRolled = errors.New("not from rolled rows")

// rangeFunc is a function over a range as sums over rows and samples.
type rangeFunc struct {
	new  func() accumulator
	want chunk.Mask
	// counter: rows must be of a counter; gauge: they must not.
	counter, gauge bool
	// histograms is for native ones; nil when they are not taken, or are but counted.
	histograms func() histogramAccumulator
	counts     bool // samples of any kind
	keepsName  bool
}

// accumulator adds the rows and samples of one range in time order.
type accumulator interface {
	reset()
	row(c *chunk.Columns, i int)
	sample(ms int64, v float64)
	// value over the range; false when there is none.
	value(r rollup.Range) (float64, bool, error)
}

// Types of native histograms.
func native(typ series.Type) bool {
	return typ == series.HistogramCumulative || delta(typ)
}

func delta(typ series.Type) bool {
	return typ == series.HistogramDelta || typ == series.HistogramGauge
}

// takes reports whether rows of the type, of a metric of this name, may answer. The engine
// annotates rates of floats that are not named like a counter, and of delta histograms, so
// these are left to it.
func (f rangeFunc) takes(typ series.Type, name string) bool {
	switch {
	case f.counts:
		return true
	case native(typ):
		return f.histograms != nil && delta(typ) == f.gauge
	case f.counter:
		return typ == series.Counter && calledCounter(name)
	}
	return !f.gauge || typ != series.Counter
}

func calledCounter(name string) bool {
	return slices.ContainsFunc([]string{"_total", "_sum", "_count", "_bucket"}, func(s string) bool { return strings.HasSuffix(name, s) })
}

const (
	counterColumns = chunk.ColCount | chunk.ColFirst | chunk.ColLast | chunk.ColIncrease | chunk.ColFirstT | chunk.ColLastT |
		chunk.ColFirstH | chunk.ColLastH | chunk.ColIncreaseH
	gaugeColumns = chunk.ColCount | chunk.ColFirst | chunk.ColLast | chunk.ColSum | chunk.ColSumC | chunk.ColMin | chunk.ColMax | chunk.ColFirstT | chunk.ColLastT
)

var rangeFuncs = map[string]rangeFunc{
	"rate": {new: func() accumulator { return &counter{rate: true} }, want: counterColumns, counter: true,
		histograms: func() histogramAccumulator { return &histogramCounter{rate: true} }},
	"increase": {new: func() accumulator { return &counter{} }, want: counterColumns, counter: true,
		histograms: func() histogramAccumulator { return &histogramCounter{} }},
	"sum_over_time": {new: func() accumulator { return &gauge{of: sumOf} }, want: gaugeColumns | chunk.ColSumH, gauge: true,
		histograms: func() histogramAccumulator { return &histogramSum{} }},
	"avg_over_time":     {new: func() accumulator { return &gauge{of: avgOf} }, want: gaugeColumns, gauge: true},
	"delta":             {new: func() accumulator { return &gauge{of: deltaOf} }, want: gaugeColumns, gauge: true},
	"min_over_time":     {new: func() accumulator { return &extreme{least: true} }, want: chunk.ColCount | chunk.ColMin, gauge: true},
	"max_over_time":     {new: func() accumulator { return &extreme{} }, want: chunk.ColCount | chunk.ColMax, gauge: true},
	"count_over_time":   {new: func() accumulator { return &count{} }, want: chunk.ColCount, counts: true},
	"present_over_time": {new: func() accumulator { return &count{present: true} }, want: chunk.ColCount, counts: true},
	"last_over_time": {new: func() accumulator { return &last{} }, want: chunk.ColCount | chunk.ColLast | chunk.ColLastH, keepsName: true,
		histograms: func() histogramAccumulator { return &histogramLast{} }},
}

type counter struct {
	rollup.CounterRange
	rate bool
}

func (a *counter) reset()                      { a.CounterRange = rollup.CounterRange{} }
func (a *counter) row(c *chunk.Columns, i int) { a.AddRow(c, i) }
func (a *counter) sample(ms int64, v float64)  { a.AddSample(ms*1e6, v) }
func (a *counter) value(r rollup.Range) (float64, bool, error) {
	if a.rate {
		return a.Rate(r)
	}
	return a.Increase(r)
}

type gauge struct {
	rollup.GaugeRange
	of func(*rollup.GaugeRange, rollup.Range) (float64, bool, error)
}

func (a *gauge) reset()                      { a.GaugeRange = rollup.GaugeRange{} }
func (a *gauge) row(c *chunk.Columns, i int) { a.AddRow(c, i) }
func (a *gauge) sample(ms int64, v float64)  { a.AddSample(ms*1e6, v) }
func (a *gauge) value(r rollup.Range) (float64, bool, error) {
	if a.Count() == 0 {
		return 0, false, nil
	}
	return a.of(&a.GaugeRange, r)
}

func sumOf(g *rollup.GaugeRange, _ rollup.Range) (float64, bool, error) { return g.Sum(), true, nil }

func avgOf(g *rollup.GaugeRange, _ rollup.Range) (float64, bool, error) {
	v, err := g.Avg()
	return v, true, err
}

func deltaOf(g *rollup.GaugeRange, r rollup.Range) (float64, bool, error) {
	v, ok := g.Delta(r)
	return v, ok, nil
}

// extreme is the minimum or maximum; NaN only when all values are.
type extreme struct {
	least, any bool
	v          float64
}

func (a *extreme) reset() { a.any = false }

func (a *extreme) add(v float64) {
	// As in the engine, any number replaces NaN, and NaN replaces no number.
	if !a.any || math.IsNaN(a.v) || a.least && v < a.v || !a.least && v > a.v {
		a.any, a.v = true, v
	}
}

func (a *extreme) row(c *chunk.Columns, i int) {
	switch {
	case c.Count[i] == 0:
	case a.least:
		a.add(c.Min[i])
	default:
		a.add(c.Max[i])
	}
}
func (a *extreme) sample(_ int64, v float64)                 { a.add(v) }
func (a *extreme) value(rollup.Range) (float64, bool, error) { return a.v, a.any, nil }

type count struct {
	n       uint64
	present bool
}

func (a *count) reset()                      { a.n = 0 }
func (a *count) row(c *chunk.Columns, i int) { a.n += uint64(c.Count[i]) }
func (a *count) sample(int64, float64)       { a.n++ }
func (a *count) value(rollup.Range) (float64, bool, error) {
	if a.present {
		return 1, a.n > 0, nil
	}
	return float64(a.n), a.n > 0, nil
}

type last struct {
	any bool
	v   float64
}

func (a *last) reset() { a.any = false }
func (a *last) row(c *chunk.Columns, i int) {
	if c.Count[i] > 0 {
		a.any, a.v = true, c.Last[i]
	}
}
func (a *last) sample(_ int64, v float64)                 { a.any, a.v = true, v }
func (a *last) value(rollup.Range) (float64, bool, error) { return a.v, a.any, nil }
