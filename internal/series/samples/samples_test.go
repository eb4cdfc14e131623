package samples_test

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// A run that is cut keeps what lies in the range, edges included, and remembers the histogram
// before it.
func TestCut(t *testing.T) {
	h := []*histogram.FloatHistogram{{Count: 1}, {Count: 2}, {Count: 3}, {Count: 4}}
	for _, c := range []struct {
		mint, maxt int64
		want       []int64
		before     *histogram.FloatHistogram
	}{
		{10, 40, []int64{10, 20, 30, 40}, nil},
		{11, 40, []int64{20, 30, 40}, h[0]},
		{20, 30, []int64{20, 30}, h[0]},
		{21, 29, nil, h[1]},
		{41, 50, nil, h[3]},
		{0, 9, nil, nil},
	} {
		r := samples.Run{T: []int64{10, 20, 30, 40}, H: h, STs: []int64{1, 2, 3, 4}}
		r.Cut(c.mint, c.maxt)
		if !slices.Equal(r.T, c.want) || len(r.H) != len(c.want) || len(r.STs) != len(c.want) || r.V != nil || r.Before != c.before {
			t.Errorf("[%d, %d]: %v, before %v, want %v, %v", c.mint, c.maxt, r.T, r.Before, c.want, c.before)
		}
		if len(r.T) > 0 && (r.H[0].Count != float64(r.T[0]/10) || r.STs[0] != r.T[0]/10 || r.Last().Count != float64(r.T[len(r.T)-1]/10)) {
			t.Errorf("[%d, %d]: columns have other rows than times", c.mint, c.maxt)
		}
	}
}

// Taking samples off leaves the others.
func TestTake(t *testing.T) {
	r := samples.Run{T: []int64{1, 2, 3}, V: []float64{1, 2, 3}, ST: 7}
	head := r.Take(2)
	if !slices.Equal(head.T, []int64{1, 2}) || !slices.Equal(head.V, []float64{1, 2}) || head.ST != 7 || head.H != nil {
		t.Errorf("took %+v", head)
	}
	if !slices.Equal(r.T, []int64{3}) || !slices.Equal(r.V, []float64{3}) || r.ST != 7 || r.H != nil {
		t.Errorf("left %+v", r)
	}
}

// A histogram comes back from Prometheus' form; the type decides the hint.
func TestFloatHistogram(t *testing.T) {
	h := series.Histogram{Schema: 3, ZeroThreshold: 1e-9, ZeroCount: 1, Count: 10, Sum: 2.5, PositiveSpans: []int32{-2, 2, 5, 1},
		PositiveBuckets: []float64{1, 2, 3}, NegativeSpans: []int32{0, 1}, NegativeBuckets: []float64{3}}
	for typ, want := range map[series.Type]histogram.CounterResetHint{
		series.HistogramCumulative: histogram.UnknownCounterReset, series.HistogramDelta: histogram.GaugeType, series.HistogramGauge: histogram.GaugeType,
	} {
		f := samples.FloatHistogram(&h, typ)
		if f.CounterResetHint != want {
			t.Errorf("type %d: hint %d, want %d", typ, f.CounterResetHint, want)
		}
		if err := f.Validate(); err != nil {
			t.Error(err)
		}
		if got := samples.Histogram(f); !reflect.DeepEqual(got, h) {
			t.Errorf("%+v, want %+v", got, h)
		}
	}
	c := h.Clone()
	c.PositiveBuckets[0], c.PositiveSpans[0] = 9, 9
	if h.PositiveBuckets[0] != 1 || h.PositiveSpans[0] != -2 {
		t.Error("a clone shares its slices")
	}
}

// TestAnyStale: only Prometheus' marker is one, no other NaN.
func TestAnyStale(t *testing.T) {
	marker := math.Float64frombits(value.StaleNaN)
	for _, c := range []struct {
		of   []float64
		want bool
	}{
		{nil, false},
		{[]float64{0, math.Inf(1), math.NaN(), math.Float64frombits(value.NormalNaN)}, false},
		{[]float64{1, marker}, true},
		{[]float64{marker, 1, math.NaN()}, true},
	} {
		if got := samples.AnyStale(c.of); got != c.want {
			t.Errorf("%v: %v", c.of, got)
		}
	}
}

// A histogram of a reserved schema is evaluated as one of schema 8; what it is made of is not changed, and what is stored keeps it.
func TestReservedSchemasAreReduced(t *testing.T) {
	h := series.Histogram{Schema: 10, Count: 6, PositiveSpans: []int32{0, 0, 1, 2, 3, 1}, PositiveBuckets: []float64{1, 2, 3}, NegativeSpans: []int32{-7, 1}, NegativeBuckets: []float64{4}}
	was := series.Histogram{Schema: 10, Count: 6, PositiveSpans: slices.Clone(h.PositiveSpans), PositiveBuckets: slices.Clone(h.PositiveBuckets),
		NegativeSpans: slices.Clone(h.NegativeSpans), NegativeBuckets: slices.Clone(h.NegativeBuckets)}
	f := samples.FloatHistogram(&h, series.HistogramGauge)
	// Of schema 10 buckets 1 to 4 are bucket 1 of schema 8, 5 to 8 are 2, and -7 to -4 are -1.
	if f.Schema != 8 || f.Count != 6 || f.CounterResetHint != histogram.GaugeType || !slices.Equal(f.PositiveBuckets, []float64{3, 3}) ||
		!slices.Equal(f.PositiveSpans, []histogram.Span{{Offset: 1, Length: 2}}) || !slices.Equal(f.NegativeSpans, []histogram.Span{{Offset: -1, Length: 1}}) {
		t.Errorf("%+v", f)
	}
	if !reflect.DeepEqual(h, was) {
		t.Errorf("%+v was changed", h)
	}
	if got := samples.Histogram(samples.Unreduced(&h, series.HistogramGauge)); !reflect.DeepEqual(got, was) {
		t.Errorf("%+v is stored as %+v", was, got)
	}
	h = series.Histogram{Schema: series.CustomBounds, CustomValues: []float64{1}, PositiveSpans: []int32{0, 2}, PositiveBuckets: []float64{1, 1}}
	if f := samples.FloatHistogram(&h, series.HistogramCumulative); f.Schema != h.Schema || len(f.PositiveBuckets) != 2 {
		t.Errorf("%+v", f)
	}
}
