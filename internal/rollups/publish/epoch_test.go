package publish_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish/refstest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// A epoch whose transactions under way are not decided yet lets publish, and nothing delete.
func TestNothingIsDeletedBeforeOlderEpochsAreDecided(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	half := w.config()
	denied := fault.New(w.store, 1, fault.Refused("create", layout.ManifestsPrefix, objstore.ErrDenied))
	half.Store = denied
	p, err := publish.NewPublisher(half)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(t.Context(), publication(1, 0, "x")); !errors.Is(err, objstore.ErrDenied) {
		t.Fatal(err)
	}
	w.refs = newRefs()
	// The founder gets no further than to the plans.
	stuck := w.config()
	stuck.Store = fault.New(w.store, 1, fault.NotApplied("list", layout.PlansPrefix))
	c, err := publish.NewCollector(stuck)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := c.InitEpoch(t.Context(), &w.ids, false); err == nil || f.Decided {
		t.Fatal(f, err)
	}
	c = w.collector()
	w.clock.now = w.clock.now.Add(time.Hour)
	if _, err := c.Step(t.Context(), 10); !errors.Is(err, publish.ErrEpochOpen) {
		t.Errorf("a step before it is decided: %v", err)
	}
	// The transaction that was under way may still commit, and finds its objects.
	res, err := w.publisher().Publish(t.Context(), publication(1, 0, "x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range res.Block.Keys() {
		if _, err := w.store.Head(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	if f, err := c.InitEpoch(t.Context(), &w.ids, false); err != nil || !f.Decided || f.Number != 1 {
		t.Errorf("%+v, %v", f, err)
	}
	w.collect()
	if left := keys(t, w.store, layout.IndexPrefix); len(left) != 1 {
		t.Errorf("left: %q", left)
	}
}

// A delete that was sent under the former epoch, whose records are lost, lands after
// the same bytes were published again: it hits a key that nobody uses.
func TestLateDeleteMeetsNoNewObject(t *testing.T) {
	w := newWorld(t)
	pub := publication(1, 0, "x")
	key := layout.RollupChunk(timegrid.Raw, hour0, "up", sum(load(pub.Outputs[0].Chunk)), 0)
	if _, err := w.store.Create(t.Context(), key, load(pub.Outputs[0].Chunk), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	late := fault.New(w.store, 1, fault.Delayed("delete", layout.RollupPrefix).Once())
	cfg := w.config()
	cfg.Store = late
	c, err := publish.NewCollector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sweep(t.Context(), hour0); err != nil {
		t.Fatal(err)
	}
	w.clock.now = w.clock.now.Add(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := c.Step(ctx, 10); err != nil {
		t.Fatal(err)
	}
	if len(late.Delayed()) != 1 {
		t.Fatal("no delete is under way")
	}
	w.refs = newRefs()
	if _, err := w.collector().InitEpoch(t.Context(), &w.ids, false); err != nil {
		t.Fatal(err)
	}
	putPlan(t, w.store, 1)
	res, err := w.publisher().Publish(t.Context(), pub)
	if err != nil {
		t.Fatal(err)
	}
	if err := late.Release(t.Context(), late.Delayed()[0].ID); err != nil {
		t.Fatal(err)
	}
	for _, key := range res.Block.Keys() {
		if _, err := w.store.Head(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
}

// TestEpochIsAskedOnce: a publisher asks the metadata store for its epoch once. When that store loses its content, or is
// another epoch's, references are refused all the same, and the call after that writes nothing.
func TestEpochIsAskedOnce(t *testing.T) {
	w := newWorld(t)
	refs := refstest.Counted{Refs: w.refs, Calls: map[string]int{}}
	c := w.config()
	c.Refs = &refs
	p, err := publish.NewPublisher(c)
	if err != nil {
		t.Fatal(err)
	}
	for gen := range uint64(3) {
		putPlan(t, w.store, gen+1)
		if _, err := p.Publish(t.Context(), publication(gen+1, gen, "x")); err != nil {
			t.Fatal(err)
		}
	}
	if refs.Calls["epoch"] != 1 || refs.Calls["add"] != 3 {
		t.Errorf("%v", refs.Calls)
	}
	refs.Refs = newRefs() // it has lost everything, and the object store does not show it
	for try, text := range []string{"y", "z"} {
		late := publication(1, 0, text)
		late.Name.Hour++
		if _, err := w.store.Put(t.Context(), layout.RollupPlan(late.Name.Hour, late.Name.Shard, 1), planBody(1), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Publish(t.Context(), late); !errors.Is(err, publish.ErrEpochMismatch) {
			t.Fatal(try, err)
		}
		if n := len(keys(t, w.store, layout.IndexPrefix)); n != 2 { // of x and, before it was known, of y
			t.Errorf("try %d: %d indexes", try, n)
		}
	}
	if n := len(keys(t, w.store, layout.ManifestsPrefix)); n != 3 {
		t.Errorf("%d manifests", n)
	}
	// The object store moves on, and the metadata store is restored from a copy of before.
	restored := w.refs
	w.refs = newRefs()
	if _, err := w.collector().InitEpoch(t.Context(), &w.ids, false); err != nil {
		t.Fatal(err)
	}
	refs.Refs = restored
	putPlan(t, w.store, 4)
	if _, err := p.Publish(t.Context(), publication(4, 3, "x")); !errors.Is(err, publish.ErrEpochMismatch) {
		t.Error(err)
	}
}
