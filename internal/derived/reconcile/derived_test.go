package reconcile

import (
	"context"
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// failing fails one request, counted from 1, for derived keys.
type failing struct {
	objstore.Store
	at, n int
}

func (f *failing) fails(op, key string) error {
	if objstore.Family(key) == objstore.Family(layout.AcceptedPrefix) {
		return nil
	}
	if f.n++; f.n == f.at {
		return &objstore.Error{Op: op, Key: key, Err: objstore.ErrUnknown}
	}
	return nil
}

func (f *failing) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := f.fails("head", key); err != nil {
		return objstore.Info{}, err
	}
	return f.Store.Head(ctx, key)
}

func (f *failing) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if err := f.fails("create", key); err != nil {
		return objstore.Info{}, err
	}
	return f.Store.Create(ctx, key, b, o)
}

// TestDerivedWritesThatFail: a pass in which any look or write failed is done again, and
// where the key by time is, all others are.
func TestDerivedWritesThatFail(t *testing.T) {
	for _, look := range []bool{false, true} {
		failed := 0
		for at := 1; ; at++ {
			s := newStore()
			m := acceptBatch(t, s, batch(0, 9))
			f := &failing{Store: s, at: at}
			_, err := newCore(f).Reconcile(context.Background(), layout.Accepted(m.Identity), Options{HeadFirst: look})
			if err == nil {
				if f.n >= at {
					t.Errorf("look %v: request %d has failed, and the pass is done", look, at)
					continue
				}
				break
			}
			failed++
			if !errors.Is(err, objstore.ErrUnknown) {
				t.Errorf("look %v, request %d: %v", look, at, err)
			}
			there := derivedState(t, s)
			byTime := layout.AcceptedByTime(m.AcceptedTime(), m.Identity)
			if _, ok := there[byTime]; ok && len(there) < len(DerivedOf(m, m.Marshal())) {
				t.Errorf("look %v, request %d: only %d keys, and the one by time is among them", look, at, len(there))
			}
		}
		m, _ := manifest(batch(0, 9))
		if want := len(DerivedOf(m, m.Marshal())); failed < want {
			t.Errorf("look %v: %d requests failed, want %d at least", look, failed, want)
		}
	}
}
