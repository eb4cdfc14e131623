package badinput

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// condemnedCase lays a bad marker below gc/v1/condemned for the blob of a frame that is
// sent afterwards.
type condemnedCase struct {
	named  `yaml:",inline"`
	Set    map[string]string `yaml:"set"` // JSON of a field
	Drop   string            `yaml:"drop"`
	Twice  string            `yaml:"twice"`
	Recipe string            `yaml:"recipe"` // the whole marker; {record} is the right one
	// Key in place of the right one; {sha} is the frame's hash, {SHA} in upper case, {other} another.
	Key string `yaml:"key"`
	// Generation that the frame is relied on in: 1 when the marker condemns the first.
	Generation uint32 `yaml:"generation"`
	// Holds: the marker itself parses.
	Holds bool `yaml:"holds"`
}

// TestCondemned: the key of a marker condemns, whatever its body; no other key does.
func TestCondemned(t *testing.T) {
	boundMemory(t, 256<<20) // the test itself holds copies of a marker of 70 MiB
	for _, k := range load[condemnedCase](t, "condemned") {
		t.Run(k.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			store := memStore()
			if _, err := accept.EnsureAuthority(ctx, store, authority, true); err != nil {
				t.Fatal(err)
			}
			sub := submission(t, recent(t, "host-1", 5, 1))
			right := accept.CondemnedMarker{FrameSHA256: sub.SHA256, CondemnedAt: 1_700_000_000_000_000_000, PlanID: "plan-1"}
			body := recordCase{Set: k.Set, Drop: k.Drop, Twice: k.Twice, Recipe: k.Recipe}.spoil(t, right.Marshal())
			err := accept.CondemnedKind.Unmarshal(body, new(accept.CondemnedMarker))
			if (err == nil) != k.Holds || err != nil && !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrNewerVersion) {
				t.Errorf("the marker itself: %v, want it to hold %t", err, k.Holds)
			}
			sha := sub.SHA256.String()
			key := strings.NewReplacer("{sha}", sha, "{SHA}", strings.ToUpper(sha), "{other}", identity.Sum([]byte("x")).String()).Replace(or(k.Key, right.Key()))
			if k.Key == "" && !k.Holds && bytes.Equal(body, right.Marshal()) {
				t.Fatal("nothing is spoiled")
			}
			if _, err := store.Put(ctx, key, body, objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			res, err := newProtocol(t, store).Accept(ctx, sub)
			if err != nil || res.Outcome != accept.Accepted {
				t.Fatalf("accept: %v, %v", res.Outcome, err)
			}
			if _, err := store.Head(ctx, layout.Blob(sub.SHA256, k.Generation)); err != nil {
				t.Errorf("generation %d: %v", k.Generation, err)
			}
			if _, err := store.Head(ctx, layout.Blob(sub.SHA256, k.Generation+1)); !errors.Is(err, objstore.ErrNotFound) {
				t.Errorf("generation %d: %v", k.Generation+1, err)
			}

			// What comes later reads the marker and writes nothing.
			before := listing(t, store)
			if got := acceptAgain(t, store, sub); got != "duplicate" {
				t.Errorf("accept again: %s", got)
			}
			if got := fsckOf(t, store); got != "" {
				t.Errorf("fsck: %s", got)
			}
			collect(t, store, sub.SHA256)
			wantUnchanged(t, store, before)
		})
	}
	wantNoPanics(t)
}

// collect runs garbage collection over the frame's blobs; all of them are referred to.
func collect(t testing.TB, store objstore.Store, sha identity.Digest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := gc.New(gc.Config{Store: store, AuthorityID: authority, Clock: run.WallClock{}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.PlanKeys(ctx, []string{layout.Blob(sha, 0), layout.Blob(sha, 1)}, 0, gc.PlanOptions{ID: "p", Now: time.Now(), MinAge: -1})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Execute(ctx, p, gc.ExecuteOptions{Force: true})
	if err != nil || r.Deleted != 0 || r.Unknown != 0 {
		t.Errorf("gc: %+v, %v", r, err)
	}
}
