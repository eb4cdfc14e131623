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
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish/refstest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// forget calls Forget, with room for so many condemned records.
func (w *world) forget(room int) publish.Forgotten {
	w.t.Helper()
	cfg := w.config()
	cfg.Policy.Condemned = room
	c, err := publish.NewCollector(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := c.Forget(w.t.Context(), &w.ids)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// superseded publishes two generations without a common object, and collects the first one's four.
func (w *world) superseded() {
	w.t.Helper()
	for gen := uint64(1); gen <= 2; gen++ {
		if w.t.Failed() {
			return
		}
		if _, err := w.store.Put(w.t.Context(), layout.RollupPlan(hour0, 1, gen), planBody(gen), objstore.PutOptions{}); err != nil {
			w.t.Fatal(err)
		}
		if _, err := w.publisher().Publish(w.t.Context(), publication(gen, gen-1, fmt.Sprint("a", gen), fmt.Sprint("b", gen))); err != nil {
			w.t.Fatal(err)
		}
	}
	w.collect()
}

// Condemned records stay until there are many and the next era has begun, and then go; live ones stay.
func TestCondemnedRecordsAreForgotten(t *testing.T) {
	w := newWorld(t)
	w.superseded()
	if r := w.forget(5); r != (publish.Forgotten{Records: 8, Condemned: 4}) {
		t.Errorf("with room: %+v", r)
	}
	if r := w.forget(4); r != (publish.Forgotten{Records: 8, Condemned: 4, Era: 1, Began: true}) {
		t.Errorf("without room: %+v", r)
	}
	if r := w.forget(4); r != (publish.Forgotten{Records: 4, Dropped: 4, Era: 1}) {
		t.Errorf("in the next era: %+v", r)
	}
	recs, _, err := w.refs.List(t.Context(), "", 1000)
	if err != nil || len(recs) != 4 {
		t.Fatalf("%v, %v", recs, err)
	}
	for _, rec := range recs {
		if rec.Condemned || len(rec.Txns) != 1 {
			t.Errorf("%s", rec)
		}
	}
	// What is published in this era has keys of its own, but for objects that are there. All of it is collected as ever.
	if _, err := w.store.Put(t.Context(), layout.RollupPlan(hour0, 1, 3), planBody(3), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	res, err := w.publisher().Publish(t.Context(), publication(3, 2, "a1", "a2"))
	if err != nil {
		t.Fatal(err)
	}
	first := publish.Epoch{Era: 1}.FirstGeneration()
	for i, want := range []uint32{first, first, 0, 0} { // a1, which was condemned, and a2 of the block before
		if o, err := layout.ParseRollupObject(res.Block.Keys()[i]); err != nil || o.Generation != want {
			t.Errorf("%q, want generation %d", res.Block.Keys()[i], want)
		}
	}
	w.collect()
	if r := w.forget(2); r.Condemned != 2 || !r.Began || r.Era != 2 {
		t.Errorf("%+v", r)
	}
	if r := w.forget(2); r != (publish.Forgotten{Records: 4, Dropped: 2, Era: 2}) {
		t.Errorf("%+v", r)
	}
}

// A publisher has found or made its objects when they are condemned, deleted and forgotten: it is told that its era is
// over, and makes them again.
func TestPublisherThatSleptThroughAnEra(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	slept := w.config()
	refs := &sleeping{Refs: w.refs, before: func() {
		// The transaction has a plan, and no references yet: its objects look like those of a crash.
		w.collect()
		if r := w.forget(1); r.Condemned != 4 || !r.Began {
			t.Errorf("%+v", r)
		}
		if r := w.forget(1); r.Dropped != 4 || r.Records != 0 {
			t.Errorf("%+v", r)
		}
	}}
	slept.Refs = refs
	p, err := publish.NewPublisher(slept)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.Publish(t.Context(), publication(1, 0, "x", "y"))
	if err != nil || refs.adds != 2 {
		t.Fatalf("%d adds, %v", refs.adds, err)
	}
	for _, key := range res.Block.Keys() {
		if _, err := w.store.Head(t.Context(), key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// sleeping calls before ahead of the first Add.
type sleeping struct {
	publish.Refs
	before func()
	adds   int
}

func (s *sleeping) Add(ctx context.Context, epoch string, add ...publish.Addition) error {
	if s.adds++; s.adds == 1 {
		s.before()
	}
	return s.Refs.Add(ctx, epoch, add...)
}

// An object that the block before names, of an earlier era, is damaged: its next generation is one of this era, since
// those of the earlier one may be forgotten, with a delete still under way.
func TestKeysOfEarlierErasAreNotMadeAgain(t *testing.T) {
	w := newWorld(t)
	w.superseded()
	w.forget(1)
	damaged := layout.RollupChunk(timegrid.Raw, hour0, "up", sum([]byte("chunk a2")), 0)
	if _, err := w.store.Put(t.Context(), damaged, []byte("rotten"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Put(t.Context(), layout.RollupPlan(hour0, 1, 3), planBody(3), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	res, err := w.publisher().Publish(t.Context(), publication(3, 2, "a2"))
	if err != nil {
		t.Fatal(err)
	}
	if o, err := layout.ParseRollupObject(res.Block.Objects[0].ChunkKey); err != nil || o.Generation != (publish.Epoch{Era: 1}).FirstGeneration() {
		t.Errorf("%q, %v", res.Block.Objects[0].ChunkKey, err)
	}
}

// A delete of an earlier era takes effect when the object was made again: it has another key by then.
func TestLateDeleteOfAnEarlierEra(t *testing.T) {
	w := newWorld(t)
	late := fault.New(w.store, 1, fault.Delayed("delete", layout.RollupPrefix+"window="))
	w.superseded()
	gone := layout.RollupChunk(timegrid.Raw, hour0, "up", sum([]byte("chunk a1")), 0)
	if err := late.Delete(t.Context(), gone); !errors.Is(err, objstore.ErrUnknown) {
		t.Fatal(err)
	}
	w.forget(1)
	if r := w.forget(1); r.Dropped != 4 {
		t.Fatalf("%+v", r)
	}
	if _, err := w.store.Put(t.Context(), layout.RollupPlan(hour0, 1, 3), planBody(3), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	res, err := w.publisher().Publish(t.Context(), publication(3, 2, "a1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range late.Delayed() {
		if err := late.Release(t.Context(), d.ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range res.Block.Keys() {
		if _, err := w.store.Head(t.Context(), key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// Forget dies, or is told "unknown", at any of its requests: the next one goes on, and nothing that lives is dropped.
func TestForgetCrashesAtEveryRequest(t *testing.T) {
	cases := 0
	for how := range fates {
		for at := 1; ; at++ {
			w := calmWorld()
			w.policy.Condemned = 1
			w.mustPublish(t, 1, 0)
			w.mustPublish(t, 2, 1)
			w.endCollections(t)
			reached := w.survive(at, how, func(p *port) {
				c := p.collector()
				_, err := c.Forget(context.Background(), &w.ids)
				_, err2 := c.Forget(context.Background(), &w.ids)
				_ = errors.Join(err, err2) // what was not done is done by the next one
			})
			if !reached {
				break
			}
			cases++
			w.mustPublish(t, 3, 2)
			w.end(t, fmt.Sprintf("fate %d at request %d", how, at))
			recs, _, err := w.refs.List(t.Context(), "", 1000)
			if err != nil || slices.ContainsFunc(recs, func(r publish.Record) bool { return r.Condemned }) || len(recs) == 0 {
				t.Fatalf("fate %d at request %d: %v, %v", how, at, recs, err)
			}
		}
	}
	t.Logf("%d cases", cases)
	if cases < 30 {
		t.Errorf("only %d cases", cases)
	}
}

// After its last era comes the next epoch.
func TestErasOfAnEpochEnd(t *testing.T) {
	w := newWorld(t)
	f, err := w.refs.Epoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := f
	last.Era = publish.MaxEras - 1
	if err := w.refs.InitEpoch(t.Context(), &f, last); err != nil {
		t.Fatal(err)
	}
	w.superseded()
	if r := w.forget(1); !r.Began || r.Era != 0 || r.Condemned != 4 {
		t.Errorf("%+v", r)
	}
	if f, err := w.refs.Epoch(t.Context()); err != nil || f.Number != 1 || f.Era != 0 || !f.Decided {
		t.Errorf("%+v, %v", f, err)
	}
	if r := w.forget(1); r.Dropped != 4 || r.Condemned != 0 {
		t.Errorf("%+v", r)
	}
}

// What it costs: a page of records, and a request for each 99 that go.
func TestRequestsOfForget(t *testing.T) {
	w := newWorld(t)
	w.superseded()
	w.forget(1)
	refs := refstest.Counted{Refs: w.refs, Calls: map[string]int{}}
	cfg := w.config()
	cfg.Refs = refs
	c, err := publish.NewCollector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.clock.now = w.clock.now.Add(time.Hour)
	if r, err := c.Forget(t.Context(), &w.ids); err != nil || r.Dropped != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	if refs.Calls["list"] != 1 || refs.Calls["delete"] != 1 || refs.Calls["epoch"] != 1 || len(refs.Calls) != 3 {
		t.Errorf("%v", refs.Calls)
	}
}
