package promstore_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// devops is the TSBS devops data: 100 hosts, 2 h, or a generated smaller set where the file is absent.
func devops(b *testing.B) *tsbs.Dataset {
	const file = "../../../../shared/data/devops100_2h.ds.zst"
	if _, err := os.Stat(file); err != nil {
		b.Log("no ../shared/data: generated data, 20 hosts, 180 steps")
		return tsbs.Generate(1, 20, 180)
	}
	d, err := tsbs.Load(file)
	if err != nil {
		b.Fatal(err)
	}
	return d
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// fill inserts the data as one batch a host and rows steps; it gives the time of Insert alone.
func fill(b *testing.B, s *live.Store, d *tsbs.Dataset, rows int) time.Duration {
	var took time.Duration
	builder, batch := frame.NewBuilder(), &frame.Batch{}
	seq := map[string]uint64{}
	hosts := d.Hosts()
	steps := len(hosts[0].Series[0].Timestamps)
	for from := 0; from < steps; from += rows {
		for i := range hosts {
			h := &hosts[i]
			builder.Reset()
			if err := h.Fill(builder, from, min(rows, steps-from)); err != nil {
				b.Fatal(err)
			}
			built, err := builder.Build(identity.Boot{Agent: h.Name, Boot: "b"}, seq[h.Name])
			if err != nil {
				b.Fatal(err)
			}
			seq[h.Name] = built.Identity.SeqEnd + 1
			raw, err := frame.Encode(nil, built)
			if err != nil {
				b.Fatal(err)
			}
			if err := frame.Decode(raw, batch, frame.Limits{}); err != nil {
				b.Fatal(err)
			}
			start := time.Now()
			if _, err := s.Insert(accepted.Batch{Identity: batch.Identity, AcceptedAt: int64(from)}, batch, testNow); err != nil {
				b.Fatal(err)
			}
			took += time.Since(start)
		}
	}
	return took
}

// head appends the data to Prometheus' TSDB, step by step.
func head(b *testing.B, d *tsbs.Dataset) (*teststorage.TestStorage, time.Duration) {
	s := teststorage.New(b)
	start := time.Now()
	for i := range d.Series {
		app := s.AppenderV2(b.Context())
		var ls []string
		for _, l := range d.Series[i].Labels {
			ls = append(ls, l.Name, l.Value)
		}
		lset, ref := labels.FromStrings(ls...), storage.SeriesRef(0)
		for j, ts := range d.Series[i].Timestamps {
			var err error
			if ref, err = app.Append(ref, lset, 0, ts, d.Series[i].Values[j], nil, nil, storage.AppendV2Options{}); err != nil {
				b.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	return s, time.Since(start)
}

// BenchmarkInsert reports insertion speed and heap for 1, 6 and 60 samples a series
// and batch, and Prometheus' head beside it.
func BenchmarkInsert(b *testing.B) {
	d := devops(b)
	n := float64(d.Samples())
	for _, rows := range []int{1, 6, 60} {
		b.Run(fmt.Sprintf("live/rows=%d", rows), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				s := newStore(b)
				took := fill(b, s, d, rows)
				used := float64(heap() - before)
				st := s.Stats()
				b.ReportMetric(n/took.Seconds()/1e6, "Msamples/s")
				b.ReportMetric(used/n, "B/sample")
				b.ReportMetric(used/float64(st.Series), "B/series")
				b.ReportMetric(float64(st.Bytes)/used, "estimate/heap")
				runtime.KeepAlive(s)
			}
		})
	}
	b.Run("tsdb-head", func(b *testing.B) {
		for b.Loop() {
			before := heap()
			s, took := head(b, d)
			used := float64(heap() - before)
			b.ReportMetric(n/took.Seconds()/1e6, "Msamples/s")
			b.ReportMetric(used/n, "B/sample")
			b.ReportMetric(used/float64(len(d.Series)), "B/series")
			s.Close()
		}
	})
}

// BenchmarkQuery runs the same expressions over both.
func BenchmarkQuery(b *testing.B) {
	d := devops(b)
	one := newStore(b)
	fill(b, one, d, 1)
	snap := one.Snapshot(testNow)
	defer snap.Close()
	ref, _ := head(b, d)
	defer ref.Close()
	engine := promqltest.NewTestEngine(b, false, 5*time.Minute, 1_000_000_000)
	ts := d.Series[0].Timestamps
	start, end := time.UnixMilli(ts[0]), time.UnixMilli(ts[len(ts)-1])
	host := d.Series[0].Label("hostname")
	name := d.Series[0].Label("__name__")
	from := framed{t: b, store: one}
	for _, q := range []struct{ name, expr string }{
		{"one-host", fmt.Sprintf(`max_over_time(%s{hostname=%q}[1m])`, name, host)},
		{"all-hosts", fmt.Sprintf(`avg by (hostname) (avg_over_time(%s[1m]))`, name)},
		{"rate-all", fmt.Sprintf(`sum(rate(%s[5m]))`, name)},
		{"last-all", fmt.Sprintf(`topk(5, %s)`, name)},
	} {
		for _, s := range []struct {
			name string
			q    storage.Queryable
		}{{"live", &from}, {"tsdb-head", ref}} {
			for _, kind := range []string{"instant", "range"} {
				b.Run(q.name+"/"+kind+"/"+s.name, func(b *testing.B) {
					for b.Loop() {
						var pq promql.Query
						var err error
						if kind == "range" {
							pq, err = engine.NewRangeQuery(context.Background(), s.q, nil, q.expr, start, end, time.Minute)
						} else {
							pq, err = engine.NewInstantQuery(context.Background(), s.q, nil, q.expr, end)
						}
						if err != nil {
							b.Fatal(err)
						}
						if res := pq.Exec(context.Background()); res.Err != nil {
							b.Fatal(res.Err)
						}
						pq.Close()
					}
				})
			}
		}
	}
}
