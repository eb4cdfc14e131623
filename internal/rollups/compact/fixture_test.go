package compact_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	objmem "lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	refmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

const (
	authority = "a"
	shards    = 4
	hour0     = timegrid.Hour(20_000 * 24) // a day's first
)

// ticking is a clock that advances by itself when somebody sleeps.
type ticking struct {
	mu  sync.Mutex
	now time.Time
}

func (c *ticking) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *ticking) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return ctx.Err()
}

type counter struct{ n byte }

func (c *counter) Read(b []byte) (int, error) {
	clear(b)
	c.n++
	b[0] = c.n
	return len(b), nil
}

var testPolicy = publish.Policy{
	Refs: retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond}, Generations: 6,
	Delay: time.Minute, Grace: 2 * time.Minute, AbortAfter: 10 * time.Minute,
}

func settings() compact.Settings {
	s := compact.DefaultSettings()
	s.Spans = map[timegrid.Resolution][]uint16{timegrid.Raw: {2, 6}, timegrid.OneMinute: {6}}
	s.Group, s.ObjectBytes, s.Rows, s.BlockSeries, s.After = 2, 2000, 100, 5, time.Hour
	return s
}

// parts are what a world is made of; a crashed one is opened again over them.
type parts struct {
	store *objmem.Store
	refs  *refmem.Refs
	clock *ticking
}

type world struct {
	parts
	t   testing.TB
	ids counter
	cat *catalog.Catalog
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, parts: parts{objmem.New(nil), refmem.New(), &ticking{now: hour0.End().Add(24 * time.Hour)}}}
	w.must1(w.collector().InitEpoch(t.Context(), &w.ids, false))
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) must1(_ any, err error) { w.t.Helper(); w.must(err) }

// clone copies the world as it is.
func (w *world) clone() *world {
	c := &world{t: w.t, parts: parts{objmem.New(nil), refmem.New(), &ticking{now: w.clock.now}}, ids: w.ids}
	ctx := context.Background()
	w.must(storetest.Each(ctx, w.store, "", func(i objstore.Info) error {
		b, _, err := w.store.Get(ctx, i.Key, objstore.GetOptions{})
		if err == nil {
			_, err = c.store.Put(ctx, i.Key, b, objstore.PutOptions{})
		}
		return err
	}))
	f, err := w.refs.Epoch(ctx)
	w.must(err)
	w.must(c.refs.InitEpoch(ctx, nil, f))
	records, _, err := w.refs.List(ctx, "", math.MaxInt)
	w.must(err)
	for _, r := range records {
		w.must(c.refs.Swap(ctx, f.ID, publish.Record{Key: r.Key}, r))
	}
	return c
}

func (w *world) config(s publish.Store, r publish.Refs) publish.Config {
	return publish.Config{Store: s, Refs: r, Queue: publish.NewObjectQueue(s, nil), Clock: w.clock, AuthorityID: authority, WorkerID: "w", Policy: testPolicy}
}

func (w *world) publisherOver(s publish.Store, r publish.Refs) *publish.Publisher {
	p, err := publish.NewPublisher(w.config(s, r))
	w.must(err)
	return p
}

func (w *world) publisher() *publish.Publisher { return w.publisherOver(w.store, w.refs) }

func (w *world) collector() *publish.Collector {
	c, err := publish.NewCollector(w.config(w.store, w.refs))
	w.must(err)
	return c
}

func (w *world) compactor(st compact.Settings) *compact.Compactor {
	return w.compactorOver(w.store, w.refs, st)
}

func (w *world) compactorOver(s publish.Store, r publish.Refs, st compact.Settings) *compact.Compactor {
	c, err := compact.NewCompactor(compact.Config{Store: s, Publisher: w.publisherOver(s, r), AuthorityID: authority, Settings: st})
	w.must(err)
	return c
}

// collect works the delayed queue off until nothing is left on it, hours later.
func (w *world) collect() {
	w.t.Helper()
	for range 5 {
		w.clock.now = w.clock.now.Add(time.Hour)
		w.must1(w.collector().Step(w.t.Context(), 100_000))
	}
	if left := w.keys(layout.DelayedPrefix); len(left) > 0 {
		w.t.Fatalf("%d items are left on the queue", len(left))
	}
}

func (w *world) keys(prefix string) []string {
	var ks []string
	w.must(storetest.Each(w.t.Context(), w.store, prefix, func(i objstore.Info) error { ks = append(ks, i.Key); return nil }))
	return ks
}

// view reads everything again.
func (w *world) view() *catalog.View {
	w.t.Helper()
	if w.cat == nil {
		c, err := catalog.New(catalog.Config{Reader: w.store, AuthorityID: authority})
		w.must(err)
		w.cat = c
	}
	v, err := w.cat.Refresh(w.t.Context(), hour0-100, hour0+1000)
	w.must(err)
	for _, h := range v.Hours() {
		if p := v.Problems(h); len(p) > 0 {
			w.t.Fatalf("hour %s: %v", h, p)
		}
	}
	return v
}

// agents of a shard.
func agents(id shard.ID, n int) []string {
	var out []string
	for i := 0; len(out) < n; i++ {
		if a := fmt.Sprintf("agent-%d", i); shard.Of(a, shards) == id {
			out = append(out, a)
		}
	}
	return out
}

// rawSeries are random but for their seed: two agents with counters, gauges, stale
// markers, histograms and starts; not every series has every hour.
func rawSeries(h timegrid.Hour, id shard.ID, gen uint64) []chunk.Series {
	rnd := rand.New(rand.NewPCG(uint64(h)*100+uint64(id), gen))
	var out []chunk.Series
	add := func(agent, name, extra string, typ series.Type, c chunk.Columns) {
		ls := []series.Label{{Name: "__name__", Value: name}, {Name: "job", Value: "x"}}
		if extra != "" {
			ls = append(ls, series.Label{Name: "zone", Value: extra})
		}
		out = append(out, chunk.Series{ID: series.ID{Agent: agent, Labels: ls, Type: typ}, Columns: c})
	}
	for _, a := range agents(id, 2) {
		var t []int64
		for at := h.StartMS() + 1 + rnd.Int64N(1000); at <= h.EndMS(); at += 120_000 {
			t = append(t, at*1_000_000+rnd.Int64N(1_000_000))
		}
		if rnd.IntN(3) == 0 { // the hour's last sample stands at its very end
			t = append(t[:len(t)-1], (h.EndMS()+1)*1_000_000-1)
		}
		for i, zone := range []string{"", "b", "a"} {
			if rnd.IntN(4) == 0 {
				continue
			}
			c := chunk.Columns{T: t}
			total := float64(0)
			for k := range t {
				total += float64(rnd.IntN(50))
				v := total
				if rnd.IntN(40) == 0 {
					v = math.Float64frombits(value.StaleNaN) // a stale marker
				}
				c.V = append(c.V, v)
				if rnd.IntN(30) == 0 {
					total = 0
				}
				if i == 1 && gen%2 == 1 {
					c.Start = append(c.Start, t[0]-int64(k))
				}
			}
			add(a, "requests_total", zone, series.Counter, c)
			g := chunk.Columns{T: t[:1+rnd.IntN(len(t))]}
			for range g.T {
				g.V = append(g.V, rnd.NormFloat64())
			}
			add(a, "load", zone, series.Gauge, g)
		}
		hc := chunk.Columns{T: t[:5]}
		for k := range hc.T {
			n := float64(k + rnd.IntN(5))
			hc.H = append(hc.H, series.Histogram{Count: n, Sum: n, PositiveSpans: []int32{0, 1}, PositiveBuckets: []float64{n}})
		}
		add(a, "latency", "", series.HistogramCumulative, hc)
	}
	slices.SortFunc(out, func(a, b chunk.Series) int { return a.ID.Compare(&b.ID) })
	return out
}

// roll publishes the next generation of an hour of a shard in the resolutions.
func (w *world) roll(h timegrid.Hour, id shard.ID, resolutions ...timegrid.Resolution) {
	w.t.Helper()
	v := w.view()
	gen := v.Top(h, id, timegrid.Raw) + 1
	plan := fmt.Appendf(nil, "plan %d %d %d", h, id, gen)
	if _, err := w.store.Create(w.t.Context(), layout.RollupPlan(h, id, gen), plan, objstore.PutOptions{}); err != nil && !errors.Is(err, objstore.ErrExists) {
		w.t.Fatal(err)
	}
	in, err := catalog.NewInputs([]identity.Batch{{Agent: agents(id, 1)[0], Boot: "b", SeqStart: uint64(h) * 1000, SeqEnd: uint64(h)*1000 + 10*gen - 1}})
	w.must(err)
	raw := rawSeries(h, id, gen)
	for _, res := range resolutions {
		series := raw
		if res != timegrid.Raw {
			r := rollup.NewRoller(res)
			series = make([]chunk.Series, len(raw))
			for i := range raw {
				series[i] = r.Roll(&raw[i])
			}
		}
		pub := publish.Publication{
			Name: catalog.Name{Hour: h, Shard: id, Resolution: res, Generation: gen}, Shards: shards, Fence: 7, PlanSHA256: identity.Sum(plan),
			Inputs: in, Counts: catalog.Counts{Records: in.Records(), Published: in.Records()},
		}
		if s := v.Block(h, id, res); s != nil {
			pub.Supersedes = s.Name.Generation
		}
		// Two chunks, so that a block has several.
		for _, part := range [][]chunk.Series{series[:len(series)/2], series[len(series)/2:]} {
			cw := chunk.NewWriter(chunk.Options{})
			for i := range part {
				w.must(cw.Add(&part[i]))
			}
			f, err := cw.Finish()
			w.must(err)
			pub.Outputs = append(pub.Outputs, publish.Output{Metric: layout.MixedMetrics, Chunk: publish.Bytes(f.Chunk), Index: publish.Bytes(f.Index), FooterOffset: uint64(f.FooterOffset),
				Series: uint64(f.Series), Samples: f.Samples, MinTime: f.MinT, MaxTime: f.MaxT})
		}
		w.must1(w.publisher().Publish(w.t.Context(), pub))
	}
}

// rollAll publishes hours of all shards.
func (w *world) rollAll(from timegrid.Hour, n int, resolutions ...timegrid.Resolution) {
	w.t.Helper()
	for h := from; h < from+timegrid.Hour(n); h++ {
		for id := range shard.ID(shards) {
			w.roll(h, id, resolutions...)
		}
	}
}

// answers has every row of a resolution, by series, as a reader over the view sees it: bit
// for bit. It is a reader of its own, and reads whole objects.
func (w *world) answers(v *catalog.View, res timegrid.Resolution) map[string]string {
	w.t.Helper()
	type row struct {
		t    int64
		text string
	}
	rows := map[string][]row{}
	for _, p := range catalog.Pieces(setsOf(v, res)) {
		for _, o := range p.Block.Objects {
			ib, _, err := w.store.Get(w.t.Context(), o.IndexKey, objstore.GetOptions{})
			w.must(err)
			cb, _, err := w.store.Get(w.t.Context(), o.ChunkKey, objstore.GetOptions{})
			w.must(err)
			x, err := chunk.ReadIndex(ib, chunk.Limits{})
			w.must(err)
			d := chunk.NewDecoder(x, chunk.Limits{})
			d.Put(0, cb)
			for i := range x.Len() {
				ref := x.Series(i)
				if !p.Holds(ref.Agent) {
					continue
				}
				var c chunk.Columns
				w.must1(d.Series(i, math.MinInt64, math.MaxInt64, chunk.AllColumns, &c))
				key := fmt.Sprint(ref.Agent, ref.Labels, ref.Type, ref.Unit)
				for k, t := range c.T {
					if h := timegrid.HourOfNS(t); h >= p.From && h <= p.To {
						rows[key] = append(rows[key], row{t, rowText(&c, k)})
					}
				}
			}
		}
	}
	out := map[string]string{}
	for key, rs := range rows {
		slices.SortStableFunc(rs, func(a, b row) int { return int(a.t - b.t) })
		var b bytes.Buffer
		for i, r := range rs {
			if i > 0 && rs[i-1].t == r.t {
				w.t.Fatalf("%s has two rows at %d", key, r.t)
			}
			fmt.Fprintf(&b, "%d %s\n", r.t, r.text)
		}
		out[key] = b.String()
	}
	return out
}

func rowText(c *chunk.Columns, k int) string {
	var b []byte
	for _, v := range [][]float64{c.V, c.First, c.Last, c.Increase, c.Sum, c.SumC, c.Min, c.Max} {
		if b = append(b, '|'); v != nil {
			b = binary.BigEndian.AppendUint64(b, math.Float64bits(v[k]))
		}
	}
	for _, v := range [][]uint32{c.Count, c.Stale} {
		if b = append(b, '|'); v != nil {
			b = binary.BigEndian.AppendUint32(b, v[k])
		}
	}
	for _, v := range [][]int64{c.FirstT, c.LastT} {
		if b = append(b, '|'); v != nil {
			b = binary.BigEndian.AppendUint64(b, uint64(v[k]))
		}
	}
	for _, v := range [][]series.Histogram{c.H, c.FirstH, c.LastH, c.IncreaseH, c.SumH} {
		if b = append(b, '|'); v != nil {
			b = fmt.Appendf(b, "%+v", v[k])
		}
	}
	start := int64(0) // none and unknown are the same
	if c.Start != nil {
		start = c.Start[k]
	}
	return fmt.Sprintf("%x %d", b, start)
}

func same(t testing.TB, what string, got, want map[string]string) {
	t.Helper()
	if len(want) == 0 {
		t.Fatal("nothing to compare")
	}
	if maps.Equal(got, want) {
		return
	}
	for k := range want {
		if got[k] != want[k] {
			t.Fatalf("%s: %s differs: %d bytes of rows, want %d", what, k, len(got[k]), len(want[k]))
		}
	}
	t.Fatalf("%s: %d series, want %d", what, len(got), len(want))
}

// compactAll compacts what is due until nothing is.
func (w *world) compactAll(st compact.Settings) (n int) {
	w.t.Helper()
	for range 50 {
		v := w.view()
		did := false
		for _, res := range timegrid.Resolutions() {
			for id := shard.ID(0); id < shards; id += shard.ID(st.Group) {
				for _, c := range st.Choose(res, setsOf(v, res), id, w.clock.now) {
					r, err := w.compactor(st).Compact(w.t.Context(), c, 7)
					w.must(err)
					if r.Redirected == 0 {
						w.t.Fatalf("%s redirected nothing", r.Block.Name.Key())
					}
					did, n = true, n+1
				}
			}
		}
		if !did {
			return n
		}
	}
	w.t.Fatal("there is always something to compact")
	return 0
}

func setsOf(v *catalog.View, res timegrid.Resolution) []*catalog.Block {
	var blocks []*catalog.Block
	for _, h := range v.Hours() {
		blocks = append(blocks, v.Blocks(h, res)...)
	}
	return blocks
}
