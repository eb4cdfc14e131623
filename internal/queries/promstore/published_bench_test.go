package promstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var promParser = parser.NewParser(parser.Options{})

// publishHosts publishes the data, a batch an hour and host, in all resolutions.
func publishHosts(b *testing.B, r *rolled, d *tsbs.Dataset) {
	hosts := d.Hosts()
	steps := len(hosts[0].Series[0].Timestamps)
	for i := range hosts {
		seq := uint64(0)
		for from := 0; from < steps; from += 360 {
			fb := frame.NewBuilder()
			if err := hosts[i].Fill(fb, from, min(360, steps-from)); err != nil {
				b.Fatal(err)
			}
			f, err := fb.Build(identity.Boot{Agent: hosts[i].Name, Boot: "b"}, seq)
			if err != nil {
				b.Fatal(err)
			}
			seq = f.Identity.SeqEnd + 1
			r.done = append(r.done, publishedtest.Batch{Frame: f})
		}
	}
	for _, h := range publishedtest.Hours(r.done) {
		if _, err := r.publish.Publish(b.Context(), h, 1, r.done, timegrid.Resolutions()...); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPublishedListings lists the series of blocks over all of the data, and over its last five minutes.
func BenchmarkPublishedListings(b *testing.B) {
	d := devops(b)
	r := newRolled(b, 1, 1, true)
	r.publish.PerChunk, r.publish.Shards = 0, 4
	var err error
	if r.reader, err = published.New(published.Config{Store: r.publish.Store}); err != nil {
		b.Fatal(err)
	}
	publishHosts(b, r, d)
	views, err := publishedtest.NewViews(r.publish.Store, "test")
	if err != nil {
		b.Fatal(err)
	}
	ts := d.Series[0].Timestamps
	last := ts[len(ts)-1]
	span := published.Span{Oldest: timegrid.HourOf(ts[0]) - 1, Newest: timegrid.HourOf(last) + 1}
	view, err := views.View(b.Context(), span.Oldest, span.Newest)
	if err != nil {
		b.Fatal(err)
	}
	for what, m := range map[string]*labels.Matcher{
		"all": labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".+"), "host": labels.MustNewMatcher(labels.MatchEqual, "hostname", d.Hosts()[0].Name),
		"metric": labels.MustNewMatcher(labels.MatchEqual, "__name__", d.Series[0].Label("__name__")),
	} {
		for _, minutes := range []int64{5, 120} {
			b.Run(fmt.Sprintf("%s/minutes=%d", what, minutes), func(b *testing.B) {
				loop(b, func() {
					snap := r.store.Snapshot(testNow)
					q, err := promstore.New(snap, promstore.Limits{}).WithPublished(r.reader.Query(fixed{view}, 4, span, published.Limits{})).Querier(last-minutes*60_000, last)
					if err != nil {
						b.Fatal(err)
					}
					n := 0
					for set := q.Select(b.Context(), false, &storage.SelectHints{Start: last - minutes*60_000, End: last, Func: "series", DisableTrimming: true}, m); set.Next(); n++ {
						_ = set.At().Labels()
					}
					if n == 0 {
						b.Fatal("no series")
					}
					snap.Close()
				})
			})
		}
	}
}

// BenchmarkPublishedQuery: queries over chunks with warm caches, from raw samples and, where
// they are aligned, from rolled rows, and with nothing cached; test/bench has the Prometheus block next to it.
func BenchmarkPublishedQuery(b *testing.B) {
	d := devops(b)
	r := newRolled(b, 1, 1, true)
	r.publish.PerChunk, r.publish.Shards = 0, 32
	var err error
	if r.reader, err = published.New(published.Config{Store: r.publish.Store}); err != nil {
		b.Fatal(err)
	}
	publishHosts(b, r, d)
	views, err := publishedtest.NewViews(r.publish.Store, "test")
	if err != nil {
		b.Fatal(err)
	}
	ts := d.Series[0].Timestamps
	end := time.UnixMilli(ts[len(ts)-1]).Truncate(time.Hour)
	span := published.Span{Oldest: timegrid.HourOf(ts[0]) - 1, Newest: timegrid.HourOf(ts[len(ts)-1]) + 1}
	view, err := views.View(b.Context(), span.Oldest, span.Newest)
	if err != nil {
		b.Fatal(err)
	}
	engine := promqltest.NewTestEngine(b, false, 5*time.Minute, 1_000_000_000)
	name := d.Series[0].Label("__name__")
	hosts := d.Hosts()
	eight := hosts[0].Name
	for _, h := range hosts[1:min(8, len(hosts))] {
		eight += "|" + h.Name
	}
	for _, q := range []struct {
		name, fn, sel string
		rng, step     time.Duration
	}{
		{"one-host", "max_over_time", fmt.Sprintf("%s{hostname=%q}", name, hosts[0].Name), time.Minute, time.Minute},
		{"eight-hosts", "max_over_time", fmt.Sprintf("%s{hostname=~%q}", name, eight), time.Minute, time.Minute},
		{"all-hosts", "avg_over_time", name, time.Minute, time.Minute},
		{"all-hosts-20m", "max_over_time", name, 20 * time.Minute, 5 * time.Minute},
	} {
		for _, kind := range []string{"raw", "rolled", "cold"} {
			if kind == "rolled" && q.rng < 4*time.Minute {
				continue
			}
			b.Run(q.name+"/"+kind, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					snap := r.store.Snapshot(testNow)
					reader := r.reader
					if kind == "cold" {
						if reader, err = published.New(published.Config{Store: r.publish.Store}); err != nil {
							b.Fatal(err)
						}
					}
					pub := reader.Query(fixed{view}, 32, span, published.Limits{})
					qb := promstore.New(snap, promstore.Limits{}).WithPublished(pub).WithResolutions(true)
					expr := fmt.Sprintf("%s(%s[%dms])", q.fn, q.sel, q.rng.Milliseconds())
					start := end.Add(-time.Hour)
					if kind == "rolled" {
						ms, err := promParser.ParseMetricSelector(q.sel)
						if err != nil {
							b.Fatal(err)
						}
						id, ok, err := qb.Rolled(b.Context(), promstore.RangeCall{Func: q.fn, Matchers: ms, Range: q.rng.Milliseconds(),
							Start: start.UnixMilli(), End: end.UnixMilli(), Step: q.step.Milliseconds()})
						if err != nil || !ok {
							b.Fatal(ok, err)
						}
						expr = fmt.Sprintf("{%s=%q}", promstore.RolledLabel, id)
					}
					run(b, engine, qb, expr, start, end, q.step)
					snap.Close()
				}
			})
		}
	}
}

func run(b *testing.B, engine *promql.Engine, s storage.Queryable, expr string, start, end time.Time, step time.Duration) {
	pq, err := engine.NewRangeQuery(context.Background(), s, nil, expr, start, end, step)
	if err != nil {
		b.Fatal(err)
	}
	defer pq.Close()
	if res := pq.Exec(context.Background()); res.Err != nil {
		b.Fatal(res.Err)
	}
}
