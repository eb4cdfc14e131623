package rollup

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// engineCase is one random series of an hour in the engine's storage and as raw columns.
type engineCase struct {
	raw   chunk.Series
	store *teststorage.TestStorage
}

func newCase(t *testing.T, rnd *rand.Rand, typ series.Type, sample func(i int) (float64, *series.Histogram)) engineCase {
	c := engineCase{store: teststorage.New(t)}
	t.Cleanup(func() { c.store.Close() })
	c.raw = chunk.Series{ID: series.ID{Agent: "a", Labels: []series.Label{{Name: "__name__", Value: "m"}}, Type: typ}}
	app := c.store.AppenderV2(t.Context())
	ms := testHour.StartMS() + 1 + rnd.Int64N(200_000)
	every := 1000 + rnd.Int64N(40_000)
	for i := 0; ms <= testHour.EndMS(); i++ {
		v, h := sample(i)
		if rnd.IntN(30) == 0 {
			v, h = math.Float64frombits(value.StaleNaN), staleOf(h)
		}
		c.raw.T = append(c.raw.T, ms*1e6+rnd.Int64N(1e6))
		var fh *histogram.FloatHistogram
		if h != nil {
			c.raw.H = append(c.raw.H, *h)
			fh = samples.FloatHistogram(h, typ).Copy()
		} else {
			c.raw.V = append(c.raw.V, v)
		}
		if _, err := app.Append(0, labels.FromStrings("__name__", "m"), 0, ms, v, nil, fh, storage.AppendV2Options{}); err != nil {
			t.Fatal(err)
		}
		if rnd.IntN(25) == 0 {
			ms += rnd.Int64N(600_000)
		}
		ms += every + rnd.Int64N(1+every/4)
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	return c
}

func staleOf(h *series.Histogram) *series.Histogram {
	if h == nil {
		return nil
	}
	return &series.Histogram{Sum: math.Float64frombits(value.StaleNaN)}
}

// ask gives the engine's answer at endMS.
func (c engineCase) ask(t *testing.T, engine *promql.Engine, expr string, endMS int64) (promql.Vector, bool) {
	t.Helper()
	q, err := engine.NewInstantQuery(t.Context(), c.store, nil, expr, time.UnixMilli(endMS))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	res := q.Exec(t.Context())
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	v, err := res.Vector()
	if err != nil {
		t.Fatal(err)
	}
	return v, len(v) > 0
}

// ranges gives random ranges that are aligned with w.
func ranges(rnd *rand.Rand, res timegrid.Resolution, n int) []Range {
	var out []Range
	for range n {
		k := testHour.EndMS() - testHour.StartMS()
		a, b := rnd.Int64N(k/res.Millis()), rnd.Int64N(k/res.Millis())
		a, b = min(a, b), max(a, b)+1
		out = append(out, Range{testHour.StartMS() + a*res.Millis(), testHour.StartMS() + b*res.Millis()})
	}
	return out
}

func rowsIn(s *chunk.Series, r Range) (rows []int) {
	for i, t := range s.T {
		if ms := t / 1e6; ms > r.StartMS && ms <= r.EndMS {
			rows = append(rows, i)
		}
	}
	return rows
}

func close12(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-12*max(math.Abs(a), math.Abs(b))
}

// TestCountersEqualEngine: increase and rate from buckets equal the engine's on the raw
// samples: to the last bit for whole numbers, to rounding for others.
func TestCountersEqualEngine(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	answers := 0
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		whole := seed%2 == 0
		v := 0.0
		c := newCase(t, rnd, series.Counter, func(int) (float64, *series.Histogram) {
			switch rnd.IntN(20) {
			case 0:
				v = 0
			case 1:
				v /= 2
			}
			v += rnd.Float64() * 100
			if whole {
				v = math.Floor(v)
			}
			return v, nil
		})
		for _, res := range timegrid.Resolutions()[1:] {
			rolled := NewRoller(res).Roll(&c.raw)
			for _, r := range ranges(rnd, res, 12) {
				var got CounterRange
				for _, i := range rowsIn(&rolled, r) {
					got.AddRow(&rolled.Columns, i)
				}
				for fn, f := range map[string]func(Range) (float64, bool, error){"increase": got.Increase, "rate": got.Rate} {
					g, ok, err := f(r)
					want, has := c.ask(t, engine, fmt.Sprintf("%s(m[%dms])", fn, r.EndMS-r.StartMS), r.EndMS)
					if err != nil || ok != has || ok && (!close12(g, want[0].F) || whole && g != want[0].F) {
						t.Fatalf("seed %d, %v, %s over %v: %v %v %v, engine %v", seed, res, fn, r, g, ok, err, want)
					}
					answers++
				}
			}
		}
	}
	t.Logf("%d answers", answers)
}

// Raw samples at the edges and buckets between them give what all raw samples give.
func TestCounterWithRawEdges(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	rnd := rand.New(rand.NewPCG(5, 2))
	v := 0.0
	c := newCase(t, rnd, series.Counter, func(int) (float64, *series.Histogram) {
		if v += float64(rnd.IntN(9)); rnd.IntN(9) == 0 {
			v = 0
		}
		return v, nil
	})
	rolled := NewRoller(timegrid.OneMinute).Roll(&c.raw)
	for range 40 {
		r := Range{testHour.StartMS() + rnd.Int64N(900_000), testHour.EndMS() - rnd.Int64N(900_000)}
		inner := Range{timegrid.OneMinute.BucketEnd(r.StartMS), timegrid.OneMinute.BucketEnd(r.EndMS) - 60_000}
		var got CounterRange
		edge := func(from, to int64) {
			for i, ns := range c.raw.T {
				if ms := timegrid.Millisecond(ns); ms > from && ms <= to && !value.IsStaleNaN(c.raw.V[i]) {
					got.AddSample(ns, c.raw.V[i])
				}
			}
		}
		edge(r.StartMS, inner.StartMS)
		for _, i := range rowsIn(&rolled, inner) {
			got.AddRow(&rolled.Columns, i)
		}
		edge(inner.EndMS, r.EndMS)
		g, ok, err := got.Increase(r)
		want, has := c.ask(t, engine, fmt.Sprintf("increase(m[%dms])", r.EndMS-r.StartMS), r.EndMS)
		if err != nil || ok != has || ok && g != want[0].F {
			t.Fatalf("%v: %v %v %v, engine %v", r, g, ok, err, want)
		}
	}
}

// TestGaugesEqualEngine: with NaN and infinities among the values.
func TestGaugesEqualEngine(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	for seed := range uint64(24) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		c := newCase(t, rnd, series.Gauge, func(int) (float64, *series.Histogram) {
			if seed%4 == 1 {
				switch rnd.IntN(20) {
				case 0:
					return math.NaN(), nil
				case 1:
					return math.Inf(1), nil
				case 2:
					return math.Inf(-1), nil
				}
			}
			return rnd.NormFloat64() * math.Pow(10, float64(rnd.IntN(12))), nil
		})
		for _, res := range timegrid.Resolutions()[1:] {
			rolled := NewRoller(res).Roll(&c.raw)
			for _, r := range ranges(rnd, res, 6) {
				var g GaugeRange
				for _, i := range rowsIn(&rolled, r) {
					g.AddRow(&rolled.Columns, i)
				}
				avg, err := g.Avg()
				delta, hasDelta := g.Delta(r)
				for fn, got := range map[string]float64{
					"sum_over_time": g.Sum(), "avg_over_time": avg, "min_over_time": g.Min(), "max_over_time": g.Max(),
					"last_over_time": g.Last(), "first_over_time": g.First(), "count_over_time": float64(g.Count()), "delta": delta,
				} {
					if fn == "avg_over_time" && errors.Is(err, ErrInexact) {
						continue
					}
					want, has := c.ask(t, engine, fmt.Sprintf("%s(m[%dms])", fn, r.EndMS-r.StartMS), r.EndMS)
					ok := g.Count() > 0
					if fn == "delta" {
						ok = hasDelta
					}
					if ok != has || ok && !close12(got, want[0].F) {
						t.Fatalf("seed %d, %v, %s over %v: %v %v, engine %v", seed, res, fn, r, got, ok, want)
					}
				}
			}
		}
	}
}

// TestHistogramsEqualEngine: exponential ones whose schema changes, and custom bounds.
func TestHistogramsEqualEngine(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	answers := 0
	for seed := range uint64(24) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		custom := seed%3 == 2
		var a, b float64
		schema := int32(3)
		c := newCase(t, rnd, series.HistogramCumulative, func(int) (float64, *series.Histogram) {
			if rnd.IntN(15) == 0 {
				a, b = 0, 0
			}
			if seed%3 == 1 && rnd.IntN(20) == 0 {
				schema = int32(rnd.IntN(4))
			}
			a, b = a+float64(rnd.IntN(9)), b+float64(rnd.IntN(9))
			h := &series.Histogram{
				Schema: schema, ZeroThreshold: 0.001, ZeroCount: a, Count: 2*a + b, Sum: 3*a + b,
				PositiveSpans: []int32{int32(2), 2}, PositiveBuckets: []float64{a, b},
			}
			if custom {
				*h = series.Histogram{Schema: series.CustomBounds, Count: a + b, Sum: a, PositiveSpans: []int32{0, 2}, PositiveBuckets: []float64{a, b}, CustomValues: []float64{1, 2}}
			}
			return 0, h
		})
		for _, res := range timegrid.Resolutions()[1:] {
			rolled := NewRoller(res).Roll(&c.raw)
			for _, r := range ranges(rnd, res, 8) {
				var got HistogramRange
				for _, i := range rowsIn(&rolled, r) {
					got.AddRow(&rolled.Columns, i)
				}
				g, err := got.Rate(r)
				want, has := c.ask(t, engine, fmt.Sprintf("rate(m[%dms])", r.EndMS-r.StartMS), r.EndMS)
				if err != nil || (g != nil) != has {
					t.Fatalf("seed %d, %v, rate over %v: %v %v, engine %v", seed, res, r, g, err, want)
				}
				if g == nil {
					continue
				}
				answers++
				if !sameHistogram(g, want[0].H) {
					t.Fatalf("seed %d, %v, rate over %v:\n%v, engine\n%v", seed, res, r, g, want[0].H)
				}
			}
		}
	}
	if answers < 100 {
		t.Errorf("%d answers only", answers)
	}
}

func sameHistogram(a, b *histogram.FloatHistogram) bool {
	if a.Schema != b.Schema || a.ZeroThreshold != b.ZeroThreshold || !close12(a.Count, b.Count) || !close12(a.Sum, b.Sum) || !close12(a.ZeroCount, b.ZeroCount) {
		return false
	}
	x, y := a.AllBucketIterator(), b.AllBucketIterator()
	for {
		mx, my := nextFull(x), nextFull(y)
		if mx != my || !mx {
			return mx == my
		}
		if p, q := x.At(), y.At(); p.Index != q.Index || p.Lower != q.Lower || !close12(p.Count, q.Count) {
			return false
		}
	}
}

func nextFull(it histogram.BucketIterator[float64]) bool {
	for it.Next() {
		if it.At().Count != 0 {
			return true
		}
	}
	return false
}

// What the buckets do not determine is refused, never guessed.
func TestInexactIsRefused(t *testing.T) {
	hour := testHour.StartMS()
	r := Range{hour, hour + 120_000}
	raw := chunk.Series{ID: series.ID{Type: series.Counter}}
	for i, v := range []float64{1, math.Inf(1), 2, 3} {
		raw.T, raw.V = append(raw.T, (hour+30_000*int64(i+1))*1e6), append(raw.V, v)
	}
	rolled := NewRoller(timegrid.OneMinute).Roll(&raw)
	var c CounterRange
	c.AddRow(&rolled.Columns, 0)
	c.AddRow(&rolled.Columns, 1)
	if _, _, err := c.Increase(r); !errors.Is(err, ErrInexact) {
		t.Errorf("infinity: %v", err)
	}
	raw = chunk.Series{ID: series.ID{Type: series.HistogramCumulative}}
	for i, bounds := range [][]float64{{1, 2}, {1, 2}, {1, 3}} {
		raw.T = append(raw.T, (hour+30_000*int64(i+1))*1e6)
		raw.H = append(raw.H, series.Histogram{Schema: series.CustomBounds, Count: float64(i), CustomValues: bounds, PositiveSpans: []int32{0, 1}, PositiveBuckets: []float64{float64(i)}})
	}
	rolled = NewRoller(timegrid.OneMinute).Roll(&raw)
	var h HistogramRange
	h.AddRow(&rolled.Columns, 0)
	h.AddRow(&rolled.Columns, 1)
	if _, err := h.Rate(r); !errors.Is(err, ErrInexact) {
		t.Errorf("other bounds: %v", err)
	}
	raw.H[1] = series.Histogram{Schema: 1, Count: 3}
	rolled = NewRoller(timegrid.FiveMinutes).Roll(&raw)
	if !math.IsNaN(rolled.IncreaseH[0].Sum) {
		t.Errorf("exponential between custom: %+v", rolled.IncreaseH[0])
	}
}
