package chunk

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// staleNaN is Prometheus' stale marker.
var staleNaN = math.Float64frombits(0x7ff0000000000002)

// odd are floats that formats tend to lose.
var odd = []float64{0, math.Copysign(0, -1), staleNaN, math.NaN(), math.Float64frombits(0xfff8dead00000001), math.Inf(1), math.Inf(-1),
	math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, math.MaxFloat64, -math.MaxFloat64, 1 << 53, 1<<53 + 2, -(1 << 53), 1e300, 1e-300,
	0.1, 0.1 + 0.2, 1e15, 1e-15, math.Pi, 2.2250738585072014e-308, 2.225073858507201e-308, math.MaxInt64, math.MinInt64}

// shapes make a column of rows floats.
func drawFloats(t *rapid.T, rows int) []float64 {
	v := make([]float64, rows)
	shape := rapid.IntRange(0, 9).Draw(t, "shape")
	x := rapid.Int64Range(-1<<40, 1<<40).Draw(t, "start")
	seed := rapid.Uint64().Draw(t, "seed")
	next := func() uint64 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return seed >> 11
	}
	for i := range v {
		step := int64(next()%7) - 3
		switch shape {
		case 0:
			v[i] = float64(x)
		case 1, 2:
			x += step
			v[i] = float64(x)
		case 3:
			x += step
			v[i] = float64(x%100000) / 1000
		case 4: // sums of decimals: near decimals
			v[i] = float64(i) * 0.1
		case 5:
			v[i] = math.Float64frombits(next() << 11)
		case 6:
			v[i] = odd[next()%uint64(len(odd))]
		case 7: // mostly decimals
			x += step
			v[i] = float64(x)
			if next()%9 == 0 {
				v[i] = odd[next()%uint64(len(odd))]
			}
		case 8:
			v[i] = math.Sqrt(float64(next() % 1000))
		case 9: // mostly zeros
			if next()%20 == 0 {
				x += step
			}
			v[i] = float64(x)
		}
	}
	return v
}

func drawHistograms(t *rapid.T, rows int) []series.Histogram {
	out := make([]series.Histogram, rows)
	var h series.Histogram
	for i := range out {
		if i == 0 || rapid.IntRange(0, 5).Draw(t, "relayout") == 0 {
			h = series.Histogram{Schema: int32(rapid.IntRange(-9, 52).Draw(t, "schema"))}
			h.ZeroThreshold = rapid.SampledFrom([]float64{0, 1e-128, 0.001}).Draw(t, "threshold")
			for range rapid.IntRange(0, 3).Draw(t, "spans") {
				n := rapid.Int32Range(0, 4).Draw(t, "length")
				h.PositiveSpans = append(h.PositiveSpans, rapid.Int32Range(0, 1000).Draw(t, "offset"), n)
				h.PositiveBuckets = append(h.PositiveBuckets, make([]float64, n)...)
			}
			if rapid.Bool().Draw(t, "negative") {
				h.NegativeSpans, h.NegativeBuckets = []int32{-70000, 2}, make([]float64, 2)
			}
			if rapid.IntRange(0, 3).Draw(t, "custom") == 0 {
				h.Schema, h.CustomValues = series.CustomBounds, []float64{0.5, 1, 2.5}
			}
		}
		c := h
		c.PositiveBuckets, c.NegativeBuckets = slices.Clone(h.PositiveBuckets), slices.Clone(h.NegativeBuckets)
		for _, b := range [...][]float64{c.PositiveBuckets, c.NegativeBuckets} {
			for k := range b {
				b[k] = float64(rapid.IntRange(0, 1<<20).Draw(t, "bucket"))
				c.Count += b[k]
			}
		}
		c.Sum = rapid.SampledFrom(odd).Draw(t, "sum")
		c.ZeroCount = float64(i) / 3
		h.PositiveBuckets, h.NegativeBuckets = c.PositiveBuckets, c.NegativeBuckets
		if len(c.PositiveBuckets) == 0 {
			c.PositiveBuckets = nil
		}
		out[i] = c
	}
	return out
}

func drawTimes(t *rapid.T, rows int) []int64 {
	ts := make([]int64, rows)
	at := rapid.SampledFrom([]int64{1_800_000_000_000_000_000, 0, -5_000_000_000, 17, math.MinInt64, math.MinInt64 / 2}).Draw(t, "first")
	step := rapid.SampledFrom([]int64{1, 1e6, 1e10, 60e9, 1 << 40}).Draw(t, "step")
	jitter := rapid.SampledFrom([]int64{0, 0, 3}).Draw(t, "jitter")
	for i := range ts {
		ts[i] = at
		at += step
		if jitter > 0 {
			at += rapid.Int64Range(0, jitter*1e6).Draw(t, "late")
		}
	}
	return ts
}

// drawSeries makes up to n series, some of which share times or values.
func drawSeries(t *rapid.T, n, maxRows int) []*Series {
	var out []*Series
	seen := map[string]bool{}
	for i := range rapid.IntRange(1, n).Draw(t, "series") {
		s := &Series{ID: series.ID{Agent: rapid.SampledFrom([]string{"", "host-1", "host-2"}).Draw(t, "agent")}}
		s.Type = series.Type(rapid.IntRange(0, 7).Draw(t, "type"))
		s.Unit = rapid.SampledFrom([]string{"", "s", "By"}).Draw(t, "unit")
		if rapid.Bool().Draw(t, "A") {
			s.Labels = append(s.Labels, series.Label{Name: "A", Value: "é"})
		}
		s.Labels = append(s.Labels, series.Label{Name: nameLabel, Value: rapid.SampledFrom([]string{"up", "cpu", "cpu_seconds_total"}).Draw(t, "name")})
		for _, name := range []string{"a", "job", "zone"} {
			if v := rapid.SampledFrom([]string{"", "1", "12", "2"}).Draw(t, name); v != "" {
				s.Labels = append(s.Labels, series.Label{Name: name, Value: v})
			}
		}
		key := fmt.Sprint(s.Agent, s.Labels, s.Type, s.Unit)
		if seen[key] {
			continue
		}
		seen[key] = true
		if len(out) > 0 && rapid.Bool().Draw(t, "shares") {
			s.Columns = related(t, out[rapid.IntRange(0, len(out)-1).Draw(t, "with")].Columns, i)
		} else {
			s.Columns = drawColumns(t, maxRows)
		}
		out = append(out, s)
	}
	return out
}

// related has the times of c and values that follow from c's, or are the same.
func related(t *rapid.T, c Columns, i int) Columns {
	if c.V == nil {
		return c
	}
	v := slices.Clone(c.V)
	switch rapid.IntRange(0, 3).Draw(t, "relation") {
	case 0:
		for k := range v {
			v[k] = 1e12 - v[k]
		}
	case 1:
		for k := range v {
			v[k] = v[k] * 100 / 8589934592
		}
	case 2:
		for k := range v {
			v[k] *= 1.7
		}
	}
	return Columns{T: c.T, V: v, Start: c.Start}
}

func drawColumns(t *rapid.T, maxRows int) Columns {
	rows := rapid.IntRange(1, maxRows).Draw(t, "rows")
	c := Columns{T: drawTimes(t, rows)}
	floats := func() []float64 { return drawFloats(t, rows) }
	switch rapid.IntRange(0, 5).Draw(t, "columns") {
	case 0, 1:
		c.V = floats()
		if rapid.Bool().Draw(t, "start") {
			c.Start = make([]int64, rows)
			for i := range c.Start {
				c.Start[i] = c.T[i/5*5]
			}
		}
		return c
	case 2:
		c.H = drawHistograms(t, rows)
		return c
	case 3:
		rolled(t, &c)
		c.First, c.Last = floats(), floats()
		c.Increase = make([]float64, rows)
		for i := range c.Increase {
			if c.Increase[i] = c.Last[i] - c.First[i]; i%50 == 49 {
				c.Increase[i] = c.Last[i]
			}
		}
	case 4:
		rolled(t, &c)
		c.First, c.Last, c.Sum, c.SumC, c.Min, c.Max = floats(), floats(), floats(), floats(), floats(), floats()
	case 5:
		rolled(t, &c)
		c.FirstH, c.LastH, c.IncreaseH, c.SumH = drawHistograms(t, rows), drawHistograms(t, rows), drawHistograms(t, rows), drawHistograms(t, rows)
	}
	return c
}

func rolled(t *rapid.T, c *Columns) {
	n := len(c.T)
	c.Count, c.Stale, c.FirstT, c.LastT = make([]uint32, n), make([]uint32, n), make([]int64, n), make([]int64, n)
	for i := range n {
		c.Count[i] = rapid.Uint32Range(0, 6).Draw(t, "count")
		c.Stale[i] = rapid.SampledFrom([]uint32{0, 0, 0, 1, math.MaxUint32}).Draw(t, "stale")
		if c.Count[i] > 0 {
			c.FirstT[i], c.LastT[i] = c.T[i]-50, c.T[i]-1
		}
	}
}

func sameColumns(t testing.TB, what string, got, want *Columns) {
	t.Helper()
	if g, w := got.mask(), want.mask(); g != w {
		t.Fatalf("%s: columns %#x, want %#x", what, g, w)
	}
	if !sameTimes(got.T, want.T) || !sameTimes(got.Start, want.Start) || !sameTimes(got.FirstT, want.FirstT) || !sameTimes(got.LastT, want.LastT) {
		t.Fatalf("%s: times differ:\n%v %v\n%v %v", what, got.T, got.Start, want.T, want.Start)
	}
	for i := range columns {
		bit := Mask(1) << i
		switch {
		case bit == ColStart:
		case bit&histColumns != 0:
			sameHistograms(t, what, *got.hist(bit), *want.hist(bit))
		case bit&countColumns != 0:
			if !slices.Equal(*got.count(bit), *want.count(bit)) {
				t.Fatalf("%s: counts %v, want %v", what, *got.count(bit), *want.count(bit))
			}
		case !sameBits(*got.float(bit), *want.float(bit)):
			t.Fatalf("%s: column %#x: %v\nwant %v", what, bit, *got.float(bit), *want.float(bit))
		}
	}
}

func sameHistograms(t testing.TB, what string, got, want []series.Histogram) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d histograms, want %d", what, len(got), len(want))
	}
	for i := range got {
		g, w := &got[i], &want[i]
		if !sameLayout(g, w) || !sameBits([]float64{g.Count, g.Sum, g.ZeroCount}, []float64{w.Count, w.Sum, w.ZeroCount}) ||
			!sameBits(g.PositiveBuckets, w.PositiveBuckets) || !sameBits(g.NegativeBuckets, w.NegativeBuckets) {
			t.Fatalf("%s: histogram %d: %+v\nwant %+v", what, i, g, w)
		}
	}
}
