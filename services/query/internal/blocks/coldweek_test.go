package blocks

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	refmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// far is a store where each request takes a while, and that counts requests.
type far struct {
	objstore.Store
	takes time.Duration

	mu   sync.Mutex
	asks map[string]int
}

func (f *far) ask(what string) {
	f.mu.Lock()
	f.asks[what]++
	f.mu.Unlock()
	time.Sleep(f.takes)
}

// requests since the last call, by what they were for.
func (f *far) requests() (n int, by map[string]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	by, f.asks = f.asks, map[string]int{}
	for _, k := range by {
		n += k
	}
	return n, by
}

func (f *far) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	family, _, _ := strings.Cut(strings.TrimPrefix(key, layout.RollupPrefix), "/")
	f.ask("get " + family)
	return f.Store.Get(ctx, key, o)
}

func (f *far) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	f.ask("list " + objstore.Family(o.Prefix))
	return f.Store.List(ctx, o)
}

type steady struct{ now time.Time }

func (c steady) Now() time.Time                                 { return c.now }
func (steady) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// week is a store with compacted blocks of seven days and of today's first hours.
type week struct {
	store *far
	now   time.Time
	first timegrid.Hour
	count uint32
	all   int // series
}

func newWeek(t testing.TB, count uint32) *week { return newWeekOf(t, count, 1) }

// newWeekOf has the given number of series for each of its agents, one in each shard.
func newWeekOf(t testing.TB, count uint32, perAgent int) *week {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	w := &week{now: time.Date(2026, 11, 26, 6, 30, 0, 0, time.UTC), count: count, all: int(count) * perAgent}
	// Thursday of an epoch week: spans of 168 hours begin there.
	w.first = timegrid.HourStarting(time.Date(2026, 11, 19, 0, 0, 0, 0, time.UTC))
	store := mem.New(func() time.Time { return w.now })
	w.store = &far{Store: store, asks: map[string]int{}}
	must(shards.Ensure(ctx, store, count))
	_, err := store.Put(ctx, layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "test"}.Marshal(), objstore.PutOptions{})
	must(err)
	p := publishedtest.Publisher{Store: store, Authority: "test", Shards: count}
	agents := map[shard.ID]string{}
	for i := 0; len(agents) < int(count); i++ {
		if a := fmt.Sprintf("host-%d", i); agents[shard.Of(a, count)] == "" {
			agents[shard.Of(a, count)] = a
		}
	}
	for h := w.first; h < timegrid.HourOf(w.now.UnixMilli()); h++ {
		var batches []publishedtest.Batch
		for _, a := range agents {
			b := frame.NewBuilder()
			for n := range perAgent {
				id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "load"}, {Name: "n", Value: fmt.Sprint(n)}}, series.Gauge, "", 0)
				must(err)
				for k := range 60 {
					must(b.Append(id, (h.StartMS()+int64(k+1)*60_000)*1e6, float64(k)))
				}
			}
			f, err := b.Build(identity.Boot{Agent: a, Boot: "b"}, uint64(h)*60*uint64(perAgent))
			must(err)
			batches = append(batches, publishedtest.Batch{Frame: f})
		}
		_, err := p.Publish(ctx, h, 1, batches, timegrid.Resolutions()...)
		must(err)
	}
	cfg := publish.Config{
		Store: store, Refs: refmem.New(), Clock: steady{w.now}, AuthorityID: "test", WorkerID: "w",
		Queue:  publish.NewObjectQueue(store, func(string, error) {}),
		Policy: publish.Policy{Refs: retry.Policy{Attempts: 2, Base: 1, Cap: 1}, Generations: 6, Delay: time.Minute, Grace: time.Hour, AbortAfter: time.Hour},
	}
	collector, err := publish.NewCollector(cfg)
	must(err)
	_, err = collector.InitEpoch(ctx, zeros{}, false)
	must(err)
	publisher, err := publish.NewPublisher(cfg)
	must(err)
	st := compact.DefaultSettings()
	c, err := compact.NewCompactor(compact.Config{Store: store, Publisher: publisher, AuthorityID: "test", Settings: st})
	must(err)
	for _, res := range timegrid.Resolutions() {
		found, err := compact.NewScanner(store, "test").Scan(ctx, res, w.first, w.first+180, func(shard.ID) bool { return true })
		must(err)
		for first := shard.ID(0); first < shard.ID(count); first += shard.ID(st.Group) {
			for _, cand := range st.Choose(res, found.Blocks, first, w.now) {
				if cand.Name.Span == 2 && cand.Name.Hour < w.first+168 {
					continue // those of whole days were merged to days
				}
				_, err := c.Compact(ctx, cand, 7)
				must(err)
			}
		}
	}
	return w
}

// copy makes the copies of all days.
func (w *week) copy(t testing.TB) {
	t.Helper()
	c := compact.NewCopier(w.store.Store, "test", gc.OneByOne)
	for d := layout.DayOf(w.first); d <= layout.DayOf(w.first+175); d++ {
		if _, err := c.Copy(t.Context(), d, timegrid.HourOf(w.now.UnixMilli())-1); err != nil {
			t.Fatal(err)
		}
	}
}

// node is a query node that has just started.
func (w *week) node(t testing.TB) *Keeper {
	t.Helper()
	k, err := New(DefaultConfig(), Deps{Store: w.store, Window: 2 * time.Hour, AgentLabel: "agent", Log: telemetry.Discard().Log,
		Registry: prometheus.NewRegistry(), Now: func() time.Time { return w.now }})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.store.requests()
	return k
}

// read reads all samples of the seven days.
func (w *week) read(t testing.TB, k *Keeper) (samples int) {
	t.Helper()
	q := k.Query(published.Limits{})
	mint, maxt := w.first.StartMS()+1, (w.first + 167).EndMS()
	list, err := q.Select(t.Context(), mint, maxt, labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, "load"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		runs := list[i].Runs(mint, maxt)
		for run, ok := runs.Next(); ok; run, ok = runs.Next() {
			samples += len(run.T)
		}
		if runs.Err() != nil {
			t.Fatal(runs.Err())
		}
	}
	if ps, _ := q.Problems(); len(ps) > 0 {
		t.Fatal(ps)
	}
	if want := 168 * 60 * w.all; samples != want {
		t.Fatalf("%d samples, want %d", samples, want)
	}
	return samples
}

// readByHour reads the rows of the seven days that stand for whole hours.
func (w *week) readByHour(t testing.TB, k *Keeper) {
	t.Helper()
	q := k.Query(published.Limits{})
	mint, maxt := w.first.StartMS()+1, (w.first + 167).EndMS()
	list, ok, err := q.SelectRolled(t.Context(), published.Rows{Resolution: timegrid.OneHour}, mint, maxt, func(timegrid.Hour) bool { return false },
		func(series.Type) bool { return true }, labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, "load"))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	rows := 0
	var into chunk.Columns
	for i := range list {
		for part := range list[i].Parts() {
			_, from, to, ok, err := list[i].Rows(part, mint, maxt, chunk.ColSum|chunk.ColCount, &into)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			rows += to - from
		}
	}
	if ps, _ := q.Problems(); len(ps) > 0 || rows != 168*w.all {
		t.Fatalf("%d rows, want %d; %v", rows, 168*w.all, ps)
	}
}

// TestAColdWeekTakesFewRequests: a node that has just started reads seven days with no more than 40 requests. Copies
// that are damaged, or older than their records, cost requests and change no sample.
func TestAColdWeekTakesFewRequests(t *testing.T) {
	w := newWeek(t, 4)
	w.copy(t)
	w.read(t, w.node(t))
	if n, by := w.store.requests(); n > 40 {
		t.Errorf("%d requests: %v", n, by)
	}
	w.readByHour(t, w.node(t))
	if n, by := w.store.requests(); n > 40 {
		t.Errorf("rows of hours: %d requests: %v", n, by)
	}
	day := layout.RollupCopies(layout.DayOf(w.first + 30))
	b, _, err := w.store.Store.Get(t.Context(), day, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if _, err := w.store.Store.Put(t.Context(), day, b, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	w.read(t, w.node(t))
	if n, by := w.store.requests(); n < 300 || n > 500 {
		t.Errorf("with damaged copies of a day: %d requests: %v", n, by)
	}
	if err := w.store.Delete(t.Context(), day); err != nil {
		t.Fatal(err)
	}
	w.read(t, w.node(t))
}

// TestAColdWeekTakesFewRounds: requests that do not depend on each other are made at once. The listing and the
// copies are one round, then come the decision of retention, the indexes, and the ranges.
func TestAColdWeekTakesFewRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeek(t, 8)
		w.copy(t)
		for name, read := range map[string]func(*Keeper){"samples": func(k *Keeper) { w.read(t, k) }, "rows": func(k *Keeper) { w.readByHour(t, k) }} {
			k := w.node(t)
			w.store.takes = time.Second
			began := time.Now()
			read(k)
			rounds := int(time.Since(began) / time.Second)
			w.store.takes = 0
			n, by := w.store.requests()
			t.Logf("%s: %d requests in %d rounds: %v", name, n, rounds, by)
			if rounds > 4 || n > 30 {
				t.Errorf("%s: %d requests in %d rounds: %v", name, n, rounds, by)
			}
		}
	})
}

// BenchmarkColdWeek: the first query of a node over seven days, of samples and of rows that stand for hours, where each
// request takes 10 ms.
func BenchmarkColdWeek(b *testing.B) {
	for _, count := range []uint32{4, 32} {
		w := newWeek(b, count)
		w.copy(b)
		w.store.takes = 10 * time.Millisecond
		for name, read := range map[string]func(*Keeper){"samples": func(k *Keeper) { w.read(b, k) }, "hours": func(k *Keeper) { w.readByHour(b, k) }} {
			b.Run(fmt.Sprintf("%d/%s", count, name), func(b *testing.B) {
				best := math.Inf(1)
				for b.Loop() {
					b.StopTimer()
					k := w.node(b)
					b.StartTimer()
					began := time.Now()
					read(k)
					best = min(best, time.Since(began).Seconds()*1e3)
					b.StopTimer()
					n, by := w.store.requests()
					b.ReportMetric(float64(n), "requests")
					b.Log(n, by)
					b.StartTimer()
				}
				b.ReportMetric(best, "best-ms")
			})
		}
	}
}

// BenchmarkWarmWeek: labels, selections and samples of seven days of compacted blocks, all in the caches.
func BenchmarkWarmWeek(b *testing.B) {
	w := newWeekOf(b, 4, 50)
	w.copy(b)
	k := w.node(b)
	mint, maxt := w.first.StartMS()+1, (w.first + 167).EndMS()
	load := labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, "load")
	for name, do := range map[string]func(q *published.Query) error{
		"names":  func(q *published.Query) error { _, err := q.LabelNames(b.Context(), mint, maxt); return err },
		"values": func(q *published.Query) error { _, err := q.LabelValues(b.Context(), "n", mint, maxt); return err },
		"select": func(q *published.Query) error { _, err := q.Select(b.Context(), mint, maxt, load); return err },
		"read":   func(*published.Query) error { w.read(b, k); return nil },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := do(k.Query(published.Limits{})); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
