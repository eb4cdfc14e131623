package promstore

import (
	"errors"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/pkg/chunk"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/published"
	"lightmetrics.dev/lightmetrics/pkg/rollup"
)

// errNotRolled: the rolled rows do not give what the samples would.
var errNotRolled = errors.New("not from rolled rows")

// rangeFunc is a function over a range as sums over rows and samples.
type rangeFunc struct {
	new       func() accumulator
	want      chunk.Mask
	counter   bool // rows must be of a counter
	gauge     bool // rows must not be of a counter
	keepsName bool
}

// accumulator adds the rows and samples of one range in time order.
type accumulator interface {
	reset()
	row(c *chunk.Columns, i int)
	sample(ms int64, v float64)
	// value over the range; false when there is none.
	value(r rollup.Range) (float64, bool, error)
}

const (
	counterColumns = chunk.ColCount | chunk.ColFirst | chunk.ColLast | chunk.ColIncrease | chunk.ColFirstT | chunk.ColLastT
	gaugeColumns   = chunk.ColCount | chunk.ColFirst | chunk.ColLast | chunk.ColSum | chunk.ColSumC | chunk.ColMin | chunk.ColMax | chunk.ColFirstT | chunk.ColLastT
)

var rangeFuncs = map[string]rangeFunc{
	"rate":            {new: func() accumulator { return &counter{rate: true} }, want: counterColumns, counter: true},
	"increase":        {new: func() accumulator { return &counter{} }, want: counterColumns, counter: true},
	"sum_over_time":   {new: func() accumulator { return &gauge{of: sumOf} }, want: gaugeColumns, gauge: true},
	"avg_over_time":   {new: func() accumulator { return &gauge{of: avgOf} }, want: gaugeColumns, gauge: true},
	"delta":           {new: func() accumulator { return &gauge{of: deltaOf} }, want: gaugeColumns, gauge: true},
	"min_over_time":   {new: func() accumulator { return &extreme{least: true} }, want: chunk.ColCount | chunk.ColMin, gauge: true},
	"max_over_time":   {new: func() accumulator { return &extreme{} }, want: chunk.ColCount | chunk.ColMax, gauge: true},
	"count_over_time": {new: func() accumulator { return &count{} }, want: chunk.ColCount},
	"last_over_time":  {new: func() accumulator { return &last{} }, want: chunk.ColCount | chunk.ColLast, keepsName: true},
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

type count struct{ n uint64 }

func (a *count) reset()                                    { a.n = 0 }
func (a *count) row(c *chunk.Columns, i int)               { a.n += uint64(c.Count[i]) }
func (a *count) sample(int64, float64)                     { a.n++ }
func (a *count) value(rollup.Range) (float64, bool, error) { return float64(a.n), a.n > 0, nil }

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

// evaluation evaluates one call, series by series. It reuses its memory.
type evaluation struct {
	c          RangeCall
	fn         rangeFunc
	mint, maxt int64
	times      []int64

	acc       accumulator
	stretches []stretch
	columns   []chunk.Columns
	keys      [][]int64
	runs      runs
}

// stretch is rows or samples; keys are the ends of the buckets, or the samples' times.
type stretch struct {
	keys  []int64
	cols  *chunk.Columns // nil for samples
	first int            // row of the first key
	v     []float64
}

// series gives a value for each time, and whether there is any.
func (e *evaluation) series(in *rolledInput) ([]float64, bool, error) {
	if e.acc == nil {
		e.acc = e.fn.new()
	}
	e.stretches = e.stretches[:0]
	if in.rolled != nil {
		if err := e.rows(in.rolled); err != nil {
			return nil, false, err
		}
	}
	if in.live != nil || in.published != nil {
		if err := e.samples(&in.merged); err != nil {
			return nil, false, err
		}
	}
	if len(e.stretches) == 0 {
		return nil, false, nil
	}
	slices.SortFunc(e.stretches, func(a, b stretch) int { return int(min(max(a.keys[0]-b.keys[0], -1), 1)) })
	values := make([]float64, len(e.times))
	any := false
	from, row := 0, 0 // the first that may lie in the range
	for i, t := range e.times {
		end := t - e.c.Offset
		start := end - e.c.Range
		for from < len(e.stretches) && e.stretches[from].keys[row] <= start {
			if row++; row == len(e.stretches[from].keys) {
				from, row = from+1, 0
			}
		}
		e.acc.reset()
		e.add(from, row, end)
		v, ok, err := e.acc.value(rollup.Range{StartMS: start, EndMS: end})
		switch {
		case errors.Is(err, rollup.ErrInexact):
			return nil, false, errNotRolled
		case err != nil:
			return nil, false, err
		case !ok:
			v = staleNaN
		}
		values[i], any = v, any || ok
	}
	return values, any, nil
}

// add gives the accumulator what lies at or after (k, row), through end.
func (e *evaluation) add(k, row int, end int64) {
	for ; k < len(e.stretches); k, row = k+1, 0 {
		s := &e.stretches[k]
		for ; row < len(s.keys); row++ {
			if s.keys[row] > end {
				return
			}
			if s.cols != nil {
				e.acc.row(s.cols, s.first+row)
			} else {
				e.acc.sample(s.keys[row], s.v[row])
			}
		}
	}
}

// rows decodes the rolled rows of all parts.
func (e *evaluation) rows(r *published.Rolled) error {
	for len(e.columns) < r.Parts() {
		e.columns, e.keys = append(e.columns, chunk.Columns{}), append(e.keys, nil)
	}
	for i := range r.Parts() {
		counter := r.Type(i) == frame.Counter
		if e.fn.counter && !counter || e.fn.gauge && counter {
			return errNotRolled
		}
		cols := &e.columns[i]
		from, to, ok, err := r.Rows(i, e.mint, e.maxt, e.fn.want, cols)
		switch {
		case err != nil:
			return err
		case !ok:
			return errNotRolled
		case from >= to:
			continue
		case e.fn.want&chunk.ColLast != 0 && cols.Last == nil, e.fn.gauge && cols.Min == nil && cols.Max == nil:
			return errNotRolled // histograms
		}
		keys := e.keys[i][:0]
		for _, ns := range cols.T[from:to] {
			keys = append(keys, ns/1e6)
		}
		e.keys[i] = keys
		e.stretches = append(e.stretches, stretch{keys: keys, cols: cols, first: from})
	}
	return nil
}

// samples copies the raw samples but for stale markers.
func (e *evaluation) samples(m *merged) error {
	e.runs.reset(m, e.mint, e.maxt)
	for {
		run, ok := e.runs.Next()
		if !ok {
			return e.runs.Err()
		}
		if run.H != nil {
			return errNotRolled
		}
		s := stretch{}
		for i, t := range run.T {
			if !value.IsStaleNaN(run.V[i]) {
				s.keys, s.v = append(s.keys, t), append(s.v, run.V[i])
			}
		}
		if len(s.keys) > 0 {
			e.stretches = append(e.stretches, s)
		}
	}
}
