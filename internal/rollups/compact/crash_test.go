package compact_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// tap sees every request to the store and to the metadata store before and after it.
type tap struct {
	publish.Store
	refs publish.Refs
	n    int
	// before may refuse the request; after may lose its answer.
	before, after func(n int, write bool) error
}

func (p *tap) do(write bool, f func() error) error {
	p.n++
	n := p.n
	if p.before != nil {
		if err := p.before(n, write); err != nil {
			return err
		}
	}
	err := f()
	if p.after != nil {
		if lost := p.after(n, write); lost != nil {
			return lost
		}
	}
	return err
}

func (p *tap) Get(ctx context.Context, key string, o objstore.GetOptions) (b []byte, i objstore.Info, err error) {
	err = p.do(false, func() (err error) { b, i, err = p.Store.Get(ctx, key, o); return })
	return
}

func (p *tap) Head(ctx context.Context, key string) (i objstore.Info, err error) {
	err = p.do(false, func() (err error) { i, err = p.Store.Head(ctx, key); return })
	return
}

func (p *tap) List(ctx context.Context, o objstore.ListOptions) (g objstore.Page, err error) {
	err = p.do(false, func() (err error) { g, err = p.Store.List(ctx, o); return })
	return
}

func (p *tap) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (i objstore.Info, err error) {
	err = p.do(true, func() (err error) { i, err = p.Store.Create(ctx, key, b, o); return })
	return
}

func (p *tap) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (i objstore.Info, err error) {
	err = p.do(true, func() (err error) { i, err = p.Store.Replace(ctx, key, b, etag, o); return })
	return
}

func (p *tap) Delete(ctx context.Context, key string) error {
	return p.do(true, func() error { return p.Store.Delete(ctx, key) })
}

// tapRefs are the requests to the metadata store.
type tapRefs struct{ p *tap }

func (r tapRefs) Epoch(ctx context.Context) (f publish.Epoch, err error) {
	err = r.p.do(false, func() (err error) { f, err = r.p.refs.Epoch(ctx); return })
	return
}

func (r tapRefs) InitEpoch(ctx context.Context, old *publish.Epoch, next publish.Epoch) error {
	return r.p.do(true, func() error { return r.p.refs.InitEpoch(ctx, old, next) })
}

func (r tapRefs) Add(ctx context.Context, epoch string, add ...publish.Addition) error {
	return r.p.do(true, func() error { return r.p.refs.Add(ctx, epoch, add...) })
}

func (r tapRefs) Get(ctx context.Context, keys ...string) (recs []publish.Record, err error) {
	err = r.p.do(false, func() (err error) { recs, err = r.p.refs.Get(ctx, keys...); return })
	return
}

func (r tapRefs) Condemn(ctx context.Context, epoch string, read ...publish.Record) (changed []string, err error) {
	err = r.p.do(true, func() (err error) { changed, err = r.p.refs.Condemn(ctx, epoch, read...); return })
	return
}

func (r tapRefs) Swap(ctx context.Context, epoch string, old, next publish.Record) error {
	return r.p.do(true, func() error { return r.p.refs.Swap(ctx, epoch, old, next) })
}

func (r tapRefs) Delete(ctx context.Context, epoch string, read ...publish.Record) (changed []string, err error) {
	err = r.p.do(true, func() (err error) { changed, err = r.p.refs.Delete(ctx, epoch, read...); return })
	return
}

func (r tapRefs) List(ctx context.Context, after string, limit int) (rs []publish.Record, next string, err error) {
	err = r.p.do(false, func() (err error) { rs, next, err = r.p.refs.List(ctx, after, limit); return })
	return
}

func (w *world) tap() *tap { return &tap{Store: w.store, refs: w.refs} }

// small is a world with two hours of one group that are due.
func small(t testing.TB) (*world, compact.Settings) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(3*time.Hour + 30*time.Minute)
	for _, h := range []timegrid.Hour{hour0, hour0 + 1} {
		w.roll(h, 0, timegrid.Raw)
		w.roll(h, 1, timegrid.Raw)
	}
	return w, settings()
}

func (w *world) candidate(st compact.Settings) compact.Candidate {
	w.t.Helper()
	cs := st.Choose(timegrid.Raw, setsOf(w.view(), timegrid.Raw), 0, w.clock.now)
	if len(cs) != 1 {
		w.t.Fatalf("%d candidates", len(cs))
	}
	return cs[0]
}

// settled checks the end: answers, everything compacted, nothing left over, nothing missing.
func (w *world) settled(st compact.Settings, what string, want map[string]string) {
	w.t.Helper()
	same(w.t, what, w.answers(w.view(), timegrid.Raw), want)
	w.compactAll(st)
	same(w.t, what+", compacted", w.answers(w.view(), timegrid.Raw), want)
	for range 2 { // what a crash kept from the queue is found by a sweep
		for h := hour0; h < hour0+6; h++ {
			w.must1(w.collector().Sweep(w.t.Context(), h))
		}
		w.collect()
	}
	v := w.view()
	same(w.t, what+", collected", w.answers(v, timegrid.Raw), want)
	named := map[string]bool{}
	for _, h := range v.Hours() {
		for _, s := range v.Blocks(h, timegrid.Raw) {
			from := s
			if s.Redirect != nil {
				from = s.Redirect.Block
			}
			for _, k := range from.Keys() {
				named[k] = true
			}
		}
	}
	for _, prefix := range []string{layout.RollupPrefix + "window=", layout.IndexPrefix} {
		for _, k := range w.keys(prefix) {
			if !named[k] {
				w.t.Fatalf("%s: %s is left", what, k)
			}
		}
	}
}

var errCrash = errors.New("crash")

// A compactor that dies at any request, or after it, leaves what another finishes.
func TestCrashAtEveryRequest(t *testing.T) {
	base, st := small(t)
	want := base.answers(base.view(), timegrid.Raw)
	for _, mode := range []string{"before", "after", "lost"} {
		for at := 1; ; at++ {
			w := base.clone()
			c := w.candidate(st)
			p := w.tap()
			dead := false
			die := func(n int, write bool) error {
				switch {
				case dead || mode == "before" && n == at:
					dead = true
					return fmt.Errorf("%w: %w", objstore.ErrInvalid, errCrash)
				}
				return nil
			}
			lose := func(n int, write bool) error {
				switch {
				case mode == "after" && n == at:
					dead = true
					return fmt.Errorf("%w: %w", objstore.ErrInvalid, errCrash)
				case mode == "lost" && n == at && write: // it was applied, and continues
					return fmt.Errorf("%w (test)", objstore.ErrUnknown)
				}
				return nil
			}
			p.before, p.after = die, lose
			_, err := w.compactorOver(p, tapRefs{p}, st).Compact(t.Context(), c, 7)
			if dead != (err != nil) && mode != "lost" {
				t.Fatalf("%s request %d: dead %t, %v", mode, at, dead, err)
			}
			same(t, "at the crash", w.answers(w.view(), timegrid.Raw), want)
			w.settled(st, fmt.Sprintf("%s request %d", mode, at), want)
			if at > p.n { // it ended before
				if p.n < 30 {
					t.Fatalf("only %d requests", p.n)
				}
				break
			}
		}
	}
}

// Somebody else does something whole between two requests of a compactor: another
// compacts the same, a late batch re-rolls a source, the collector runs hours later.
func TestOthersBetweenEveryTwoRequests(t *testing.T) {
	base, st := small(t)
	for _, who := range []string{"compactor", "roll", "collector", "all"} {
		for at := 1; ; at++ {
			w := base.clone()
			want := w.answers(w.view(), timegrid.Raw)
			c := w.candidate(st)
			p := w.tap()
			p.before = func(n int, write bool) error {
				if n != at {
					return nil
				}
				if who == "compactor" || who == "all" {
					w.must1(w.compactor(st).Compact(t.Context(), c, 8))
					same(t, "beside another", w.answers(w.view(), timegrid.Raw), want)
				}
				if who == "roll" || who == "all" {
					w.roll(hour0+1, 1, timegrid.Raw)
					want = w.answers(w.view(), timegrid.Raw)
				}
				if who == "collector" || who == "all" {
					w.clock.now = w.clock.now.Add(3 * time.Hour)
					w.must1(w.collector().Step(t.Context(), 1000))
					same(t, "beside a collector", w.answers(w.view(), timegrid.Raw), want)
				}
				return nil
			}
			_, err := w.compactorOver(p, tapRefs{p}, st).Compact(t.Context(), c, 7)
			what := fmt.Sprintf("%s before request %d (%v)", who, at, err)
			if err != nil && !known(err) {
				t.Fatal(what)
			}
			same(t, what, w.answers(w.view(), timegrid.Raw), want)
			w.settled(st, what, want)
			if at > p.n {
				break
			}
		}
	}
}

// known errors are decisions.
func known(err error) bool {
	for _, e := range []error{publish.ErrAborted, publish.ErrConflict, publish.ErrFenced, publish.ErrGap, compact.ErrAborted} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// A late generation of one source is read from its own block, and masked in the compaction.
func TestLateHourIsMasked(t *testing.T) {
	w, st := small(t)
	w.compactAll(st)
	w.roll(hour0, 1, timegrid.Raw)
	v := w.view()
	var of []string
	for _, p := range catalog.Pieces(append(v.Blocks(hour0, timegrid.Raw), v.Blocks(hour0+1, timegrid.Raw)...)) {
		of = append(of, fmt.Sprintf("%d h: %d to %d %v", p.Block.Name.Span, p.From-hour0, p.To-hour0, p.Shards))
	}
	if got := fmt.Sprint(of); got != "[2 h: 0 to 0 [0000] 0 h: 0 to 0 [] 2 h: 1 to 1 [0000 0001]]" {
		t.Error(got)
	}
	want := w.answers(v, timegrid.Raw)
	w.collect() // the compaction stays: three sources need it
	same(t, "collected", w.answers(w.view(), timegrid.Raw), want)
	// The next level takes all up.
	w.clock.now = hour0.Start().Add(8 * time.Hour)
	w.settled(st, "next level", want)
}

// Compactors, a retention and a collector that all work at once.
func TestAllAtOnce(t *testing.T) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(8 * time.Hour)
	w.rollAll(hour0, 6, timegrid.Raw, timegrid.OneMinute)
	want := w.answers(w.view(), timegrid.OneMinute)
	st := settings()
	var cs []compact.Candidate
	for _, res := range []timegrid.Resolution{timegrid.Raw, timegrid.OneMinute} {
		for _, id := range []shard.ID{0, 2} {
			cs = append(cs, st.Choose(res, setsOf(w.view(), res), id, w.clock.now)...)
		}
	}
	if len(cs) != 4 {
		t.Fatalf("%d candidates", len(cs))
	}
	var wg sync.WaitGroup
	for i := range 3 {
		c := w.compactor(st)
		wg.Go(func() {
			for k := range cs {
				if _, err := c.Compact(t.Context(), cs[(k+i)%len(cs)], 7); err != nil && !known(err) && !errors.Is(err, publish.ErrUndecided) {
					t.Error(err)
				}
			}
		})
	}
	r, g := w.expirer(), w.collector()
	wg.Go(func() {
		if _, err := r.Expire(t.Context(), timegrid.Raw, hour0, hour0+2); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		for range 5 {
			_ = w.clock.Sleep(t.Context(), 30*time.Minute)
			if _, err := g.Step(t.Context(), 100); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	same(t, "at once", w.answers(w.view(), timegrid.OneMinute), want)
	w.compactAll(st)
	w.must1(w.expirer().Expire(t.Context(), timegrid.Raw, hour0, hour0+2))
	same(t, "afterwards", w.answers(w.view(), timegrid.OneMinute), want)
	for _, block := range setsOf(w.view(), timegrid.Raw) {
		if block.Name.Hour <= hour0+2 {
			t.Errorf("%s stays", block.Name.Key())
		}
	}
}

// Whoever resumes a generation makes it from the plan that is there, whatever its own
// settings and candidate are.
func TestThePlanCounts(t *testing.T) {
	base, st := small(t)
	full := base.clone()
	full.must1(full.compactor(st).Compact(t.Context(), full.candidate(st), 7))
	want := fmt.Sprint(full.keys(layout.RollupChunksHour(timegrid.Raw, hour0)), full.keys(layout.PlansPrefix))

	w := base.clone()
	p := w.tap()
	plans := len(w.keys(layout.PlansPrefix))
	p.before = func(n int, write bool) error {
		if len(w.keys(layout.PlansPrefix)) > plans {
			return fmt.Errorf("%w: %w", objstore.ErrInvalid, errCrash)
		}
		return nil
	}
	c := w.candidate(st)
	if _, err := w.compactorOver(p, tapRefs{p}, st).Compact(t.Context(), c, 7); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	other := st
	other.ObjectBytes, other.Rows, other.BlockSeries = 1<<20, 1000, 100
	c.Sources = c.Sources[:3]
	r, err := w.compactor(other).Compact(t.Context(), c, 7)
	if err != nil || len(r.Block.Sources) != 4 || r.Redirected != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := fmt.Sprint(w.keys(layout.RollupChunksHour(timegrid.Raw, hour0)), w.keys(layout.PlansPrefix)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
