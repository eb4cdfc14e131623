// Package chunk is the format of published series: chunks (.lmrollup.zst) and their
// indexes (.lmindex.zst), byte-exact by docs/format/chunk.md.
package chunk

import "lightmetrics.dev/lightmetrics/pkg/frame"

// Series is one label set of one agent, with its rows in one hour and window. Equal
// labels of two agents, or with two types or units, are two series.
type Series struct {
	Agent string
	// Labels, resource labels included, sorted by name, unique, without empty values;
	// __name__ is among them.
	Labels []frame.Label
	Type   frame.MetricType
	Unit   string // "" when unknown
	Columns
}

// Columns are the rows of a series. A column is nil when the series does not have it;
// all others have as many entries as T.
//
// Raw series have V or H. Rolled ones have Count, Stale, FirstT and LastT, and by type:
// counters First, Last and Increase; gauges and all other floats First, Last, Sum, Min
// and Max; histograms FirstH and LastH, cumulative ones IncreaseH too, others SumH.
type Columns struct {
	// T ascends strictly, Unix nanoseconds: raw, the time of the sample; rolled, the end
	// of the bucket.
	T []int64

	V []float64
	H []frame.Histogram
	// Start of the accumulation of each raw row, Unix nanoseconds, 0 when unknown; nil
	// when all are unknown.
	Start []int64

	// Count of the samples of the bucket, stale markers left out. Where it is 0 the
	// other columns of the row are 0.
	Count []uint32
	// Stale markers of the bucket.
	Stale []uint32
	// FirstT and LastT are the times of the first and last sample, Unix nanoseconds.
	FirstT, LastT []int64
	First, Last   []float64
	// Increase from First to Last with resets corrected as PromQL does.
	Increase []float64
	// Sum of the values; SumC is the compensation of its Kahan-Neumaier summation.
	Sum, SumC []float64
	Min, Max  []float64

	FirstH, LastH   []frame.Histogram
	IncreaseH, SumH []frame.Histogram
}

// Rows of the series.
func (c *Columns) Rows() int { return len(c.T) }
