package promstore_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/platform/inorder"
	"lightmetrics.dev/lightmetrics/internal/queries/promeval"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// BenchmarkTail evaluates the queries of test/bench's http-query without HTTP: 20 hosts, 22 hours at 5 minutes in blocks and
// two hours at 10 s in memory, each host's batches in random order.
func BenchmarkTail(b *testing.B) {
	const old, rows, liveRows = 22 * 12, 22*12 + 720, 6
	end := testNow.Truncate(time.Hour)
	var times []int64
	for k := range old {
		times = append(times, end.Add(-24*time.Hour).Add(time.Duration(k+1)*5*time.Minute).UnixMilli())
	}
	for k := range rows - old {
		times = append(times, end.Add(-2*time.Hour).Add(time.Duration(k+1)*10*time.Second).UnixMilli())
	}
	r := newRolled(b, 1, 1, true)
	r.publish.PerChunk, r.publish.Shards = 0, 32
	var err error
	if r.reader, err = published.New(published.Config{Store: r.publish.Store}); err != nil {
		b.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	builder := frame.NewBuilder()
	for _, h := range tsbs.Generate(1, 20, rows).Hosts() {
		for i := range h.Series {
			h.Series[i].Timestamps = times
		}
		seq := uint64(1)
		batch := func(from, n int) *frame.Batch {
			builder.Reset()
			if err := h.Fill(builder, from, n); err != nil {
				b.Fatal(err)
			}
			f, err := builder.Build(identity.Boot{Agent: h.Name, Boot: "b"}, seq)
			if err != nil {
				b.Fatal(err)
			}
			raw, err := frame.Encode(nil, f)
			if err != nil {
				b.Fatal(err)
			}
			out := &frame.Batch{}
			if err := frame.Decode(raw, out, frame.Limits{}); err != nil {
				b.Fatal(err)
			}
			seq = out.Identity.SeqEnd + 1
			return out
		}
		for from := 0; from < old; from += 12 {
			r.done = append(r.done, publishedtest.Batch{Frame: batch(from, 12)})
		}
		var tail []*frame.Batch
		for from := old; from < rows; from += liveRows {
			tail = append(tail, batch(from, liveRows))
		}
		rnd.Shuffle(len(tail), func(i, j int) { tail[i], tail[j] = tail[j], tail[i] })
		for _, f := range tail {
			if _, err := r.store.Insert(accepted.Batch{Identity: f.Identity}, f, end); err != nil {
				b.Fatal(err)
			}
		}
	}
	r.store.Expire(end.Add(time.Minute)) // merges what came
	for _, h := range publishedtest.Hours(r.done) {
		if _, err := r.publish.Publish(b.Context(), h, 1, r.done, timegrid.Resolutions()...); err != nil {
			b.Fatal(err)
		}
	}
	views, err := publishedtest.NewViews(r.publish.Store, "test")
	if err != nil {
		b.Fatal(err)
	}
	span := published.Span{Oldest: timegrid.HourOf(times[0]) - 1, Newest: timegrid.HourOf(times[len(times)-1]) + 1}
	view, err := views.View(b.Context(), span.Oldest, span.Newest)
	if err != nil {
		b.Fatal(err)
	}
	pool := inorder.New(0)
	for _, q := range []struct {
		name, text string
		span, step time.Duration
	}{
		{"day-by-hour", `avg by (hostname) (avg_over_time(cpu_usage_user[1h]))`, 24 * time.Hour, time.Hour},
		{"day-raw", `sum(cpu_usage_user)`, 24 * time.Hour, 5 * time.Minute},
		{"double-groupby-1", `avg by (hostname) (avg_over_time(cpu_usage_user[1h]))`, 2 * time.Hour, time.Hour},
		{"by-minute", `avg by (hostname) (avg_over_time(cpu_usage_user[5m]))`, time.Hour, time.Minute},
		{"sum-all-series", `sum by (__name__) ({__name__=~".+"})`, time.Hour, time.Minute},
		{"lastpoint", `last_over_time(cpu_usage_user[10m])`, 0, 0},
	} {
		b.Run(q.name, func(b *testing.B) {
			expr, err := promParser.ParseExpr(q.text)
			if err != nil {
				b.Fatal(err)
			}
			loop(b, func() {
				shape, _ := promeval.Of(expr)
				snap := r.store.Snapshot(end)
				pub := r.reader.Query(fixed{view}, 32, span, published.Limits{})
				_, _, err := shape.Evaluate(b.Context(), promstore.New(snap, promstore.Limits{}).WithPublished(pub).WithResolutions(true).WithParallel(pool, 1<<14), promeval.Times{
					Start: end.Add(-q.span).UnixMilli(), End: end.UnixMilli(), Step: q.step.Milliseconds(), Lookback: 300_000, MaxSamples: 50_000_000})
				if err != nil {
					b.Fatal(err)
				}
				snap.Close()
			})
		})
	}
}
