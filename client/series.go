package client

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Labels by name. Those with an empty value are left out.
type Labels map[string]string

// Type says what the values of a series mean.
type Type = series.Type

// Types of series. Histogram types are for native (exponential) histograms.
const (
	Unknown             = series.Unknown
	Gauge               = series.Gauge
	Counter             = series.Counter
	DeltaCounter        = series.DeltaCounter
	HistogramCumulative = series.HistogramCumulative
	HistogramDelta      = series.HistogramDelta
	HistogramGauge      = series.HistogramGauge
	Info                = series.Info
)

// Histogram is one value of a native histogram.
type Histogram = series.Histogram

// Series is a metric with its labels. Make each series once and use it for all of its samples: a
// known series costs nothing to send again. Its fields must not change after its first sample.
// Two Series with equal fields are one series.
type Series struct {
	// Name of the metric, such as "http_requests_total". Required.
	Name   string
	Labels Labels
	Type   Type
	// Unit, such as "seconds"; empty when unknown.
	Unit string
	// Help says what the metric means, in a sentence.
	Help string
	// Start is when a counter or cumulative histogram began to count; zero when unknown.
	Start time.Time

	once     sync.Once
	prepared *input.Series
	invalid  error
}

// Sample is a value of a series at a time.
type Sample struct {
	Series *Series
	// Time of the sample; zero is the time of Append.
	Time  time.Time
	Value float64
	// Histogram is the value instead of Value where it is not nil. It must not change after Append.
	Histogram *Histogram
}

// Now is a sample at the time of Append.
func (s *Series) Now(value float64) Sample { return Sample{Series: s, Value: value} }

// At is a sample at a time.
func (s *Series) At(t time.Time, value float64) Sample {
	return Sample{Series: s, Time: t, Value: value}
}

// HistogramAt is a sample of a native histogram at a time.
func (s *Series) HistogramAt(t time.Time, h Histogram) Sample {
	return Sample{Series: s, Time: t, Histogram: &h}
}

// prepare gives the series as inputs have it, or a *frame.Error.
func (s *Series) prepare() (*input.Series, error) {
	s.once.Do(func() {
		p := &input.Series{Type: s.Type, Unit: s.Unit, Help: frame.HelpText([]byte(s.Help)), Labels: []series.Label{{Name: series.MetricName, Value: s.Name}}}
		if !s.Start.IsZero() {
			p.Start, s.invalid = nanoseconds("start", s.Start)
		}
		// Sorted, so that one series has the same labels in the same order in every frame.
		for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
			p.Labels = append(p.Labels, series.Label{Name: name, Value: s.Labels[name]})
		}
		s.prepared = p
	})
	return s.prepared, s.invalid
}

// earliest and latest are the times that 64 bits of nanoseconds can say.
var earliest, latest = time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64)

// nanoseconds since 1970. Beyond 64 bits they would silently be those of another time.
func nanoseconds(what string, t time.Time) (int64, error) {
	if t.Before(earliest) || t.After(latest) {
		return 0, &frame.Error{Reason: frame.BadColumn, Detail: fmt.Sprintf("%s %s: want a year of %d to %d", what, t.UTC().Format(time.RFC3339), earliest.UTC().Year()+1, latest.UTC().Year()-1)}
	}
	return t.UnixNano(), nil
}
