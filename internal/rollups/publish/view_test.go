package publish_test

import (
	"context"
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
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
	if s := v.Block(hour0, 1, timegrid.Raw); s != nil || len(v.Problems(hour0)) != 1 || !errors.Is(v.Problems(hour0)[0].Err, catalog.ErrReplaced) {
		t.Errorf("a view with %v and the problems %v", s, v.Problems(hour0))
	}
	if v, err = cat.Refresh(t.Context(), hour0, hour0); err != nil {
		t.Fatal(err)
	}
	if s := v.Block(hour0, 1, timegrid.Raw); s == nil || s.Name.Generation != 2 || len(v.Problems(hour0)) > 0 {
		t.Errorf("the next view has %v and the problems %v", s, v.Problems(hour0))
	}
	// One that expired is no problem: nothing replaced it.
	removed, err := w.publisher().Expire(t.Context(), publication(2, 1).Name)
	if err != nil || !removed {
		t.Fatal(removed, err)
	}
	if v, err = cat.Refresh(t.Context(), hour0, hour0); err != nil {
		t.Fatal(err)
	}
	if s := v.Block(hour0, 1, timegrid.Raw); s != nil || len(v.Problems(hour0)) > 0 {
		t.Errorf("the last view has %v and the problems %v", s, v.Problems(hour0))
	}
}

// A block whose rows are in a compaction that can't be read is a problem of its hour, and
// covers nothing meanwhile; when the compaction can be read again all is well.
func TestViewOfACompactionThatIsGone(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	putPlan(t, w.store, 2)
	if _, err := w.publisher().Publish(t.Context(), publication(1, 0, "x")); err != nil {
		t.Fatal(err)
	}
	source := publication(2, 1, "x", "y")
	if _, err := w.publisher().Publish(t.Context(), source); err != nil {
		t.Fatal(err)
	}
	into := w.compaction(source.Name)
	if _, err := w.publisher().Publish(t.Context(), into); err != nil {
		t.Fatal(err)
	}
	if n, err := w.publisher().Compact(t.Context(), into.Name, source.Name); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	key := into.Name.Key()
	good, _, err := w.store.Get(t.Context(), key, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := catalog.ParseRecord(key, good)
	if err != nil {
		t.Fatal(err)
	}
	for what, body := range map[string][]byte{"absent": nil, "damaged": []byte("{}"), "removed": r.Block.Remove(0, 1, "w").Marshal()} {
		cat, err := catalog.New(catalog.Config{Reader: w.store, AuthorityID: "a"})
		if err != nil {
			t.Fatal(err)
		}
		look := func(body []byte) *catalog.View {
			t.Helper()
			if err := w.store.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if body != nil {
				if _, err := w.store.Put(t.Context(), key, body, objstore.PutOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			v, err := cat.Refresh(t.Context(), hour0, hour0)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		v := look(body)
		if ps := v.Problems(hour0); len(ps) == 0 || ps[0].Key != source.Name.Key() || v.Covers(identity.Batch{Agent: "h", Boot: "b", SeqEnd: 19}, hour0, timegrid.Raw) {
			t.Errorf("%s: the problems %v", what, ps)
		}
		v = look(good)
		if s := v.Block(hour0, 1, timegrid.Raw); s == nil || s.Name != source.Name || s.Redirect.Block == nil || len(v.Problems(hour0)) > 0 {
			t.Errorf("%s, and back: %+v and the problems %v", what, s, v.Problems(hour0))
		}
	}
}
