package rollup

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	workmem "lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/failstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	refmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/objectstore/objectstoretest"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/job"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/owner"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// etcd's own, which it does not wait for when it stops.
		goleak.IgnoreTopFunction("go.etcd.io/etcd/client/pkg/v3/logutil.(*MergeLogger).outputLoop"),
		goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

const (
	testAuthority = "authority-1"
	testShards    = 2
)

var hour0 = timegrid.HourStarting(time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC))

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is an authority with what workers share.
type world struct {
	// inline: manifests carry the frames of what is accepted from now on.
	inline bool

	t        testing.TB
	store    objstore.Store // whole; workers may get a faulty one over it
	refs     *refmem.Refs
	pending  *workmem.Store
	clock    atomic.Int64  // Unix nanoseconds
	wrong    time.Duration // that workers' clocks are ahead of the store's
	journal  *journal.Writer
	accepted []accepted.Batch
	frames   map[identity.Batch][]byte
	workers  map[*Service]*worker
}

func newWorld(t testing.TB, s objstore.Store) *world {
	w := &world{t: t, store: s, refs: refmem.New(), frames: map[identity.Batch][]byte{}, workers: map[*Service]*worker{}}
	w.pending = workmem.New(w.now, workmem.Options{})
	w.clock.Store(hour0.End().Add(time.Hour).UnixNano())
	_, err := accept.EnsureAuthority(t.Context(), s, testAuthority, true)
	must(t, err)
	must(t, shards.Ensure(t.Context(), s, testShards))
	w.journal, err = journal.NewWriter(journal.WriterConfig{Store: s, Rand: cryptorand.Reader, Clock: w.clock.Load,
		Opening: journal.Opening{Writer: "collector", Role: journal.RoleCollector, Authority: testAuthority}})
	must(t, err)
	must(t, journaltest.Complete(t.Context(), s, testAuthority))
	return w
}

func newMem() *mem.Store { return mem.New(time.Now) }

func (w *world) now() time.Time          { return time.Unix(0, w.clock.Load()).UTC() }
func (w *world) advance(d time.Duration) { w.clock.Add(int64(d)) }

// agentOf gives the n-th agent of a shard.
func agentOf(id shard.ID, n int) string {
	for i := 0; ; i++ {
		if a := fmt.Sprintf("agent-%d", i); shard.Of(a, testShards) == id {
			if n--; n < 0 {
				return a
			}
		}
	}
}

// point is a sample of a series.
type point struct {
	name string
	typ  series.Type
	at   time.Time
	v    float64
}

// accept makes a batch accepted: frame, manifest, entry of the journal.
func (w *world) accept(agent string, seq uint64, points ...point) accepted.Batch {
	w.t.Helper()
	e := w.acceptSilently(agent, seq, points...)
	w.enter(e)
	return e
}

// enter writes batches into the journal, as one segment.
func (w *world) enter(batches ...accepted.Batch) {
	w.t.Helper()
	for _, e := range batches {
		_, gen, err := layout.ParseBlob(e.RawBlobKey)
		if !layout.InManifest(e.RawBlobKey) {
			must(w.t, err)
		}
		_, err = w.journal.Add(journal.Entry{ID: e.Identity, Outcome: journal.Accepted, SHA256: e.FrameSHA256, Bytes: e.FrameBytes, Generation: gen, Inline: layout.InManifest(e.RawBlobKey), At: e.AcceptedAt, MinTime: e.MinTime, MaxTime: e.MaxTime})
		must(w.t, err)
	}
	for w.journal.Waiting() > 0 {
		_, _, err := w.journal.Flush(w.t.Context())
		must(w.t, err)
	}
}

// acceptSilently makes a batch accepted of which nobody was told: its collector died before it wrote its journal.
func (w *world) acceptSilently(agent string, seq uint64, points ...point) accepted.Batch {
	w.t.Helper()
	b := frame.NewBuilder()
	for _, p := range points {
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: p.name}, {Name: "host", Value: agent}}, p.typ, "", 0)
		must(w.t, err)
		must(w.t, b.Append(id, p.at.UnixNano(), p.v))
		must(w.t, b.SetHelp(p.name, "What "+p.name+" means."))
	}
	f, err := b.Build(identity.Boot{Agent: agent, Boot: "b"}, seq)
	must(w.t, err)
	raw, err := frame.Encode(nil, f)
	must(w.t, err)
	d := identity.Sum(raw)
	lo, hi := frame.TimeRange(f)
	e := accepted.Batch{
		Identity: identity.Batch{Agent: agent, Boot: "b", SeqStart: f.Identity.SeqStart, SeqEnd: f.Identity.SeqEnd}, FrameSHA256: d, FrameBytes: uint64(len(raw)),
		RawBlobKey: layout.Blob(d, 0), AcceptedAt: w.now().UnixNano() + int64(len(w.accepted)), MinTime: lo, MaxTime: hi,
	}
	if w.inline {
		e.RawBlobKey = layout.Accepted(e.Identity)
	} else if _, err := w.store.Create(w.t.Context(), e.RawBlobKey, raw, objstore.PutOptions{SHA256: d}); err != nil {
		w.t.Fatal(err)
	}
	m := accept.Manifest{Inline: w.inline, AuthorityID: testAuthority, Identity: e.Identity, FrameSHA256: e.FrameSHA256, FrameBytes: e.FrameBytes, RawBlobKey: map[bool]string{false: e.RawBlobKey}[w.inline],
		AcceptedAt: e.AcceptedAt, CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "00000000000000000000000000000000", RecordCount: e.Identity.Count(), MinTime: e.MinTime, MaxTime: e.MaxTime}
	if _, err := w.store.Create(w.t.Context(), layout.Accepted(e.Identity), m.MarshalWith(raw), objstore.PutOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.accepted = append(w.accepted, e)
	w.frames[e.Identity] = raw
	return e
}

// at is a moment of the hour.
func at(h timegrid.Hour, d time.Duration) time.Time { return h.Start().Add(d) }

// some accepts n batches of an agent in the hour, a counter and a gauge, every 10 s.
func (w *world) some(agent string, h timegrid.Hour, from, n int, seq uint64) uint64 {
	rnd := rand.New(rand.NewPCG(uint64(from), seq))
	for i := from; i < from+n; i++ {
		t := at(h, time.Duration(i+1)*10*time.Second)
		e := w.accept(agent, seq, point{"requests_total", series.Counter, t, float64(i * rnd.IntN(3))}, point{"load", series.Gauge, t, rnd.Float64()})
		seq = e.SeqEnd + 1
	}
	return seq
}

func testConfig() Config {
	c := DefaultConfig()
	c.HTTP.Listen, c.Shards, c.Collect.Interval = "127.0.0.1:0", testShards, 0
	c.Schedule.RetryBase, c.Schedule.RetryMax, c.Schedule.FoldAfter = time.Millisecond, time.Millisecond, 0
	c.Follow.Interval, c.Follow.Idle, c.Follow.Gather = 20*time.Millisecond, 20*time.Millisecond, 0
	c.Chunks.MetricSamples = 1000
	return c
}

var testPolicy = publish.Policy{
	Refs: retry.Policy{Attempts: 1, Base: 1, Cap: 1}, Generations: 6, Delay: time.Minute, Grace: time.Minute, AbortAfter: 10 * time.Minute,
}

// timed is a store with the world's clock, as far as workers ask it for the time.
type timed struct {
	objstore.Store
	now func() time.Time
}

func (s timed) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	info, err := s.Store.Put(ctx, key, body, o)
	if key == layout.RollupClockKey {
		info.LastModified = s.now()
	}
	return info, err
}

// storeNow is the store's clock: the world's, but for what the test says that workers'
// clocks are wrong.
func (w *world) storeNow() time.Time { return w.now().Add(-w.wrong) }

// worker makes a worker over s, which is the world's store or something around it.
func (w *world) worker(cfg Config, s objstore.Store) *Service {
	w.t.Helper()
	svc, err := New(cfg, Deps{Store: failstore.Wrap(timed{s, w.storeNow}, "rollup"), Telemetry: telemetry.Discard(), Queue: w.pending, Table: w.pending, Refs: w.refs, Now: w.now, Policy: testPolicy})
	must(w.t, err)
	return svc
}

// opened is the worker of a service on the world's authority, without its loops.
func (w *world) opened(svc *Service) (*worker, error) {
	if wk := w.workers[svc]; wk != nil {
		return wk, nil
	}
	if err := svc.readAuthority(w.t.Context()); err != nil {
		return nil, err
	}
	wk, err := newWorker(svc.cfg, svc.deps, svc.log, svc.m, svc.board)
	if err == nil {
		w.workers[svc] = wk
	}
	return wk, err
}

// owner is a worker's hold on one shard, driven by the test round by round.
func (w *world) owner(svc *Service, g ownership.Grant) (*driven, error) {
	wk, err := w.opened(svc)
	if err != nil {
		return nil, err
	}
	return &driven{wk.newOwner(g, nil), wk}, wk.collection.InitEpoch(w.t.Context())
}

// driven is an owner whose worker polls the journal when the test says so.
type driven struct {
	*owner.Owner
	wk *worker
}

// Round polls the journal, and does a round of the owner.
func (d *driven) Round(ctx context.Context) (bool, error) {
	_, perr := d.wk.arrivals.Poll(ctx)
	again, err := d.Owner.Round(ctx)
	return again, errors.Join(perr, err)
}

// planner fixes plans as the worker's jobs do.
func (wk *worker) planner() job.Planner {
	return job.Planner{Records: wk.records, Limits: wk.owners.Jobs.Limits}
}

// planOf reads the plan of a generation of hour0 in shard 0.
func (w *world) planOf(svc *Service, gen uint64) (*hour.Plan, error) {
	return w.workers[svc].records.Plan(w.t.Context(), hour0, 0, gen)
}

// state is what a worker finds published of an hour.
func (w *world) state(svc *Service, h timegrid.Hour, id shard.ID) *hour.State {
	w.t.Helper()
	st, err := w.workers[svc].records.State(w.t.Context(), h, id, nil)
	must(w.t, err)
	return st
}

// begun fixes the plan of generation 2 of hour0 in shard 0, with one more batch than its first.
func (w *world) begun(svc *Service, e accepted.Batch) {
	w.t.Helper()
	_, err := w.workers[svc].planner().Plan(w.t.Context(), hour0, 0, 2, w.state(svc, hour0, 0), []accepted.Batch{e}, nil, 0)
	must(w.t, err)
}

// pendingHours counts the hours with pending batches.
func pendingHours(o *driven) (n int) {
	for range o.Shard.Backlog.Hours() {
		n++
	}
	return n
}

// rounds drives until nothing more is to be done at once.
func rounds(ctx context.Context, o *driven) error {
	for range 50 {
		again, err := o.Round(ctx)
		if err != nil || !again {
			return err
		}
	}
	return fmt.Errorf("does not come to rest")
}

// drive is a healthy worker that does everything there is on a shard, late batches too.
func (w *world) drive(cfg Config, g ownership.Grant) {
	w.t.Helper()
	o, err := w.owner(w.worker(cfg, w.store), g)
	must(w.t, err)
	must(w.t, rounds(w.t.Context(), o))
	w.advance(cfg.Schedule.LateAfter)
	must(w.t, rounds(w.t.Context(), o))
}

// set reads the committed set of a resolution, also of an hour that has expired for readers;
// nil when there is none.
func (w *world) set(h timegrid.Hour, id shard.ID, res timegrid.Resolution) *catalog.Block {
	w.t.Helper()
	return w.view(h, true).Block(h, id, res)
}

// view is what readers see of an hour, or what its records say.
func (w *world) view(h timegrid.Hour, records bool) *catalog.View {
	w.t.Helper()
	c, err := catalog.New(catalog.Config{Reader: w.store, AuthorityID: testAuthority, Records: records})
	must(w.t, err)
	v, err := c.Refresh(w.t.Context(), h, h)
	must(w.t, err)
	return v
}

// series reads the chunks of a set back.
func (w *world) series(block *catalog.Block) []chunk.Series {
	w.t.Helper()
	var out []chunk.Series
	for _, o := range block.Objects {
		body, _, err := w.store.Get(w.t.Context(), o.ChunkKey, objstore.GetOptions{})
		must(w.t, err)
		ib, _, err := w.store.Get(w.t.Context(), o.IndexKey, objstore.GetOptions{})
		must(w.t, err)
		x, err := chunk.ReadIndex(ib, chunk.Limits{})
		must(w.t, err)
		d := chunk.NewDecoder(x, chunk.Limits{})
		d.Put(0, body)
		for i := range x.Len() {
			ref := x.Series(i)
			s := chunk.Series{ID: series.ID{Agent: ref.Agent, Labels: x.AppendLabels(nil, i), Type: ref.Type, Unit: ref.Unit}}
			_, err := d.Series(i, -1<<62, 1<<62, chunk.AllColumns, &s.Columns)
			must(w.t, err)
			out = append(out, s)
		}
	}
	sortSeries(out)
	return out
}

func sortSeries(ss []chunk.Series) {
	slices.SortFunc(ss, func(x, y chunk.Series) int {
		if x.Name() != y.Name() {
			if x.Name() < y.Name() {
				return -1
			}
			return 1
		}
		return rollup.CompareSeries(&x, &y)
	})
}

// raw recomputes the raw series of a shard's hour from the accepted frames.
func (w *world) raw(h timegrid.Hour, id shard.ID) []chunk.Series {
	w.t.Helper()
	var in []accepted.Claim
	var fs []*frame.Batch
	for _, e := range w.accepted {
		if shard.Of(e.Agent, testShards) != id {
			continue
		}
		var f frame.Batch
		must(w.t, frame.Decode(w.frames[e.Identity], &f, frame.Limits{}))
		in, fs = append(in, e.Claim()), append(fs, &f)
	}
	b := rollup.NewBuilder(h, in, rollup.Part{})
	for i, f := range fs {
		must(w.t, b.Add(i, f))
	}
	ss, _, err := b.Finish()
	must(w.t, err)
	return ss
}

// check compares every resolution of a shard's hour with the recomputation, and wants the
// generation.
func (w *world) check(h timegrid.Hour, id shard.ID, gen uint64) {
	w.t.Helper()
	raw := w.raw(h, id)
	for _, res := range timegrid.Resolutions() {
		block := w.set(h, id, res)
		if block == nil || block.Name.Generation != gen {
			w.t.Fatalf("%s shard %s %s: %+v, want generation %d", h, id, res, block, gen)
		}
		want := raw
		if res != timegrid.Raw {
			want = nil
			for i := range raw {
				want = append(want, rollup.NewRoller(res).Roll(&raw[i]))
			}
		}
		if block.Unrolled { // it has no objects: catalog.Block.Validate
			// Hours of so few series are encoded whole for the decision.
			if rows, samples := w.chunkBytes(want), w.chunkBytes(raw); res == timegrid.OneHour || len(raw) == 0 || len(raw) < 256 && rows < samples {
				w.t.Fatalf("%s shard %s %s is not rolled up, but rows have %d bytes, samples %d", h, id, res, rows, samples)
			}
			continue
		}
		got := w.series(block)
		if len(got) != len(want) {
			w.t.Fatalf("%s shard %s %s: %d series, want %d", h, id, res, len(got), len(want))
		}
		for i := range got {
			if !sameSeries(&got[i], &want[i]) {
				w.t.Fatalf("%s shard %s %s:\n%+v, want\n%+v", h, id, res, got[i], want[i])
			}
		}
	}
}

// chunkBytes is the size of a chunk of the series.
func (w *world) chunkBytes(series []chunk.Series) int {
	w.t.Helper()
	if len(series) == 0 {
		return 0
	}
	cw := chunk.NewWriter(chunk.Options{})
	for i := range series {
		must(w.t, cw.Add(&series[i]))
	}
	files, err := cw.Finish()
	must(w.t, err)
	return len(files.Chunk)
}

// sameSeries compares by what is printed: NaN equals itself, and nil an empty column.
func sameSeries(a, b *chunk.Series) bool {
	return reflect.DeepEqual(a, b) || fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b)
}

// left gives the batches of a shard that the journal has and neither blocks nor deltas cover. On the way it checks the record of
// the shard's progress: what is not covered is in it, or is behind its positions.
func (w *world) left(id shard.ID) (open []string) {
	w.t.Helper()
	ctx := w.t.Context()
	p, _, err := progress.Read(ctx, w.store, testAuthority, id, testShards)
	if !errors.Is(err, objstore.ErrNotFound) {
		must(w.t, err)
	}
	named := map[identity.Batch]bool{}
	for _, e := range p.Pending {
		named[e.Identity] = true
	}
	for _, e := range w.read(p.Positions) {
		named[e.ID] = true
	}
	type place struct {
		id identity.Batch
		h  timegrid.Hour
	}
	late := map[place]bool{}
	must(w.t, storetest.Each(ctx, w.store, layout.RollupDeltas(id), func(o objstore.Info) error {
		d, err := delta.Read(ctx, w.store, testAuthority, o.Key)
		if err == nil {
			for _, b := range d.Batches {
				for _, h := range b.Hours {
					late[place{b.Identity, h}] = true
				}
			}
		}
		return err
	}))
	records := hour.Records{Store: w.store, AuthorityID: testAuthority, Shards: testShards}
	states := map[timegrid.Hour]*hour.State{}
	var published []identity.Batch
	for _, e := range w.read(journal.Positions{}) {
		if e.Outcome.Conflict() || shard.Of(e.ID.Agent, testShards) != id {
			continue
		}
		for _, h := range w.hoursOf(e) {
			if states[h] == nil {
				st, err := records.State(ctx, h, id, nil)
				must(w.t, err)
				states[h] = st
			}
			covered := states[h].Covers(e.ID) || late[place{e.ID, h}]
			if covered {
				published = append(published, e.ID)
			}
			if !covered {
				open = append(open, e.ID.String())
				if !named[e.ID] {
					w.t.Fatalf("%s is not in the blocks of %s, and the record of shard %s says that it is", e.ID, h, id)
				}
				break
			}
		}
	}
	// A worker may run: the record is read after what it must describe.
	known, _, err := helps.Read(ctx, w.store, testAuthority)
	if errors.Is(err, objstore.ErrNotFound) {
		known, err = &helps.Set{}, nil
	}
	must(w.t, err)
	for _, id := range published {
		w.described(id, known)
	}
	return open
}

// described wants every help of a batch that is published in the record of helps.
func (w *world) described(id identity.Batch, known *helps.Set) {
	w.t.Helper()
	raw := w.frames[id]
	if raw == nil {
		return // one that only a test's plan knows
	}
	var f frame.Batch
	must(w.t, frame.Decode(raw, &f, frame.Limits{}))
	for _, h := range f.Helps {
		if !slices.ContainsFunc(known.List(), func(k helps.Help) bool { return k.Name == f.Strings[h.Name] }) {
			w.t.Fatalf("%s is published, and the help of %s is not in the record of helps", id, f.Strings[h.Name])
		}
	}
}

// read gives the entries that the journal has after positions.
func (w *world) read(from journal.Positions) (out []journal.Entry) {
	w.t.Helper()
	f, err := journal.NewFollower(journal.FollowerConfig{Store: w.store, Authority: testAuthority, From: from,
		Segment: func(_ context.Context, s *journal.Segment) error { out = append(out, s.Entries...); return nil },
		Folded:  func(_ context.Context, es []journal.Entry) error { out = append(out, es...); return nil }})
	must(w.t, err)
	_, err = f.Poll(w.t.Context())
	must(w.t, err)
	return out
}

// hoursOf gives the hours that a batch has samples in.
func (w *world) hoursOf(e journal.Entry) []timegrid.Hour {
	raw := w.frames[e.ID]
	if raw == nil { // one that only a test's plan knows
		return slices.Compact([]timegrid.Hour{timegrid.HourOfNS(e.MinTime), timegrid.HourOfNS(e.MaxTime)})
	}
	var f frame.Batch
	must(w.t, frame.Decode(raw, &f, frame.Limits{}))
	var hs []timegrid.Hour
	for i := range f.Groups {
		for _, t := range f.Groups[i].Timestamps {
			hs = append(hs, timegrid.HourOfNS(t))
		}
	}
	slices.Sort(hs)
	return slices.Compact(hs)
}

// realStore runs the embedded object store over HTTP and gives a client of a bucket.
func realStore(t testing.TB) objstore.Store {
	t.Helper()
	svc := objectstoretest.Start(t, objectstoretest.Config(t, "authority"))
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.Prefix, cfg.PathStyle = "http://"+svc.Addr(), "authority", "team/", true
	cfg.AccessKeyID, cfg.SecretAccessKey = objectstoretest.Key, config.Secret(objectstoretest.Secret)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	s, err := s3.New(t.Context(), cfg, s3.Options{Transport: transport})
	must(t, err)
	return s
}
