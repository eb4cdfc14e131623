package promeval

import (
	"math"

	"github.com/prometheus/prometheus/util/kahansum"
)

// window is the samples of one series in a range of time, which is open at its begin: at least one.
type window struct {
	start, end int64 // milliseconds
	t          []int64
	v          []float64
}

// function is a function over a range. Each does the operations of its namesake in promql/functions.go in the same order,
// so that results are equal to the last bit.
type function struct {
	of        func(w *window) (float64, bool)
	keepsName bool
	counter   bool // the engine remarks when the metric is not named like a counter
}

var functions = map[string]*function{
	"avg_over_time":     {of: avgOf},
	"sum_over_time":     {of: sumOf},
	"min_over_time":     {of: minOf},
	"max_over_time":     {of: maxOf},
	"count_over_time":   {of: func(w *window) (float64, bool) { return float64(len(w.v)), true }},
	"present_over_time": {of: func(*window) (float64, bool) { return 1, true }},
	"last_over_time":    {of: func(w *window) (float64, bool) { return w.v[len(w.v)-1], true }, keepsName: true},
	"first_over_time":   {of: func(w *window) (float64, bool) { return w.v[0], true }, keepsName: true},
	"rate":              {of: func(w *window) (float64, bool) { return w.extrapolated(true, true) }, counter: true},
	"increase":          {of: func(w *window) (float64, bool) { return w.extrapolated(true, false) }, counter: true},
	"delta":             {of: func(w *window) (float64, bool) { return w.extrapolated(false, false) }},
}

func avgOf(w *window) (float64, bool) {
	sum, count := w.v[0], 1.
	var mean, c float64
	incremental := false
	for i, v := range w.v[1:] {
		count = float64(i + 2)
		if !incremental {
			newSum, newC := kahansum.Inc(v, sum, c)
			if !math.IsInf(newSum, 0) {
				sum, c = newSum, newC
				continue
			}
			// The sum overflows, but the mean need not.
			incremental = true
			mean = sum / (count - 1)
			c /= count - 1
		}
		q := (count - 1) / count
		mean, c = kahansum.Inc(v/count, q*mean, q*c)
	}
	if incremental {
		return mean + c, true
	}
	return sum/count + c/count, true
}

func sumOf(w *window) (float64, bool) {
	var sum, c float64
	for _, v := range w.v {
		sum, c = kahansum.Inc(v, sum, c)
	}
	if math.IsInf(sum, 0) {
		return sum, true
	}
	return sum + c, true
}

func maxOf(w *window) (float64, bool) {
	most := w.v[0]
	for _, v := range w.v {
		if v > most || math.IsNaN(most) {
			most = v
		}
	}
	return most, true
}

func minOf(w *window) (float64, bool) {
	least := w.v[0]
	for _, v := range w.v {
		if v < least || math.IsNaN(least) {
			least = v
		}
	}
	return least, true
}

// extrapolated is extrapolatedRate of promql/functions.go for floats without start times: the difference between the first
// and the last sample, continued to the bounds of the range.
func (w *window) extrapolated(counter, rate bool) (float64, bool) {
	n := len(w.v) - 1
	if n == 0 {
		return 0, false
	}
	first, last := w.t[0], w.t[n]
	result := w.v[n] - w.v[0]
	if counter {
		for i, v := range w.v[1:] {
			if before := w.v[i]; v < before {
				result += before // a reset
			}
		}
	}
	toStart, toEnd := float64(first-w.start)/1000, float64(w.end-last)/1000
	sampled := float64(last-first) / 1000
	between := sampled / float64(n)
	threshold := between * 1.1
	if toStart >= threshold {
		toStart = between / 2
	}
	if counter {
		// A counter is not continued below 0.
		toZero := toStart
		if result > 0 && w.v[0] >= 0 {
			toZero = sampled * (w.v[0] / result)
		}
		if toZero < toStart {
			toStart = toZero
		}
	}
	if toEnd >= threshold {
		toEnd = between / 2
	}
	factor := 1.0
	if sampled != 0 {
		factor = (sampled + toStart + toEnd) / sampled
	}
	if rate {
		factor /= float64(w.end-w.start) / 1000
	}
	return result * factor, true
}

// after returns the first index, not below from, of a time greater than x. Times ascend, and the index is mostly close to
// from.
func after(t []int64, from int, x int64) int {
	if from == len(t) || t[from] > x {
		return from
	}
	low, step := from, 1
	for low+step < len(t) && t[low+step] <= x {
		low += step
		step *= 2
	}
	high := min(low+step, len(t))
	for low++; low < high; {
		if mid := int(uint(low+high) / 2); t[mid] <= x {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}
