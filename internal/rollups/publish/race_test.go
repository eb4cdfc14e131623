package publish_test

import (
	"context"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
)

// hooked calls before the first condemnation.
type hooked struct {
	publish.Refs
	before func()
}

func (h *hooked) Condemn(ctx context.Context, epoch string, read ...publish.Record) ([]string, error) {
	if f := h.before; f != nil {
		h.before = nil
		f()
	}
	return h.Refs.Condemn(ctx, epoch, read...)
}

// A publisher finds an orphan, refers to it after the collector has read its references,
// and commits after the collection.
func TestAReferenceThatComesInBetween(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	pub := publication(1, 0, "x")
	orphan := layout.RollupIndex(hour0, sum(load(pub.Outputs[0].Index)), 0)
	if _, err := w.store.Create(t.Context(), orphan, load(pub.Outputs[0].Index), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.collector().Sweep(t.Context(), hour0); err != nil {
		t.Fatal(err)
	}
	w.clock.now = w.clock.now.Add(time.Hour)

	gate, done := make(chan struct{}), make(chan error, 1)
	held := fault.New(w.store, 1, fault.Rule{Op: "create", Prefix: layout.ManifestsPrefix, Kind: fault.Hold, Gate: gate})
	slow := w.config()
	slow.Store, slow.Clock = held, newClock()
	p, err := publish.NewPublisher(slow)
	if err != nil {
		t.Fatal(err)
	}
	cfg := w.config()
	cfg.Refs = &hooked{w.refs, func() {
		go func() { _, err := p.Publish(context.Background(), pub); done <- err }()
		for held.Count("create", "manifests") == 0 {
			time.Sleep(time.Millisecond)
		}
	}}
	c, err := publish.NewCollector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Step(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	close(gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Head(t.Context(), orphan); err != nil {
		t.Errorf("it is named, and gone: %v", err)
	}
}
