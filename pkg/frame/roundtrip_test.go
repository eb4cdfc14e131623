package frame

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

var text = rapid.OneOf(rapid.SampledFrom([]string{"a", "b", "zone", "é", "__aa__", "Z"}), rapid.StringN(1, 8, 32))

// value draws floats of every mode: decimals, integers with common factors, specials, any bits.
func value() *rapid.Generator[float64] {
	return rapid.OneOf(
		rapid.Map(rapid.Int64Range(-1e6, 1e6), func(n int64) float64 { return float64(n) / 100 }),
		rapid.Map(rapid.Int64Range(0, 1<<40), func(n int64) float64 { return float64(n << 12) }),
		rapid.Map(rapid.Uint64(), math.Float64frombits),
		rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 1, math.NaN(), math.Inf(-1), 1 << 53, 1<<53 - 1, 1e15, 0.1, 1e-15, math.Float64frombits(0x7ff0000000000002)}),
	)
}

func drawSeries(t *rapid.T, group, i int, histograms bool) ([]series.Label, series.Type, string, int64) {
	labels := []series.Label{{Name: series.MetricName, Value: rapid.SampledFrom([]string{"up", "load"}).Draw(t, "name")}, {Name: "series", Value: fmt.Sprint(group, "-", i)}}
	for range rapid.IntRange(0, 3).Draw(t, "labels") {
		name := text.Draw(t, "label")
		if !slices.ContainsFunc(labels, func(l series.Label) bool { return l.Name == name }) {
			labels = append(labels, series.Label{Name: name, Value: text.Draw(t, "value")})
		}
	}
	typ := rapid.SampledFrom([]series.Type{series.Unknown, series.Gauge, series.Counter, series.DeltaCounter, series.Info}).Draw(t, "type")
	if histograms {
		typ = rapid.SampledFrom([]series.Type{series.HistogramCumulative, series.HistogramDelta, series.HistogramGauge}).Draw(t, "type")
	}
	return labels, typ, rapid.SampledFrom([]string{"", "bytes", "s"}).Draw(t, "unit"), rapid.SampledFrom([]int64{0, 1, 1_700_000_000_000_000_000}).Draw(t, "start")
}

func drawTimes(t *rapid.T) []int64 {
	unit := rapid.SampledFrom([]int64{1, 1000, 1e9, 10e9}).Draw(t, "unit")
	ts := rapid.SliceOfNDistinct(rapid.Int64Range(-1e6, 9e8), 1, 20, rapid.ID).Draw(t, "times")
	slices.Sort(ts)
	if rapid.IntRange(0, 9).Draw(t, "extremes") == 0 {
		return []int64{math.MinInt64, -1, math.MaxInt64}
	}
	for i := range ts {
		ts[i] *= unit
	}
	return ts
}

func drawHistogram(t *rapid.T) series.Histogram {
	h := series.Histogram{Schema: int32(rapid.IntRange(-9, 52).Draw(t, "schema")), Sum: value().Draw(t, "sum"), Count: float64(rapid.IntRange(0, 1e6).Draw(t, "count"))}
	for i := range rapid.IntRange(0, 3).Draw(t, "spans") {
		n := rapid.IntRange(0, 3).Draw(t, "length")
		h.PositiveSpans = append(h.PositiveSpans, int32(i+5), int32(n))
		for range n {
			h.PositiveBuckets = append(h.PositiveBuckets, rapid.Float64Range(0, 1e9).Draw(t, "bucket"))
		}
	}
	return h
}

// What a Builder lays out is what a Decoder gives back, bit by bit, also into a
// Batch that held another before.
func TestRoundTrip(t *testing.T) {
	d, e, b := NewDecoder(), NewEncoder(Options{}), NewBuilder()
	plain := NewEncoder(Options{Uncompressed: true})
	var got Batch
	rapid.Check(t, func(t *rapid.T) {
		b.Reset()
		if rapid.Bool().Draw(t, "resource") {
			check(t, b.SetResource(series.Label{Name: "zone", Value: "z"}, series.Label{Name: "host", Value: text.Draw(t, "host")}))
		}
		for g := range rapid.IntRange(1, 3).Draw(t, "groups") {
			times, histograms := drawTimes(t), rapid.IntRange(0, 3).Draw(t, "histograms") == 0
			for i := range rapid.IntRange(1, 4).Draw(t, "series") {
				labels, typ, unit, start := drawSeries(t, g, i, histograms)
				id, err := b.AddSeries(labels, typ, unit, start)
				check(t, err)
				for _, ts := range times {
					if histograms {
						check(t, b.AppendHistogram(id, ts, drawHistogram(t)))
					} else {
						check(t, b.Append(id, ts, value().Draw(t, "value")))
					}
				}
			}
		}
		for _, name := range []string{"up", "load"} {
			if help := text.Draw(t, "help"); rapid.Bool().Draw(t, "helps") && b.intern[name] > 0 {
				check(t, b.SetHelp(name, help))
			}
		}
		batch, err := b.Build(boot, rapid.Uint64Range(0, math.MaxUint64-1e6).Draw(t, "seq"))
		check(t, err)
		for _, e := range []*Encoder{e, plain} {
			f, err := e.Encode(nil, batch)
			check(t, err)
			check(t, d.Decode(f, &got, Limits{}))
			if diff := diffBatch(batch, &got); diff != "" {
				t.Fatal(diff)
			}
			again, err := e.Encode(nil, &got)
			check(t, err)
			if !slices.Equal(f, again) {
				t.Fatal("a decoded batch encodes to other bytes")
			}
		}
	})
}

func check(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestTimestampColumn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ts := drawTimes(t)
		col := appendTimestamps(nil, ts)
		got := make([]int64, len(ts))
		check(t, decodeTimestamps(got, col))
		if !slices.Equal(ts, got) {
			t.Fatalf("%v, want %v", got, ts)
		}
		for n := range col {
			if decodeTimestamps(got, col[:n]) == nil {
				t.Fatalf("column cut to %d of %d bytes was read", n, len(col))
			}
		}
	})
}

func TestValueColumn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(value(), 1, 30).Draw(t, "values")
		col, mode := appendValues(nil, v, make([]int64, len(v)))
		if len(col) < len(v) || len(col) > 8*len(v) {
			t.Fatalf("%d bytes for %d values", len(col), len(v))
		}
		got := make([]float64, len(v))
		check(t, decodeValues(got, len(v), []byte{mode}, col))
		for i := range v {
			if math.Float64bits(v[i]) != math.Float64bits(got[i]) {
				t.Fatalf("value %d is %v (%x), want %v (%x)", i, got[i], math.Float64bits(got[i]), v[i], math.Float64bits(v[i]))
			}
		}
		for n := range col {
			if decodeValues(got, len(v), []byte{mode}, col[:n]) == nil {
				t.Fatalf("column cut to %d of %d bytes was read", n, len(col))
			}
		}
	})
}

// Each kind of data gets the mode that it is for.
func TestValueModes(t *testing.T) {
	for _, c := range []struct {
		mode byte
		v    []float64
	}{
		{modeDecimal, []float64{1, 2, 3}},
		{modeDecimal + 2, []float64{0.25, 1, 1.5}},
		{modeDecimal + 15, []float64{1e-15}},
		{modeShift + 12, []float64{4096, 8192, 12288}},
		{modeDecimal, []float64{0, 0}},
		{modeXOR, []float64{math.Inf(1), math.Inf(1)}},
		{modeXOR, []float64{math.Copysign(0, -1), 0}},
		{modePlain, []float64{1e300 / 7, -1e-300 / 3}},
	} {
		if _, mode := appendValues(nil, c.v, make([]int64, len(c.v))); mode != c.mode {
			t.Errorf("%v: mode 0x%02x, want 0x%02x", c.v, mode, c.mode)
		}
	}
}
