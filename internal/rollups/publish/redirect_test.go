package publish_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
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
