package regions_test

import (
	"errors"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
)

// An etcd that was restored under the same cluster id, against the book: whoever lived through it has seen its revisions, and
// takes the epoch out, after which nobody trusts it.
func TestRestoredUnderTheSameCluster(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu", "us")
	copied := w.kv.Copy()
	w.manifest("eu", batch("boot", 1, 3), "a", accepted.Stamp{Epoch: 1, Fence: 50})
	if _, err := w.kv.Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: "/elsewhere", Value: []byte("x")}}}}}); err != nil {
		t.Fatal(err)
	}
	lived := w.open("eu", "us")
	w.kv.Restore(copied, 1)
	k := w.keeper("eu", "us")
	if err := k.Check(t.Context(), lived); !errors.Is(err, claims.ErrForgot) {
		t.Fatalf("revisions went back: %v", err)
	}
	if err := k.Distrust(t.Context(), lived); err != nil {
		t.Fatal(err)
	}
	if _, err := w.keeper("us", "eu").Open(t.Context(), false); !errors.Is(err, regions.ErrMustRecover) {
		t.Fatalf("the copy is trusted: %v", err)
	}
	next := w.open("eu", "us")
	if want := []string{line(batch("boot", 1, 3), "eu", "a")}; next.Epoch.Number != 2 || !slices.Equal(w.claims(), want) {
		t.Errorf("%+v, %q", next, w.claims())
	}
	// One that notices late leaves what was opened since.
	if err := k.Distrust(t.Context(), lived); err != nil {
		t.Fatal(err)
	}
	if err := k.Check(t.Context(), next); err != nil {
		t.Error(err)
	}
}
