package publish_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	objmem "lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	refmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// sim is one schedule: publishers and collectors over one store and one metadata store.
// They stop before every request and before every answer; rng decides who continues, and
// what becomes of each request.
type sim struct {
	rng    *rand.Rand
	store  *objmem.Store
	refs   *refmem.Refs
	saved  []publish.Record // what a restored copy of the metadata store would have
	clock  *simClock
	ids    counter
	tasks  []*simTask
	late   []func() // requests that were answered "unknown" and may land later
	calm   bool
	policy publish.Policy
	chaos  float64 // chance of a fault
	// resolutions of an hour; several are published together.
	resolutions []timegrid.Resolution

	txns       map[string]string // manifest key -> transaction that committed it
	parsed     map[string]*catalog.Record
	crash      crash
	ledger     *ledger // of records, where there are some
	violations []string
	trace      []string
	published  int
	dropped    int // records of condemned objects
	n          int
}

type simClock struct{ now time.Time }

func (c *simClock) Now() time.Time { return c.now }

func (c *simClock) Sleep(ctx context.Context, d time.Duration) error { return ctx.Err() }

type simTask struct {
	name string
	next func() (struct{}, bool)
	stop func()
}

type killed struct{}

// port is the world as one task sees it.
type port struct {
	w     *sim
	name  string
	yield func(struct{}) bool
}

func (w *sim) start(name string, f func(p *port)) {
	next, stop := iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != any(killed{}) {
				panic(r)
			}
		}()
		f(&port{w, name, yield})
	})
	w.tasks = append(w.tasks, &simTask{name, next, stop})
}

func (p *port) pause() {
	if !p.w.calm && !p.yield(struct{}{}) {
		panic(killed{})
	}
}

var errNotSent = errors.New("not sent")

// request decides the fate of one request. apply makes it happen; unknown is the error
// of an answer that was lost.
func (p *port) request(what string, write bool, unknown error, apply func() error) error {
	w := p.w
	p.pause()
	if w.calm {
		return w.crashing(write, unknown, apply)
	}
	fate := w.rng.Float64()
	switch {
	case fate >= w.chaos:
		err := apply()
		w.note(p.name, what, err)
		p.pause()
		return err
	case !write || fate < w.chaos/4:
		w.note(p.name, what, errNotSent)
		return fmt.Errorf("%w (sim)", unknown)
	case fate < w.chaos/2:
		err := apply()
		w.note(p.name, what+" (answer lost)", err)
	default:
		w.note(p.name, what+" (delayed)", nil)
		w.late = append(w.late, func() { w.note("late", what, apply()) })
	}
	p.pause()
	return fmt.Errorf("%w (sim)", unknown)
}

func (w *sim) note(who, what string, err error) {
	if len(w.trace) < 100_000 {
		w.trace = append(w.trace, fmt.Sprintf("%s %s: %v", who, what, err))
	}
}

func (w *sim) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.violations = append(w.violations, text)
	w.note("VIOLATED", text, nil)
}

// port as a store.

func (p *port) Get(ctx context.Context, key string, o objstore.GetOptions) (b []byte, i objstore.Info, err error) {
	err = p.request("get "+key, false, objstore.ErrUnavailable, func() (err error) { b, i, err = p.w.store.Get(ctx, key, o); return })
	return
}

func (p *port) Head(ctx context.Context, key string) (i objstore.Info, err error) {
	err = p.request("head "+key, false, objstore.ErrUnavailable, func() (err error) { i, err = p.w.store.Head(ctx, key); return })
	return
}

func (p *port) List(ctx context.Context, o objstore.ListOptions) (g objstore.Page, err error) {
	if !p.w.calm {
		o.Limit = 3 // so that listings have several pages
	}
	err = p.request("list "+o.Prefix, false, objstore.ErrUnavailable, func() (err error) { g, err = p.w.store.List(ctx, o); return })
	return
}

func (p *port) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (i objstore.Info, err error) {
	err = p.request("create "+key, true, objstore.ErrUnknown, func() (err error) {
		i, err = p.w.store.Create(context.Background(), key, body, o)
		p.w.check(key)
		return
	})
	return
}

func (p *port) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (i objstore.Info, err error) {
	err = p.request("replace "+key, true, objstore.ErrUnknown, func() (err error) {
		i, err = p.w.store.Replace(context.Background(), key, body, etag, o)
		p.w.check(key)
		return
	})
	return
}

func (p *port) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (i objstore.Info, err error) {
	err = p.request("put "+key, true, objstore.ErrUnknown, func() (err error) {
		i, err = p.w.store.Put(context.Background(), key, body, o)
		p.w.check(key)
		return
	})
	return
}

func (p *port) Delete(ctx context.Context, key string) error {
	return p.request("delete "+key, true, objstore.ErrUnknown, func() error {
		err := p.w.store.Delete(context.Background(), key)
		p.w.check(key)
		return err
	})
}

// simRefs is a port as a metadata store.
type simRefs struct{ p *port }

func (r simRefs) do(what string, write bool, apply func(refs *refmem.Refs) error) error {
	return r.p.request(what, write, publish.ErrRefsUnknown, func() error { return apply(r.p.w.refs) })
}

func (r simRefs) Epoch(ctx context.Context) (f publish.Epoch, err error) {
	err = r.do("epoch", false, func(m *refmem.Refs) (err error) { f, err = m.Epoch(context.Background()); return })
	return
}

func (r simRefs) InitEpoch(ctx context.Context, old *publish.Epoch, next publish.Epoch) error {
	return r.do(fmt.Sprintf("found %v", next), true, func(m *refmem.Refs) error { return m.InitEpoch(context.Background(), old, next) })
}

func (r simRefs) Add(ctx context.Context, epoch string, add ...publish.Addition) error {
	add = slices.Clone(add)
	for i := range add {
		add[i].Keys = slices.Clone(add[i].Keys)
	}
	return r.do(fmt.Sprintf("add %q", add), true, func(m *refmem.Refs) error { return m.Add(context.Background(), epoch, add...) })
}

func (r simRefs) Get(ctx context.Context, keys ...string) (recs []publish.Record, err error) {
	err = r.do(fmt.Sprintf("refs of %q", keys), false, func(m *refmem.Refs) (err error) { recs, err = m.Get(context.Background(), keys...); return })
	return
}

func (r simRefs) Condemn(ctx context.Context, epoch string, read ...publish.Record) (changed []string, err error) {
	read = slices.Clone(read)
	err = r.do(fmt.Sprintf("condemn %v", read), true, func(m *refmem.Refs) (err error) {
		changed, err = m.Condemn(context.Background(), epoch, read...)
		return
	})
	return
}

func (r simRefs) Swap(ctx context.Context, epoch string, old, next publish.Record) error {
	return r.do(fmt.Sprintf("swap %v for %v", old, next), true, func(m *refmem.Refs) error { return m.Swap(context.Background(), epoch, old, next) })
}

func (r simRefs) Delete(ctx context.Context, epoch string, read ...publish.Record) (changed []string, err error) {
	read = slices.Clone(read)
	err = r.do(fmt.Sprintf("drop %v", read), true, func(m *refmem.Refs) (err error) {
		changed, err = m.Delete(context.Background(), epoch, read...)
		return
	})
	return
}

func (r simRefs) List(ctx context.Context, after string, limit int) (rs []publish.Record, next string, err error) {
	err = r.do("list refs", false, func(m *refmem.Refs) (err error) { rs, next, err = m.List(context.Background(), after, limit); return })
	return
}

// twice is what a simulated process does at one request, before its error is final.
var twice = retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond}

// simPolicy: mostly no age at all, since no age may matter.
func simPolicy(rng *rand.Rand) publish.Policy {
	p := publish.Policy{Refs: twice, Generations: publish.MaxGenerations, Condemned: 1 + rng.IntN(3)}
	if rng.IntN(4) == 0 {
		p.Delay, p.Grace, p.AbortAfter = time.Minute, 2*time.Minute, 3*time.Minute
	}
	return p
}

func (p *port) config() publish.Config {
	s := tried(p, p.w.clock, twice)
	return publish.Config{Store: s, Refs: simRefs{p}, Queue: publish.NewObjectQueue(s, nil), Clock: p.w.clock, AuthorityID: "a", WorkerID: p.name, Policy: p.w.policy}
}

func (p *port) publisher() *publish.Publisher {
	x, err := publish.NewPublisher(p.config())
	if err != nil {
		panic(err)
	}
	return x
}

func (p *port) collector() *publish.Collector {
	x, err := publish.NewCollector(p.config())
	if err != nil {
		panic(err)
	}
	return x
}

// record is what a manifest key holds now; nil for nothing.
func (w *sim) record(key string) *catalog.Record {
	info, err := w.store.Head(context.Background(), key)
	if err != nil {
		return nil
	}
	if r := w.parsed[key+info.ETag]; r != nil {
		return r
	}
	r, _, err := catalog.Read(context.Background(), w.store, "a", key)
	if err != nil {
		w.violated("record: %v", err)
		return nil
	}
	w.parsed[key+info.ETag] = &r
	return &r
}

// check checks the invariants after a change of key.
func (w *sim) check(key string) {
	ctx := context.Background()
	if n, err := layout.ParseBlockManifest(key); err == nil {
		w.checkRecord(n)
	}
	if w.ledger != nil {
		w.ledger.checkLog(key)
	}
	w.checkPlan(key)
	if _, err := layout.ParseRollupObject(key); err != nil {
		return
	}
	if _, err := w.store.Head(ctx, key); err == nil {
		return
	}
	for m := range w.txns {
		if r := w.record(m); r != nil && r.Block != nil && r.Block.Names(key) {
			w.violated("missing: %s is deleted, %s names it", key, m)
		}
	}
}

// checkPlan: a plan that goes is of a generation that is decided, and below the one that counts.
func (w *sim) checkPlan(key string) {
	if _, err := w.store.Head(context.Background(), key); err == nil || !strings.HasPrefix(key, layout.PlansPrefix) {
		return
	}
	if why := w.planNeeded(key); why != "" {
		w.violated("plan: %s is deleted: %s", key, why)
	}
}

// planNeeded says why a plan may be read again.
func (w *sim) planNeeded(key string) string {
	if n, err := layout.ParseCompactionPlan(key); err == nil {
		if w.txns[n.Key()] == "" {
			return n.Key() + " is not decided"
		}
		return ""
	}
	h, s, gen, err := layout.ParseRollupPlan(key)
	if err != nil {
		return "it is no plan"
	}
	for _, res := range timegrid.Resolutions() {
		n := catalog.Name{Hour: h, Shard: s, Resolution: res, Generation: gen}
		if w.txns[n.Key()] == "" {
			return n.Key() + " is not decided"
		}
		if r := w.record(n.Key()); r == nil || r.Block != nil {
			return n.Key() + " is not removed"
		}
		for ; w.txns[n.Key()] != ""; n.Generation++ {
			if txn := w.txns[n.Key()]; n.Generation > gen && txn != "aborted" {
				break
			}
		}
		if w.txns[n.Key()] == "" {
			return fmt.Sprintf("no generation of %s above it is committed", res)
		}
	}
	return ""
}

// checkPlans: nothing is left that nobody needs.
func (w *sim) checkPlans() {
	err := storetest.Each(context.Background(), w.store, layout.PlansPrefix, func(i objstore.Info) error {
		if why := w.planNeeded(i.Key); why == "" {
			w.violated("collected: the plan %s is left", i.Key)
		}
		return nil
	})
	if err != nil {
		w.violated("end: %v", err)
	}
}

// forget drops records of condemned objects, now and then.
func (w *sim) forget(p *port, c *publish.Collector) {
	if w.rng.IntN(3) > 0 {
		return
	}
	r, err := c.Forget(context.Background(), &w.ids)
	w.note(p.name, fmt.Sprintf("forgot %+v", r), err)
	w.dropped += r.Dropped
}

// forgetAll: nothing is left of what was condemned, and what is left is referred to.
func (w *sim) forgetAll() {
	c := (&port{w: w, name: "end"}).collector()
	for n := 0; ; n++ {
		r, err := c.Forget(context.Background(), &w.ids)
		if err != nil || n == 5 {
			w.violated("end: %d records of condemned objects are left, %v", r.Condemned, err)
			return
		}
		if w.dropped += r.Dropped; r.Condemned < max(w.policy.Condemned, 1) {
			return
		}
	}
}

// sweepPlans sweeps the plans of a shard to the end, or until an error.
func (w *sim) sweepPlans(c *publish.Collector, s shard.ID) error {
	for after := ""; ; {
		next, _, err := c.SweepPlans(context.Background(), s, after)
		if err != nil || next == "" {
			return err
		}
		after = next
	}
}

func (w *sim) checkRecord(n catalog.Name) {
	key := n.Key()
	r := w.record(key)
	if r == nil {
		w.violated("once: %s is gone", key)
		return
	}
	txn := "aborted"
	switch {
	case r.Block != nil:
		txn = r.Block.TransactionID
	case r.Removed != nil:
		txn = r.Removed.TransactionID
	}
	if was, ok := w.txns[key]; ok && was != txn {
		w.violated("once: %s was decided as %s, now it is %s", key, was, txn)
	}
	_, known := w.txns[key]
	w.txns[key] = txn
	if r.Block != nil && !known {
		w.published++
		w.checkCommit(r.Block)
	}
	if w.ledger != nil {
		w.ledger.changed(n, r)
	}
	if r.Removed != nil && (w.ledger == nil || r.Removed.SupersededBy != 0) {
		higher := n
		higher.Generation = r.Removed.SupersededBy
		if h := w.record(higher.Key()); higher.Generation == 0 || h == nil || h.Aborted != nil {
			w.violated("superseded: %s is removed, generation %d is not committed", key, higher.Generation)
		}
	}
}

func (w *sim) checkCommit(s *catalog.Block) {
	for i := range s.Objects {
		o := &s.Objects[i]
		for _, want := range []struct {
			key string
			sum identity.Digest
		}{{o.ChunkKey, o.ChunkSHA256}, {o.IndexKey, o.IndexSHA256}} {
			if info, err := w.store.Head(context.Background(), want.key); err != nil || info.SHA256 != want.sum {
				w.violated("missing: %s is committed and names %s: %v", s.Name.Key(), want.key, err)
			}
		}
	}
	for n := s.Name; n.Generation > 1; {
		n.Generation--
		r := w.record(n.Key())
		switch {
		case r == nil:
			w.violated("order: %s is committed, generation %d is not decided", s.Name.Key(), n.Generation)
		case r.Block != nil && r.Block.Fence > s.Fence:
			w.violated("fence: %s has fence %d, generation %d has %d", s.Name.Key(), s.Fence, n.Generation, r.Block.Fence)
		case r.Removed != nil && r.Removed.Fence > s.Fence:
			w.violated("fence: %s has fence %d, generation %d had %d", s.Name.Key(), s.Fence, n.Generation, r.Removed.Fence)
		}
	}
}

// simPublication is a function of the plan, as a plan's outputs are.
func simPublication(s shard.ID, res timegrid.Resolution, gen, supersedes uint64, fence uint64, plan []byte) publish.Publication {
	rng := rand.New(rand.NewPCG(uint64(s), gen+uint64(plan[len(plan)-1])<<32))
	var texts []string
	for range 1 + rng.IntN(2) {
		texts = append(texts, strconv.Itoa(rng.IntN(3))) // few, so that blocks share objects
	}
	p := publication(gen, supersedes, texts...)
	p.Name.Shard, p.Name.Resolution, p.Fence, p.PlanSHA256 = s, res, fence, identity.Sum(plan)
	return p
}

// publish is a worker: it plans the next generation, or takes up the one that is under way.
func (w *sim) publish(p *port) {
	ctx := context.Background()
	s := shard.ID(w.rng.IntN(2))
	fence := uint64(w.n)
	cat, err := catalog.New(catalog.Config{Reader: p, AuthorityID: "a", Records: true})
	if err != nil {
		panic(err)
	}
	for range 3 {
		v, err := cat.Refresh(ctx, hour0, hour0)
		if err != nil {
			continue
		}
		gen := v.Top(hour0, s, timegrid.Raw) + 1
		for _, res := range w.resolutions {
			gen = min(gen, v.Top(hour0, s, res)+1)
		}
		// Workers make different plans of a generation: the first one counts, unless it is gone.
		plan := append(planBody(gen), byte(w.rng.IntN(2)))
		key := layout.RollupPlan(hour0, s, gen)
		if _, err := p.Create(ctx, key, plan, objstore.PutOptions{}); err != nil {
			if plan, _, err = p.Get(ctx, key, objstore.GetOptions{}); err != nil {
				continue
			}
		}
		var pubs []publish.Publication
		for _, res := range w.resolutions {
			if v.Top(hour0, s, res) >= gen {
				continue
			}
			var supersedes uint64
			if block := v.Block(hour0, s, res); block != nil {
				supersedes = block.Name.Generation
			}
			pub := simPublication(s, res, gen, supersedes, fence, plan)
			pub.Listed = len(w.resolutions) > 1
			pubs = append(pubs, pub)
		}
		open := map[int]bool{}
		for i := range pubs {
			open[i] = true
		}
		err = p.publisher().PublishAll(ctx, pubs, func(i int, res publish.Result, err error) error {
			if !open[i] {
				w.violated("answer: %s is decided twice", pubs[i].Name.Key())
			}
			delete(open, i)
			w.note(p.name, fmt.Sprintf("published generation %d of shard %d", gen, s), err)
			w.checkAnswer(pubs[i].Name.Key(), string(publish.NewTxn(pubs[i].Name.Key(), pubs[i].PlanSHA256)), res, err)
			if len(w.resolutions) > 1 {
				return nil
			}
			return err
		})
		if err == nil && len(open) > 0 {
			w.violated("answer: nothing is said of %d publications", len(open))
		}
		if err == nil || errors.Is(err, publish.ErrFenced) {
			return
		}
	}
}

func (w *sim) checkAnswer(key, txn string, res publish.Result, err error) {
	now := w.txns[key]
	switch {
	case err == nil && (now != txn || res.Block.TransactionID != txn):
		w.violated("answer: %s is said to be committed, it is %q", key, now)
	case errors.Is(err, publish.ErrAborted) && now != "aborted":
		w.violated("answer: %s is said to be aborted, it is %q", key, now)
	case errors.Is(err, publish.ErrConflict) && (now == "" || now == "aborted"):
		w.violated("answer: %s is said to be another's, it is %q", key, now)
	}
}

func (w *sim) collect(p *port) {
	c := p.collector()
	for range 1 + w.rng.IntN(3) {
		if w.rng.IntN(2) == 0 {
			_, err := c.Sweep(context.Background(), hour0)
			w.note(p.name, "swept", err)
		}
		if w.rng.IntN(4) == 0 {
			w.note(p.name, "swept plans", w.sweepPlans(c, shard.ID(w.rng.IntN(2))))
		}
		w.forget(p, c)
		_, err := c.Step(context.Background(), 1+w.rng.IntN(4))
		w.note(p.name, "stepped", err)
	}
}

// lose takes the metadata store's content, or puts a copy back, and begins its next epoch.
func (w *sim) lose() {
	old := w.refs
	w.refs = refmem.New()
	restored := w.rng.IntN(2) == 0
	if f, err := old.Epoch(context.Background()); restored && err == nil {
		ctx := context.Background()
		for _, err := range []error{w.refs.InitEpoch(ctx, nil, f)} {
			if err != nil {
				panic(err)
			}
		}
		for _, r := range w.saved {
			if err := w.refs.Swap(ctx, f.Token(), publish.Record{Key: r.Key}, r); err != nil {
				panic(err)
			}
		}
		// An operator who restores a copy stops the collectors until its next epoch has begun.
		for _, t := range w.tasks {
			if strings.HasPrefix(t.name, "c") {
				t.stop()
			}
		}
		w.tasks = slices.DeleteFunc(w.tasks, func(t *simTask) bool { return strings.HasPrefix(t.name, "c") })
	}
	w.note("sim", fmt.Sprintf("metadata lost, restored=%t", restored), nil)
	if restored {
		w.initEpoch(true)
	} else {
		w.start("f"+strconv.Itoa(w.n), func(p *port) {
			for range 5 {
				if _, err := p.collector().InitEpoch(context.Background(), &w.ids, false); err == nil {
					return
				}
			}
		})
	}
}

// initEpoch begins an epoch of the metadata store with nobody in between.
func (w *sim) initEpoch(force bool) {
	calm := w.calm
	w.calm = true
	p := &port{w: w, name: "founder"}
	if _, err := p.collector().InitEpoch(context.Background(), &w.ids, force); err != nil {
		w.violated("found: %v", err)
	}
	w.calm = calm
}

// spoil puts other bytes where a chunk belongs.
func (w *sim) spoil() {
	key := layout.RollupChunk(timegrid.Raw, hour0, "up", sum([]byte("chunk "+strconv.Itoa(w.rng.IntN(3)))), 0)
	if _, err := w.store.Put(context.Background(), key, []byte("rotten"), objstore.PutOptions{}); err != nil {
		panic(err)
	}
}

func newSim(rng *rand.Rand) *sim {
	w := &sim{rng: rng, resolutions: []timegrid.Resolution{timegrid.Raw}, store: objmem.New(nil), refs: refmem.New(), clock: &simClock{hour0.End()}, txns: map[string]string{}, parsed: map[string]*catalog.Record{}}
	w.policy = simPolicy(rng)
	w.chaos = []float64{0, 0.02, 0.1, 0.3}[rng.IntN(4)]
	return w
}

// runSim plays one schedule of publications of the resolutions to its end.
func runSim(seed uint64, resolutions ...timegrid.Resolution) *sim {
	w := newSim(rand.New(rand.NewPCG(seed, 1)))
	w.resolutions = resolutions
	losses, kills := w.rng.IntN(3) == 0, w.rng.IntN(2) == 0
	w.initEpoch(false)
	if w.rng.IntN(4) == 0 {
		w.spoil()
	}
	w.play(5+w.rng.IntN(15), losses, kills, func() {
		if w.rng.IntN(3) > 0 {
			w.start("p"+strconv.Itoa(w.n), w.publish)
		} else {
			w.start("c"+strconv.Itoa(w.n), w.collect)
		}
	}, func() {})
	w.finish()
	return w
}

// play lets tasks go on until so many have ended; spawn starts one, event happens now and then.
func (w *sim) play(left int, losses, kills bool, spawn, event func()) {
	rng := w.rng
	burst, last := 1+rng.IntN(60), 0
	for step := 0; (left > 0 || len(w.tasks) > 0) && step < 20_000 && len(w.violations) == 0; step++ {
		switch e := rng.IntN(1000); {
		case e < 60 && left > 0 && len(w.tasks) < 5:
			left--
			w.n++
			spawn()
		case e < 90:
			w.clock.now = w.clock.now.Add(time.Duration(rng.IntN(4)) * time.Minute)
		case e < 120 && len(w.late) > 0:
			w.land()
		case e >= 980:
			w.stray()
		case e < 125 && kills && len(w.tasks) > 0:
			i := rng.IntN(len(w.tasks))
			w.note("sim", "kill "+w.tasks[i].name, nil)
			w.tasks[i].stop()
			w.tasks = slices.Delete(w.tasks, i, i+1)
		case e >= 125 && e < 130 && losses:
			w.lose()
		case e >= 130 && e < 135 && losses:
			w.saved, _, _ = w.refs.List(context.Background(), "", 0)
		case e >= 135 && e < 170 && w.ledger != nil:
			event()
		case len(w.tasks) > 0:
			// Bursts: while one runs the others stand still for long.
			if rng.IntN(burst) == 0 || last >= len(w.tasks) {
				last = rng.IntN(len(w.tasks))
			}
			i := last
			if _, ok := w.tasks[i].next(); !ok {
				w.tasks = slices.Delete(w.tasks, i, i+1)
			}
		}
	}
	for _, t := range w.tasks {
		t.stop()
	}
}

// stray puts keys on the queue that may well be in use: an item proves nothing.
func (w *sim) stray() {
	ctx := context.Background()
	h := hour0
	if w.ledger != nil {
		h += timegrid.Hour(w.rng.IntN(lifeHours))
	}
	prefix := []string{layout.BlockManifestsHour(h), layout.RollupChunksHour(timegrid.Raw, h), layout.RollupIndexesHour(h), layout.RollupPlans(h, shard.ID(w.rng.IntN(2)))}[w.rng.IntN(4)]
	page, err := w.store.List(ctx, objstore.ListOptions{Prefix: prefix})
	if err != nil || len(page.Objects) == 0 {
		return
	}
	key := page.Objects[w.rng.IntN(len(page.Objects))].Key
	i := publish.Item{Keys: []string{key}, Reason: "stray", Due: int64(w.rng.IntN(1000))}
	if err := publish.NewObjectQueue(w.store, nil).Push(ctx, i); err != nil {
		w.violated("stray: %v", err)
	}
	w.note("sim", "stray "+key, nil)
}

func (w *sim) land() {
	i := w.rng.IntN(len(w.late))
	f := w.late[i]
	w.late = slices.Delete(w.late, i, i+1)
	f()
}

// finish lets everything land, collects in peace, and checks what is left.
func (w *sim) finish() {
	for len(w.late) > 0 {
		w.land()
	}
	if len(w.violations) > 0 {
		return
	}
	w.calm = true
	ctx := context.Background()
	p := &port{w: w, name: "end"}
	c := p.collector()
	if _, err := c.InitEpoch(ctx, &w.ids, false); err != nil {
		w.violated("end: %v", err)
	}
	for range 4 {
		if _, err := c.Sweep(ctx, hour0); err != nil {
			w.violated("end: %v", err)
		}
		for s := range shard.ID(2) {
			if err := w.sweepPlans(c, s); err != nil {
				w.violated("end: %v", err)
			}
		}
		w.clock.now = w.clock.now.Add(time.Hour)
		if _, err := c.Step(ctx, 1000); err != nil {
			w.violated("end: %v", err)
		}
	}
	w.checkPlans()
	w.forgetAll()
	named := map[string]bool{}
	type slot struct {
		shard shard.ID
		res   timegrid.Resolution
	}
	top := map[slot]uint64{}
	for m := range w.txns {
		if r := w.record(m); r != nil && r.Block != nil {
			for _, k := range r.Block.Keys() {
				named[k] = true
			}
			s := slot{r.Block.Name.Shard, r.Block.Name.Resolution}
			if top[s] != 0 {
				w.violated("collected: generations %d and %d of shard %d are both there", top[s], r.Block.Name.Generation, s.shard)
			}
			top[s] = r.Block.Name.Generation
		}
	}
	for _, prefix := range []string{layout.RollupPrefix + "window=", layout.IndexPrefix, layout.DelayedPrefix} {
		page, err := w.store.List(ctx, objstore.ListOptions{Prefix: prefix})
		if err != nil {
			w.violated("end: %v", err)
		}
		for _, i := range page.Objects {
			if !named[i.Key] {
				w.violated("collected: %s is left", i.Key)
			}
			delete(named, i.Key)
		}
	}
	for k := range named {
		w.violated("missing: %s at the end", k)
	}
}

// simSchedules is how many schedules are played; the environment's LIGHTMETRICS_SCHEDULES
// and LIGHTMETRICS_SEED play others.
const simSchedules = 800

func fromEnv(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

func TestSchedules(t *testing.T) { playSchedules(t, timegrid.Raw) }

// TestSchedulesOfSeveral: the resolutions of an hour are published together, by workers that have listed the hour before.
func TestSchedulesOfSeveral(t *testing.T) {
	playSchedules(t, timegrid.Resolutions()...)
}

func playSchedules(t *testing.T, resolutions ...timegrid.Resolution) {
	first := fromEnv("LIGHTMETRICS_SEED", 1)
	published, requests, dropped := 0, 0, 0
	for seed := first; seed < first+fromEnv("LIGHTMETRICS_SCHEDULES", simSchedules); seed++ {
		w := runSim(seed, resolutions...)
		published += w.published
		requests += len(w.trace)
		dropped += w.dropped
		if len(w.violations) > 0 {
			from := max(0, len(w.trace)-200)
			t.Fatalf("seed %d: %s\n%s", seed, w.violations[0], strings.Join(w.trace[from:], "\n"))
		}
	}
	t.Logf("from seed %d: %d publications, %d requests, %d records dropped", first, published, requests, dropped)
	if published == 0 || dropped == 0 {
		t.Error("nothing was published, or forgotten")
	}
}
