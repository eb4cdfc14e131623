package publish_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// meeting calls before the first replacement.
type meeting struct {
	publish.Store
	before func()
}

func (m *meeting) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	if f := m.before; f != nil {
		m.before = nil
		f()
	}
	return m.Store.Replace(ctx, key, body, etag, o)
}

// Another worker changes two of three sources after they were read: one is on its way to a shorter span and goes on to ours,
// the other is where it was to go. What each had is on the queue, once, before anything is changed.
func TestRedirectsThatOthersMeet(t *testing.T) {
	w := newWorld(t)
	into := catalog.Name{Hour: hour0, Resolution: timegrid.Raw, Span: 6, Generation: 1}
	shorter := catalog.Name{Hour: hour0, Resolution: timegrid.Raw, Span: 2, Generation: 1}
	var sources []catalog.Name
	had := map[string]bool{}
	for s := range shard.ID(3) {
		if _, err := w.store.Put(t.Context(), layout.RollupPlan(hour0, s, 1), planBody(1), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		p := publication(1, 0, "x", "of "+s.String())
		p.Name.Shard = s
		r, err := w.publisher().Publish(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range r.Block.Keys() {
			had[key] = true
		}
		sources = append(sources, p.Name)
	}
	other := w.publisher()
	c := w.config()
	queued := func() map[string]int {
		items, err := c.Queue.Due(t.Context(), w.clock.now.Add(time.Hour), 100)
		if err != nil {
			t.Fatal(err)
		}
		n := map[string]int{}
		for _, i := range items {
			for _, key := range i.Keys {
				n[key]++
			}
		}
		return n
	}
	c.Store = &meeting{c.Store, func() {
		first := queued()
		for key := range had {
			if first[key] != 1 {
				t.Errorf("%s is on the queue %d times before the first change", key, first[key])
			}
		}
		for to, src := range map[catalog.Name]catalog.Name{shorter: sources[1], into: sources[2]} {
			if n, err := other.Compact(t.Context(), to, src); err != nil || n != 1 {
				t.Error(n, err)
			}
		}
	}}
	p, err := publish.NewPublisher(c)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := p.Compact(t.Context(), into, sources...); err != nil || n != 2 {
		t.Errorf("%d were redirected, %v", n, err)
	}
	for _, src := range sources {
		r, _, err := catalog.Read(t.Context(), w.store, "a", src.Key())
		if err != nil || r.Block == nil || r.Block.Redirect == nil || r.Block.Redirect.Name != into {
			t.Errorf("%s: %+v, %v", src.Key(), r.Block, err)
		}
	}
	if queued()[shorter.Key()] != 1 {
		t.Error("the compaction that a source left is not on the queue")
	}
	// Again: there is nothing to do, and nothing is queued.
	before := len(keys(t, w.store, layout.DelayedPrefix))
	if n, err := p.Compact(t.Context(), into, sources...); err != nil || n != 0 || len(keys(t, w.store, layout.DelayedPrefix)) != before {
		t.Errorf("again: %d, %v", n, err)
	}
	missing := sources[0]
	missing.Shard = 3
	if _, err := p.Compact(t.Context(), into, missing); !errors.Is(err, publish.ErrGap) {
		t.Errorf("of nothing: %v", err)
	}
}

// Two items name the objects of a publication that may still commit, and one of them an orphan as well: the orphan goes, the
// others wait with both items, until the older one has waited long enough.
func TestItemsAreDecidedTogether(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	pub, orphan := publication(1, 0, "x"), layout.RollupIndex(hour0, sum([]byte("orphan")), 0)
	half := w.config()
	half.Store = fault.New(w.store, 1, fault.Refused("create", pub.Name.Key(), objstore.ErrDenied))
	p, err := publish.NewPublisher(half)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(t.Context(), pub); err == nil {
		t.Fatal("published")
	}
	if _, err := w.store.Create(t.Context(), orphan, []byte("orphan"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	undecided := keys(t, w.store, layout.RollupPrefix+"window=")
	c := w.config()
	due := func() []publish.Item {
		items, err := c.Queue.Due(t.Context(), w.clock.now.Add(24*time.Hour), 100)
		if err != nil {
			t.Fatal(err)
		}
		return items
	}
	// It came on the queue five minutes before the publication failed.
	now := w.clock.now.UnixMilli()
	if err := c.Queue.Push(t.Context(), publish.Item{Keys: append(undecided, orphan), Reason: "test", Since: now - 5*60_000, Due: now}); err != nil {
		t.Fatal(err)
	}
	w.clock.now = w.clock.now.Add(2 * time.Minute)
	rep, err := w.collector().Step(t.Context(), 10)
	if err != nil || rep.Items != 2 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if _, err := w.store.Head(t.Context(), orphan); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("the orphan: %v", err)
	}
	waiting := due()
	for _, i := range waiting {
		if !slices.Contains(i.Keys, undecided[0]) || slices.Contains(i.Keys, orphan) {
			t.Errorf("%s waits for %q", i.Reason, i.Keys)
		}
	}
	if len(waiting) != 2 {
		t.Fatalf("%d items wait", len(waiting))
	}
	w.clock.now = w.clock.now.Add(4 * time.Minute) // 11 minutes since the one came, 6 since the other
	if rep, err = w.collector().Step(t.Context(), 10); err != nil || rep.Items != 2 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if left := append(keys(t, w.store, layout.RollupPrefix+"window="), keys(t, w.store, layout.IndexPrefix)...); len(left) > 1 {
		t.Errorf("left: %q", left) // the index is only on the queue of the other
	}
}
