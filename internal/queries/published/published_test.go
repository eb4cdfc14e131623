package published_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// counting is a store that remembers what was read.
type counting struct {
	objstore.Store
	mu    sync.Mutex
	gets  []string
	bytes int64
}

func (c *counting) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	b, info, err := c.Store.Get(ctx, key, o)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gets = append(c.gets, fmt.Sprintf("%s@%d", key, o.Offset))
	c.bytes += int64(len(b))
	return b, info, err
}

// fixture has two hours of some series of two agents in blocks, and who reads them.
type fixture struct {
	store *counting
	views publishedtest.Views
	first timegrid.Hour
	ids   []identity.Batch

	publisher publishedtest.Publisher
	batches   []publishedtest.Batch
}

const (
	fixtureSeries = 600
	fixtureShards = 2
)

func newFixture(t *testing.T) *fixture { return newFixtureOf(t, chunk.Options{BlockSeries: 64}) }

func newFixtureOf(t *testing.T, o chunk.Options) *fixture {
	return newFixtureAt(t, o, func(_, k int) int64 { return int64(k+1) * 60_000 * 1e6 })
}

// newFixtureAt has samples at times after the start of the first hour, nanoseconds, by
// series and number.
func newFixtureAt(t *testing.T, o chunk.Options, at func(s, k int) int64) *fixture {
	t.Helper()
	f := &fixture{store: &counting{Store: mem.New(time.Now)}, first: timegrid.HourStarting(time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC))}
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	var batches []publishedtest.Batch
	for a := range 2 {
		b := frame.NewBuilder()
		for s := range fixtureSeries {
			id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: fmt.Sprintf("m%d", s%3)}, {Name: "agent", Value: fmt.Sprint(a)}, {Name: "s", Value: fmt.Sprint(s)}}, series.Gauge, "", 0)
			must(err)
			for k := range 120 {
				must(b.Append(id, f.first.StartMS()*1e6+at(s, k), float64(s*k%97)/7))
			}
		}
		built, err := b.Build(identity.Boot{Agent: fmt.Sprintf("agent%d", a), Boot: "b"}, 10)
		must(err)
		f.ids = append(f.ids, built.Identity)
		batches = append(batches, publishedtest.Batch{Frame: built})
	}
	f.publisher = publishedtest.Publisher{Store: f.store.Store, Authority: "test", Shards: fixtureShards, Chunk: o}
	f.batches = batches
	f.publish(t, 1)
	var err error
	f.views, err = publishedtest.NewViews(f.store.Store, "test")
	must(err)
	return f
}

// publish writes a generation of both hours, of samples and in resolutions.
func (f *fixture) publish(t *testing.T, gen uint64, resolutions ...timegrid.Resolution) {
	t.Helper()
	for h := range timegrid.Hour(2) {
		if _, err := f.publisher.Publish(t.Context(), f.first+h, gen, f.batches, append([]timegrid.Resolution{timegrid.Raw}, resolutions...)...); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *fixture) query(t *testing.T, r *published.Reader, l published.Limits) *published.Query {
	t.Helper()
	return r.Query(f.views, fixtureShards, published.Span{Oldest: f.first - 5, Newest: f.first + 5}, l)
}

func (f *fixture) reader(t *testing.T, c published.Config) *published.Reader {
	t.Helper()
	c.Store = f.store
	r, err := published.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (f *fixture) count(t *testing.T, q *published.Query, ms ...*labels.Matcher) (series, samples int) {
	t.Helper()
	mint, maxt := f.first.StartMS(), (f.first + 1).EndMS()
	list, err := q.Select(t.Context(), mint, maxt, ms...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		runs := list[i].Runs(mint, maxt)
		for {
			run, ok := runs.Next()
			if !ok {
				break
			}
			samples += len(run.T)
		}
		if runs.Err() != nil {
			t.Fatal(runs.Err())
		}
	}
	return len(list), samples
}

// TestColdAndWarm: a cold query reads each index once and each chunk by ranges; a warm one
// reads nothing; the caches stay within their bounds.
func TestColdAndWarm(t *testing.T) {
	f := newFixture(t)
	all := labels.MustNewMatcher(labels.MatchRegexp, "__name__", "m.*")
	r := f.reader(t, published.Config{})
	cold := f.query(t, r, published.Limits{})
	series, samples := f.count(t, cold, all)
	if series != 2*fixtureSeries || samples != 2*fixtureSeries*120 {
		t.Fatalf("%d series, %d samples", series, samples)
	}
	objects := 0
	for h := range timegrid.Hour(2) {
		for _, s := range cold.Blocks(f.first+h, timegrid.Raw) {
			objects += len(s.Objects)
		}
	}
	if st := cold.Stats(); len(f.store.gets) != 2*objects || st.Gets != int64(2*objects) || st.Bytes != f.store.bytes {
		t.Errorf("cold: %d requests for %d chunks, %+v", len(f.store.gets), objects, st)
	}
	f.store.gets = nil
	warm := f.query(t, r, published.Limits{})
	if s, n := f.count(t, warm, all); s != series || n != samples || len(f.store.gets) != 0 {
		t.Errorf("warm: %d series, %d samples, %d requests", s, n, len(f.store.gets))
	}
	if st := warm.Stats(); st.IndexHits == 0 || st.BlockHits == 0 || st.Gets != 0 {
		t.Errorf("warm: %+v", st)
	}

	small := f.reader(t, published.Config{IndexCache: 1, BlockCache: 40_000})
	f.count(t, f.query(t, small, published.Limits{}), all)
	if x, b := small.CacheBytes(); x != 0 || b == 0 || b > 40_000 {
		t.Errorf("caches of 1 and 40,000 bytes hold %d and %d", x, b)
	}
}

// TestGapsAreReadOver: two series at the ends of a chunk take one request when the gap
// allows it, and two that read less when not.
func TestGapsAreReadOver(t *testing.T) {
	f := newFixture(t)
	ends := labels.MustNewMatcher(labels.MatchRegexp, "s", "0|599")
	var gets [2]int64
	var bytes [2]int64
	for i, gap := range []int64{1 << 20, 1} {
		q := f.query(t, f.reader(t, published.Config{Gap: gap}), published.Limits{})
		if n, samples := f.count(t, q, ends); n != 4 || samples != 4*120 {
			t.Fatalf("%d series, %d samples", n, samples)
		}
		gets[i], bytes[i] = q.Stats().Gets, q.Stats().Bytes
	}
	if gets[0] >= gets[1] || bytes[0] <= bytes[1] {
		t.Errorf("wide gap %d requests of %d bytes, narrow %d of %d", gets[0], bytes[0], gets[1], bytes[1])
	}
}

func TestLimitsNameTheirSetting(t *testing.T) {
	f := newFixture(t)
	all := labels.MustNewMatcher(labels.MatchRegexp, "__name__", "m.*")
	mint, maxt := f.first.StartMS(), (f.first + 1).EndMS()
	for want, l := range map[string]published.Limits{"limits.objects": {Objects: 1}, "limits.bytes": {Bytes: 10}} {
		_, err := f.query(t, f.reader(t, published.Config{}), l).Select(t.Context(), mint, maxt, all)
		var limit *published.LimitError
		if !errors.As(err, &limit) || limit.Limit != want {
			t.Errorf("%s: %v", want, err)
		}
	}
	list, err := f.query(t, f.reader(t, published.Config{}), published.Limits{Samples: 100}).Select(t.Context(), mint, maxt, all)
	if err != nil {
		t.Fatal(err)
	}
	var limit *published.LimitError
	for i := range list {
		runs := list[i].Runs(mint, maxt)
		for _, ok := runs.Next(); ok; _, ok = runs.Next() {
		}
		if errors.As(runs.Err(), &limit) {
			break
		}
	}
	if limit == nil || limit.Limit != "limits.chunk_samples" {
		t.Errorf("limits.chunk_samples: %v", limit)
	}
}

// TestCoverageIsThatOfPinnedHours: nothing is left out of memory for an hour that was not
// asked for, and exactly the inputs afterwards.
func TestCoverageIsThatOfPinnedHours(t *testing.T) {
	f := newFixture(t)
	q := f.query(t, f.reader(t, published.Config{}), published.Limits{})
	boot := f.ids[0].BootOf()
	if got := q.Covered(boot, f.first); got != nil {
		t.Errorf("before the hour was asked for: %v", got)
	}
	if err := q.Pin(t.Context(), f.first.StartMS()+1, f.first.EndMS()); err != nil {
		t.Fatal(err)
	}
	want := ledger.Range{Start: f.ids[0].SeqStart, End: f.ids[0].SeqEnd}
	if got := q.Covered(boot, f.first); len(got) != 1 || got[0] != want {
		t.Errorf("covered %v, want %v", got, want)
	}
	if got := q.Covered(identity.Boot{Agent: "agent0", Boot: "other"}, f.first); got != nil {
		t.Errorf("another boot: %v", got)
	}
	if got := q.Covered(boot, f.first+1); got != nil {
		t.Errorf("another hour: %v", got)
	}
}

// TestConcurrentQueries share caches and decode on their own.
func TestConcurrentQueries(t *testing.T) {
	f := newFixture(t)
	r := f.reader(t, published.Config{})
	m := labels.MustNewMatcher(labels.MatchEqual, "__name__", "m1")
	var wg sync.WaitGroup
	var mu sync.Mutex // publishedtest.Views is for one at a time
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			q := f.query(t, r, published.Limits{})
			mu.Lock()
			err := q.Pin(t.Context(), f.first.StartMS()+1, (f.first + 1).EndMS())
			mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			list, err := q.Select(t.Context(), f.first.StartMS()+1, (f.first + 1).EndMS(), m)
			if err != nil || len(list) != 2*fixtureSeries/3 {
				t.Errorf("%d series, %v", len(list), err)
			}
		}()
	}
	wg.Wait()
}

// TestListedSeries: a listing has the series with a sample in the range, whatever the range, as reading their samples
// tells; where it ends between two samples of a block, and only there, chunks are read.
func TestListedSeries(t *testing.T) {
	const second = int64(time.Second)
	f := newFixtureAt(t, chunk.Options{BlockSeries: 64}, func(s, k int) int64 {
		hour, of := int64(k/60)*3600*second, int64(k%60)
		switch s % 3 {
		case 0: // the first twenty minutes of each hour
			return hour + (of+1)*20*second
		case 1: // a gap of half an hour in the middle
			return hour + (of+1)*10*second + of/30*2700*second
		}
		return hour + (of+1)*60*second + int64(s)
	})
	rng := rand.New(rand.NewPCG(1, 0))
	all := labels.MustNewMatcher(labels.MatchRegexp, "s", ".+")
	listed := func(q *published.Query, mint, maxt int64) (out []string) {
		list, err := q.Listed(t.Context(), mint, maxt, all)
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			out = append(out, list[i].Labels.String())
		}
		slices.Sort(out)
		return out
	}
	some := 0
	for range 60 {
		mint := f.first.StartMS() - 600_000 + rng.Int64N(8_400_000)
		maxt := mint + rng.Int64N([]int64{1_000, 60_000, 2_000_000, 8_000_000}[rng.IntN(4)])
		got := listed(f.query(t, f.reader(t, published.Config{}), published.Limits{}), mint, maxt)
		var want []string
		list, err := f.query(t, f.reader(t, published.Config{}), published.Limits{}).Select(t.Context(), mint, maxt, all)
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			if _, ok := list[i].Runs(mint, maxt).Next(); ok {
				want = append(want, list[i].Labels.String())
			}
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%d to %d: %d series, want %d", mint, maxt, len(got), len(want))
		}
		if len(want) > 0 && len(want) < 2*fixtureSeries {
			some++
		}
	}
	if some < 5 {
		t.Errorf("only %d ranges with some of the series", some)
	}
	f.store.gets = nil
	if n := len(listed(f.query(t, f.reader(t, published.Config{}), published.Limits{}), f.first.StartMS(), f.first.EndMS())); n != 2*fixtureSeries {
		t.Errorf("%d series in the whole hour", n)
	}
	for _, key := range f.store.gets {
		if !strings.HasPrefix(key, layout.IndexPrefix) {
			t.Errorf("%s was read", key)
		}
	}
}
