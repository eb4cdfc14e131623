package publish_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	objmem "lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	refmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// crash is what becomes of one request, counted from 1; 0 is none.
type crash struct {
	at, seen int
	how      fate
}

type fate int

const (
	diesBefore  fate = iota // the process ends, the request is never sent
	diesAfter               // the request is applied, the process ends
	diesDelayed             // the process ends, the request is applied at the end
	lost                    // applied, answered "unknown"
	notApplied              // not applied, answered "unknown"
	delayed                 // applied at the end, answered "unknown"
	fates
)

// crashing runs one request in peace, or to its planned fate.
func (w *sim) crashing(write bool, unknown error, apply func() error) error {
	w.crash.seen++
	if w.crash.seen != w.crash.at {
		return apply()
	}
	land := func() {
		if write {
			w.late = append(w.late, func() { _ = apply() })
		}
	}
	switch w.crash.how {
	case diesBefore:
		panic(killed{})
	case diesAfter:
		_ = apply()
		panic(killed{})
	case diesDelayed:
		land()
		panic(killed{})
	case lost:
		_ = apply()
	case delayed:
		land()
	}
	return fmt.Errorf("%w (planned)", unknown)
}

// survive runs f with one planned fate; false when f had fewer requests.
func (w *sim) survive(at int, how fate, f func(p *port)) bool {
	w.crash = crash{at: at, how: how}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(killed{}) {
				panic(r)
			}
		}()
		f(&port{w: w, name: "crashing"})
	}()
	reached := w.crash.seen >= at
	w.crash = crash{}
	return reached
}

func (w *sim) plan(t *testing.T, gen uint64) {
	t.Helper()
	if _, err := w.store.Put(t.Context(), layout.RollupPlan(hour0, 1, gen), planBody(gen), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

func calmWorld() *sim {
	w := &sim{rng: rand.New(rand.NewPCG(1, 1)), store: objmem.New(nil), refs: refmem.New(), clock: &simClock{hour0.End()}, txns: map[string]string{}, calm: true}
	w.parsed = map[string]*catalog.Record{}
	w.policy = testPolicy
	w.initEpoch(false)
	return w
}

// crashPublication: every generation shares x with the first one.
func crashPublication(gen, supersedes uint64) publish.Publication {
	if gen == 1 {
		return publication(1, 0, "x", "y")
	}
	return publication(gen, supersedes, "x", "z")
}

func (w *sim) mustPublish(t *testing.T, gen, supersedes uint64) {
	t.Helper()
	w.plan(t, gen)
	res, err := (&port{w: w, name: "calm"}).publisher().Publish(context.Background(), crashPublication(gen, supersedes))
	if err != nil {
		t.Fatalf("generation %d: %v", gen, err)
	}
	w.checkAnswer(res.Block.Name.Key(), res.Block.TransactionID, res, nil)
}

// A publisher that dies, or is told "unknown", at any request: whoever takes up the
// generation publishes it, or the next one when a collection came in between.
func TestPublisherCrashesAtEveryRequest(t *testing.T) {
	cases := 0
	for how := range fates {
		for _, collected := range []bool{false, true} {
			for at := 1; ; at++ {
				w := calmWorld()
				w.mustPublish(t, 1, 0)
				w.plan(t, 2)
				name := fmt.Sprintf("fate %d at request %d, collected in between: %t", how, at, collected)
				reached := w.survive(at, how, func(p *port) {
					_, err := p.publisher().Publish(context.Background(), crashPublication(2, 1))
					if err != nil && !errors.Is(err, publish.ErrUndecided) && !errors.Is(err, objstore.ErrUnknown) && !errors.Is(err, objstore.ErrUnavailable) && !errors.Is(err, publish.ErrRefsUnknown) {
						t.Errorf("%s: %v", name, err)
					}
				})
				if !reached {
					break
				}
				cases++
				if collected {
					w.endCollections(t)
				}
				w.plan(t, 3)
				p := (&port{w: w, name: "heir"}).publisher()
				res, err := p.Publish(context.Background(), crashPublication(2, 1))
				if errors.Is(err, publish.ErrAborted) {
					res, err = p.Publish(context.Background(), crashPublication(3, 1))
				}
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				w.checkAnswer(res.Block.Name.Key(), res.Block.TransactionID, res, nil)
				w.end(t, name)
			}
		}
	}
	t.Logf("%d cases", cases)
	if cases < 150 {
		t.Errorf("only %d cases", cases)
	}
}

// A collector that dies, or is told "unknown", at any request of a sweep and of a step.
func TestCollectorCrashesAtEveryRequest(t *testing.T) {
	cases := 0
	for how := range fates {
		for at := 1; ; at++ {
			w := calmWorld()
			w.mustPublish(t, 1, 0)
			w.mustPublish(t, 2, 1)
			w.plan(t, 3)
			// A transaction that got to its references, and never to its manifest.
			w.half(&port{w: w, name: "half"})
			w.clock.now = w.clock.now.Add(time.Hour)
			reached := w.survive(at, how, func(p *port) {
				c := p.collector()
				_, err := c.Sweep(context.Background(), hour0)
				w.clock.now = w.clock.now.Add(time.Hour)
				_, err2 := c.Step(context.Background(), 100)
				_ = errors.Join(err, err2) // what was not done is done by the next one
			})
			if !reached {
				break
			}
			cases++
			w.mustPublishNext(t)
			w.end(t, fmt.Sprintf("fate %d at request %d", how, at))
		}
	}
	t.Logf("%d cases", cases)
	if cases < 150 {
		t.Errorf("only %d cases", cases)
	}
}

// half publishes generation 3 up to its references.
func (w *sim) half(p *port) {
	c := p.config()
	c.Store = noManifest{p}
	x, err := publish.NewPublisher(c)
	if err != nil {
		panic(err)
	}
	if _, err := x.Publish(context.Background(), publication(3, 2, "y", "q")); !errors.Is(err, objstore.ErrDenied) {
		panic(err)
	}
}

// noManifest refuses to create manifests.
type noManifest struct{ *port }

func (s noManifest) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if _, err := layout.ParseBlockManifest(key); err == nil {
		return objstore.Info{}, objstore.ErrDenied
	}
	return s.port.Create(ctx, key, body, o)
}

// mustPublishNext publishes generation 3, or 4 when 3 is aborted.
func (w *sim) mustPublishNext(t *testing.T) {
	t.Helper()
	p := (&port{w: w, name: "heir"}).publisher()
	_, err := p.Publish(context.Background(), publication(3, 2, "y", "q"))
	if errors.Is(err, publish.ErrAborted) {
		w.mustPublish(t, 4, 2)
	} else if err != nil {
		t.Fatal(err)
	}
}

func (w *sim) endCollections(t *testing.T) {
	t.Helper()
	c := (&port{w: w, name: "calm"}).collector()
	for range 3 {
		if _, err := c.Sweep(t.Context(), hour0); err != nil {
			t.Fatal(err)
		}
		w.clock.now = w.clock.now.Add(time.Hour)
		if _, err := c.Step(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *sim) end(t *testing.T, name string) {
	t.Helper()
	w.finish()
	for _, v := range w.violations {
		t.Errorf("%s: %s", name, v)
	}
	if s := w.record(layout.BlockManifest(hour0, 1, timegrid.Raw, 1)); s == nil || s.Removed == nil {
		t.Errorf("%s: generation 1 is not removed", name)
	}
	if t.Failed() {
		t.FailNow()
	}
}
