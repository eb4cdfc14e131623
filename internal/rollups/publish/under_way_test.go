package publish_test

import (
	"context"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// compaction of one block, with its plan in the store.
func (w *world) compaction(source catalog.Name) publish.Publication {
	w.t.Helper()
	body := []byte("compaction plan")
	p := publication(1, 0, "y")
	p.Name.Span, p.PlanSHA256 = 2, identity.Sum(body)
	p.Inputs, p.Counts, p.Sources = catalog.Inputs{}, catalog.Counts{}, []catalog.Name{source}
	if _, err := w.store.Create(w.t.Context(), layout.BlockPlan(p.Name), body, objstore.PutOptions{}); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// The reference sets are lost while a compaction has all but its commit, and get
// a new epoch: its generation is decided before anything is deleted, so that it never commits and
// names what is gone.
func TestCompactionUnderWayWhenReferencesAreLost(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	source := publication(1, 0, "x")
	if _, err := w.publisher().Publish(t.Context(), source); err != nil {
		t.Fatal(err)
	}
	pub := w.compaction(source.Name)
	gate, done := make(chan struct{}), make(chan error, 1)
	held := fault.New(w.store, 1, fault.Rule{Op: "create", Prefix: layout.ManifestsPrefix, Kind: fault.Hold, Gate: gate})
	slow := w.config()
	slow.Store, slow.Clock = held, newClock()
	p, err := publish.NewPublisher(slow)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, err := p.Publish(context.Background(), pub); done <- err }()
	for held.Count("create", "manifests") == 0 {
		time.Sleep(time.Millisecond)
	}
	w.refs = newRefs()
	if f, err := w.collector().InitEpoch(t.Context(), &w.ids, false); err != nil || !f.Decided {
		t.Fatal(f, err)
	}
	w.collect()
	close(gate)
	err = <-done
	r, _, rerr := catalog.Read(t.Context(), w.store, "a", pub.Name.Key())
	if rerr != nil {
		t.Fatal(rerr)
	}
	if err == nil || r.Block != nil {
		t.Errorf("it is committed: %v", err)
	}
	if r.Block != nil {
		for _, key := range r.Block.Keys() {
			if _, err := w.store.Head(t.Context(), key); err != nil {
				t.Errorf("it names what is gone: %v", err)
			}
		}
	}
}

// A worker dies between the commit of a compaction and the turn of its source. Whoever
// looks meanwhile, when nothing redirects to the compaction yet, keeps it: the next worker
// turns the source.
func TestCompactionThatNothingPointsAtYet(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	source := publication(1, 0, "x")
	if _, err := w.publisher().Publish(t.Context(), source); err != nil {
		t.Fatal(err)
	}
	into := w.compaction(source.Name)
	if _, err := w.publisher().Publish(t.Context(), into); err != nil {
		t.Fatal(err)
	}
	if err := w.publisher().Release(t.Context(), into.Name); err != nil {
		t.Fatal(err)
	}
	w.collect()
	r, _, err := catalog.Read(t.Context(), w.store, "a", into.Name.Key())
	if err != nil || r.Block == nil {
		t.Fatalf("it is removed: %v", err)
	}
	if n, err := w.publisher().Compact(t.Context(), into.Name, source.Name); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	w.collect()
	for _, key := range r.Block.Keys() {
		if _, err := w.store.Head(t.Context(), key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}
