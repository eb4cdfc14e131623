package publish_test

import (
	"context"
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/publish"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// standing is a reader that stands still before its first Get.
type standing struct {
	objstore.Reader
	meanwhile func()
}

func (s *standing) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if f := s.meanwhile; f != nil {
		s.meanwhile = nil
		f()
	}
	return s.Reader.Get(ctx, key, o)
}

// Between the listing of an hour and the reading of its record the next generation is
// published and the one that was listed is removed: a reader that was stopped for longer
// than the grace. Its view must say that it lacks something, and the next one has it.
func TestViewThatMissesTheNextGeneration(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	if _, err := w.publisher().Publish(t.Context(), publication(1, 0, "x")); err != nil {
		t.Fatal(err)
	}
	r := &standing{w.store, func() {
		putPlan(t, w.store, 2)
		if _, err := w.publisher().Publish(t.Context(), publication(2, 1, "x", "y")); err != nil {
			t.Fatal(err)
		}
		w.collect()
	}}
	cat, err := catalog.New(catalog.Config{Reader: r, AuthorityID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	v, err := cat.Refresh(t.Context(), hour0, hour0)
	if err != nil {
		t.Fatal(err)
	}
	if s := v.Set(hour0, 1, window.Raw); s != nil || len(v.Problems(hour0)) != 1 || !errors.Is(v.Problems(hour0)[0].Err, catalog.ErrReplaced) {
		t.Errorf("a view with %v and the problems %v", s, v.Problems(hour0))
	}
	if v, err = cat.Refresh(t.Context(), hour0, hour0); err != nil {
		t.Fatal(err)
	}
	if s := v.Set(hour0, 1, window.Raw); s == nil || s.Name.Generation != 2 || len(v.Problems(hour0)) > 0 {
		t.Errorf("the next view has %v and the problems %v", s, v.Problems(hour0))
	}
	// One that expired is no problem: nothing replaced it.
	ch, err := w.publisher().Expire(t.Context(), publication(2, 1).Name)
	if err != nil || ch != publish.Turned {
		t.Fatal(ch, err)
	}
	if v, err = cat.Refresh(t.Context(), hour0, hour0); err != nil {
		t.Fatal(err)
	}
	if s := v.Set(hour0, 1, window.Raw); s != nil || len(v.Problems(hour0)) > 0 {
		t.Errorf("the last view has %v and the problems %v", s, v.Problems(hour0))
	}
}
