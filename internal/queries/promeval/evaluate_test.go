package promeval_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/platform/inorder"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/promeval"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

var (
	now = time.Date(2026, 11, 21, 9, 20, 0, 0, time.UTC)
	// The data are of the hour before.
	begin, end   = now.Add(-time.Hour).UnixMilli(), now.UnixMilli()
	promqlParser = parser.NewParser(parser.Options{})
)

// odd draws values at which sums overflow, lose digits or are no numbers.
func odd(rnd *rand.Rand) float64 {
	switch rnd.IntN(12) {
	case 0:
		return math.Inf(1 - 2*rnd.IntN(2))
	case 1:
		return math.NaN()
	case 2, 3:
		return math.MaxFloat64 * (rnd.Float64() - 0.5) * 2
	case 4:
		return math.Float64frombits(value.StaleNaN)
	case 5:
		return math.Copysign(0, -1)
	case 6:
		return 1e-300 * rnd.NormFloat64()
	}
	return rnd.NormFloat64() * math.Pow(10, float64(rnd.IntN(20)-6))
}

// fill makes a store of gauges, counters, odd values and histograms of some hosts, in batches of minutes that come in no order.
func fill(t testing.TB, rnd *rand.Rand) *live.Store {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	s, err := live.New(live.Config{History: 3 * time.Hour, MaxBytes: 1 << 30, MaxSeries: 10_000})
	must(err)
	type batch struct {
		host, part int
		raw        []byte
	}
	var all []batch
	for host := range 5 {
		count := 0.0
		for part := range 12 {
			b := frame.NewBuilder()
			for _, name := range []string{"g", "c_total", "odd", "same", "h"} {
				ls := []series.Label{{Name: "__name__", Value: name}, {Name: "host", Value: fmt.Sprint(host)}, {Name: "rack", Value: fmt.Sprint(host % 2)}}
				if name == "same" {
					ls = ls[:2] // under one name with g once the rack is left out
				}
				if host == 4 {
					ls = append(ls, series.Label{Name: "__unit__", Value: "s"})
				}
				typ := series.Gauge
				switch name {
				case "c_total":
					typ = series.Counter
				case "h":
					typ = series.HistogramCumulative
				}
				id, err := b.AddSeries(ls, typ, "", 0)
				must(err)
				last := begin + int64(part)*300_000
				for ms := last + int64(rnd.IntN(9_000)) + 1; ms <= begin+int64(part+1)*300_000; ms += 9_000 + int64(rnd.IntN(3_000)) {
					if rnd.IntN(20) == 0 {
						ms += int64(rnd.IntN(600_000)) // a gap
					}
					if rnd.IntN(6) == 0 {
						ms = ms / 60_000 * 60_000 // on the stroke
					}
					if ms > begin+int64(part+1)*300_000 || ms <= last {
						continue
					}
					last = ms
					v := rnd.NormFloat64() * 100
					switch {
					case name == "h":
						count += float64(rnd.IntN(9))
						must(b.AppendHistogram(id, ms*1e6, series.Histogram{Schema: 1, ZeroThreshold: 0.001, Count: count, Sum: count, PositiveSpans: []int32{0, 1}, PositiveBuckets: []float64{count}}))
						continue
					case name == "odd":
						v = odd(rnd)
					case rnd.IntN(40) == 0:
						v = math.Float64frombits(value.StaleNaN)
					case name == "c_total":
						if count += float64(rnd.IntN(99)); rnd.IntN(50) == 0 {
							count = 0
						}
						v = count
					}
					must(b.Append(id, ms*1e6, v))
				}
			}
			f, err := b.Build(identity.Boot{Agent: fmt.Sprint("a", host), Boot: "b"}, uint64(part)*1_000_000)
			must(err)
			raw, err := frame.Encode(nil, f)
			must(err)
			all = append(all, batch{host, part, raw})
		}
	}
	rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, b := range all {
		own := &frame.Batch{}
		must(frame.Decode(b.raw, own, frame.Limits{}))
		_, err := s.Insert(accepted.Batch{Identity: own.Identity, FrameSHA256: identity.Sum(b.raw), AcceptedAt: int64(b.part)}, own, now)
		must(err)
	}
	return s
}

// newEngine makes one as services/query has it.
func newEngine(t *testing.T) *promql.Engine {
	return promqltest.NewTestEngineWithOpts(t, promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: promqlParser,
		EnableAtModifier: true, EnableNegativeOffset: true})
}

func pick[T any](rnd *rand.Rand, list ...T) T { return list[rnd.IntN(len(list))] }

// expression draws one of the shapes. reordered is true where the engine adds values in the order of a map.
func expression(rnd *rand.Rand) (text string, reordered bool) {
	sel := pick(rnd, "g", "c_total", "odd", "odd", `{__name__=~"g|odd"}`, `{host="1"}`, `{__name__=~"g|same"}`, "nothing") + pick(rnd, "", "", "", `{rack="1"}`, `{host!="4"}`)
	if sel[0] == '{' {
		sel = pick(rnd, `{__name__=~"g|odd"}`, `{__name__=~"g|same",host!="4"}`, `{__name__="c_total",host=~"[1-3]"}`)
	}
	offset := pick(rnd, "", "", " offset 7m", " offset -90s", " offset 1ms")
	x := sel + offset
	if rnd.IntN(3) > 0 {
		fn := pick(rnd, "avg", "sum", "min", "max", "count", "present", "last", "first") + "_over_time"
		if rnd.IntN(3) == 0 {
			fn = pick(rnd, "rate", "increase", "delta")
		}
		x = fmt.Sprintf("%s(%s[%dms]%s)", fn, sel, pick(rnd, 60_000, 300_000, 1, 3_600_000, 10_000, 1+rnd.IntN(700_000)), offset)
	}
	number := func(x string) string {
		op := pick(rnd, "+", "-", "*", "/", "^", "%", "atan2", ">", "<", ">=", "<=", "==", "!=", "> bool", "== bool")
		n := pick(rnd, "0", "1", "(-2.5)", "1e300", "NaN", "Inf", "(3)")
		if rnd.IntN(2) == 0 {
			return fmt.Sprintf("%s %s %s", n, op, x)
		}
		return fmt.Sprintf("%s %s %s", x, op, n)
	}
	if rnd.IntN(4) == 0 {
		x, reordered = number(x), true
	}
	if rnd.IntN(2) == 0 {
		by := pick(rnd, "", "", "by (host)", "by (rack)", "by (__name__)", "by (__name__, rack)", "by (__unit__)", "without (host)", "without (rack, host)", "by ()", "without ()")
		x = fmt.Sprintf("%s %s (%s)", pick(rnd, "sum", "avg", "min", "max", "count", "group", "stddev", "stdvar"), by, x)
		if rnd.IntN(3) == 0 {
			x = number(x)
		}
	}
	return x, reordered
}

var processors = inorder.New(3)

// both evaluates an expression here and in the engine, over the same samples.
func both(t *testing.T, s *live.Store, engine *promql.Engine, text string, at promeval.Times) (got, want promql.Result, err error) {
	t.Helper()
	expr, err := promqlParser.ParseExpr(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	shape, ok := promeval.Of(expr)
	if !ok {
		t.Fatalf("%s is no shape", text)
	}
	before := expr.String()
	snap := s.Snapshot(now)
	defer snap.Close()
	q0 := promstore.New(snap, promstore.Limits{})
	if len(text)%2 == 0 { // the other half of all expressions is read by one processor
		q0.WithParallel(processors, 0)
	}
	got.Value, got.Warnings, err = shape.Evaluate(t.Context(), q0, at)
	if expr.String() != before {
		t.Fatalf("%s is now %s", before, expr)
	}
	var q promql.Query
	var qerr error
	o := promql.NewPrometheusQueryOpts(false, time.Duration(at.Lookback)*time.Millisecond)
	if at.Step == 0 {
		q, qerr = engine.NewInstantQuery(t.Context(), promstore.New(snap, promstore.Limits{}), o, text, time.UnixMilli(at.Start))
	} else {
		q, qerr = engine.NewRangeQuery(t.Context(), promstore.New(snap, promstore.Limits{}), o, text, time.UnixMilli(at.Start), time.UnixMilli(at.End), time.Duration(at.Step)*time.Millisecond)
	}
	if qerr != nil {
		t.Fatal(qerr)
	}
	return got, *q.Exec(t.Context()), err
}

// equal compares labels, times and bits of floats, in their order. Where values were added in another order, nearly equal
// ones are enough.
func equal(got, want parser.Value, reordered bool) string {
	same := func(a, b float64) bool {
		if math.IsNaN(a) && math.IsNaN(b) {
			return true // which bits a NaN has depends on the order of operands, and no answer shows them
		}
		if reordered {
			// Whether such a sum overflows on its way depends on the order, too.
			return math.IsInf(a, 0) || math.IsInf(b, 0) || math.IsNaN(a) || math.IsNaN(b) || math.Abs(a) > 1e280 || math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b))
		}
		return math.Float64bits(a) == math.Float64bits(b)
	}
	switch g := got.(type) {
	case promql.Vector:
		w, ok := want.(promql.Vector)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%v, want %v", got, want)
		}
		for i := range g {
			if g[i].Metric.String() != w[i].Metric.String() || g[i].T != w[i].T || !same(g[i].F, w[i].F) || w[i].H != nil {
				return fmt.Sprintf("%v, want %v", g[i], w[i])
			}
		}
	case promql.Matrix:
		w, ok := want.(promql.Matrix)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%d series, want %d: %v, want %v", len(g), len(w), got, want)
		}
		for i := range g {
			if g[i].Metric.String() != w[i].Metric.String() || len(w[i].Histograms) > 0 ||
				!slices.EqualFunc(g[i].Floats, w[i].Floats, func(a, b promql.FPoint) bool { return a.T == b.T && same(a.F, b.F) }) {
				return fmt.Sprintf("%v, want %v", g[i], w[i])
			}
		}
	default:
		return fmt.Sprintf("a %T", got)
	}
	return ""
}

func remarks(r *promql.Result) []string {
	var out []string
	for _, err := range r.Warnings.AsErrors() {
		out = append(out, err.Error())
	}
	slices.Sort(out)
	return out
}

// TestShapesAreEvaluatedAsByTheEngine: random expressions of the shapes, instants and ranges, give what the engine gives
// over the same samples, to the last bit, with the same order and remarks; where it reports an error they are left to it.
func TestShapesAreEvaluatedAsByTheEngine(t *testing.T) {
	engine := newEngine(t)
	values, left := 0, 0
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		s := fill(t, rnd)
		for range 1500 {
			text, reordered := expression(rnd)
			at := promeval.Times{Start: begin - 400_000 + rnd.Int64N(4_400_000), Lookback: pick(rnd, int64(300_000), 300_000, 15_000, 1), MaxSamples: 10_000_000}
			if rnd.IntN(3) == 0 {
				at.Start = at.Start / 60_000 * 60_000
			}
			at.End = at.Start
			if rnd.IntN(4) > 0 {
				at.Step = pick(rnd, int64(1000), 15_000, 60_000, 60_000, 300_000, 1+rnd.Int64N(900_000))
				at.End += rnd.Int64N(at.Step * 60)
			}
			got, want, err := both(t, s, engine, text, at)
			q := fmt.Sprintf("seed %d: %s at %+v", seed, text, at)
			switch {
			case errors.Is(err, promeval.ErrOther):
				left++
				continue
			case err != nil || want.Err != nil:
				t.Fatalf("%s: %v, want %v", q, err, want.Err)
			}
			if diff := equal(got.Value, want.Value, reordered); diff != "" {
				t.Fatalf("%s: %s", q, diff)
			}
			if g, w := remarks(&got), remarks(&want); !slices.Equal(g, w) {
				t.Fatalf("%s: remarks %q, want %q", q, g, w)
			}
			switch v := got.Value.(type) {
			case promql.Matrix:
				for i := range v {
					values += len(v[i].Floats)
				}
			case promql.Vector:
				values += len(v)
			}
		}
	}
	if t.Logf("%d values, %d expressions left to the engine", values, left); values < 100_000 || left > 1200 {
		t.Error("too little was compared")
	}
}

// TestOtherShapes: what the engine evaluates is not taken for a shape.
func TestOtherShapes(t *testing.T) {
	for _, text := range []string{
		`1`, `"x"`, `x[5m]`, `-x`, `x + y`, `x @ 5`, `x @ end()`, `rate(x[5m] @ 5)`, `max_over_time(x[5m:1m])`, `topk(2, x)`, `quantile(0.5, x)`, `count_values("v", x)`,
		`abs(x)`, `quantile_over_time(0.5, x[5m])`, `sum(sum(x))`, `absent(x)`, `timestamp(x)`, `irate(x[5m])`, `sum(x) + sum(x)`, `x and y`, `1 + 1`, `scalar(x)`, `sum(x) > scalar(y)`,
	} {
		expr, err := promqlParser.ParseExpr(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if _, ok := promeval.Of(expr); ok {
			t.Errorf("%s is a shape", text)
		}
	}
}

// TestLeftToTheEngine: histograms and label sets that become equal are found out, whatever stands around.
func TestLeftToTheEngine(t *testing.T) {
	s := fill(t, rand.New(rand.NewPCG(1, 1)))
	engine := newEngine(t)
	for _, text := range []string{
		`h`, `sum(h)`, `rate(h[5m])`, `count_over_time(h[5m])`, `count(h) > 1`,
		`rate({__name__=~"g|odd",host="1"}[20m])`, `sum({__name__=~"g|odd",host="1"} * 2)`, `2 - sum by (__name__) ({__name__=~"g|odd",host="1"})`,
		`NaN < 2 - sum by (__name__) ({__name__=~"g|odd",host="1"})`,
	} {
		at := promeval.Times{Start: begin + 1_800_000, End: begin + 2_400_000, Step: 60_000, Lookback: 300_000, MaxSamples: 1000}
		if got, _, err := both(t, s, engine, text, at); !errors.Is(err, promeval.ErrOther) {
			t.Errorf("%s: %v, %v", text, got.Value, err)
		}
	}
}

// TestSamplesAreLimited: the points of all series and the samples of a window count, and as many as are allowed are.
func TestSamplesAreLimited(t *testing.T) {
	s := fill(t, rand.New(rand.NewPCG(1, 1)))
	engine := newEngine(t)
	for _, text := range []string{`g`, `count_over_time(g[1m])`} {
		at := promeval.Times{Start: begin + 600_000, End: begin + 1_200_000, Step: 1000, Lookback: 300_000, MaxSamples: 10_000}
		got, _, err := both(t, s, engine, text, at)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		points := 0
		for _, s := range got.Value.(promql.Matrix) {
			points += len(s.Floats)
		}
		for _, around := range []string{"%s", "sum(%s)", "%s > bool 1"} {
			text := fmt.Sprintf(around, text)
			at.MaxSamples = points + 10
			if _, _, err := both(t, s, engine, text, at); err != nil {
				t.Errorf("%s: %v", text, err)
			}
			at.MaxSamples = points - 1
			if _, _, err := both(t, s, engine, text, at); !errors.Is(err, promeval.ErrTooMany) {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
	// One point of each series, but a window of hundreds.
	at := promeval.Times{Start: end, End: end, Lookback: 300_000, MaxSamples: 100}
	if _, _, err := both(t, s, engine, `count_over_time(g[1h])`, at); !errors.Is(err, promeval.ErrTooMany) {
		t.Errorf("a window: %v", err)
	}
	// The window of a series and the points of those before it are in memory together.
	most := 0
	for first := true; first; at.Start, at.End = at.Start-60_000, at.End-60_000 {
		at.MaxSamples = 1_000_000
		got, _, err := both(t, s, engine, `count_over_time(g[1h])`, at)
		if err != nil || at.End < begin {
			t.Fatalf("at %d: %v", at.End, err)
		}
		most, first = 0, true
		for i, s := range got.Value.(promql.Vector) {
			if n := i + int(s.F); n > most {
				most, first = n, i == 0
			}
		}
	}
	at.Start, at.End = at.Start+60_000, at.End+60_000
	for limit, want := range map[int]error{most - 1: promeval.ErrTooMany, most: nil} {
		at.MaxSamples = limit
		if _, _, err := both(t, s, engine, `count_over_time(g[1h])`, at); !errors.Is(err, want) {
			t.Errorf("%d samples: %v", limit, err)
		}
	}
}

// guard counts what is asked of it, and ends the query after some checks.
type guard struct {
	checks, left int
	reserved     int64
}

var errEnd = errors.New("the end")

func (g *guard) Check() error {
	if g.checks++; g.checks > g.left {
		return errEnd
	}
	return nil
}
func (g *guard) Points(int64, bool) error { return nil }
func (g *guard) Reserve(n int64) error    { g.reserved += n; return nil }

// TestTheGuardIsAsked: within a series of long windows, too, and for the memory of results, groups and waiting samples.
func TestTheGuardIsAsked(t *testing.T) {
	s := fill(t, rand.New(rand.NewPCG(1, 1)))
	for _, x := range []struct {
		text     string
		reserved int64
	}{{`sum_over_time(g{host="1"}[1h])`, 16 * 3000}, {`sum(sum_over_time(g{host="1"}[1h]))`, (16 + 40) * 3000}} {
		expr, err := promqlParser.ParseExpr(x.text)
		if err != nil {
			t.Fatal(err)
		}
		shape, _ := promeval.Of(expr)
		at := promeval.Times{Start: end, End: end + 3600_000, Step: 1000, Lookback: 300_000, MaxSamples: 1e6}
		run := func(ctx context.Context, g *guard) error {
			snap := s.Snapshot(now)
			defer snap.Close()
			_, _, err := shape.Evaluate(ctx, promstore.New(snap, promstore.Limits{}).WithGuard(g), at)
			return err
		}
		g := &guard{left: math.MaxInt}
		if err := run(t.Context(), g); err != nil || g.reserved < x.reserved || g.checks < 20 {
			t.Errorf("%s: %v, %d bytes reserved, %d checks", x.text, err, g.reserved, g.checks)
		}
		if err := run(t.Context(), &guard{left: 15}); !errors.Is(err, errEnd) {
			t.Errorf("%s: %v", x.text, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := run(ctx, g); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, canceled: %v", x.text, err)
		}
	}
}
