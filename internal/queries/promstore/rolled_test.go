package promstore_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"

	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// appendHours gives both storages counters with resets and gauges of three hours: gaps,
// stale markers, irregular times, whole numbers in half of the series.
func appendHours(t *testing.T, rnd *rand.Rand, ref, ours storage.Storage) {
	t.Helper()
	a, b := ref.AppenderV2(t.Context()), ours.AppenderV2(t.Context())
	for s := range 8 {
		whole := s%2 == 0
		for _, name := range []string{"c_total", "g"} {
			ls := labels.FromStrings("__name__", name, "s", fmt.Sprint(s))
			every := int64(5_000 + rnd.IntN(40_000))
			v, last := 0.0, int64(0)
			for ts := 1 + rnd.Int64N(every); ts < 3*timegrid.HourMS; ts += every + rnd.Int64N(1+every/8) {
				step := rnd.Float64() * 100
				if whole {
					step = math.Round(step)
				}
				if v += step; rnd.IntN(60) == 0 {
					v = 0
				}
				x := v
				if name == "g" {
					x = step - 50
				}
				switch rnd.IntN(50) {
				case 0:
					x = math.Float64frombits(value.StaleNaN)
				case 1:
					ts += rnd.Int64N(1_500_000)
				}
				if rnd.IntN(4) == 0 {
					ts = (ts + 30_000) / 60_000 * 60_000 // on the stroke
				}
				ts = max(ts, last+1)
				last = ts
				for _, app := range []storage.AppenderV2{a, b} {
					if _, err := app.Append(0, ls, 0, ts, x, nil, nil, storage.AppendV2Options{}); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	for _, app := range []storage.AppenderV2{a, b} {
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRolledDifferential: calls that are prepared from rolled rows, with raw chunks and
// memory where those can't stand in, give what the engine gives over the samples: to the
// last bit for all but sums and what is divided, and there within 1e-12.
func TestRolledDifferential(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	funcs := []string{"rate", "increase", "sum_over_time", "avg_over_time", "min_over_time", "max_over_time", "count_over_time", "last_over_time", "delta"}
	prepared, values, unrolled := 0, 0, 0
	for seed := range uint64(9) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		// All hours in blocks; a late batch, so that hours are mixed; or a tail in memory.
		share := []float64{1, 0.98, 0.5}[seed%3]
		t.Logf("seed %d: %g published", seed, share)
		ref, ours := teststorage.New(t), newRolled(t, seed, share, true)
		defer ref.Close()
		ours.resolutions = timegrid.Resolutions()
		// In some, rows of a minute or of five were not made for some shards and hours.
		ours.publish.Unrolled = func(n catalog.Name) bool {
			if seed%2 == 0 || n.Resolution == timegrid.OneHour || rnd.IntN(2) > 0 {
				return false
			}
			unrolled++
			return true
		}
		appendHours(t, rnd, ref, ours)
		for range 60 {
			w := []int64{60_000, 300_000, 3600_000}[rnd.IntN(3)]
			c := promstore.RangeCall{Func: funcs[rnd.IntN(len(funcs))], Range: w * int64(4+rnd.IntN(3)), Offset: w * int64(rnd.IntN(2))}
			name := "g"
			if c.Func == "rate" || c.Func == "increase" || c.Func == "count_over_time" && rnd.IntN(2) == 0 || c.Func == "last_over_time" && rnd.IntN(2) == 0 {
				name = "c_total"
			}
			c.Start = w * int64(1+rnd.IntN(6))
			c.Step, c.End = w*int64(1+rnd.IntN(3)), c.Start
			c.End += c.Step * int64(rnd.IntN(30))
			c.Matchers = []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", name)}
			snap := ours.store.Snapshot(testNow)
			q, _, err := ours.open(snap)
			if err != nil {
				t.Fatal(err)
			}
			id, ok, err := q.Rolled(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				prepared++
				expr := fmt.Sprintf("%s(%s[%dms] offset %dms)", c.Func, name, c.Range, c.Offset)
				want := matrix(t, engine, ref, expr, c)
				got := matrix(t, engine, q, fmt.Sprintf("{%s=%q}", promstore.RolledLabel, id), c)
				values += compare(t, fmt.Sprintf("seed %d: %s %+v", seed, expr, c), c.Func, got, want)
			}
			snap.Close()
		}
	}
	t.Logf("%d calls from rolled rows, %d values", prepared, values)
	if prepared < 100 || values < 5000 || unrolled < 3 {
		t.Errorf("%d calls from rolled rows, %d values, %d blocks without rows: too few", prepared, values, unrolled)
	}
}

func matrix(t *testing.T, engine *promql.Engine, q storage.Queryable, expr string, c promstore.RangeCall) promql.Matrix {
	t.Helper()
	r, err := engine.NewRangeQuery(t.Context(), q, nil, expr, time.UnixMilli(c.Start), time.UnixMilli(c.End), time.Duration(c.Step)*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	res := r.Exec(t.Context())
	m, err := res.Matrix()
	if err != nil {
		t.Fatal(err)
	}
	out := make(promql.Matrix, len(m)) // what the query gives is used again after Close
	for i, s := range m {
		out[i] = promql.Series{Metric: s.Metric, Floats: append([]promql.FPoint(nil), s.Floats...)}
	}
	return out
}

func compare(t *testing.T, what, fn string, got, want promql.Matrix) (n int) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d series, want %d", what, len(got), len(want))
		return 0
	}
	for i := range want {
		if !labels.Equal(got[i].Metric, want[i].Metric) || len(got[i].Floats) != len(want[i].Floats) {
			t.Errorf("%s: %s with %d points, want %s with %d", what, got[i].Metric, len(got[i].Floats), want[i].Metric, len(want[i].Floats))
			continue
		}
		whole := want[i].Metric.Get("s") == "0" || want[i].Metric.Get("s") == "2"
		for k, w := range want[i].Floats {
			g := got[i].Floats[k]
			n++
			if g == w {
				continue
			}
			exact := fn == "min_over_time" || fn == "max_over_time" || fn == "count_over_time" || fn == "last_over_time" || fn == "increase" && whole
			if g.T != w.T || exact || math.Abs(g.F-w.F) > 1e-12*math.Abs(w.F) && !(fn != "rate" && fn != "increase" && math.Abs(g.F-w.F) < 1e-12*50) {
				t.Errorf("%s: %s at %d is %v, want %v", what, want[i].Metric, w.T, g.F, w.F)
				return n
			}
		}
	}
	return n
}
