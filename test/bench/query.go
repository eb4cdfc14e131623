package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// tsbsQueries are TSBS' devops queries in PromQL; %s is a matcher of one or eight hosts.
var tsbsQueries = []struct {
	name, expr string
	hosts      int           // 0 is all
	span, step time.Duration // to the end of the data; span 0 is an instant
}{
	{"single-groupby-1-1-1", `max_over_time(cpu_usage_user{%s}[1m])`, 1, time.Hour, time.Minute},
	{"single-groupby-1-8-1", `max_over_time(cpu_usage_user{%s}[1m])`, 8, time.Hour, time.Minute},
	{"single-groupby-5-8-1", `max by (__name__) (last_over_time({__name__=~"cpu_usage_(user|system|idle|nice|iowait)",%s}[1m]))`, 8, time.Hour, time.Minute},
	{"cpu-max-all-8", `max by (__name__, hostname) (last_over_time({__name__=~"cpu_usage_.*",%s}[1h]))`, 8, time.Hour, time.Hour},
	{"double-groupby-1", `avg by (hostname) (avg_over_time(cpu_usage_user[1h]))`, 0, 2 * time.Hour, time.Hour},
	{"double-groupby-1-by-minute", `avg by (hostname) (avg_over_time(cpu_usage_user[5m]))`, 0, time.Hour, time.Minute},
	{"high-cpu-all", `cpu_usage_user > 90`, 0, time.Hour, time.Minute},
	{"lastpoint", `last_over_time(cpu_usage_user[10m])`, 0, 0, 0},
	{"groupby-orderby-limit", `topk(5, max_over_time(cpu_usage_user[1m]))`, 0, 0, 0},
}

// benchQuery evaluates TSBS' queries by the same engine over published chunks and over a
// Prometheus block of the same samples: chunks in memory as objects, the block in the page
// cache; indexes and blocks cached, then nothing cached.
func benchQuery(ctx context.Context, e *env) ([]Result, error) {
	data, note, err := tsbsData(e)
	if err != nil {
		return nil, err
	}
	q, err := newQueryWork(ctx, data, filepath.Join(e.dir, "query"))
	if err != nil {
		return nil, err
	}
	defer q.close()
	var rs []Result
	for _, t := range tsbsQueries {
		expr := t.expr
		if t.hosts > 0 {
			expr = fmt.Sprintf(expr, q.hosts(t.hosts))
		}
		run := func(s storage.Queryable) func(context.Context) (float64, error) {
			return func(ctx context.Context) (float64, error) {
				p50, err := q.p50(ctx, s, expr, t.span, t.step)
				return 1 / p50.Seconds(), err // a rate, as paired wants
			}
		}
		if err := q.equal(ctx, expr, t.span, t.step); err != nil {
			return rs, fmt.Errorf("%s: %w", t.name, err)
		}
		ours, base, ratio, pairs, err := paired(ctx, e.pairs, run(q.warm), run(q.block))
		if err != nil {
			return rs, fmt.Errorf("%s: %w", t.name, err)
		}
		cold, err := q.p50(ctx, q.cold, expr, t.span, t.step)
		if err != nil {
			return rs, fmt.Errorf("%s: %w", t.name, err)
		}
		rs = append(rs, Result{
			Name: "query/" + t.name, Value: 1e3 / ours, Unit: "ms p50", Baseline: "Prometheus block", BaselineValue: 1e3 / base, Ratio: 1 / ratio,
			Note: fmt.Sprintf("%s; %s; nothing cached %.2f ms", note, pairs, cold.Seconds()*1e3), Durability: "memory, page cache",
		})
	}
	return rs, nil
}

// queryWork is the same samples as blocks and as a block.
type queryWork struct {
	data   *tsbs.Dataset
	end    time.Time
	engine *promql.Engine
	block  storage.Queryable
	warm   storage.Queryable
	cold   storage.Queryable
	closed []io.Closer
}

func (q *queryWork) close() {
	for _, c := range q.closed {
		_ = c.Close() // read only
	}
}

func newQueryWork(ctx context.Context, d *tsbs.Dataset, dir string) (*queryWork, error) {
	ts := d.Series[0].Timestamps
	q := &queryWork{data: d, end: time.UnixMilli(ts[len(ts)-1]), engine: promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1 << 30, Timeout: 10 * time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
	})}
	q.closed = append(q.closed, q.engine)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := q.openBlock(d, dir); err != nil {
		q.close()
		return nil, err
	}
	store := mem.New(time.Now)
	batches, err := hourBatches(d)
	if err != nil {
		q.close()
		return nil, err
	}
	p := publishedtest.Publisher{Store: store, Authority: "bench", Shards: shard.Default}
	for _, h := range publishedtest.Hours(batches) {
		if _, err := p.Publish(ctx, h, 1, batches, timegrid.Raw); err != nil {
			q.close()
			return nil, err
		}
	}
	views, err := publishedtest.NewViews(store, "bench")
	if err != nil {
		q.close()
		return nil, err
	}
	span := published.Span{Oldest: timegrid.HourOf(ts[0]) - 1, Newest: timegrid.HourOf(ts[len(ts)-1]) + 1}
	view, err := views.View(ctx, span.Oldest, span.Newest)
	if err != nil {
		q.close()
		return nil, err
	}
	empty, err := live.New(live.Config{History: time.Hour, MaxBytes: 1 << 20, MaxSeries: 1})
	if err != nil {
		q.close()
		return nil, err
	}
	over := func(reader func() (*published.Reader, error)) storage.Queryable {
		return storage.QueryableFunc(func(mint, maxt int64) (storage.Querier, error) {
			r, err := reader()
			if err != nil {
				return nil, err
			}
			pq := r.Query(fixedView{view}, p.Shards, span, published.Limits{})
			snap := empty.Snapshot(q.end)
			s, err := promstore.New(snap, promstore.Limits{}).WithPublished(pq).Querier(mint, maxt)
			return closingQuerier{s, snap}, err
		})
	}
	fresh := func() (*published.Reader, error) { return published.New(published.Config{Store: store}) }
	one, err := fresh()
	if err != nil {
		q.close()
		return nil, err
	}
	q.warm, q.cold = over(func() (*published.Reader, error) { return one, nil }), over(fresh)
	return q, nil
}

// fixedView is the sets as they are.
type fixedView struct{ view *catalog.View }

func (f fixedView) View(context.Context, timegrid.Hour, timegrid.Hour) (*catalog.View, error) {
	return f.view, nil
}

type closingQuerier struct {
	storage.Querier
	snap *live.Snapshot
}

func (c closingQuerier) Close() error { c.snap.Close(); return nil }

// hourBatches are a batch an hour and host.
func hourBatches(d *tsbs.Dataset) ([]publishedtest.Batch, error) {
	var out []publishedtest.Batch
	hosts := d.Hosts()
	steps := len(hosts[0].Series[0].Timestamps)
	const rows = 360
	for i := range hosts {
		seq := uint64(0)
		for from := 0; from < steps; from += rows {
			b := frame.NewBuilder()
			if err := hosts[i].Fill(b, from, min(rows, steps-from)); err != nil {
				return nil, err
			}
			f, err := b.Build(identity.Boot{Agent: hosts[i].Name, Boot: "b"}, seq)
			if err != nil {
				return nil, err
			}
			seq = f.Identity.SeqEnd + 1
			out = append(out, publishedtest.Batch{Frame: f, AcceptedAt: int64(from)})
		}
	}
	return out, nil
}

// openBlock writes the samples as one block, as Prometheus compacts them, and opens it.
func (q *queryWork) openBlock(d *tsbs.Dataset, dir string) error {
	log := slog.New(slog.DiscardHandler)
	series := make([]storage.Series, len(d.Series))
	for i := range d.Series {
		s := &d.Series[i]
		b := labels.NewScratchBuilder(len(s.Labels))
		for _, l := range s.Labels {
			b.Add(l.Name, l.Value)
		}
		b.Sort()
		samples := make([]chunks.Sample, len(s.Values))
		for k := range samples {
			samples[k] = floatSample{s.Timestamps[k], s.Values[k]}
		}
		series[i] = storage.NewListSeries(b.Labels(), samples)
	}
	at, err := tsdb.CreateBlock(series, dir, 24*time.Hour.Milliseconds(), log)
	if err != nil {
		return err
	}
	block, err := tsdb.OpenBlock(log, at, nil, nil)
	if err != nil {
		return err
	}
	q.closed = append(q.closed, block)
	q.block = storage.QueryableFunc(func(mint, maxt int64) (storage.Querier, error) { return tsdb.NewBlockQuerier(block, mint, maxt) })
	return nil
}

// hosts is a matcher of n hosts.
func (q *queryWork) hosts(n int) string {
	text := ""
	for i, h := range q.data.Hosts() {
		if i == n {
			break
		}
		if i > 0 {
			text += "|"
		}
		text += h.Name
	}
	return "hostname=~" + strconv.Quote(text)
}

func (q *queryWork) exec(ctx context.Context, s storage.Queryable, expr string, span, step time.Duration) (string, time.Duration, error) {
	began := time.Now()
	var pq promql.Query
	var err error
	if span > 0 {
		pq, err = q.engine.NewRangeQuery(ctx, s, nil, expr, q.end.Add(-span), q.end, step)
	} else {
		pq, err = q.engine.NewInstantQuery(ctx, s, nil, expr, q.end)
	}
	if err != nil {
		return "", 0, err
	}
	defer pq.Close()
	res := pq.Exec(ctx)
	took := time.Since(began)
	if res.Err != nil {
		return "", 0, res.Err
	}
	return res.String(), took, nil
}

// equal wants the same answer from both.
func (q *queryWork) equal(ctx context.Context, expr string, span, step time.Duration) error {
	a, _, err := q.exec(ctx, q.warm, expr, span, step)
	if err != nil {
		return err
	}
	b, _, err := q.exec(ctx, q.block, expr, span, step)
	if err != nil {
		return err
	}
	if a != b || a == "" {
		return fmt.Errorf("the answers differ: %.200s, block %.200s", a, b)
	}
	return nil
}

const (
	queryRun   = 300 * time.Millisecond // of one run at least
	queryTimes = 9                      // queries of one run at least
)

// p50 of a run of one query.
func (q *queryWork) p50(ctx context.Context, s storage.Queryable, expr string, span, step time.Duration) (time.Duration, error) {
	var all []time.Duration
	for began := time.Now(); len(all) < queryTimes || time.Since(began) < queryRun; {
		_, took, err := q.exec(ctx, s, expr, span, step)
		if err != nil {
			return 0, err
		}
		all = append(all, took)
	}
	slices.Sort(all)
	return quantile(all, 0.5), nil
}

// floatSample is a sample as a storage wants it.
type floatSample struct {
	t int64
	v float64
}

func (s floatSample) T() int64                      { return s.t }
func (s floatSample) ST() int64                     { return 0 }
func (s floatSample) F() float64                    { return s.v }
func (s floatSample) H() *histogram.Histogram       { return nil }
func (s floatSample) FH() *histogram.FloatHistogram { return nil }
func (s floatSample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s floatSample) Copy() chunks.Sample           { return s }
