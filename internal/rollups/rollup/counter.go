package rollup

import (
	"math"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
)

// CounterRange computes increase and rate of a counter over a range from rolled rows, raw samples, or both: what
// the PromQL engine gives for the raw samples. Rows and samples are added in time order and must lie in the range
// entirely. The zero value is ready.
type CounterRange struct {
	interval
	first, last float64
	resets      float64
	inexact     bool
}

// AddRow adds row i of the columns of a counter.
func (c *CounterRange) AddRow(cols *chunk.Columns, i int) {
	if cols.Count[i] == 0 {
		return
	}
	first, last, increase := cols.First[i], cols.Last[i], cols.Increase[i]
	c.add(first, cols.Count[i], cols.FirstT[i], cols.LastT[i])
	// What the bucket's increase exceeds last-first by was lost in resets; exactly 0 when it had none.
	c.resets += increase - (last - first)
	c.last = last
	c.inexact = c.inexact || !finite(first) || !finite(last) || !finite(increase)
}

// AddSample adds a raw sample at t (Unix nanoseconds) that is no stale marker.
func (c *CounterRange) AddSample(t int64, v float64) {
	c.add(v, 1, t, t)
	c.last = v
}

func (c *CounterRange) add(first float64, count uint32, firstT, lastT int64) {
	if c.count == 0 {
		c.first = first
	} else if first < c.last {
		// The counter was reset between two rows, or samples: PromQL adds what it had reached before.
		c.resets += c.last
	}
	c.interval.add(count, firstT, lastT)
}

// Increase over r; false when there are less than two samples. Error: ErrInexact.
func (c *CounterRange) Increase(r Range) (float64, bool, error) {
	change, factor, ok, err := c.change(r)
	return change * factor, ok, err
}

// Rate per second over r; false when there are less than two samples. Error: ErrInexact.
func (c *CounterRange) Rate(r Range) (float64, bool, error) {
	change, factor, ok, err := c.change(r)
	return change * (factor / r.Seconds()), ok, err
}

func (c *CounterRange) change(r Range) (change, factor float64, ok bool, err error) {
	if c.count < 2 {
		return 0, 0, false, nil
	}
	if c.inexact {
		return 0, 0, false, ErrInexact
	}
	change = c.last - c.first + c.resets
	toZero := -1.0
	// A counter is never below 0, so PromQL extrapolates no further back than to where it would have been 0.
	if change > 0 && c.first >= 0 {
		toZero = c.first / change
	}
	return change, c.factor(r, toZero), true, nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
