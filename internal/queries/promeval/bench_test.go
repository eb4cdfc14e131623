package promeval_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/promeval"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// BenchmarkShapes evaluates queries of TSBS over 100 hosts and an hour in memory, in batches of a minute that came in no
// order, here and with the engine over the same Queryable.
func BenchmarkShapes(b *testing.B) {
	d := tsbs.Generate(1, 100, 360)
	s, err := live.New(live.Config{History: 1000 * time.Hour, MaxBytes: 1 << 32, MaxSeries: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	hosts := d.Hosts()
	type batch struct{ host, from int }
	var all []batch
	for i := range hosts {
		for from := 0; from < 360; from += 6 {
			all = append(all, batch{i, from})
		}
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	ts := hosts[0].Series[0].Timestamps
	end := time.UnixMilli(ts[len(ts)-1])
	for _, x := range all {
		fb := frame.NewBuilder()
		if err := hosts[x.host].Fill(fb, x.from, 6); err != nil {
			b.Fatal(err)
		}
		built, err := fb.Build(identity.Boot{Agent: hosts[x.host].Name, Boot: "b"}, uint64(x.from)*1000)
		if err != nil {
			b.Fatal(err)
		}
		raw, err := frame.Encode(nil, built)
		if err != nil {
			b.Fatal(err)
		}
		own := &frame.Batch{}
		if err := frame.Decode(raw, own, frame.Limits{}); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Insert(accepted.Batch{Identity: own.Identity, AcceptedAt: int64(x.from)}, own, end); err != nil {
			b.Fatal(err)
		}
	}
	name := d.Series[0].Label("__name__")
	engine := promqltest.NewTestEngineWithOpts(b, promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: promqlParser})
	for _, q := range []struct {
		name, text string
		step       time.Duration
	}{
		{"one-host", `max_over_time(` + name + `{hostname="` + hosts[0].Series[0].Label("hostname") + `"}[1m])`, time.Minute},
		{"double-groupby", `avg by (hostname) (avg_over_time(` + name + `[5m]))`, time.Minute},
		{"high-cpu", name + ` > 90`, time.Minute},
		{"rate", `sum(rate(` + name + `[5m]))`, time.Minute},
		{"sum", `sum(` + name + `)`, 5 * time.Minute},
		{"lastpoint", `last_over_time(` + name + `[10m])`, 0},
		{"all", `sum by (__name__) ({__name__=~".+"})`, time.Minute},
	} {
		start := end
		if q.step > 0 {
			start = end.Add(-time.Hour)
		}
		b.Run(q.name+"/shape", func(b *testing.B) {
			b.ReportAllocs()
			expr, err := promqlParser.ParseExpr(q.text)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				shape, _ := promeval.Of(expr)
				snap := s.Snapshot(end)
				if _, _, err := shape.Evaluate(b.Context(), promstore.New(snap, promstore.Limits{}), promeval.Times{
					Start: start.UnixMilli(), End: end.UnixMilli(), Step: q.step.Milliseconds(), Lookback: 300_000, MaxSamples: 50_000_000}); err != nil {
					b.Fatal(err)
				}
				snap.Close()
			}
		})
		b.Run(q.name+"/engine", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				snap := s.Snapshot(end)
				var pq promql.Query
				var err error
				if q.step > 0 {
					pq, err = engine.NewRangeQuery(b.Context(), promstore.New(snap, promstore.Limits{}), nil, q.text, start, end, q.step)
				} else {
					pq, err = engine.NewInstantQuery(b.Context(), promstore.New(snap, promstore.Limits{}), nil, q.text, end)
				}
				if err != nil {
					b.Fatal(err)
				}
				if res := pq.Exec(b.Context()); res.Err != nil {
					b.Fatal(res.Err)
				}
				pq.Close()
				snap.Close()
			}
		})
	}
}
