package coordinator_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var bg = context.Background()

func serveRefs(t *testing.T, refs publish.Refs, opts ...grpc.ServerOption) *coordinator.Refs {
	t.Helper()
	return coordinator.NewRefs(serve(t, coordinator.NewRefsServer(refs).Register, opts...), 0)
}

func txn(gen uint64) publish.Txn {
	return publish.NewTxn(layout.BlockManifest(0, 1, timegrid.Raw, gen), identity.Sum([]byte{byte(gen)}))
}

// Every decision of the store reaches the caller as the sentinel that it is.
func TestDecisionsOfRefsTravel(t *testing.T) {
	r := serveRefs(t, mem.New())
	want := func(what string, err, sentinel error) {
		t.Helper()
		if !errors.Is(err, sentinel) {
			t.Errorf("%s: %v, want %v", what, err, sentinel)
		}
	}
	_, err := r.Epoch(bg)
	want("epoch of an empty store", err, publish.ErrNoRecord)
	first := publish.Epoch{ID: strings.Repeat("a", 32)}
	want("add before a epoch", r.Add(bg, first.ID, publish.Addition{Txn: txn(1), Keys: []string{"k"}}), publish.ErrEpochMismatch)
	want("found", r.InitEpoch(bg, nil, first), nil)
	want("found again", r.InitEpoch(bg, nil, first), publish.ErrChanged)
	if f, err := r.Epoch(bg); err != nil || f != first {
		t.Errorf("Epoch = %+v, %v", f, err)
	}
	next := first
	next.Decided = true
	want("decide", r.InitEpoch(bg, &first, next), nil)

	keys := []string{"k1", "k2"}
	want("add", r.Add(bg, first.ID, publish.Addition{Txn: txn(1), Keys: keys}), nil)
	want("add again", r.Add(bg, first.ID, publish.Addition{Txn: txn(1), Keys: keys}), nil)
	want("add another", r.Add(bg, first.ID, publish.Addition{Txn: txn(2), Keys: keys[:1]}), nil)
	want("add without keys", r.Add(bg, first.ID, publish.Addition{Txn: txn(1), Keys: nil}), publish.ErrRefsInvalid)
	want("add under another epoch", r.Add(bg, strings.Repeat("b", 32), publish.Addition{Txn: txn(1), Keys: keys}), publish.ErrEpochMismatch)
	recs, err := r.Get(bg, "nothing", "k1")
	want("get", err, nil)
	if len(recs) != 2 || recs[0].Key != "nothing" || recs[0].Version != "" {
		t.Fatalf("Get = %v", recs)
	}
	old := recs[1]
	if !slices.Equal(old.Txns, []publish.Txn{txn(1), txn(2)}) || old.Condemned || old.Version == "" {
		t.Errorf("Get = %s, version %q", old, old.Version)
	}
	want("swap", r.Swap(bg, first.ID, old, old.Without([]publish.Txn{txn(2)})), nil)
	want("swap what has changed", r.Swap(bg, first.ID, old, old), publish.ErrChanged)
	if changed, err := r.Condemn(bg, first.ID, old); err != nil || !slices.Equal(changed, []string{"k1"}) {
		t.Errorf("condemn what has changed: %q, %v", changed, err)
	}
	_, err = r.Condemn(bg, strings.Repeat("b", 32), old)
	want("condemn under another epoch", err, publish.ErrEpochMismatch)
	_, err = r.Condemn(bg, first.ID)
	want("condemn nothing", err, publish.ErrRefsInvalid)
	if changed, err := r.Condemn(bg, first.ID, only(t, r, "k1")); err != nil || len(changed) > 0 {
		t.Errorf("condemn: %q, %v", changed, err)
	}
	err = r.Add(bg, first.ID, publish.Addition{Txn: txn(3), Keys: keys})
	want("add to a condemned object", err, publish.ErrCondemned)
	var c *publish.CondemnedError
	if !errors.As(err, &c) || !slices.Equal(c.Keys, []string{"k1"}) {
		t.Errorf("condemned: %v", err)
	}
	if other := only(t, r, "k2"); len(other.Txns) != 1 {
		t.Errorf("a refused batch was added in part: %s", other)
	}
	want("add two", r.Add(bg, first.ID, publish.Addition{Txn: txn(4), Keys: keys[1:]}, publish.Addition{Txn: txn(5), Keys: keys[1:]}), nil)
	if other := only(t, r, "k2"); !slices.Equal(other.Txns, []publish.Txn{txn(1), txn(4), txn(5)}) {
		t.Errorf("two transactions at once: %s", other)
	}
	page, after, err := r.List(bg, "", 1)
	want("list", err, nil)
	rest, end, err := r.List(bg, after, 0)
	want("list on", err, nil)
	if len(page) != 1 || page[0].Key != "k1" || !page[0].Condemned || len(rest) != 1 || rest[0].Key != "k2" || end != "" {
		t.Errorf("list: %v then %v, end %q", page, rest, end)
	}
	changed, err := r.Delete(bg, first.ID, rest[0], publish.Record{Key: "k9", Version: "7"})
	want("delete", err, nil)
	if !slices.Equal(changed, []string{"k9"}) {
		t.Errorf("delete: changed %q", changed)
	}
	if gone := only(t, r, "k2"); gone.Version != "" {
		t.Errorf("after delete: %s", gone)
	}
}

// only reads one record.
func only(t *testing.T, r *coordinator.Refs, key string) publish.Record {
	t.Helper()
	recs, err := r.Get(bg, key)
	if err != nil || len(recs) != 1 {
		t.Fatalf("%v, %v", recs, err)
	}
	return recs[0]
}

// Without an answer nobody knows.
func TestALostAnswerOfRefs(t *testing.T) {
	m := mem.New()
	r := serveRefs(t, m, grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		_, _ = next(ctx, req)
		return nil, errors.New("the answer is lost")
	}))
	f := publish.Epoch{ID: strings.Repeat("a", 32)}
	if err := r.InitEpoch(bg, nil, f); !errors.Is(err, publish.ErrRefsUnknown) {
		t.Errorf("found: %v", err)
	}
	if got, err := m.Epoch(bg); err != nil || got != f {
		t.Errorf("the epoch was not made: %+v, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(bg, time.Nanosecond)
	defer cancel()
	if _, err := r.Get(ctx, "k"); !errors.Is(err, publish.ErrRefsUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("get after the deadline: %v", err)
	}
}
