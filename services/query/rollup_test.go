package query_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/query"
)

const rollupShards = 4

// corpus is some hours of random batches of a few agents.
type corpus struct {
	batches []publishedtest.Batch
	builts  []built
}

// newCorpus has counters with resets, gauges, native histograms and stale markers every
// 30 s from start to end, in batches of ten scrapes.
func newCorpus(t testing.TB, rnd *rand.Rand, start, end time.Time) *corpus {
	t.Helper()
	c := &corpus{}
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	for a := range 3 {
		boot := identity.Boot{Agent: fmt.Sprintf("host%d", a), Boot: "b"}
		seq, count, obs := uint64(0), 0.0, 0.0
		for at := start; at.Before(end); {
			b := frame.NewBuilder()
			must(b.SetResource(series.Label{Name: "instance", Value: boot.Agent + ":1"}, series.Label{Name: "job", Value: fmt.Sprintf("j%d", a%2)}))
			add := func(name, dev string, typ series.Type) frame.SeriesID {
				id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: name}, {Name: "dev", Value: dev}}, typ, "", start.UnixNano())
				must(err)
				return id
			}
			first := at
			last := at
			var cs, gs []frame.SeriesID
			for d := range 3 {
				cs = append(cs, add("c_total", fmt.Sprint(d), series.Counter))
				gs = append(gs, add("g", fmt.Sprint(d), series.Gauge))
			}
			h := add("h", "x", series.HistogramCumulative)
			for range 10 {
				if !at.Before(end) {
					break
				}
				ns := at.Add(time.Duration(a) * 137 * time.Millisecond).UnixNano()
				last = time.Unix(0, ns)
				if rnd.IntN(50) == 0 {
					count, obs = 0, 0
				}
				count += float64(rnd.IntN(50))
				obs += float64(rnd.IntN(5))
				for d := range 3 {
					cv, gv := count*float64(d+1), math.Round(rnd.NormFloat64()*1000)/8
					if d == 2 && rnd.IntN(30) == 0 {
						cv, gv = math.Float64frombits(value.StaleNaN), math.Float64frombits(value.StaleNaN)
					}
					must(b.Append(cs[d], ns, cv))
					must(b.Append(gs[d], ns, gv))
				}
				must(b.AppendHistogram(h, ns, series.Histogram{Schema: 1, Count: obs * 3, Sum: obs * 2, ZeroThreshold: 0.001,
					PositiveSpans: []int32{0, 2}, PositiveBuckets: []float64{obs, obs * 2}}))
				at = at.Add(30 * time.Second)
			}
			f, err := b.Build(boot, seq)
			must(err)
			seq = f.Identity.SeqEnd + 1
			raw, err := frame.Encode(nil, f)
			must(err)
			own := &frame.Batch{}
			must(frame.Decode(raw, own, frame.Limits{}))
			sum := identity.Sum(raw)
			c.batches = append(c.batches, publishedtest.Batch{Frame: own, AcceptedAt: last.UnixNano()})
			c.builts = append(c.builts, built{frame: raw, manifest: accept.Manifest{
				AuthorityID: "test", Identity: own.Identity, FrameSHA256: sum, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(sum, 0),
				AcceptedAt: last.UnixNano(), CollectorID: "c1", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
				RecordCount: own.Identity.Count(), MinTime: first.Add(time.Duration(a) * 137 * time.Millisecond).UnixNano(), MaxTime: last.UnixNano(),
			}})
		}
	}
	return c
}

// rollups makes the authority one with rollups.
func (a *authority) rollups() {
	a.t.Helper()
	if err := shards.Ensure(context.Background(), a.Store, rollupShards); err != nil {
		a.t.Fatal(err)
	}
}

// publish writes a generation of an hour in all windows.
func (a *authority) publish(h timegrid.Hour, gen uint64, batches []publishedtest.Batch) []*catalog.Block {
	a.t.Helper()
	p := publishedtest.Publisher{Store: a.Store, Authority: "test", Shards: rollupShards, PerChunk: 5}
	blocks, err := p.Publish(context.Background(), h, gen, batches, timegrid.Resolutions()...)
	if err != nil {
		a.t.Fatal(err)
	}
	return blocks
}

var rollupExpressions = []string{
	`c_total`, `g`, `rate(c_total[5m])`, `increase(c_total[10m])`, `irate(c_total[2m])`, `resets(c_total[30m])`, `changes(g[5m])`,
	`sum by (job) (rate(c_total[5m]))`, `avg without (instance) (g)`, `max_over_time(g[20m])`, `min_over_time(g[20m])`, `quantile_over_time(0.9, g[3m])`,
	`count by (job) (g)`, `topk(2, g)`, `g offset 1h`, `deriv(g[4m])`, `delta(g[20m])`, `sum_over_time(g[20m])`, `avg_over_time(g[1h])`,
	`absent(nothing)`, `count_over_time(c_total[20m])`, `last_over_time(g[20m])`, `histogram_quantile(0.9, h)`, `rate(h[5m])`,
	`histogram_count(sum(h))`, `sum(increase(h[20m]))`, `sum(rate(c_total[5m])) / on () group_left () count(g)`,
	`max_over_time(rate(c_total[5m])[20m:1m])`, `g{instance=~"host[0-1].*"}`, `g{dev!="0"}`, `stddev_over_time(g[3m])`, `timestamp(g)`,
	`increase(c_total[1h] offset 1h)`, `rate({__name__="c_total", dev="2"}[20m])`, `last_over_time(c_total[2h])`,
}

// answers gives the data of range and instant answers, and fails where one is partial.
func (n *node) answers(start, end time.Time) map[string]string {
	n.t.Helper()
	out := map[string]string{}
	for _, e := range rollupExpressions {
		for kind, got := range map[string]envelope{
			"range": n.get("/api/v1/query_range", "query", e, "start", unix(start), "end", unix(end), "step", "300"),
			"at":    n.get("/api/v1/query", "query", e, "time", unix(end)),
		} {
			if got.Status != "success" || got.Lightmetrics.Partial {
				n.t.Errorf("%s %s: %s %s %v", kind, e, got.Status, got.Error, got.Lightmetrics.Reasons)
			}
			out[kind+" "+e] = string(got.Data)
		}
	}
	return out
}

// near compares answers: the same text, but for the last digits of floats.
func near(a, b string) bool {
	if a == b {
		return true
	}
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	return nearValue(x, y)
}

func nearValue(x, y any) bool {
	switch x := x.(type) {
	case map[string]any:
		o, ok := y.(map[string]any)
		if !ok || len(x) != len(o) {
			return false
		}
		for k, v := range x {
			if !nearValue(v, o[k]) {
				return false
			}
		}
		return true
	case []any:
		o, ok := y.([]any)
		if !ok || len(x) != len(o) {
			return false
		}
		for i := range x {
			if !nearValue(x[i], o[i]) {
				return false
			}
		}
		return true
	case string:
		o, ok := y.(string)
		if !ok || x == o {
			return ok
		}
		f, err1 := strconv.ParseFloat(x, 64)
		g, err2 := strconv.ParseFloat(o, 64)
		return err1 == nil && err2 == nil && math.Abs(f-g) <= 1e-12*max(math.Abs(f), math.Abs(g))
	}
	return x == y
}

func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for k, w := range want {
		if strings.Contains(w, `"result":[]`) && !strings.Contains(k, "nothing") {
			t.Errorf("%s: nothing to compare", k)
		}
		if !near(got[k], w) {
			t.Errorf("%s: %s\n got %.500s\nwant %.500s", what, k, got[k], w)
		}
	}
}

// TestSameAnswersFromChunksAndMemory: from memory alone, from chunks with a tail in
// memory, and from chunks alone.
func TestSameAnswersFromChunksAndMemory(t *testing.T) {
	const seed = 20261121
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	end := time.Now().Truncate(5 * time.Minute)
	start := end.Add(-5 * time.Hour)
	c := newCorpus(t, rnd, start, end)
	from := end.Add(-150 * time.Minute)

	memory := newAuthority(t)
	for _, b := range c.builts {
		memory.accept(b)
	}
	n := start1(t, memory, func(cfg *query.Config) { cfg.History.Window = 24 * time.Hour })
	want := n.answers(from, end)

	// An hour without a block must lie in the window of two hours, minutes later too.
	edge, between := timegrid.HourOf(time.Now().Add(-110*time.Minute).UnixMilli()), timegrid.HourOf(end.Add(-50*time.Minute).UnixMilli())
	for name, published := range map[string]func(h timegrid.Hour) bool{
		"chunks and memory":      func(h timegrid.Hour) bool { return h <= edge },
		"chunks, memory between": func(h timegrid.Hour) bool { return h != between },
		"chunks alone":           func(timegrid.Hour) bool { return true },
	} {
		a := newAuthority(t)
		a.rollups()
		for _, b := range c.builts {
			a.accept(b)
		}
		for _, h := range publishedtest.Hours(c.batches) {
			if published(h) {
				a.publish(h, 1, c.batches)
			}
		}
		n := start1(t, a, func(cfg *query.Config) {
			if name == "chunks alone" {
				cfg.History.Window = time.Millisecond
			}
		})
		same(t, name, n.answers(from, end), want)
	}
}

// start1 starts a node and waits until its answers can be whole.
func start1(t testing.TB, a *authority, change func(*query.Config)) *node {
	t.Helper()
	n := start(t, a, func(cfg *query.Config) {
		cfg.Rollup.Poll, cfg.Rollup.TTL = 20*time.Millisecond, 20*time.Millisecond
		if change != nil {
			change(cfg)
		}
	})
	<-n.Complete()
	<-n.BlocksRead()
	return n
}

// TestUnreadableChunkIsPartial: missing, cut or damaged objects never make an answer
// smaller without a word.
func TestUnreadableChunkIsPartial(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	end := time.Now().Truncate(5 * time.Minute).Add(-3 * time.Hour)
	c := newCorpus(t, rand.New(rand.NewPCG(seed, 2)), end.Add(-20*time.Minute), end)
	for name, damage := range map[string]func(*authority, string){
		"missing": func(a *authority, key string) {
			if err := a.Delete(context.Background(), key); err != nil {
				t.Fatal(err)
			}
		},
		"damaged": func(a *authority, key string) {
			body, _, err := a.Store.Get(context.Background(), key, objstore.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range body {
				body[i] ^= 0x55
			}
			a.put(key, body)
		},
		"cut": func(a *authority, key string) { a.put(key, []byte("x")) },
	} {
		for _, part := range []string{"chunk", "index"} {
			a := newAuthority(t)
			a.rollups()
			for _, b := range c.builts {
				a.accept(b)
			}
			for _, h := range publishedtest.Hours(c.batches) {
				for _, s := range a.publish(h, 1, c.batches) {
					if s.Name.Resolution != timegrid.Raw {
						continue
					}
					key := s.Objects[0].ChunkKey
					if part == "index" {
						key = s.Objects[0].IndexKey
					}
					damage(a, key)
				}
			}
			n := start1(t, a, nil)
			e := n.get("/api/v1/query", "query", `{__name__=~".+"}`, "time", unix(end))
			if !e.Lightmetrics.Partial || !has(e.Lightmetrics.Reasons, "BLOCK_UNREADABLE") {
				t.Errorf("%s %s: %+v", name, part, e.Lightmetrics)
			}
			if !strings.Contains(string(e.Data), "metric") {
				t.Errorf("%s %s: nothing of the chunks that can be read", name, part)
			}
			// A range that the block has nothing in is whole.
			if e := n.get("/api/v1/query", "query", "g"); e.Lightmetrics.Partial {
				t.Errorf("%s %s: another range is marked: %v", name, part, e.Lightmetrics.Reasons)
			}
		}
	}
}

// TestBatchesThatAreNotRolledUp: old batches that no block holds are read into memory from
// the journal, stay there until a block holds them, and an hour without a block is reported.
func TestBatchesThatAreNotRolledUp(t *testing.T) {
	const seed = 9
	t.Logf("seed %d", seed)
	end := time.Now().Truncate(time.Hour).Add(-4 * time.Hour)
	c := newCorpus(t, rand.New(rand.NewPCG(seed, 3)), end.Add(-30*time.Minute), end)
	a := newAuthority(t)
	a.rollups()
	for _, b := range c.builts {
		a.accept(b)
	}
	half := c.batches[:len(c.batches)/2]
	h := timegrid.HourOf(end.UnixMilli())
	a.publish(h, 1, half)
	n := start1(t, a, nil)
	sum := `sum(count_over_time(c_total[30m] @ ` + unix(end) + `)) + sum(count_over_time(g[30m] @ ` + unix(end) + `))`
	want := ""
	{
		memory := newAuthority(t)
		for _, b := range c.builts {
			memory.accept(b)
		}
		m := start1(t, memory, func(cfg *query.Config) { cfg.History.Window = 24 * time.Hour })
		if want = m.value(sum); want == "" {
			t.Fatal("nothing to count")
		}
	}
	check := func(what string) {
		t.Helper()
		e := n.get("/api/v1/query", "query", sum)
		if got := n.value(sum); got != want || e.Lightmetrics.Partial {
			t.Errorf("%s: %s, want %s: %v", what, got, want, e.Lightmetrics.Reasons)
		}
	}
	check("half of the batches in memory")
	// Those whose hour was not read yet when they were found are let go as well.
	eventually(t, "only what no block holds is in memory", func() bool { return n.LateBatches() == len(c.batches)-len(half) })
	check("only what no block holds in memory")
	a.publish(h, 2, c.batches)
	eventually(t, "memory lets go", func() bool { return n.LateBatches() == 0 })
	check("all of them in a block")

	e := n.get("/api/v1/query", "query", "g", "time", unix(end.Add(90*time.Minute)))
	if !has(e.Lightmetrics.Reasons, "BEFORE_HISTORY") {
		t.Errorf("an hour without a block: %+v", e.Lightmetrics)
	}
	e = n.get("/api/v1/query", "query", "g", "time", unix(end.Add(-2*time.Hour)))
	if e.Lightmetrics.Partial {
		t.Errorf("an hour before the first sample: %+v", e.Lightmetrics)
	}
}

// TestReplacedGenerationIsReadAgain: queries and lists of series and labels whose generation
// is removed under them read the next one.
func TestReplacedGenerationIsReadAgain(t *testing.T) {
	const seed = 10
	t.Logf("seed %d", seed)
	end := time.Now().Truncate(time.Hour).Add(-4 * time.Hour)
	span := []string{"start", unix(end.Add(-30 * time.Minute)), "end", unix(end)}
	for path, params := range map[string][]string{
		"/api/v1/query":            {"query", "sum by (dev) (count_over_time(c_total[30m]))", "time", unix(end)},
		"/api/v1/series":           append([]string{"match[]", "c_total"}, span...),
		"/api/v1/labels":           span,
		"/api/v1/label/dev/values": append([]string{"match[]", "g"}, span...),
	} {
		replaceUnder(t, seed, end, path, params)
	}
}

func replaceUnder(t *testing.T, seed uint64, end time.Time, path string, params []string) {
	c := newCorpus(t, rand.New(rand.NewPCG(seed, 4)), end.Add(-30*time.Minute), end)
	a := newAuthority(t)
	a.rollups()
	for _, b := range c.builts {
		a.accept(b)
	}
	h := timegrid.HourOf(end.UnixMilli())
	// Not the first batch, so that the next generation is another one.
	old := a.publish(h, 1, c.batches[1:])
	n := start1(t, a, func(cfg *query.Config) {
		cfg.Rollup.TTL = time.Hour                          // the list of blocks is not read again for its age
		cfg.Rollup.IndexCache, cfg.Rollup.BlockCache = 1, 1 // nothing is cached
	})
	memory := newAuthority(t)
	for _, b := range c.builts {
		memory.accept(b)
	}
	sum := "sum(count_over_time(c_total[30m] @ " + unix(end) + "))"
	ref := start1(t, memory, func(cfg *query.Config) { cfg.History.Window = 24 * time.Hour })
	want := ref.value(sum)
	eventually(t, "the batch that no block holds is in memory", func() bool { return n.value(sum) == want })
	if e := n.get("/api/v1/query", "query", "count(g)", "time", unix(end)); e.Lightmetrics.Partial {
		t.Fatalf("%v", e.Lightmetrics.Reasons)
	}
	fresh := map[string]bool{}
	for _, s := range a.publish(h, 2, c.batches) {
		for _, k := range s.Keys() {
			fresh[k] = true
		}
	}
	for _, s := range old {
		for _, k := range s.Keys() {
			if !fresh[k] {
				if err := a.Delete(context.Background(), k); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	got, whole := n.get(path, params...), ref.get(path, params...)
	if got.Lightmetrics.Partial || got.Status != "success" || len(whole.Data) < 10 || inOrder(t, path, got.Data) != inOrder(t, path, whole.Data) {
		t.Errorf("%s: %s %v: %s, want %s", path, got.Status, got.Lightmetrics.Reasons, got.Data, whole.Data)
	}
}

// inOrder is the data of an answer, with series, which come in no order, in one.
func inOrder(t *testing.T, path string, data json.RawMessage) string {
	t.Helper()
	if path != "/api/v1/series" {
		return string(data)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list, func(a, b json.RawMessage) int { return bytes.Compare(a, b) })
	return fmt.Sprintf("%s", list)
}

// TestLimitsOfPublishedReads name the setting.
func TestLimitsOfPublishedReads(t *testing.T) {
	end := time.Now().Truncate(time.Hour).Add(-4 * time.Hour)
	c := newCorpus(t, rand.New(rand.NewPCG(1, 5)), end.Add(-30*time.Minute), end)
	a := newAuthority(t)
	a.rollups()
	for _, h := range publishedtest.Hours(c.batches) {
		a.publish(h, 1, c.batches)
	}
	for name, change := range map[string]func(*query.Config){
		"limits.objects of 3":       func(c *query.Config) { c.Limits.Objects = 3 },
		"limits.bytes of 500":       func(c *query.Config) { c.Limits.Bytes = 500 },
		"limits.chunk_samples of 9": func(c *query.Config) { c.Limits.ChunkSamples = 9 },
		"limits.series of 4":        func(c *query.Config) { c.Limits.Series = 4 },
	} {
		n := start1(t, a, change)
		e := n.get("/api/v1/query", "query", `{__name__=~".+"}`, "time", unix(end))
		if e.Status != "error" || !strings.Contains(e.Error, name) {
			t.Errorf("%s: %s %s", name, e.Status, e.Error)
		}
	}
}

func TestStatsTellWhatWasRead(t *testing.T) {
	end := time.Now().Truncate(time.Hour).Add(-4 * time.Hour)
	c := newCorpus(t, rand.New(rand.NewPCG(1, 6)), end.Add(-30*time.Minute), end)
	a := newAuthority(t)
	a.rollups()
	for _, h := range publishedtest.Hours(c.batches) {
		a.publish(h, 1, c.batches)
	}
	n := start1(t, a, nil)
	read := func() (s struct {
		Stats struct {
			Published struct{ Gets, Bytes, BlockCacheHits, IndexCacheHits, Samples int }
		}
	}) {
		e := n.get("/api/v1/query", "query", `g`, "time", unix(end), "stats", "all")
		if err := json.Unmarshal(e.Data, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	cold, warm := read().Stats.Published, read().Stats.Published
	if cold.Gets == 0 || cold.Bytes == 0 || cold.Samples == 0 {
		t.Errorf("cold: %+v", cold)
	}
	if warm.Gets != 0 || warm.BlockCacheHits == 0 || warm.IndexCacheHits == 0 || warm.Samples != cold.Samples {
		t.Errorf("warm: %+v", warm)
	}
}

// TestWindowsAnswerAlignedRanges: which selectors are answered from rolled blocks, and that
// the answers are those of the samples.
func TestWindowsAnswerAlignedRanges(t *testing.T) {
	const seed = 11
	t.Logf("seed %d", seed)
	end := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	c := newCorpus(t, rand.New(rand.NewPCG(seed, 7)), end.Add(-9*time.Hour), end.Add(20*time.Minute))
	a := newAuthority(t)
	a.rollups()
	last := timegrid.HourOf(end.UnixMilli()) + 1
	for _, b := range c.builts {
		a.accept(b)
	}
	for _, h := range publishedtest.Hours(c.batches) {
		if h < last { // the last hour is not rolled up yet
			a.publish(h, 1, c.batches)
		}
	}
	whole, plain := start1(t, a, nil), start1(t, a, func(cfg *query.Config) { cfg.Rollup.Resolutions = false })
	from := end.Add(-4 * time.Hour)
	for _, q := range []struct {
		expr, step string
		windows    string // that answer the selectors of a range query
	}{
		{`rate(c_total[5m])`, "60", "1m"},
		{`sum by (job) (rate(c_total[20m]))`, "300", "5m"},
		{`increase(c_total[20m])`, "300", "5m"},
		{`increase(c_total[20m])`, "60", "1m"},
		{`sum_over_time(g[20m])`, "300", "5m"},
		{`avg_over_time(g[25m])`, "300", "5m"},
		{`min_over_time(g[1h]) - max_over_time(g[1h])`, "600", "5m 5m"},
		{`count_over_time(g[5m])`, "120", "1m"},
		{`count_over_time(h[20m])`, "300", "5m"},
		{`last_over_time(c_total[20m])`, "300", "5m"},
		{`delta(g[20m] offset 1h)`, "300", "5m"},
		{`rate(c_total[30m] offset 10m)`, "300", "5m"},
		{`max_over_time(g{dev!="0"}[4h])`, "3600", "1h"},
		{`sum(rate(c_total[5m])) / count(count_over_time(g[20m]))`, "60", "1m 1m"},
		{`-(avg_over_time(g[20m]) > 0) or g`, "300", "5m"},
		{`quantile(0.5, max_over_time(g[20m]))`, "300", "5m"},
		{`rate(c_total[5m])`, "61", ""},
		{`rate(c_total[5m] offset 1s)`, "60", ""},
		{`rate(c_total[3m])`, "60", ""},
		{`rate(c_total[5m] @ end())`, "60", ""},
		{`max_over_time(rate(c_total[5m])[20m:1m])`, "60", ""},
		{`rate(g[5m])`, "60", ""},                // gauges, and not called like a counter
		{`sum_over_time(c_total[5m])`, "60", ""}, // counters have no sums
		{`rate({__name__=~"c_total"}[5m])`, "60", ""},
		{`absent(rate(c_total{dev="9"}[5m]))`, "60", ""},
		{`quantile_over_time(0.5, g[5m])`, "60", ""},
		{`rate(h[20m])`, "300", "5m"},
		{`histogram_quantile(0.9, sum by (job) (rate(h[1h])))`, "300", "5m"},
		{`histogram_count(increase(h[5m]))`, "60", "1m"},
		{`last_over_time(h[20m])`, "300", "5m"},
		{`sum_over_time(h[20m])`, "300", ""}, // cumulative ones have no sums
	} {
		params := []string{"query", q.expr, "start", unix(from), "end", unix(end.Add(15 * time.Minute)), "step", q.step, "stats", "all"}
		got, want := whole.get("/api/v1/query_range", params...), plain.get("/api/v1/query_range", params...)
		type answer struct {
			Result json.RawMessage
			Stats  struct {
				Published struct{ Resolutions map[string]int }
			}
		}
		var g, w answer
		if err := errors.Join(json.Unmarshal(got.Data, &g), json.Unmarshal(want.Data, &w)); err != nil {
			t.Fatalf("%s: %v: %s", q.expr, err, got.Error)
		}
		if !near(string(g.Result), string(w.Result)) {
			t.Errorf("%s by %s\n got %.600s\nwant %.600s", q.expr, q.step, g.Result, w.Result)
		}
		if len(w.Stats.Published.Resolutions) > 0 || len(w.Result) < 10 {
			t.Errorf("%s: nothing to compare with: %s", q.expr, w.Result)
		}
		if got.Lightmetrics.Partial || want.Lightmetrics.Partial || fmt.Sprint(got.Infos, got.Warnings) != fmt.Sprint(want.Infos, want.Warnings) {
			t.Errorf("%s: %v %v, want %v", q.expr, got.Lightmetrics.Reasons, got.Infos, want.Infos)
		}
		var used []string
		for name, n := range g.Stats.Published.Resolutions {
			for range n {
				used = append(used, name)
			}
		}
		if strings.Join(used, " ") != q.windows {
			t.Errorf("%s by %s is answered from %q, want %q", q.expr, q.step, used, q.windows)
		}
	}
}
