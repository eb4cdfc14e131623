package reconcile

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

var errCrash = errors.New("crashed")

// crashing ends the process, in effect: from its n-th call on, every call fails. The
// n-th itself takes effect when after is set.
type crashing struct {
	objstore.Store
	n     int
	after bool
	calls int
}

func (c *crashing) alive() (before, after error) {
	c.calls++
	switch {
	case c.calls < c.n:
		return nil, nil
	case c.calls == c.n && c.after:
		return nil, errCrash
	}
	return errCrash, nil
}

func (c *crashing) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	before, after := c.alive()
	if before != nil {
		return nil, objstore.Info{}, before
	}
	b, i, err := c.Store.Get(ctx, key, o)
	return b, i, errors.Join(after, err)
}

func (c *crashing) Head(ctx context.Context, key string) (objstore.Info, error) {
	return c.info(func() (objstore.Info, error) { return c.Store.Head(ctx, key) })
}

func (c *crashing) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	before, after := c.alive()
	if before != nil {
		return objstore.Page{}, before
	}
	p, err := c.Store.List(ctx, o)
	return p, errors.Join(after, err)
}

func (c *crashing) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	return c.info(func() (objstore.Info, error) { return c.Store.Create(ctx, key, b, o) })
}

func (c *crashing) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return c.info(func() (objstore.Info, error) { return c.Store.Replace(ctx, key, b, etag, o) })
}

func (c *crashing) Delete(ctx context.Context, key string) error {
	_, err := c.info(func() (objstore.Info, error) { return objstore.Info{}, c.Store.Delete(ctx, key) })
	return err
}

func (c *crashing) info(op func() (objstore.Info, error)) (objstore.Info, error) {
	before, after := c.alive()
	if before != nil {
		return objstore.Info{}, before
	}
	i, err := op()
	return i, errors.Join(after, err)
}

// A crash before or after every store call, then a run without one: the derived
// state is the one of a run that never crashed, and where accepted-by-time is, the others are.
func TestCrashMatrix(t *testing.T) {
	id := batch(10, 19)
	c, loser := conflict(id)
	build := func() objstore.Store {
		s := newStore()
		m := acceptBatch(t, s, id)
		must(t, s.Delete(ctx, m.RawBlobKey)) // so that a repair record is written too
		put(t, s, c.SubmittedBlobKey, loser)
		put(t, s, layout.Quarantine(id, c.SubmittedSHA256), c.Marshal())
		return s
	}
	pass := func(s objstore.Store) error {
		r := newCore(s)
		for _, key := range []string{layout.Accepted(id), layout.Quarantine(id, c.SubmittedSHA256)} {
			for _, o := range []Options{{}, {HeadFirst: true, Recheck: true}} {
				if _, err := r.Reconcile(ctx, key, o); err != nil {
					return err
				}
			}
		}
		return nil
	}
	clean := build()
	must(t, pass(clean))
	want := derivedState(t, clean)
	if len(want) != 5 {
		t.Fatalf("%d derived objects: %v", len(want), want)
	}
	m, _ := manifest(id)
	states := 0
	for n := 1; ; n++ {
		ended := false
		for _, after := range []bool{false, true} {
			s := build()
			err := pass(&crashing{Store: s, n: n, after: after})
			if err == nil {
				ended = true
				break
			}
			if !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			states++
			state := derivedState(t, s)
			if _, ok := state[layout.AcceptedByTime(m.AcceptedTime(), id)]; ok {
				if state[layout.Repair(id)] == "" {
					t.Errorf("call %d: accepted-by-time is there, and the blob that is missing is not reported", n)
				}
				for _, d := range DerivedOf(m, m.Marshal()) {
					if _, ok := state[d.Key]; !ok {
						t.Errorf("call %d: accepted-by-time is there, %s is not", n, d.Kind)
					}
				}
			}
			must(t, pass(s))
			if diff := cmp.Diff(want, derivedState(t, s)); diff != "" {
				t.Errorf("call %d, after %v: %s", n, after, diff)
			}
		}
		if ended {
			break
		}
	}
	if states < 20 {
		t.Errorf("only %d crash states", states)
	}
	t.Logf("%d crash states", states)
}
