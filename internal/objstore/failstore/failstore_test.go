package failstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

var _ = Register("test", "create before", "create after", "get after")

// TestErrorsAroundRequests: before, nothing is written; after, the write is applied and its outcome unknown.
func TestErrorsAroundRequests(t *testing.T) {
	under := mem.New(time.Now)
	if s := Wrap(under, "test"); s != objstore.Store(under) {
		t.Error("a store is wrapped though nothing is armed")
	}
	if err := failpoint.Arm("test.store.create.before.before=error,test.store.create.after.after=error,test.store.get.after.after=error@2"); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	s := Wrap(under, "test")
	for _, c := range []struct {
		key   string
		there bool
	}{{"before/x", false}, {"after/x", true}} {
		_, err := s.Create(ctx, c.key, []byte("b"), objstore.PutOptions{})
		var e *objstore.Error
		if !errors.Is(err, objstore.ErrUnknown) || !errors.Is(err, failpoint.ErrInjected) || !errors.As(err, &e) || e.Key != c.key || e.Op != "create" {
			t.Errorf("create %s: %v", c.key, err)
		}
		if _, herr := under.Head(ctx, c.key); (herr == nil) != c.there {
			t.Errorf("%s is there: %v, want %v", c.key, herr == nil, c.there)
		}
	}
	for i, want := range []error{nil, objstore.ErrUnavailable, nil} {
		if _, _, err := s.Get(ctx, "after/x", objstore.GetOptions{}); !errors.Is(err, want) {
			t.Errorf("get %d: %v, want %v", i+1, err, want)
		}
	}
	if _, err := s.Create(ctx, "other/x", nil, objstore.PutOptions{}); err != nil {
		t.Errorf("a family that is not armed: %v", err)
	}
}
