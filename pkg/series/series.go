// Package series has the types that all layers share to describe series: labels, metric
// types, native histograms, the label tables of batches, and the identity of a series. The
// formats (frame, chunk) and everything above them import it.
package series

import "slices"

// MetricName is the label that every series has: the name of its metric.
const MetricName = "__name__"

// Label is a name and a value.
type Label struct{ Name, Value string }

// Type is the type of a metric. The numbers are those of the protobuf enum MetricType; frames
// and indexes contain them.
type Type uint8

// Metric types.
const (
	Unknown Type = iota
	Gauge
	Counter
	DeltaCounter
	HistogramCumulative
	HistogramDelta
	HistogramGauge
	Info
)

// Histogram reports whether records of this type are histograms.
func (t Type) Histogram() bool { return t >= HistogramCumulative && t <= HistogramGauge }

// CustomBounds is the schema of histograms with explicit upper bounds.
const CustomBounds = -53

// Histogram is one record of a native histogram, with the fields of the protobuf message
// lightmetrics.frame.v1.Histogram and of Prometheus' histogram.FloatHistogram.
type Histogram struct {
	Schema          int32
	ZeroThreshold   float64
	ZeroCount       float64
	Count           float64
	Sum             float64
	PositiveSpans   []int32 // offset, length, offset, length, …
	PositiveBuckets []float64
	NegativeSpans   []int32
	NegativeBuckets []float64
	CustomValues    []float64
}

// Clone copies h with its slices.
func (h *Histogram) Clone() Histogram {
	c := *h
	c.PositiveSpans = slices.Clone(h.PositiveSpans)
	c.PositiveBuckets = slices.Clone(h.PositiveBuckets)
	c.NegativeSpans = slices.Clone(h.NegativeSpans)
	c.NegativeBuckets = slices.Clone(h.NegativeBuckets)
	c.CustomValues = slices.Clone(h.CustomValues)
	return c
}
