package publish_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

func TestPublishAndSupersede(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	if _, err := p.Publish(t.Context(), publication(1, 0, "x", "y")); !errors.Is(err, publish.ErrNoPlan) {
		t.Fatalf("without a plan: %v", err)
	}
	putPlan(t, w.store, 1)
	if _, err := p.Publish(t.Context(), publication(2, 1, "x")); !errors.Is(err, publish.ErrGap) {
		t.Fatalf("generation 2 before 1: %v", err)
	}
	res, err := p.Publish(t.Context(), publication(1, 0, "x", "y"))
	if err != nil || !res.Created {
		t.Fatal(res, err)
	}
	again, err := p.Publish(t.Context(), publication(1, 0, "x", "y"))
	if err != nil || again.Created || again.Block.TransactionID != res.Block.TransactionID {
		t.Fatal(again, err)
	}
	if o, _ := w.store.Options(res.Block.Objects[0].ChunkKey); o.Tags["status"] != "committed" {
		t.Errorf("tags %v", o.Tags)
	}

	// A later generation shares the chunk x.
	putPlan(t, w.store, 2)
	late := publication(2, 1, "x", "z")
	late.Fence = 6
	if _, err := p.Publish(t.Context(), late); !errors.Is(err, publish.ErrFenced) {
		t.Fatalf("under an older fence: %v", err)
	}
	late.Fence = 8
	if res, err := p.Publish(t.Context(), late); err != nil || !res.Created {
		t.Fatal(res, err)
	}
	w.collect()
	left := append(keys(t, w.store, "rollup/v1/window="), keys(t, w.store, layout.IndexPrefix)...)
	if len(left) != 4 {
		t.Errorf("left: %q", left)
	}
	c, err := catalog.New(catalog.Config{Reader: w.store, AuthorityID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Refresh(t.Context(), hour0-5, hour0+5)
	if err != nil {
		t.Fatal(err)
	}
	s := v.Block(hour0, 1, timegrid.Raw)
	if s == nil || s.Name.Generation != 2 || v.Top(hour0, 1, timegrid.Raw) != 2 {
		t.Fatalf("%+v", s)
	}
	for _, k := range s.Keys() {
		if !slices.Contains(left, k) {
			t.Errorf("%s is missing", k)
		}
	}
	if q := keys(t, w.store, layout.DelayedPrefix); len(q) != 0 {
		t.Errorf("still on the queue: %q", q)
	}
}

func TestAbortedGenerationIsPassedOver(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	putPlan(t, w.store, 1)
	putPlan(t, w.store, 2)
	pub := publication(1, 0, "x")
	if r, err := p.Abort(t.Context(), pub.Name, "test"); err != nil || r.Aborted == nil {
		t.Fatal(r, err)
	}
	if _, err := p.Publish(t.Context(), pub); !errors.Is(err, publish.ErrAborted) {
		t.Fatal(err)
	}
	if _, err := p.Publish(t.Context(), publication(2, 1, "x")); !errors.Is(err, publish.ErrGap) {
		t.Fatalf("superseding an aborted one: %v", err)
	}
	if res, err := p.Publish(t.Context(), publication(2, 0, "x")); err != nil || !res.Created {
		t.Fatal(res, err)
	}
	other := publication(2, 0, "x")
	other.PlanSHA256[0]++
	if _, err := p.Publish(t.Context(), other); !errors.Is(err, publish.ErrConflict) {
		t.Fatal(err)
	}
}

// What a create does not say, the key does: a set that was committed first, or nothing, which is
// no answer.
func TestAbortGivesWhatDecided(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	res, err := w.publisher().Publish(t.Context(), publication(1, 0, "x"))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.publisher().Abort(t.Context(), res.Block.Name, "late"); err != nil || r.Aborted != nil || r.Block == nil || r.Block.TransactionID != res.Block.TransactionID {
		t.Errorf("of a committed generation: %+v, %v", r, err)
	}
	cfg := w.config()
	cfg.Store = fault.New(w.store, 1, fault.NotApplied("create", layout.ManifestsPrefix))
	p, err := publish.NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	next := res.Block.Name
	next.Generation++
	if r, err := p.Abort(t.Context(), next, "lost"); err == nil {
		t.Errorf("a record that was not written aborts: %+v", r)
	}
}

func TestOrphansAreCollectedAndCondemnedForGood(t *testing.T) {
	w := newWorld(t)
	pub := publication(1, 0, "x")
	o := pub.Outputs[0]
	key := layout.RollupChunk(timegrid.Raw, hour0, o.Metric, sum(load(o.Chunk)), 0)
	if _, err := w.store.Create(t.Context(), key, load(o.Chunk), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	w.collect()
	if left := keys(t, w.store, "rollup/v1/window="); len(left) != 0 {
		t.Fatalf("left: %q", left)
	}
	putPlan(t, w.store, 1)
	res, err := w.publisher().Publish(t.Context(), pub)
	if err != nil {
		t.Fatal(err)
	}
	if want := layout.RollupChunk(timegrid.Raw, hour0, o.Metric, sum(load(o.Chunk)), 1); res.Block.Objects[0].ChunkKey != want {
		t.Errorf("%s, want %s", res.Block.Objects[0].ChunkKey, want)
	}
	w.collect()
	// The condemned generation was written again before its record was seen.
	if left := keys(t, w.store, "rollup/v1/window="); len(left) != 1 || left[0] != res.Block.Objects[0].ChunkKey {
		t.Errorf("left: %q", left)
	}
}

// A metadata store that lost its content, or is another's, stops everything until it is
// in a new epoch; then transactions under way can't commit, and nothing that is published goes.
func TestLostReferences(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	if _, err := w.publisher().Publish(t.Context(), publication(1, 0, "x")); err != nil {
		t.Fatal(err)
	}
	putPlan(t, w.store, 2) // under way when the sets are lost
	w.refs = newRefs()
	if _, err := w.publisher().Publish(t.Context(), publication(2, 1, "x", "y")); !errors.Is(err, publish.ErrEpochMismatch) {
		t.Fatal(err)
	}
	c := w.collector()
	if _, err := c.Sweep(t.Context(), hour0); err != nil {
		t.Fatal(err)
	}
	w.clock.now = w.clock.now.Add(time.Hour)
	if err := w.store.Delete(t.Context(), "nothing"); err != nil {
		t.Fatal(err)
	}
	orphan := layout.RollupIndex(hour0, sum([]byte("o")), 0)
	if _, err := w.store.Create(t.Context(), orphan, []byte("o"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sweep(t.Context(), hour0); err != nil {
		t.Fatal(err)
	}
	w.clock.now = w.clock.now.Add(time.Hour)
	if _, err := c.Step(t.Context(), 10); !errors.Is(err, publish.ErrEpochMismatch) {
		t.Fatal(err)
	}
	f, err := c.InitEpoch(t.Context(), &w.ids, false)
	if err != nil || !f.Decided || f.Number != 1 {
		t.Fatal(f, err)
	}
	if _, err := w.publisher().Publish(t.Context(), publication(2, 1, "x", "y")); !errors.Is(err, publish.ErrAborted) {
		t.Fatal(err)
	}
	putPlan(t, w.store, 3)
	res, err := w.publisher().Publish(t.Context(), publication(3, 1, "x", "y"))
	if err != nil {
		t.Fatal(err)
	}
	w.collect()
	left := append(keys(t, w.store, "rollup/v1/window="), keys(t, w.store, layout.IndexPrefix)...)
	want := res.Block.Keys()
	slices.Sort(left)
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}

// Every hour that has anything has its turn, in order, foreign keys notwithstanding.
func TestSweepGoesThroughAllHours(t *testing.T) {
	w := newWorld(t)
	body := []byte("o")
	for _, key := range []string{
		layout.RollupIndex(hour0+1, sum(body), 0), layout.RollupChunk(timegrid.OneHour, hour0+3, "up", sum(body), 0), layout.RollupChunk(timegrid.Raw, hour0+1, "up", sum(body), 0),
		layout.ManifestsPrefix + "x", layout.IndexPrefix + "date=2026-10-24/hour=00/foreign", layout.RollupIndex(hour0+100, sum(body), 2),
	} {
		if _, err := w.store.Create(t.Context(), key, body, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c := w.collector()
	var hours []timegrid.Hour
	queued := 0
	for h := timegrid.Hour(0); ; {
		next, found, err := c.NextHour(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		if !found {
			break
		}
		n, err := c.Sweep(t.Context(), next)
		if err != nil {
			t.Fatal(err)
		}
		hours, h, queued = append(hours, next), next, queued+n
	}
	if !slices.Equal(hours, []timegrid.Hour{hour0 + 1, hour0 + 3, hour0 + 100}) || queued != 4 {
		t.Errorf("%v, %d keys", hours, queued)
	}
}
