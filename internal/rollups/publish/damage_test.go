package publish_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

func (w *world) publish(pub publish.Publication) (publish.Result, error) {
	putPlan(w.t.(*testing.T), w.store, pub.Name.Generation)
	return w.publisher().Publish(w.t.Context(), pub)
}

func (w *world) mustPublish(pub publish.Publication) *catalog.Block {
	w.t.Helper()
	res, err := w.publish(pub)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.Block
}

func (w *world) put(key string, body []byte) {
	w.t.Helper()
	if _, err := w.store.Put(w.t.Context(), key, body, objstore.PutOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) there(key string) bool {
	_, err := w.store.Head(w.t.Context(), key)
	return err == nil
}

// A record that can't be read is passed over by a generation that an operator ordered in
// its place, and by no other; order and fences below it stay. Then nobody reads it, and
// what only it named is collected.
func TestADamagedRecordIsSuperseded(t *testing.T) {
	w := newWorld(t)
	first := w.mustPublish(publication(1, 0, "x"))
	damaged := w.mustPublish(publication(2, 1, "x", "y"))
	w.put(damaged.Name.Key(), []byte("{}"))
	next := publication(3, 1, "x", "z")
	if _, err := w.publish(next); !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("without an order: %v", err)
	}
	next.Damaged = []string{first.Name.Key()}
	if _, err := w.publish(next); !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("ordered for another: %v", err)
	}
	next.Damaged = []string{damaged.Name.Key()}
	late := next
	late.Fence = first.Fence - 1
	if _, err := w.publish(late); !errors.Is(err, publish.ErrFenced) {
		t.Fatalf("a fence below that of the one before: %v", err)
	}
	late = next
	late.Supersedes = 0
	if _, err := w.publish(late); !errors.Is(err, publish.ErrGap) {
		t.Fatalf("generation 1 is committed: %v", err)
	}
	w.collect() // nothing goes while the damaged one counts
	for _, key := range damaged.Keys() {
		if !w.there(key) {
			t.Errorf("%s is gone before anything took its place", key)
		}
	}
	block := w.mustPublish(next)
	c, err := catalog.New(catalog.Config{Reader: w.store, AuthorityID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Refresh(t.Context(), hour0, hour0)
	if err != nil || v.Block(hour0, 1, timegrid.Raw).Name != block.Name || len(v.Problems(hour0)) != 0 {
		t.Errorf("%+v, %v, %v", v.Block(hour0, 1, timegrid.Raw), v.Problems(hour0), err)
	}
	w.collect()
	for _, key := range block.Keys() {
		if !w.there(key) {
			t.Errorf("%s is gone", key)
		}
	}
	for _, key := range damaged.Keys() {
		if w.there(key) != block.Names(key) {
			t.Errorf("%s: there %v", key, w.there(key))
		}
	}
	if !w.there(damaged.Name.Key()) {
		t.Error("the damaged record is gone")
	}
	if next := w.mustPublish(publication(4, 3, "x")); next.Supersedes != 3 {
		t.Errorf("%+v", next)
	}
}

// A store keeps the checksum that an object was written with, whatever its bytes are now.
// A generation that replaces a damaged one reads what is there and continues to the next.
func TestVerifyReadsWhatIsThere(t *testing.T) {
	w := newWorld(t)
	block := w.mustPublish(publication(1, 0, "x"))
	bad := block.Objects[0].ChunkKey
	cfg := w.config()
	cfg.Store = fault.New(w.store, 1, fault.Refused("get", bad, objstore.ErrChecksum))
	p, err := publish.NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	putPlan(t, w.store, 2)
	pub := publication(2, 1, "x")
	pub.Verify = true
	res, err := p.Publish(t.Context(), pub)
	if err != nil {
		t.Fatal(err)
	}
	if o := res.Block.Objects[0]; o.ChunkKey == bad || o.ChunkSHA256 != block.Objects[0].ChunkSHA256 || o.IndexKey != block.Objects[0].IndexKey {
		t.Errorf("%+v", o)
	}
	if b, _, err := w.store.Get(t.Context(), res.Block.Objects[0].ChunkKey, objstore.GetOptions{}); err != nil || string(b) != "chunk x" {
		t.Errorf("%q, %v", b, err)
	}
}

// restore puts an older copy of the metadata store back.
func (w *world) restore(copied []publish.Record) {
	w.t.Helper()
	f, err := w.refs.Epoch(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.refs = newRefs()
	if err := w.refs.InitEpoch(w.t.Context(), nil, f); err != nil {
		w.t.Fatal(err)
	}
	for _, r := range copied {
		if err := w.refs.Swap(w.t.Context(), f.ID, publish.Record{Key: r.Key}, r); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) records() []publish.Record {
	w.t.Helper()
	rs, next, err := w.refs.List(w.t.Context(), "", 1000)
	if err != nil || next != "" {
		w.t.Fatal(next, err)
	}
	return rs
}

// A metadata store that was restored from an older copy gives itself away at the next
// generation of what it does not know: nothing is published and nothing deleted until the
// reference sets get a new epoch, which the collector then does without an order.
func TestAnOlderCopyOfTheReferencesIsNoticed(t *testing.T) {
	w := newWorld(t)
	copied := w.records()
	block := w.mustPublish(publication(1, 0, "x"))
	w.restore(copied)
	if _, err := w.publish(publication(2, 1, "x", "y")); !errors.Is(err, publish.ErrRefsStale) || !errors.Is(err, publish.ErrEpochMismatch) {
		t.Fatalf("published over an older copy: %v", err)
	}
	c := w.collector()
	f, err := c.InitEpoch(t.Context(), &w.ids, false)
	if err != nil || f.Number != 0 {
		t.Fatalf("%+v, %v: it looks intact", f, err)
	}
	if _, err := c.Step(t.Context(), 10); !errors.Is(err, publish.ErrRefsStale) {
		t.Fatalf("collected over an older copy: %v", err)
	}
	if f, err = c.InitEpoch(t.Context(), &w.ids, false); err != nil || f.Number != 1 || !f.Decided {
		t.Fatalf("%+v, %v", f, err)
	}
	if _, err := w.publish(publication(2, 1, "x", "y")); !errors.Is(err, publish.ErrAborted) {
		t.Fatalf("what was under way is aborted: %v", err)
	}
	next := w.mustPublish(publication(3, 1, "x", "y"))
	w.clock.now = w.clock.now.Add(time.Hour)
	if _, err := c.Step(t.Context(), 10); err != nil {
		t.Error(err)
	}
	if f, err := c.InitEpoch(t.Context(), &w.ids, false); err != nil || f.Number != 1 {
		t.Errorf("begun once more: %+v, %v", f, err)
	}
	w.collect()
	for _, key := range next.Keys() {
		if !w.there(key) {
			t.Errorf("%s is gone", key)
		}
	}
	for _, key := range block.Keys() {
		if w.there(key) {
			t.Errorf("%s of the superseded block is left", key)
		}
	}
}

// References finds what the reference sets lack, and puts it there.
func TestReferencesAreMadeAgain(t *testing.T) {
	w := newWorld(t)
	w.mustPublish(publication(1, 0, "x"))
	copied := w.records()
	block := w.mustPublish(publication(2, 1, "x", "y"))
	look := func(add bool, want publish.References) {
		t.Helper()
		got, err := w.collector().References(t.Context(), add, nil)
		if want.Unreadable == nil {
			want.Unreadable = []string{}
		}
		if err != nil || got.Blocks != want.Blocks || got.Objects != want.Objects || got.Missing != want.Missing || got.Condemned != want.Condemned || !slices.Equal(got.Unreadable, want.Unreadable) {
			t.Fatalf("%+v, %v, want %+v", got, err, want)
		}
	}
	whole := publish.References{Blocks: 2, Objects: 6}
	look(false, whole)
	w.restore(copied)
	lacking := whole
	lacking.Missing = 4
	look(false, lacking)
	if _, err := w.collector().InitEpoch(t.Context(), &w.ids, true); err != nil {
		t.Fatal(err)
	}
	look(true, lacking)
	look(false, whole)
	w.refs = newRefs()
	if _, err := w.collector().References(t.Context(), false, nil); !errors.Is(err, publish.ErrEpochMismatch) {
		t.Errorf("without a epoch: %v", err)
	}
	if _, err := w.collector().InitEpoch(t.Context(), &w.ids, false); err != nil {
		t.Fatal(err)
	}
	f, _ := w.refs.Epoch(t.Context())
	gone := block.Objects[1].ChunkKey
	if err := w.refs.Swap(t.Context(), f.ID, publish.Record{Key: gone}, publish.Record{Key: gone, Condemned: true}); err != nil {
		t.Fatal(err)
	}
	w.put(layout.BlockManifest(hour0, 1, timegrid.Raw, 1), []byte("{"))
	look(true, publish.References{Blocks: 1, Objects: 4, Missing: 3, Condemned: 1, Unreadable: []string{layout.BlockManifest(hour0, 1, timegrid.Raw, 1)}})
	look(true, publish.References{Blocks: 1, Objects: 4, Condemned: 1, Unreadable: []string{layout.BlockManifest(hour0, 1, timegrid.Raw, 1)}})
}
