package promstore_test

import (
	"context"
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
)

var expressions = []string{
	`c_total`, `rate(c_total[1m])`, `increase(c_total[3m])`, `irate(c_total[2m])`, `resets(c_total[5m])`, `changes(g[5m])`,
	`sum by (job) (rate(c_total[90s]))`, `avg without (instance) (g)`, `max_over_time(g[2m])`, `quantile_over_time(0.9, g[3m])`,
	`count(g) by (job)`, `topk(2, g)`, `g offset 1m`, `g @ 300`, `deriv(g[4m])`, `predict_linear(g[4m], 60)`, `delta(g[2m])`,
	`absent(nothing)`, `absent_over_time(g{job="j9"}[1m])`, `count_over_time(c_total[45s])`, `last_over_time(g[1m])`,
	`histogram_quantile(0.9, h)`, `rate(h[2m])`, `histogram_count(sum(h))`, `histogram_sum(rate(h[3m]))`, `sum(increase(h[2m]))`,
	`sum(rate(c_total[1m])) / on () group_left () count(g)`, `max_over_time(rate(c_total[1m])[4m:30s])`, `g{instance=~"i[0-1]"}`,
	`g{instance!="i0", job=~"j.*"}`, `sort_by_label({__name__=~"c_total|g", job="j1"}, "__name__", "instance")`, `stddev_over_time(g[3m])`, `timestamp(g)`, `g > 50`,
	`c_total unless on (instance) g{instance="i1"}`, `label_replace(g, "x", "$1", "instance", "(.*)")`, `sort_by_label(g, "instance")`,
}

// TestDifferential: the same random samples in Prometheus' TSDB and here give the same
// answers: counters with resets, gauges, gaps, stale markers, native histograms.
func TestDifferential(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	for seed := range uint64(4) {
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 7))
		ref, ours := teststorage.New(t), newFramed(t, seed)
		defer ref.Close()
		appendRandom(t, rnd, 0, ref, ours)
		for _, expr := range expressions {
			want, got := evaluate(t, engine, ref, expr), evaluate(t, engine, ours, expr)
			if want != got {
				i := 0
				for i < min(len(got), len(want)) && got[i] == want[i] {
					i++
				}
				from := max(0, i-200)
				t.Errorf("%s: at %d of %d\n got %.400s\nwant %.400s", expr, i, len(want), got[from:], want[from:])
			}
		}
	}
}

// appendRandom gives two storages the same samples of a quarter of an hour from start (ms).
func appendRandom(t *testing.T, rnd *rand.Rand, start int64, ref, ours storage.Storage) {
	t.Helper()
	a, b := ref.AppenderV2(t.Context()), ours.AppenderV2(t.Context())
	both := func(ls labels.Labels, ts int64, v float64, h *histogram.FloatHistogram) {
		for _, app := range []storage.AppenderV2{a, b} {
			var c *histogram.FloatHistogram
			if h != nil {
				c = h.Copy()
			}
			if _, err := app.Append(0, ls, 0, ts, v, nil, c, storage.AppendV2Options{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for s := range 12 {
		ls := func(name string) labels.Labels {
			return labels.FromStrings("__name__", name, "instance", fmt.Sprintf("i%d", s/3), "job", fmt.Sprintf("j%d", s%3))
		}
		count, obs := 0.0, 0.0
		for ts := start + int64(rnd.IntN(15_000)); ts < start+900_000; ts += 15_000 + int64(rnd.IntN(20)) {
			switch rnd.IntN(40) {
			case 0:
				count, obs = 0, 0 // a reset
			case 1:
				ts += int64(rnd.IntN(200_000)) // a gap
			case 2:
				stale := math.Float64frombits(value.StaleNaN)
				both(ls("c_total"), ts, stale, nil)
				both(ls("g"), ts, stale, nil)
				continue
			}
			count += float64(rnd.IntN(100))
			both(ls("c_total"), ts, count, nil)
			both(ls("g"), ts, rnd.Float64()*100, nil)
			obs += float64(rnd.IntN(9))
			both(ls("h"), ts, 0, &histogram.FloatHistogram{
				Schema: 1, Count: obs * 3, Sum: obs * 2, ZeroThreshold: 0.001, ZeroCount: 0,
				PositiveSpans: []histogram.Span{{Offset: 0, Length: 2}}, PositiveBuckets: []float64{obs, obs * 2},
			})
		}
	}
	for _, app := range []storage.AppenderV2{a, b} {
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// evaluate gives a range and an instant answer as text.
func evaluate(t *testing.T, engine *promql.Engine, q storage.Queryable, expr string) string {
	t.Helper()
	return evaluateFrom(t, engine, q, expr, 0)
}

// evaluateFrom does so from a time in seconds.
func evaluateFrom(t *testing.T, engine *promql.Engine, q storage.Queryable, expr string, from int64) string {
	t.Helper()
	out := ""
	r, err := engine.NewRangeQuery(context.Background(), q, nil, expr, time.Unix(from, 0), time.Unix(from+1000, 0), 17*time.Second)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	res := r.Exec(context.Background())
	out += res.String() + "\n"
	r.Close()
	i, err := engine.NewInstantQuery(context.Background(), q, nil, expr, time.Unix(from+600, 0))
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	defer i.Close()
	res = i.Exec(context.Background())
	out += res.String()
	return out
}
