package publish_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish/refstest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// hourOf is a publication of every resolution of an hour.
func hourOf(gen, supersedes uint64) (pubs []publish.Publication) {
	for _, res := range timegrid.Resolutions() {
		p := publication(gen, supersedes, res.String()+strings.Repeat("+", int(gen)))
		p.Name.Resolution, p.Listed = res, true
		pubs = append(pubs, p)
	}
	return pubs
}

// TestRequestsOfAnHour: what publishing the four resolutions of an hour costs; docs/protocol/publish.md has it.
func TestRequestsOfAnHour(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	store, refs := storetest.Count(w.store), refstest.Counted{Refs: w.refs, Calls: map[string]int{}}
	c := w.config()
	c.Store, c.Refs = store, refs
	p, err := publish.NewPublisher(c)
	if err != nil {
		t.Fatal(err)
	}
	var committed []timegrid.Resolution
	pubs := hourOf(1, 0)
	err = p.PublishAll(t.Context(), pubs, func(i int, r publish.Result, err error) error {
		if err != nil || !r.Created {
			t.Error(pubs[i].Name.Key(), err)
		}
		committed = append(committed, pubs[i].Name.Resolution)
		return err
	})
	if err != nil || len(committed) != 4 || committed[0] != timegrid.Raw {
		t.Fatal(committed, err)
	}
	total := 0
	for _, one := range []struct {
		op, prefix string
		n          int
	}{
		{"head", "rollup/", 1}, {"get", "gc/", 1}, {"create", "rollup/", 4}, {"create", "index/", 4}, {"create", "manifests/", 4},
	} { // and 8 tags, which the counting store has not
		total += one.n
		if got := store.Of(one.op, one.prefix); got != one.n {
			t.Errorf("%s %s: %d requests, want %d", one.op, one.prefix, got, one.n)
		}
	}
	if got := store.Of("", ""); got != total {
		t.Errorf("%d requests to the store, want %d: %v", got, total, store.All())
	}
	if want := map[string]int{"epoch": 1, "add": 1}; !maps.Equal(refs.Calls, want) {
		t.Errorf("calls of the metadata store: %v, want %v", refs.Calls, want)
	}
}

// TestAnHourWhoseCommitsEnd: what is committed before a commit fails stays, nothing after it is tried, and the next call
// finds the one and commits the others. One that is decided against the caller ends nothing.
func TestAnHourWhoseCommitsEnd(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	pubs := hourOf(1, 0)
	if _, err := w.publisher().Abort(t.Context(), pubs[1].Name, "test"); err != nil {
		t.Fatal(err)
	}
	half := w.config()
	half.Store = fault.New(w.store, 1, fault.Refused("create", pubs[2].Name.Key(), objstore.ErrDenied))
	p, err := publish.NewPublisher(half)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	say := func(i int, r publish.Result, err error) error {
		switch {
		case errors.Is(err, publish.ErrAborted):
			said = append(said, "aborted")
		case err != nil:
			t.Error(err)
		case r.Created:
			said = append(said, "created "+pubs[i].Name.Resolution.String())
		default:
			said = append(said, "found "+pubs[i].Name.Resolution.String())
		}
		return nil
	}
	if err := p.PublishAll(t.Context(), pubs, say); !errors.Is(err, objstore.ErrDenied) || !errors.Is(err, publish.ErrUndecided) {
		t.Error(err)
	}
	if got, want := strings.Join(said, ", "), "created raw, aborted"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	said = nil
	for i := range pubs {
		pubs[i].Listed = false
	}
	if err := w.publisher().PublishAll(t.Context(), pubs, say); err != nil {
		t.Error(err)
	}
	if got, want := strings.Join(said, ", "), "found raw, aborted, created 5m, created 1h"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	w.collect()
	for i := range pubs {
		r, _, err := catalog.Read(t.Context(), w.store, "a", pubs[i].Name.Key())
		if err != nil {
			t.Fatal(err)
		}
		if r.Block == nil {
			continue
		}
		for _, key := range r.Block.Keys() {
			if _, err := w.store.Head(t.Context(), key); err != nil {
				t.Error(err)
			}
		}
	}
	if left := keys(t, w.store, "index/v1/"); len(left) != 3 {
		t.Errorf("left: %q", left)
	}
}

// TestACallerThatEndsAnHour: an error of the caller ends the call, and what is not committed is left open.
func TestACallerThatEndsAnHour(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	pubs, lost := hourOf(1, 0), errors.New("the shard is lost")
	if err := w.publisher().PublishAll(t.Context(), pubs, func(int, publish.Result, error) error { return lost }); !errors.Is(err, lost) {
		t.Error(err)
	}
	if left := keys(t, w.store, "manifests/v1/"); len(left) != 1 {
		t.Errorf("manifests: %q", left)
	}
	w.collect() // the collector aborts what nobody continues
	if left := keys(t, w.store, "index/v1/"); len(left) != 1 {
		t.Errorf("indexes: %q", left)
	}
}
