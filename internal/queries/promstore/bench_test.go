package promstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"syscall"
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

// used is the CPU time of this process.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// loop runs fn as the benchmark and reports the CPU time of one run, which says more than its duration where the machine
// is shared.
func loop(b *testing.B, fn func()) {
	b.ReportAllocs()
	began := used()
	for b.Loop() {
		fn()
	}
	b.ReportMetric(float64((used()-began).Microseconds())/float64(b.N), "cpu-us/op")
}

// fill inserts the data as one batch a host and rows steps, in the order of time or in a random one; it gives the CPU
// time of Insert alone.
func fill(b testing.TB, s *live.Store, d *tsbs.Dataset, rows int, scrambled bool) time.Duration {
	type coming struct {
		host, from int
		first      uint64
	}
	builder, batch := frame.NewBuilder(), &frame.Batch{}
	hosts := d.Hosts()
	steps := len(hosts[0].Series[0].Timestamps)
	var all []coming
	for from := 0; from < steps; from += rows {
		for i := range hosts {
			all = append(all, coming{i, from, uint64(from) * uint64(len(hosts[i].Series))})
		}
	}
	if scrambled {
		rand.New(rand.NewPCG(1, 1)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	var took time.Duration
	var raw []byte
	for _, c := range all {
		h := &hosts[c.host]
		builder.Reset()
		if err := h.Fill(builder, c.from, min(rows, steps-c.from)); err != nil {
			b.Fatal(err)
		}
		built, err := builder.Build(identity.Boot{Agent: h.Name, Boot: "b"}, c.first)
		if err != nil {
			b.Fatal(err)
		}
		if raw, err = frame.Encode(raw[:0], built); err != nil {
			b.Fatal(err)
		}
		if err := frame.Decode(raw, batch, frame.Limits{}); err != nil {
			b.Fatal(err)
		}
		start := used()
		if _, err := s.Insert(accepted.Batch{Identity: batch.Identity, AcceptedAt: int64(c.from)}, batch, testNow); err != nil {
			b.Fatal(err)
		}
		took += used() - start
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
// and batch, in order and scrambled, and Prometheus' head beside it.
func BenchmarkInsert(b *testing.B) {
	d := devops(b)
	n := float64(d.Samples())
	for _, c := range []struct {
		rows      int
		scrambled bool
	}{{1, false}, {6, false}, {60, false}, {1, true}, {6, true}} {
		b.Run(fmt.Sprintf("live/rows=%d/scrambled=%t", c.rows, c.scrambled), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				s := newStore(b)
				took := fill(b, s, d, c.rows, c.scrambled)
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

// BenchmarkPacked reports what packing closed windows takes and saves.
func BenchmarkPacked(b *testing.B) {
	d := devops(b)
	n := float64(d.Samples())
	for _, at := range []int64{0, 1} {
		b.Run(fmt.Sprintf("packed=%t", at > 0), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				s := newStoreWith(b, live.Config{PackAt: at})
				took := fill(b, s, d, 6, false)
				used := float64(heap() - before)
				st := s.Stats()
				b.ReportMetric(n/took.Seconds()/1e6, "Msamples/s")
				b.ReportMetric(used/n, "B/sample")
				b.ReportMetric(float64(st.Bytes)/used, "estimate/heap")
				b.ReportMetric(float64(st.Packed)/n, "packed/sample")
				runtime.KeepAlive(s)
			}
		})
	}
}

// BenchmarkQuery runs the same expressions over both.
func BenchmarkQuery(b *testing.B) {
	d := devops(b)
	inOrder, scrambled := newStore(b), newStore(b)
	fill(b, inOrder, d, 6, false)
	fill(b, scrambled, d, 6, true)
	packed := newStoreWith(b, live.Config{PackAt: 1})
	fill(b, packed, d, 6, false)
	ref, _ := head(b, d)
	defer ref.Close()
	engine := promqltest.NewTestEngine(b, false, 5*time.Minute, 1_000_000_000)
	ts := d.Series[0].Timestamps
	start, end := time.UnixMilli(ts[0]), time.UnixMilli(ts[len(ts)-1])
	host := d.Series[0].Label("hostname")
	name := d.Series[0].Label("__name__")
	for _, q := range []struct{ name, expr string }{
		{"one-host", fmt.Sprintf(`max_over_time(%s{hostname=%q}[1m])`, name, host)},
		{"all-hosts", fmt.Sprintf(`avg by (hostname) (avg_over_time(%s[1m]))`, name)},
		{"rate-all", fmt.Sprintf(`sum(rate(%s[5m]))`, name)},
		{"last-all", fmt.Sprintf(`topk(5, %s)`, name)},
		{"sum-all", `sum({__name__=~".+"})`},
	} {
		for _, s := range []struct {
			name string
			q    storage.Queryable
		}{{"live", &framed{t: b, store: inOrder}}, {"scrambled", &framed{t: b, store: scrambled}}, {"packed", &framed{t: b, store: packed}}, {"tsdb-head", ref}} {
			for _, kind := range []string{"instant", "range"} {
				b.Run(q.name+"/"+kind+"/"+s.name, func(b *testing.B) {
					loop(b, func() {
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
					})
				})
			}
		}
	}
}

// BenchmarkListings lists series, and the values of a label of those that match, over all of the data and over its last
// five minutes.
func BenchmarkListings(b *testing.B) {
	d := devops(b)
	ts := d.Series[0].Timestamps
	last := ts[len(ts)-1]
	all := labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".+")
	for _, scrambled := range []bool{false, true} {
		s := newStore(b)
		fill(b, s, d, 6, scrambled)
		from := framed{t: b, store: s}
		for _, minutes := range []int64{5, 120} {
			q, err := from.Querier(last-minutes*60_000, last)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("series/scrambled=%t/minutes=%d", scrambled, minutes), func(b *testing.B) {
				loop(b, func() {
					n := 0
					for set := q.Select(b.Context(), false, &storage.SelectHints{Start: last - minutes*60_000, End: last, Func: "series"}, all); set.Next(); n++ {
					}
					if n != len(d.Series) {
						b.Fatalf("%d series", n)
					}
				})
			})
			b.Run(fmt.Sprintf("values/scrambled=%t/minutes=%d", scrambled, minutes), func(b *testing.B) {
				loop(b, func() {
					if vs, _, err := q.LabelValues(b.Context(), "hostname", nil, all); err != nil || len(vs) == 0 {
						b.Fatal(len(vs), err)
					}
				})
			})
			q.Close()
		}
	}
}
