package answer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/teststorage"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/promeval"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/query/internal/blocks"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
)

// lab is a node's evaluator over a store, and upstream's engine over the same samples.
type lab struct {
	t       *testing.T
	rnd     *rand.Rand
	now     time.Time
	store   *mem.Store
	eval    *Evaluator
	ref     *teststorage.TestStorage
	engine  *promql.Engine
	entries []journal.Entry // of batches that are in no segment yet
	follow  *follow.Follower
	keeper  *blocks.Keeper
	publish publishedtest.Publisher
	windows map[string]int // calls that were answered from each
	asked   int
	native  int // of expressions with native histograms
	failed  int
	values  int
	expired bool // samples of some hours: answers are marked, or exact all the same
	reasons map[string]int
	shared  int // chunks that several agents have
}

const (
	labShards = 3
	// labAgents with those that measure what another does: chunks hold no labels, so that
	// agents with equal values share them.
	labAgents, labTwins = 5, 2
)

func newLab(t *testing.T, seed uint64) *lab {
	l := &lab{t: t, rnd: rand.New(rand.NewPCG(seed, 31)), now: time.Date(2026, 11, 21, 9, 20, 0, 0, time.UTC), windows: map[string]int{}}
	now := func() time.Time { return l.now }
	l.store = mem.New(now)
	l.must(shards.Ensure(t.Context(), l.store, labShards))
	l.put(layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "test"}.Marshal())
	l.publish = publishedtest.Publisher{Store: l.store, Authority: "test", Shards: labShards, PerChunk: []int{1, 6, 2, 6}[seed%4]}
	log, reg := telemetry.Discard().Log, prometheus.NewRegistry()
	const history = 2 * time.Hour
	ls, err := live.New(live.Config{History: history, MaxBytes: 1 << 30, MaxSeries: 10_000, AgentLabel: agentlabel.Default})
	l.must(err)
	l.keeper, err = blocks.New(blocks.DefaultConfig(), blocks.Deps{Store: l.store, Window: history, AgentLabel: agentlabel.Default, Log: log, Registry: reg, Now: now})
	l.must(err)
	ls.SetCover(func(id identity.Batch, hours []timegrid.Hour) live.Held {
		if held, _ := l.keeper.Held(id, hours); held {
			return live.Published
		}
		return live.OnlyHere
	})
	l.must(journaltest.Complete(t.Context(), l.store, "test"))
	cfg := follow.DefaultConfig()
	l.follow, err = follow.New(cfg, follow.Deps{Store: l.store, Live: ls, History: history, Blocks: l.keeper, Log: log, Registry: reg, Now: now})
	l.must(err)
	l.eval = New(Config{Limits: DefaultLimits(), Lookback: 5 * time.Minute, StaleAfter: time.Minute},
		Deps{Live: ls, Follower: l.follow, Blocks: l.keeper, Log: log, Registry: reg, Now: now})
	t.Cleanup(func() { l.must(l.eval.Close()) })
	l.engine = promqltest.NewTestEngineWithOpts(t, promql.EngineOpts{
		MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
		NoStepSubqueryIntervalFn: func(int64) int64 { return defaultSubqueryStep.Milliseconds() }, EnableAtModifier: true, EnableNegativeOffset: true,
	})
	l.ref = teststorage.New(t)
	t.Cleanup(func() { l.must(l.ref.Close()) })
	return l
}

func (l *lab) must(err error) {
	if err != nil {
		l.t.Helper()
		l.t.Fatal(err)
	}
}

func (l *lab) put(key string, body []byte) {
	_, err := l.store.Put(context.Background(), key, body, objstore.PutOptions{})
	l.must(err)
}

// observation is a sample of one series.
type observation struct {
	ms int64
	v  float64
	h  *series.Histogram
}

// track is a series and all its samples, ascending and apart.
type track struct {
	agent  int
	labels []series.Label
	typ    series.Type
	at     []observation
}

// tracks gives the series of six hours, each label set by three agents, of which the third
// has a label "agent" of its own: counters with resets, some of them exactly where
// windows meet, a classic and native histograms, gauges; gaps of whole windows, stale markers, samples on the stroke.
func (l *lab) tracks() []track {
	end := l.now.UnixMilli()
	start := l.first().StartMS()
	var out []track
	for s := range 6 {
		agent, every := s%3, int64([]int{20_000, 31_000, 60_000}[s%3])
		id := []series.Label{{Name: "s", Value: fmt.Sprint(s / 3)}, {Name: "job", Value: fmt.Sprintf("j%d", s/3)}}
		if agent == 2 {
			id = append(id, series.Label{Name: "agent", Value: "inner"})
		}
		add := func(name string, typ series.Type, more ...series.Label) *track {
			out = append(out, track{agent: agent, labels: append([]series.Label{{Name: "__name__", Value: name}}, append(more, id...)...), typ: typ})
			return &out[len(out)-1]
		}
		names := []string{"c_total", "g", "lat_count", "lat_bucket", "lat_bucket", "lat_bucket", "h", "dh", "d"}
		first := len(out)
		for i, name := range names {
			switch {
			case name == "g":
				add(name, series.Gauge)
			case name == "h":
				add(name, series.HistogramCumulative)
			case name == "dh":
				add(name, series.HistogramDelta)
			case name == "d":
				add(name, series.DeltaCounter)
			case name == "lat_bucket":
				add(name, series.Counter, series.Label{Name: "le", Value: []string{"1", "5", "+Inf"}[i-3]})
			default:
				add(name, series.Counter)
			}
		}
		count, le, hist := 0.0, [3]float64{}, [2]float64{}
		schema := int32(2)
		for ms := start + 1 + l.rnd.Int64N(every); ms < end; {
			at := ms
			switch l.rnd.IntN(12) {
			case 0:
				at = (ms + 30_000) / 60_000 * 60_000 // on the stroke
			case 1:
				at = (ms+30_000)/60_000*60_000 + 1 // the first of a window
			}
			at = max(at, start+1)
			boundary := at%60_000 <= 1
			if n := l.rnd.IntN(40); n == 0 || boundary && n < 8 {
				count, le, hist = 0, [3]float64{}, [2]float64{}
			}
			if l.rnd.IntN(200) == 0 {
				schema = int32(1 + l.rnd.IntN(3))
			}
			count += float64(l.rnd.IntN(60))
			for i := range le {
				le[i] += float64(l.rnd.IntN(5))
			}
			le[1], le[2] = max(le[0], le[1]), max(le[0], le[1], le[2])
			hist[0], hist[1] = hist[0]+float64(l.rnd.IntN(5)), hist[1]+float64(l.rnd.IntN(5))
			stale := l.rnd.IntN(60) == 0
			for i := range names {
				tr := &out[first+i]
				if n := len(tr.at); n > 0 && tr.at[n-1].ms >= at {
					continue
				}
				o := observation{ms: at}
				switch names[i] {
				case "g":
					o.v = math.Round(l.rnd.NormFloat64()*800) / 8
				case "lat_bucket":
					o.v = le[i-3]
				case "d":
					o.v = float64(l.rnd.IntN(9))
				case "h", "dh":
					o.h = &series.Histogram{Schema: schema, ZeroThreshold: 0.001, ZeroCount: hist[0], Count: 2*hist[0] + hist[1], Sum: 3*hist[0] + hist[1],
						PositiveSpans: []int32{2, 2}, PositiveBuckets: []float64{hist[0], hist[1]}}
				default:
					o.v = count
				}
				if stale {
					o.v = math.Float64frombits(value.StaleNaN)
					if o.h != nil {
						o.h = &series.Histogram{Sum: o.v}
					}
				}
				tr.at = append(tr.at, o)
			}
			ms += every + l.rnd.Int64N(1+every/6)
			if l.rnd.IntN(70) == 0 {
				ms += l.rnd.Int64N(2_400_000) // empty windows
			}
		}
	}
	for _, tr := range out {
		if tr.agent < labTwins {
			tr.agent += labAgents - labTwins
			out = append(out, tr)
		}
	}
	return out
}

// fill gives the samples to both sides: to the store in batches of minutes, of which some
// are accepted late, and to upstream in order.
func (l *lab) fill(all []track, late float64) (onTime, delayed []publishedtest.Batch) {
	app := l.ref.AppenderV2(l.t.Context())
	for i := range all {
		b := labels.NewScratchBuilder(8)
		for _, x := range all[i].labels {
			name := x.Name
			if name == "agent" {
				name = "exported_agent"
			}
			b.Add(name, x.Value)
		}
		b.Add("agent", fmt.Sprintf("a%d", all[i].agent))
		b.Add("instance", "host")
		b.Sort()
		for _, o := range all[i].at {
			var h *histogram.FloatHistogram
			if o.h != nil {
				h = samples.FloatHistogram(o.h, all[i].typ).Copy()
			}
			_, err := app.Append(0, b.Labels(), 0, o.ms, o.v, nil, h, storage.AppendV2Options{})
			l.must(err)
		}
	}
	l.must(app.Commit())
	for a := range labAgents {
		boot := identity.Boot{Agent: fmt.Sprintf("a%d", a), Boot: "b"}
		l.put(layout.Boot(boot), []byte("{}"))
		next := make([]int, len(all))
		seq := uint64(0)
		for from := l.now.Add(-7 * time.Hour).UnixMilli(); from < l.now.UnixMilli(); {
			to := from + 60_000*int64(1+l.rnd.IntN(12)) + l.rnd.Int64N(60_000)
			b := frame.NewBuilder()
			l.must(b.SetResource(series.Label{Name: "instance", Value: "host"}))
			n, newest := 0, int64(0)
			for i := range all {
				if all[i].agent != a {
					continue
				}
				var id frame.SeriesID
				for k := 0; next[i] < len(all[i].at) && all[i].at[next[i]].ms < to; k++ {
					o := all[i].at[next[i]]
					next[i]++
					if k == 0 {
						var err error
						id, err = b.AddSeries(all[i].labels, all[i].typ, "", 0)
						l.must(err)
					}
					if o.h != nil {
						l.must(b.AppendHistogram(id, o.ms*1e6, *o.h))
					} else {
						l.must(b.Append(id, o.ms*1e6, o.v))
					}
					n++
					newest = max(newest, o.ms)
				}
			}
			from = to
			if n == 0 {
				continue
			}
			f, err := b.Build(boot, seq)
			l.must(err)
			seq = f.Identity.SeqEnd + 1
			raw, err := frame.Encode(nil, f)
			l.must(err)
			own := &frame.Batch{}
			l.must(frame.Decode(raw, own, frame.Limits{}))
			batch := publishedtest.Batch{Frame: own, AcceptedAt: newest * 1e6}
			if l.rnd.Float64() < late {
				batch.AcceptedAt = l.now.UnixNano() - 1
				delayed = append(delayed, batch)
			} else {
				onTime = append(onTime, batch)
			}
			l.accept(batch, raw)
		}
	}
	return onTime, delayed
}

// publishHour publishes a generation of an hour, and counts the chunks that several agents have.
func (l *lab) publishHour(h timegrid.Hour, gen uint64, batches []publishedtest.Batch) {
	l.t.Helper()
	published, err := l.publish.Publish(l.t.Context(), h, gen, batches, timegrid.Resolutions()...)
	l.must(err)
	seen := map[string]string{}
	for _, s := range published {
		for _, o := range s.Objects {
			if index, ok := seen[o.ChunkKey]; ok && index != o.IndexKey {
				l.shared++
			}
			seen[o.ChunkKey] = o.IndexKey
		}
	}
}

// accept makes a batch accepted; open writes its entry.
func (l *lab) accept(b publishedtest.Batch, raw []byte) {
	sum := identity.Sum(raw)
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range b.Frame.Groups {
		ts := b.Frame.Groups[i].Timestamps
		least, most = min(least, slices.Min(ts)), max(most, slices.Max(ts))
	}
	m := accept.Manifest{AuthorityID: "test", Identity: b.Frame.Identity, FrameSHA256: sum, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(sum, 0),
		AcceptedAt: b.AcceptedAt, CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
		RecordCount: b.Frame.Identity.Count(), MinTime: least, MaxTime: most}
	l.put(m.RawBlobKey, raw)
	l.put(layout.Accepted(m.Identity), m.Marshal())
	l.entries = append(l.entries, m.Entry(journal.Accepted))
}

// putDeltas writes batches as deltas, a few in each, and lets memory not know of them.
func (l *lab) putDeltas(batches []publishedtest.Batch) {
	of := map[shard.ID][]delta.Batch{}
	raw := map[identity.Batch][]byte{}
	for _, b := range batches {
		key := layout.Accepted(b.Frame.Identity)
		body, _, err := l.store.Get(l.t.Context(), key, objstore.GetOptions{})
		l.must(err)
		m, err := accept.ParseManifest(body)
		l.must(err)
		raw[m.Identity], _, err = l.store.Get(l.t.Context(), m.RawBlobKey, objstore.GetOptions{})
		l.must(err)
		id := shard.Of(m.Identity.Agent, l.publish.Shards)
		of[id] = append(of[id], delta.Batch{Batch: m.Batch(), Hours: publishedtest.Hours([]publishedtest.Batch{b})})
		// The node begins to read the journal behind it.
		l.entries = slices.DeleteFunc(l.entries, func(e journal.Entry) bool { return e.ID == m.Identity })
	}
	for id, all := range of {
		for some := range slices.Chunk(all, 3) {
			d, err := delta.New("test", id, l.publish.Shards, some)
			l.must(err)
			var frames [][]byte
			for _, b := range d.Batches {
				frames = append(frames, raw[b.Identity])
			}
			body, err := d.Marshal(frames)
			l.must(err)
			l.put(d.Key(), body)
		}
	}
}

// open makes everything accepted visible.
func (l *lab) open() {
	l.must(journaltest.Append(l.t.Context(), l.store, "test", l.entries...))
	l.entries = nil
	l.must(l.keeper.Poll(l.t.Context()))
	l.must(l.follow.CatchUp(l.t.Context()))
}

// first is the first hour that has samples.
func (l *lab) first() timegrid.Hour { return timegrid.HourStarting(l.now.Add(-6 * time.Hour)) }

// fail notes a difference; a few are enough.
func (l *lab) fail(format string, args ...any) {
	l.t.Helper()
	l.t.Errorf(format, args...)
	if l.failed++; l.failed == 6 {
		l.t.FailNow()
	}
}

// question is an expression with its times, milliseconds; step 0 is an instant.
type question struct {
	expr             string
	start, end, step int64
}

func (q question) String() string {
	return fmt.Sprintf("%s from %d to %d by %d", q.expr, q.start, q.end, q.step)
}

func pick[T any](rnd *rand.Rand, list ...T) T { return list[rnd.IntN(len(list))] }

// question draws one. Most ranges and steps are such that windows may answer.
func (l *lab) question() question {
	w := pick(l.rnd, int64(60_000), 60_000, 300_000, 300_000, 3600_000)
	step := w * int64(1+l.rnd.IntN(3))
	if l.rnd.IntN(8) == 0 {
		step += int64(l.rnd.IntN(2000)) * 10
	}
	end := l.now.UnixMilli() / w * w
	start := end - w*int64(l.rnd.IntN(int(4*3600_000/w)))
	if l.rnd.IntN(8) == 0 {
		start += l.rnd.Int64N(w)
	}
	q := question{expr: l.expr(w, 2), start: start, step: step}
	q.end = min(start+step*int64(l.rnd.IntN(10)), max(start, end))
	if l.rnd.IntN(4) == 0 {
		q.step, q.end = 0, start
	}
	return q
}

// ranged draws a range selector of a metric.
func (l *lab) ranged(w int64, metric string) string {
	span := w * int64(4+l.rnd.IntN(4))
	switch l.rnd.IntN(10) {
	case 0:
		span = w * int64(1+l.rnd.IntN(3))
	case 1:
		span += int64(l.rnd.IntN(500)) * 100
	}
	return fmt.Sprintf("%s%s[%dms]%s", metric, pick(l.rnd, "", "", "", `{s=~"[0-2]"}`, `{s="1"}`, `{job!="j0"}`, `{s="9"}`,
		`{agent="a1"}`, `{agent=~"a[12]"}`, `{agent!="a0",s="1"}`, `{agent="inner"}`, `{exported_agent="inner"}`, `{exported_agent=""}`), span, l.modifier(w))
}

func (l *lab) modifier(w int64) string {
	switch l.rnd.IntN(12) {
	case 0, 1:
		return fmt.Sprintf(" offset %dms", w*int64(1+l.rnd.IntN(3)))
	case 2:
		return fmt.Sprintf(" offset %dms", 1+l.rnd.IntN(100_000))
	case 3:
		return pick(l.rnd, " @ start()", " @ end()", fmt.Sprintf(" @ %d", l.now.Unix()-int64(l.rnd.IntN(4*3600))))
	}
	return ""
}

// expr draws an expression that is a vector of numbers or, one in some, of histograms.
func (l *lab) expr(w int64, depth int) string {
	if depth > 0 && l.rnd.IntN(2) == 0 {
		sub := func() string { return l.expr(w, depth-1) }
		switch l.rnd.IntN(9) {
		case 0, 1:
			return fmt.Sprintf("%s by (%s) (%s)", pick(l.rnd, "sum", "avg", "min", "max", "count", "group"), pick(l.rnd, "job", "s", "", "agent, job", "exported_agent"), sub())
		case 2:
			return fmt.Sprintf("histogram_quantile(0.%d, sum by (le, job) (rate(%s)))", 1+l.rnd.IntN(9), l.ranged(w, "lat_bucket"))
		case 3:
			return fmt.Sprintf("%s(%s)", pick(l.rnd, "histogram_count", "histogram_sum", "histogram_avg", "abs"), sub())
		case 4:
			return fmt.Sprintf("histogram_quantile(0.%d, %s(%s))", 1+l.rnd.IntN(9), pick(l.rnd, "rate", "increase"), l.ranged(w, "h"))
		case 5:
			return fmt.Sprintf("%s_over_time(%s(%s)[%dms:%dms]%s)", pick(l.rnd, "max", "min", "avg", "sum", "count", "last", "quantile"),
				pick(l.rnd, "rate", "increase"), l.ranged(w, "c_total"), w*int64(2+l.rnd.IntN(3)), w, l.modifier(w))
		case 6:
			return fmt.Sprintf("(%s) %s on (agent, s, job) group_left () sum by (agent, s, job) (%s)", l.plain(w), pick(l.rnd, "+", "-", "*"), l.plain(w))
		case 7:
			return fmt.Sprintf("(%s) %s (%s)", sub(), pick(l.rnd, "or", "and", "unless"), sub())
		default:
			return fmt.Sprintf("%s(%s)", pick(l.rnd, "absent", "-", "sort_desc", "scalar"), sub())
		}
	}
	return l.plain(w)
}

// plain draws a function over a range, or a selector.
func (l *lab) plain(w int64) string {
	counter := pick(l.rnd, "c_total", "c_total", "lat_bucket", "lat_count")
	switch l.rnd.IntN(12) {
	case 0, 1, 2:
		return fmt.Sprintf("%s(%s)", pick(l.rnd, "rate", "increase"), l.ranged(w, counter))
	case 3, 4, 5:
		return fmt.Sprintf("%s(%s)", pick(l.rnd, "sum_over_time", "avg_over_time", "min_over_time", "max_over_time", "delta", "stddev_over_time"), l.ranged(w, pick(l.rnd, "g", "g", "g", "d", "c_total")))
	case 6, 7:
		return fmt.Sprintf("%s(%s)", pick(l.rnd, "count_over_time", "last_over_time", "present_over_time"), l.ranged(w, pick(l.rnd, "g", counter, "h", "dh")))
	case 8:
		return fmt.Sprintf("%s(%s)", pick(l.rnd, "rate", "increase", "increase", "sum_over_time", "avg_over_time"), l.ranged(w, pick(l.rnd, "h", "h", "dh")))
	case 9:
		return fmt.Sprintf("%s(%s)", pick(l.rnd, "resets", "changes", "irate", "idelta", "deriv", "absent_over_time"), l.ranged(w, pick(l.rnd, "g", counter)))
	case 10:
		return fmt.Sprintf("quantile_over_time(0.%d, %s)", 1+l.rnd.IntN(9), l.ranged(w, "g"))
	default:
		return pick(l.rnd, "g", counter, "h", "timestamp(g)") + strings.TrimSuffix(l.modifier(w), " ")
	}
}

// valid leaves out a modifier behind a call, and what is of two types.
func (q question) valid(p parser.Parser) bool {
	_, err := p.ParseExpr(q.expr)
	return err == nil
}

// ask compares one answer.
func (l *lab) ask(q question) {
	l.t.Helper()
	s, err := l.eval.Open(l.t.Context())
	l.must(err)
	defer s.Close()
	var got Result
	var ref promql.Query
	start, end, step := time.UnixMilli(q.start), time.UnixMilli(q.end), time.Duration(q.step)*time.Millisecond
	if q.step == 0 {
		got, err = s.Instant(l.t.Context(), q.expr, start, Options{})
		ref, _ = l.engine.NewInstantQuery(l.t.Context(), l.ref, nil, q.expr, start)
	} else {
		got, err = s.Range(l.t.Context(), q.expr, start, end, step, Options{})
		ref, _ = l.engine.NewRangeQuery(l.t.Context(), l.ref, nil, q.expr, start, end, step)
	}
	defer ref.Close()
	want := ref.Exec(l.t.Context())
	l.asked++
	var qe *QueryError
	if errors.As(err, &qe) {
		l.fail("%s: %v", q, err)
		return
	}
	if (err != nil) != (want.Err != nil) {
		l.fail("%s: %v, want %v", q, err, want.Err)
		return
	}
	if err != nil {
		return
	}
	for w, n := range s.Published().Resolutions {
		l.windows[w] += n
		if strings.Contains(q.expr, "(h") || strings.Contains(q.expr, "(dh") {
			l.native += n
		}
	}
	c := s.Completeness()
	if l.expired && c.Partial {
		l.marked(q, c, got)
		return
	}
	if c.Partial {
		l.fail("%s: partial: %v", q, c.Reasons)
	}
	g, w := flatten(got.Value), flatten(want.Value)
	l.values += len(w)
	if diff := differ(g, w); diff != "" {
		l.fail("%s: %s; windows %v", q, diff, s.Published().Resolutions)
	}
	if g, w := remarks(got.Warnings), remarks(want.Warnings); !slices.Equal(g, w) {
		l.fail("%s: remarks %q, want %q", q, g, w)
	}
}

func remarks(a annotations.Annotations) []string {
	var out []string
	for _, e := range a.AsErrors() {
		text, _, _ := strings.Cut(e.Error(), " (") // positions are those of the text that was evaluated
		out = append(out, text)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

type flatPoint struct {
	v float64
	h *histogram.FloatHistogram
}

// flatten has the points of an answer by series and time.
func flatten(v parser.Value) map[string]flatPoint {
	out := map[string]flatPoint{}
	switch v := v.(type) {
	case promql.Scalar:
		out[fmt.Sprint("scalar ", v.T)] = flatPoint{v: v.V}
	case promql.Vector:
		for _, s := range v {
			out[fmt.Sprint(s.Metric, s.T)] = flatPoint{s.F, s.H}
		}
	case promql.Matrix:
		for _, s := range v {
			for _, p := range s.Floats {
				out[fmt.Sprint(s.Metric, p.T)] = flatPoint{v: p.F}
			}
			for _, p := range s.Histograms {
				out[fmt.Sprint(s.Metric, p.T)] = flatPoint{h: p.H}
			}
		}
	}
	return out
}

func differ(got, want map[string]flatPoint) string {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		w := want[k]
		g, ok := got[k]
		if !ok {
			return fmt.Sprintf("%s is missing", k)
		}
		if (g.h == nil) != (w.h == nil) || g.h != nil && !sameHistogram(g.h, w.h) || g.h == nil && !closeTo(g.v, w.v) {
			return fmt.Sprintf("%s is %v %v, want %v %v", k, g.v, g.h, w.v, w.h)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			return fmt.Sprintf("%s is %v, want nothing", k, got[k])
		}
	}
	return ""
}

// closeTo allows for rounding: means and rates are put together in another order, and what
// is left of a difference of two has their error.
func closeTo(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-11*max(math.Abs(a), math.Abs(b), 1)
}

func sameHistogram(a, b *histogram.FloatHistogram) bool {
	if a.Schema != b.Schema || a.ZeroThreshold != b.ZeroThreshold || !closeTo(a.Count, b.Count) || !closeTo(a.Sum, b.Sum) || !closeTo(a.ZeroCount, b.ZeroCount) {
		return false
	}
	buckets := func(h *histogram.FloatHistogram) (out []histogram.Bucket[float64]) {
		for it := h.AllBucketIterator(); it.Next(); {
			if it.At().Count != 0 {
				out = append(out, it.At())
			}
		}
		return out
	}
	return slices.EqualFunc(buckets(a), buckets(b), func(x, y histogram.Bucket[float64]) bool {
		return cmp.Compare(x.Lower, y.Lower) == 0 && closeTo(x.Count, y.Count)
	})
}

// TestAnswersEqualUpstream: random expressions over blocks, batches that came
// late in a next generation, in memory or in deltas, and the tail in memory give what upstream gives over the raw samples.
func TestAnswersEqualUpstream(t *testing.T) {
	const each = 800
	asked, values, native, shared, windows := 0, 0, 0, 0, map[string]int{}
	for seed := range uint64(5) {
		l := newLab(t, seed)
		t.Logf("seed %d", seed)
		if seed%2 == 0 { // some shards' hours have no rows of a minute, or of five
			l.publish.Unrolled = func(n catalog.Name) bool {
				return n.Resolution != timegrid.OneHour && (int(n.Hour)+int(n.Shard)+int(n.Generation))%(2+int(n.Resolution)) == 0
			}
		}
		onTime, delayed := l.fill(l.tracks(), []float64{0, 0.05, 0.1, 0, 0.1}[seed])
		newest := timegrid.HourOf(l.now.UnixMilli())
		for _, h := range publishedtest.Hours(append(slices.Clone(onTime), delayed...)) {
			if seed != 3 && h >= newest {
				continue // the tail is in memory
			}
			if seed == 1 || seed == 2 && h%2 == 0 || seed == 4 && h%4 == 0 {
				// What came late is in a next generation, which replaced the first.
				l.publishHour(h, 1, onTime)
				l.publishHour(h, 2, append(slices.Clone(onTime), delayed...))
				continue
			}
			l.publishHour(h, 1, onTime)
		}
		if seed == 4 {
			l.putDeltas(delayed) // some of which some hours have
		}
		l.open()
		for n := 0; n < each; {
			q := l.question()
			if q.valid(l.eval.Parser) {
				l.ask(q)
				n++
			}
		}
		asked, values, native, shared = asked+l.asked, values+l.values, native+l.native, shared+l.shared
		for w, n := range l.windows {
			windows[w] += n
		}
	}
	t.Logf("%d expressions, %d values, calls answered from windows: %v, in expressions with native histograms %d; %d chunks that several agents share", asked, values, windows, native, shared)
	if !t.Failed() && (shared < 1000 || windows["1m"] < 100 || windows["5m"] < 100 || windows["1h"] < 20 || native < 50 || values < 5*asked) {
		t.Error("too little was compared")
	}
}

// TestShapesOverBlocks: what promeval evaluates over blocks, deltas and memory, rolled rows among them, is what the engine
// gives over them, to the last bit. The engine evaluates where statistics are wanted.
func TestShapesOverBlocks(t *testing.T) {
	l := newLab(t, 21)
	onTime, late := l.fill(l.tracks(), 0.05)
	for _, h := range publishedtest.Hours(onTime) {
		if h < timegrid.HourOf(l.now.UnixMilli())-1 {
			l.publishHour(h, 1, onTime)
		}
	}
	l.putDeltas(late)
	l.open()
	l.must(l.keeper.Refresh(t.Context(), l.first()-10, l.first()+10))
	compared, rolled := 0, 0
	for compared < 600 {
		q := l.question()
		expr, err := l.eval.Parser.ParseExpr(q.expr)
		if err != nil {
			continue
		}
		if _, ok := promeval.Of(expr); !ok {
			continue
		}
		ask := func(stats bool) (res Result, err error) {
			s, err := l.eval.Open(t.Context())
			l.must(err)
			defer s.Close()
			if q.step == 0 {
				res, err = s.Instant(t.Context(), q.expr, time.UnixMilli(q.start), Options{Stats: stats})
			} else {
				res, err = s.Range(t.Context(), q.expr, time.UnixMilli(q.start), time.UnixMilli(q.end), time.Duration(q.step)*time.Millisecond, Options{Stats: stats})
			}
			// The engine takes back the memory of its results with the session.
			if res.Value != nil {
				res.Value = textValue(res.Value.String())
			}
			if !stats {
				rolled += len(s.Published().Resolutions)
			}
			return res, err
		}
		got, err := ask(false)
		want, werr := ask(true)
		if (err == nil) != (werr == nil) || err == nil && got.Value.String() != want.Value.String() {
			l.fail("%s: %v %v, want %v %v", q, got.Value, err, want.Value, werr)
		}
		if g, w := remarks(got.Warnings), remarks(want.Warnings); !slices.Equal(g, w) {
			l.fail("%s: remarks %q, want %q", q, g, w)
		}
		if err == nil && want.Stats == nil {
			l.fail("%s: no statistics", q)
		}
		compared++
	}
	if rolled < 50 {
		t.Errorf("%d selectors were answered from rows", rolled)
	}
}

// textValue is a value as text.
type textValue string

func (textValue) Type() parser.ValueType { return "" }
func (v textValue) String() string       { return string(v) }
