package query_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/query"
)

// schemas are those that a frame may have. Prometheus computes bounds of buckets for -4 to 8 and custom ones alone.
var schemas = []int32{-9, -5, -4, 0, 8, 9, 10, 20, 52, series.CustomBounds}

// histogramsOf is a frame for each schema: a counter of histograms whose buckets lie about 1, beside a float. A finer schema has as
// many buckets within the same range, as far as they are useful.
func histogramsOf(t *testing.T, start, end time.Time) (all []built) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, schema := range schemas {
		b := frame.NewBuilder()
		must(b.SetResource(series.Label{Name: "job", Value: "node"}))
		label := series.Label{Name: "schema", Value: fmt.Sprint(schema)}
		h, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "h"}, label}, series.HistogramCumulative, "", 0)
		must(err)
		g, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "hg"}, label}, series.HistogramGauge, "", 0)
		must(err)
		c, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "c_total"}, label}, series.Counter, "", 0)
		must(err)
		n := 0.0
		for at := start; at.Before(end); at = at.Add(15 * time.Second) {
			n++
			sample := series.Histogram{Schema: schema, Count: 4 * n, Sum: 3 * n, ZeroThreshold: 0x1p-128, PositiveSpans: []int32{0, 4}, PositiveBuckets: []float64{n, n, n, n}}
			if schema == series.CustomBounds {
				sample.ZeroThreshold, sample.CustomValues = 0, []float64{0.25, 0.5, 1, 2}
			}
			must(b.AppendHistogram(h, at.UnixNano(), sample))
			must(b.AppendHistogram(g, at.UnixNano(), sample))
			must(b.Append(c, at.UnixNano(), n))
		}
		one, err := builtOf(b, fmt.Sprintf("agent%d", schema), start, end.Add(-15*time.Second))
		must(err)
		all = append(all, one)
	}
	return all
}

// builtOf is the batch of a builder, whose samples lie between first and last.
func builtOf(b *frame.Builder, agent string, first, last time.Time) (built, error) {
	batch, err := b.Build(identity.Boot{Agent: agent, Boot: "b"}, 1)
	if err != nil {
		return built{}, err
	}
	raw, err := frame.Encode(nil, batch)
	if err != nil {
		return built{}, err
	}
	sum := identity.Sum(raw)
	return built{frame: raw, manifest: accept.Manifest{
		AuthorityID: "test", Identity: batch.Identity, FrameSHA256: sum, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(sum, 0),
		AcceptedAt: last.UnixNano(), CollectorID: "c1", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
		RecordCount: batch.Identity.Count(), MinTime: first.UnixNano(), MaxTime: last.UnixNano(),
	}}, nil
}

// TestHistogramsOfEverySchema: a histogram whose buckets are finer than Prometheus computes with is answered with those that it does,
// as from Prometheus' own storage, from memory and from blocks; it fails neither its own series nor those of others in one expression.
func TestHistogramsOfEverySchema(t *testing.T) {
	end := time.Now().Truncate(5 * time.Minute)
	start := end.Add(-3 * time.Hour)
	builts := histogramsOf(t, start, end)
	for _, from := range []string{"memory", "blocks"} {
		t.Run(from, func(t *testing.T) {
			a := newAuthority(t)
			a.rollups()
			var batches []publishedtest.Batch
			for _, b := range builts {
				a.accept(b)
				batches = append(batches, b.published(t))
			}
			window := 24 * time.Hour
			if from == "blocks" {
				for _, h := range publishedtest.Hours(batches) {
					a.publish(h, 1, batches)
				}
				window = time.Millisecond
			}
			n := start1(t, a, func(c *query.Config) { c.History.Window = window })
			at := timegrid.HourOf(end.UnixMilli()).Start().Add(-10 * time.Second)
			ask := func(expression string) (vector map[string]float64) {
				t.Helper()
				got := n.get("/api/v1/query", "query", expression, "time", unix(at))
				if got.Status != "success" || got.Lightmetrics.Partial {
					t.Fatalf("%s: %s %s %v", expression, got.Status, got.Error, got.Lightmetrics.Reasons)
				}
				r := n.get("/api/v1/query_range", "query", expression, "start", unix(at.Add(-time.Hour)), "end", unix(at), "step", "600")
				if r.Status != "success" || r.Lightmetrics.Partial {
					t.Fatalf("%s over a range: %s %s %v", expression, r.Status, r.Error, r.Lightmetrics.Reasons)
				}
				return vectorBy(t, got.Data, "schema")
			}
			for _, e := range []string{
				`histogram_quantile(0.9, h)`, `histogram_quantile(0.9, rate(h[5m]))`, `histogram_quantile(0.9, rate(h[1h]))`, `histogram_fraction(0, 1, h)`, `histogram_avg(h)`,
				`histogram_stddev(h)`, `histogram_count(increase(h[1h]))`, `histogram_count(sum_over_time(hg[10m]))`, `histogram_count(avg_over_time(hg[1h]))`,
				`histogram_count(last_over_time(hg[1h]))`, `histogram_quantile(0.5, avg_over_time(hg[1h]))`, `c_total + on (schema) histogram_count(h)`,
			} {
				if got := ask(e); len(got) != len(schemas) {
					t.Errorf("%s: %d series, want %d: %v", e, len(got), len(schemas), got)
				}
			}
			for _, e := range []string{`h`, `hg`, `sum(h)`, `sum(rate(h{schema!="-53"}[5m]))`, `sum by (job) (rate(h{schema!="-53"}[1h]))`, `h{schema="52"} - h{schema="9"}`, `h{schema="52"} / 2`, `{job="node"}`, `count({job="node"})`} {
				ask(e)
			}
			// A bucket of schema 9 or more is one of schema 8 that is no narrower: nothing moves but by its width.
			quantiles := ask(`histogram_quantile(0.9, h)`)
			for _, schema := range []string{"9", "10", "20", "52"} {
				if q := quantiles[schema]; math.IsNaN(q) || q < 0.9 || q > 1.02 {
					t.Errorf("the quantile of schema %s is %v", schema, q)
				}
			}
			if sum := ask(`histogram_count(sum(h{schema!="-53"}))`); len(sum) != 1 || sum[""] != float64(len(schemas)-1)*ask(`histogram_count(h)`)["0"] {
				t.Errorf("the sum over schemas counts %v", sum)
			}
			got := n.get("/api/v1/query", "query", `h{schema="52"}`, "time", unix(at))
			if !strings.Contains(string(got.Data), `"buckets"`) {
				t.Errorf("%s", got.Data)
			}
		})
	}
}

// vectorBy gives the floats of an instant vector by a label.
func vectorBy(t *testing.T, data []byte, label string) map[string]float64 {
	t.Helper()
	var v struct {
		Result []struct {
			Metric map[string]string
			Value  []any
		}
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, r := range v.Result {
		if len(r.Value) != 2 {
			continue // a histogram
		}
		f, err := strconv.ParseFloat(r.Value[1].(string), 64)
		if err != nil {
			t.Fatal(err)
		}
		out[r.Metric[label]] = f
	}
	return out
}

// TestHistogramsOfStrangeSpans: whatever histogram a frame may have fails no query: spans without buckets, buckets at the ends of what
// float64 has, schemas that change from sample to sample, wide zero buckets.
func TestHistogramsOfStrangeSpans(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	end := time.Now().Truncate(5 * time.Minute)
	start := end.Add(-30 * time.Minute)
	offsets := []int32{0, 1, 5, 300, 1000, 1 << 14, 1 << 18, 1<<19 - 3, 1 << 20, 1 << 25, 1 << 29, 1<<30 - 8, 1 << 30, math.MaxInt32}
	spans := func() (spans []int32, buckets []float64) {
		for i := range rng.IntN(4) {
			at, n := offsets[rng.IntN(len(offsets))], rng.IntN(3)
			if i == 0 && rng.IntN(2) == 0 {
				at = -at
			}
			spans = append(spans, at, int32(n))
			for range n {
				buckets = append(buckets, float64(rng.IntN(5)))
			}
		}
		return spans, buckets
	}
	a := newAuthority(t)
	taken, refused := 0, 0
	for agent := range 300 {
		b := frame.NewBuilder()
		labels := []series.Label{{Name: "__name__", Value: "h"}, {Name: "job", Value: "node"}}
		id, err := b.AddSeries(labels, []series.Type{series.HistogramCumulative, series.HistogramGauge, series.HistogramDelta}[agent%3], "", 0)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for at := start; at.Before(end); at = at.Add(time.Minute) {
			h := series.Histogram{Schema: schemas[rng.IntN(len(schemas)-1)], ZeroThreshold: []float64{0, 1e-9, 1, 1e300}[rng.IntN(4)], ZeroCount: 1, Count: 10, Sum: 3}
			h.PositiveSpans, h.PositiveBuckets = spans()
			h.NegativeSpans, h.NegativeBuckets = spans()
			if b.AppendHistogram(id, at.UnixNano(), h) != nil {
				refused++
				continue
			}
			n++
		}
		if taken += n; n == 0 {
			continue
		}
		one, err := builtOf(b, fmt.Sprintf("agent%d", agent), start, end)
		if err != nil {
			t.Fatal(err)
		}
		a.accept(one)
	}
	if taken == 0 || refused == 0 {
		t.Fatalf("%d histograms, %d refused", taken, refused)
	}
	n := start1(t, a, func(c *query.Config) { c.History.Window = 24 * time.Hour })
	for _, e := range []string{`h`, `histogram_quantile(0.9, h)`, `histogram_quantile(0.9, rate(h[5m]))`, `sum(rate(h[5m]))`, `sum(h)`, `avg(h)`, `histogram_fraction(0, 1, h)`, `histogram_stddev(h)`,
		`increase(h[10m])`, `avg_over_time(h[10m])`, `sum_over_time(h[10m])`, `h - h`, `h == h`, `resets(h[10m])`, `count(h)`} {
		for _, got := range []envelope{n.get("/api/v1/query", "query", e, "time", unix(end)), n.get("/api/v1/query_range", "query", e, "start", unix(start), "end", unix(end), "step", "60")} {
			if got.Status != "success" {
				t.Errorf("%s: %s", e, got.Error)
			}
		}
	}
}
