package listing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

func TestShardsShareAListing(t *testing.T) {
	start := time.Unix(1000, 0)
	store := fault.New(mem.New(time.Now), 1)
	put := func(key string) {
		t.Helper()
		if _, err := store.Put(t.Context(), key, nil, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	l := New(store, "p/")
	under := func(prefix string, after, now time.Time, lists int, want ...string) (begun time.Time) {
		t.Helper()
		before := store.Count("list", "")
		got, begun, err := l.Under(t.Context(), prefix, after, now)
		if err != nil || !slices.Equal(got, want) || store.Count("list", "")-before != lists {
			t.Errorf("%v, %v, %d listings; want %v, %d", got, err, store.Count("list", "")-before, want, lists)
		}
		return begun
	}
	put("p/shard=1/a")
	put("p/shard=1/b")
	put("p/shard=2/c")
	put("p/shard=20/d")
	first := under("p/shard=1/", time.Time{}, start, 1, "p/shard=1/a", "p/shard=1/b")
	put("p/shard=2/e")
	under("p/shard=2/", start.Add(-1), start.Add(time.Second), 0, "p/shard=2/c") // from before e
	under("p/shard=3/", start.Add(-1), start.Add(time.Second), 0)
	// Who needs a newer listing than there is makes one, and gets the time at which it began, for its next turn.
	if begun := under("p/shard=2/", first, start.Add(time.Minute), 1, "p/shard=2/c", "p/shard=2/e"); !begun.Equal(start.Add(time.Minute)) {
		t.Errorf("begun %v", begun)
	}
	under("p/shard=1/", first, start.Add(2*time.Minute), 0, "p/shard=1/a", "p/shard=1/b")
	// The clock went back.
	under("p/shard=1/", time.Time{}, start.Add(-time.Hour), 1, "p/shard=1/a", "p/shard=1/b")
	// A listing that fails leaves nothing behind.
	store.Add(fault.Rule{Op: "list", Kind: fault.Before, Times: 1})
	if _, _, err := l.Under(t.Context(), "p/shard=1/", start, start.Add(time.Hour)); err == nil {
		t.Error("no error")
	}
	under("p/shard=1/", start, start.Add(time.Hour), 1, "p/shard=1/a", "p/shard=1/b")
}

// crowded has one key more under the prefix than are remembered.
type crowded struct{ listed []string }

func (c *crowded) List(_ context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if o.StartAfter == "" {
		c.listed = append(c.listed, o.Prefix)
	}
	if o.Prefix != "p/" {
		return objstore.Page{Objects: []objstore.Info{{Key: o.Prefix + "x"}}}, nil
	}
	var p objstore.Page
	for i := range maxKeys + 1 {
		p.Objects = append(p.Objects, objstore.Info{Key: fmt.Sprintf("p/%09d", i)})
	}
	return p, nil
}

// Where there are too many keys to remember, each shard lists its own.
func TestTooManyKeys(t *testing.T) {
	c := &crowded{}
	l := New(c, "p/")
	now := time.Unix(1000, 0)
	for _, s := range []string{"p/shard=1/", "p/shard=2/"} {
		keys, begun, err := l.Under(t.Context(), s, time.Time{}, now)
		if err := errors.Join(err); err != nil || !slices.Equal(keys, []string{s + "x"}) || !begun.Equal(now) {
			t.Errorf("%v, %v", keys, err)
		}
	}
	if want := []string{"p/", "p/shard=1/", "p/shard=2/"}; !slices.Equal(c.listed, want) {
		t.Errorf("listed %v", c.listed)
	}
}
