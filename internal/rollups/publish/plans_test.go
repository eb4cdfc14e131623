package publish_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// pubsOf are the publications of a generation at all resolutions.
func pubsOf(gen, supersedes uint64, plan []byte) (pubs []publish.Publication) {
	for _, res := range timegrid.Resolutions() {
		p := publication(gen, supersedes, fmt.Sprintf("%s of %d by %s", res, gen, plan))
		p.Name.Resolution, p.PlanSHA256 = res, identity.Sum(plan)
		pubs = append(pubs, p)
	}
	return pubs
}

// publishHour creates the plan and publishes a generation of it at all resolutions.
func publishHour(t *testing.T, s objstore.Creator, p *publish.Publisher, gen, supersedes uint64) {
	t.Helper()
	if _, err := s.Create(t.Context(), layout.RollupPlan(hour0, 1, gen), planBody(gen), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.PublishAll(t.Context(), pubsOf(gen, supersedes, planBody(gen)), func(_ int, _ publish.Result, err error) error { return err }); err != nil {
		t.Fatal(err)
	}
}

func plansOf(t *testing.T, s objstore.Reader) (gens []uint64) {
	t.Helper()
	for _, key := range keys(t, s, layout.RollupPlans(hour0, 1)) {
		_, _, gen, err := layout.ParseRollupPlan(key)
		if err != nil {
			t.Fatal(err)
		}
		gens = append(gens, gen)
	}
	return gens
}

// The plan of a superseded generation goes with its blocks, without a listing or a read of its own. That of the generation
// that counts stays, as does that of one that is aborted above it at some resolutions.
func TestPlansGoWithTheirBlocks(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	publishHour(t, w.store, p, 1, 0)
	publishHour(t, w.store, p, 2, 1)
	if got := plansOf(t, w.store); !slices.Equal(got, []uint64{1, 2}) {
		t.Fatalf("plans %d before the collection", got)
	}
	w.clock.now = w.clock.now.Add(time.Hour)
	rep, err := w.collector().Step(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	if got := plansOf(t, w.store); !slices.Equal(got, []uint64{2}) {
		t.Errorf("plans %d are left", got)
	}
	deleted := 0
	for _, e := range rep.Entries {
		if e.Key == layout.RollupPlan(hour0, 1, 1) && e.Action == publish.Deleted {
			deleted++
		}
	}
	if deleted != 1 {
		t.Errorf("the plan is deleted %d times: %v", deleted, rep.Entries)
	}
	// Generation 3 is committed at one resolution only: 2 counts at the others.
	if _, err := w.store.Create(t.Context(), layout.RollupPlan(hour0, 1, 3), planBody(3), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, pub := range pubsOf(3, 2, planBody(3)) {
		if i == 0 {
			_, err = p.Publish(t.Context(), pub)
		} else {
			_, err = p.Abort(t.Context(), pub.Name, "test")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.collect()
	w.sweepPlans()
	w.collect()
	if got := plansOf(t, w.store); !slices.Equal(got, []uint64{2, 3}) {
		t.Errorf("plans %d are left, of which 2 counts at some resolutions and 3 at one", got)
	}
}

func (w *world) sweepPlans() {
	w.t.Helper()
	c := w.collector()
	for after := ""; ; {
		next, _, err := c.SweepPlans(w.t.Context(), 1, after)
		if err != nil {
			w.t.Fatal(err)
		}
		if next == "" {
			return
		}
		after = next
	}
}

// A collector dies, or is told "unknown", at any request while it collects plans. Then comes a worker that slept since
// before the generation was decided: it finds no plan, makes one of other inputs, and publishes nothing of it. At the end
// the plan that counts is left, and no other one.
func TestCollectorOfPlansCrashesAtEveryRequest(t *testing.T) {
	cases := 0
	for how := range fates {
		for at := 1; ; at++ {
			w := calmWorld()
			w.resolutions = timegrid.Resolutions()
			p := &port{w: w, name: "calm"}
			publishHour(t, p, p.publisher(), 1, 0)
			publishHour(t, p, p.publisher(), 2, 1)
			w.clock.now = w.clock.now.Add(time.Hour)
			reached := w.survive(at, how, func(p *port) {
				c := p.collector()
				_, err := c.Step(context.Background(), 100)
				_, _, err2 := c.SweepPlans(context.Background(), 1, "")
				w.clock.now = w.clock.now.Add(time.Hour)
				_, err3 := c.Step(context.Background(), 100)
				_ = errors.Join(err, err2, err3) // what was not done is done by the next one
			})
			if !reached {
				break
			}
			cases++
			name := fmt.Sprintf("fate %d at request %d", how, at)
			w.zombie(t, name)
			w.end(t, name)
			if got := plansOf(t, w.store); !slices.Equal(got, []uint64{2}) {
				t.Fatalf("%s: plans %d are left", name, got)
			}
		}
	}
	t.Logf("%d cases", cases)
	if cases < 100 {
		t.Errorf("only %d cases", cases)
	}
}

// zombie is a worker that believes that generation 1 is undecided.
func (w *sim) zombie(t *testing.T, name string) {
	t.Helper()
	key, other := layout.RollupPlan(hour0, 1, 1), []byte("a plan of other inputs")
	if _, err := w.store.Create(t.Context(), key, other, objstore.PutOptions{}); err != nil {
		return // it finds the plan, as any worker does
	}
	err := (&port{w: w, name: "zombie"}).publisher().PublishAll(t.Context(), pubsOf(1, 0, other), func(i int, _ publish.Result, err error) error {
		if !errors.Is(err, publish.ErrConflict) {
			t.Errorf("%s: publication %d: %v", name, i, err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// A page of plans may end within an hour.
func TestPlansOfAnHourInTwoPages(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	var want []string
	for h := hour0; h < hour0+4; h++ {
		for gen := uint64(1); gen <= 5; gen++ {
			key := layout.RollupPlan(h, 1, gen)
			if gen < 5 {
				want = append(want, key)
			}
			if _, err := w.store.Create(ctx, key, planBody(gen), objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	merged := layout.BlockPlan(catalog.Name{Hour: hour0, Shard: 1, Resolution: timegrid.Raw, Generation: 1, Span: 2})
	if _, err := w.store.Create(ctx, merged, []byte("p"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	want = append(want, merged)
	for limit := 6; limit < 30; limit++ {
		cfg := w.config()
		cfg.Store = pagesOf{w.store, limit}
		queue := &queued{}
		cfg.Queue = queue
		c, err := publish.NewCollector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for after, n := "", 0; ; n++ {
			next, _, err := c.SweepPlans(ctx, 1, after)
			if err != nil || n > 40 {
				t.Fatal(n, err)
			}
			if after = next; next == "" {
				break
			}
		}
		if slices.Sort(queue.keys); !slices.Equal(queue.keys, slices.Sorted(slices.Values(want))) {
			t.Errorf("pages of %d: %d keys are queued, want %d: %q", limit, len(queue.keys), len(want), queue.keys)
		}
	}
}

type pagesOf struct {
	publish.Store
	limit int
}

func (p pagesOf) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	o.Limit = p.limit
	return p.Store.List(ctx, o)
}

type queued struct {
	publish.Queue
	keys []string
}

func (q *queued) Push(_ context.Context, i publish.Item) error {
	q.keys = append(q.keys, i.Keys...)
	return nil
}

// A plan that is gone says that its generation is decided, to a worker that has it in memory.
func TestPlanThatIsGoneMeansDecided(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	publishHour(t, w.store, p, 1, 0)
	if err := w.store.Delete(t.Context(), layout.RollupPlan(hour0, 1, 1)); err != nil {
		t.Fatal(err)
	}
	for _, plan := range [][]byte{planBody(1), []byte("another plan")} {
		pubs, said := pubsOf(1, 0, plan), 0
		for i := range pubs {
			pubs[i].Listed = true // by a listing of long ago
		}
		err := p.PublishAll(t.Context(), pubs, func(_ int, r publish.Result, err error) error {
			if said++; (err == nil) != (r.Block != nil) || err != nil && !errors.Is(err, publish.ErrConflict) || r.Created {
				t.Errorf("%+v, %v", r, err)
			}
			return nil
		})
		if err != nil || said != len(pubs) {
			t.Errorf("%d publications are decided, %v", said, err)
		}
	}
	// Without a plan and a decision there is nothing to publish.
	if err := p.PublishAll(t.Context(), pubsOf(2, 1, planBody(2)), func(int, publish.Result, error) error { return nil }); !errors.Is(err, publish.ErrNoPlan) {
		t.Error(err)
	}
}
