package promstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/queries/promeval"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// hours is hosts whose blocks of many hours were not merged: a block for each hour and shard.
type hours struct {
	*rolled
	view     fixed
	span     published.Span
	from, to time.Time
	hosts    []tsbs.Host
}

const (
	manyHours  = 48
	hourShards = 32
	anHour     = 12 // samples
)

func newHours(b *testing.B, hosts int) *hours {
	to := testNow.Truncate(time.Hour).Add(-2 * time.Hour)
	h := &hours{rolled: newRolled(b, 1, 1, true), from: to.Add(-manyHours * time.Hour), to: to, hosts: tsbs.Generate(1, hosts, manyHours*anHour).Hosts()}
	var times []int64
	for k := range manyHours * anHour {
		times = append(times, h.from.Add(time.Duration(k+1)*time.Hour/anHour).UnixMilli())
	}
	h.publish.PerChunk, h.publish.Shards = 0, hourShards
	for k := range manyHours {
		var batches []publishedtest.Batch
		for i := range h.hosts {
			for s := range h.hosts[i].Series {
				h.hosts[i].Series[s].Timestamps = times
			}
			fb := frame.NewBuilder()
			if err := h.hosts[i].Fill(fb, k*anHour, anHour); err != nil {
				b.Fatal(err)
			}
			f, err := fb.Build(identity.Boot{Agent: h.hosts[i].Name, Boot: "b"}, uint64(k)*1_000_000)
			if err != nil {
				b.Fatal(err)
			}
			batches = append(batches, publishedtest.Batch{Frame: f})
		}
		hour := timegrid.HourOf(h.from.UnixMilli()+1) + timegrid.Hour(k)
		if _, err := h.publish.Publish(b.Context(), hour, 1, batches, timegrid.Raw, timegrid.FiveMinutes); err != nil {
			b.Fatal(err)
		}
	}
	views, err := publishedtest.NewViews(h.publish.Store, "test")
	if err != nil {
		b.Fatal(err)
	}
	h.span = published.Span{Oldest: timegrid.HourOf(times[0]) - 1, Newest: timegrid.HourOf(times[len(times)-1]) + 1}
	view, err := views.View(b.Context(), h.span.Oldest, h.span.Newest)
	if err != nil {
		b.Fatal(err)
	}
	h.view = fixed{view}
	return h
}

func (h *hours) open() (*promstore.Queryable, func()) {
	snap := h.store.Snapshot(testNow)
	return promstore.New(snap, promstore.Limits{}).WithPublished(h.reader.Query(h.view, hourShards, h.span, published.Limits{})).WithResolutions(true), snap.Close
}

// BenchmarkManyHours asks blocks of two days that were not merged, with warm caches of a size that does not hold all of
// their indexes, and with cold ones.
func BenchmarkManyHours(b *testing.B) {
	h := newHours(b, 100)
	before := heap()
	for _, q := range []struct {
		name, expr string
		span, step time.Duration
	}{
		{"by-hour", `avg by (hostname) (avg_over_time(cpu_usage_user[1h]))`, manyHours * time.Hour, time.Hour},
		{"raw", `sum(cpu_usage_user)`, manyHours * time.Hour, 15 * time.Minute},
		{"sum-all", `sum by (__name__) ({__name__=~".+"})`, time.Hour, 5 * time.Minute},
		{"series-all", "", time.Hour, 0},
	} {
		for _, kind := range []string{"warm", "cold"} {
			b.Run(fmt.Sprintf("%s/%s", q.name, kind), func(b *testing.B) {
				fresh := func() {
					var err error
					if h.reader, err = published.New(published.Config{Store: h.publish.Store, IndexCache: 64 << 20, AgentLabel: agentlabel.Default}); err != nil {
						b.Fatal(err)
					}
				}
				ask := func() {
					qb, done := h.open()
					defer done()
					if q.expr == "" {
						h.list(b, qb)
						return
					}
					expr, err := promParser.ParseExpr(q.expr)
					if err != nil {
						b.Fatal(err)
					}
					shape, ok := promeval.Of(expr)
					if !ok {
						b.Fatal("no shape")
					}
					v, _, err := shape.Evaluate(b.Context(), qb, promeval.Times{Start: h.to.Add(-q.span).UnixMilli(), End: h.to.UnixMilli(), Step: q.step.Milliseconds(), Lookback: 300_000, MaxSamples: 1 << 40})
					if err != nil || v.Type() != parser.ValueTypeMatrix {
						b.Fatal(v, err)
					}
				}
				fresh()
				for range 3 {
					ask()
				}
				loop(b, func() {
					if kind == "cold" {
						fresh()
					}
					ask()
				})
				indexes, blocks := h.reader.CacheBytes()
				b.ReportMetric(float64(heap()-before)/(1<<20), "heap-MiB")
				b.ReportMetric(float64(indexes)/(1<<20), "indexes-MiB")
				b.ReportMetric(float64(blocks)/(1<<20), "blocks-MiB")
			})
		}
	}
}

func (h *hours) list(b *testing.B, qb *promstore.Queryable) {
	last := h.to.UnixMilli()
	first := last - time.Hour.Milliseconds()
	q, err := qb.Querier(first, last)
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for set := q.Select(b.Context(), false, &storage.SelectHints{Start: first, End: last, Func: "series", DisableTrimming: true}, labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".+")); set.Next(); n++ {
		_ = set.At().Labels()
	}
	if n < 100*len(h.hosts) {
		b.Fatal(n)
	}
}
