package regions_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func (w *world) stores() map[claims.Region]regions.Store {
	out := map[claims.Region]regions.Store{}
	for n := range w.buckets {
		out[n] = bucket{w, n}
	}
	return out
}

// folded decides about a claim of frame "a" for an identity of which these spans are folded.
func (w *world) folded(id identity.Batch, spans ...claims.Span) (claims.Answer, error) {
	op := claims.Op{Kind: claims.DoClaim, Identity: id, Hash: identity.Sum([]byte("a"))}
	return regions.Folded(context.Background(), w.stores(), op, claims.Answer{Outcome: claims.Folded, Spans: spans})
}

// What is folded is told from what claims that were given up left behind: later than them, or affirmed later.
func TestFolded(t *testing.T) {
	long := uint64(frame.DefaultLimits().Records)
	span := func(from, to uint64) claims.Span { return claims.Span{Start: from, End: to, Home: "eu"} }
	w := newWorld(t, "eu", "us")
	w.manifest("eu", batch("boot", 1, 5), "a", accepted.Stamp{Epoch: 1, Fence: 10})
	w.manifest("eu", batch("boot", 6, 9), "b", accepted.Stamp{Epoch: 1, Fence: 11})
	w.manifest("eu", batch("boot", 4, 7), "a", accepted.Stamp{Epoch: 1, Fence: 9}) // left behind
	// Completed for a later claim than the one that was given up after it.
	w.manifest("eu", batch("boot", 20, 29), "a", accepted.Stamp{Epoch: 1, Fence: 20})
	w.affirm("eu", batch("boot", 20, 29), accepted.Stamp{Epoch: 2, Fence: 3})
	w.manifest("eu", batch("boot", 25, 31), "a", accepted.Stamp{Epoch: 1, Fence: 30})
	// As long as a batch can be, and one within it that was left behind.
	w.manifest("eu", batch("boot", 100, 99+long), "b", accepted.Stamp{Epoch: 1, Fence: 50})
	w.manifest("eu", batch("boot", 99+long, 99+long), "a", accepted.Stamp{Epoch: 1, Fence: 40})
	// The numbers of one that another home has in part.
	w.manifest("eu", batch("two", 1, 4), "a", accepted.Stamp{Epoch: 1, Fence: 60})
	for _, c := range []struct {
		id    identity.Batch
		want  claims.Outcome
		spans []claims.Span
	}{
		{batch("boot", 1, 5), claims.Decided, []claims.Span{span(1, 9)}},
		{batch("boot", 6, 9), claims.Conflict, []claims.Span{span(1, 9)}},
		{batch("boot", 4, 7), claims.RangeConflict, []claims.Span{span(1, 9)}},
		{batch("boot", 1, 9), claims.RangeConflict, []claims.Span{span(1, 9)}},
		{batch("boot", 2, 2), claims.RangeConflict, []claims.Span{span(1, 9)}},
		{batch("boot", 20, 29), claims.Decided, []claims.Span{span(20, 29)}},
		{batch("boot", 25, 31), claims.RangeConflict, []claims.Span{span(20, 29)}},
		{batch("boot", 99+long, 99+long), claims.RangeConflict, []claims.Span{span(100, 99+long)}},
		{batch("two", 1, 4), claims.RangeConflict, []claims.Span{span(1, 2), {Start: 3, End: 4, Home: "us"}}},
	} {
		a, err := w.folded(c.id, c.spans...)
		if err != nil || a.Outcome != c.want {
			t.Errorf("%s: %s, want %s (%v)", c.id, a.Outcome, c.want, err)
		}
		if a.Outcome == claims.RangeConflict && (a.Claim.Identity == c.id || !a.Claim.Identity.Intersects(c.id)) {
			t.Errorf("%s is refused because of %s", c.id, a.Claim.Identity)
		}
		// A conflict that does not name the other frame can't be recorded, or told.
		if unknown := c.id.Boot == "two"; a.Claim.Hash.IsZero() != unknown {
			t.Errorf("%s is refused because of %s with the hash %s", c.id, a.Claim.Identity, a.Claim.Hash)
		}
		if a.Claim.Home != "eu" || a.Claim.State != claims.Settled {
			t.Errorf("%s: %+v", c.id, a.Claim)
		}
	}
	if a, _ := w.folded(batch("boot", 25, 31), span(20, 29)); a.Claim.Identity != batch("boot", 20, 29) || a.Claim.Hash != identity.Sum([]byte("a")) {
		t.Errorf("%+v", a.Claim)
	}
	if a, _ := w.folded(batch("boot", 1, 5), span(1, 9)); a.Claim.Stamp != (accepted.Stamp{Epoch: 1, Fence: 10}) || a.Claim.Hash != identity.Sum([]byte("a")) {
		t.Errorf("%+v", a.Claim)
	}
}

// Nobody guesses where the home does not answer, is none of the settings, or has less than it has settled.
func TestFoldedIsNotKnown(t *testing.T) {
	w := newWorld(t, "eu")
	id := batch("boot", 1, 5)
	for name, home := range map[string]claims.Region{"nothing is there": "eu", "no such region": "us"} {
		if _, err := w.folded(id, claims.Span{Start: 1, End: 5, Home: home}); !errors.Is(err, claims.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.manifest("eu", id, "a", accepted.Stamp{Epoch: 1, Fence: 1})
	w.before = func(string) error { return errDown }
	var at *regions.RegionError
	if _, err := w.folded(id, claims.Span{Start: 1, End: 5, Home: "eu"}); !errors.Is(err, claims.ErrUnavailable) || !errors.As(err, &at) || at.Region != "eu" {
		t.Error(err)
	}
	// Only a claim asks.
	a, err := regions.Folded(t.Context(), w.stores(), claims.Op{Kind: claims.DoComplete, Identity: id}, claims.Answer{Outcome: claims.Folded, Spans: []claims.Span{{Start: 1, End: 5, Home: "eu"}}})
	if err != nil || a.Outcome != claims.Moved {
		t.Errorf("%+v, %v", a, err)
	}
}

// recorder keeps the transactions of a recovery, to send them once more.
type recorder struct {
	w    *world
	txns []claims.Txn
	// again is called behind each transaction.
	again func()
}

func (r *recorder) Commit(ctx context.Context, x claims.Txn) (claims.Result, error) {
	res, err := r.w.kv.Commit(ctx, x)
	x.Parts = cloned(x.Parts)
	r.txns = append(r.txns, x)
	if r.again != nil {
		r.again()
	}
	return res, err
}

// cloned has what a network has: who sent it may use the memory again.
func cloned(parts []claims.Part) []claims.Part {
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i].Puts = slices.Clone(parts[i].Puts)
	}
	return parts
}

// A mover that died left a higher number in one of the regions: the next number is higher than that.
func TestAMoverThatDied(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu", "us")
	w.kv.Restore(w.kv.Copy(), 2)
	puts := 0
	w.before = func(what string) error {
		// Behind the two records that it reads, eu's is replaced, and us's is not.
		if what == "us" {
			if puts++; puts == 2 {
				return errDead
			}
		}
		return nil
	}
	if o, err := w.keeper("eu", "us").Open(t.Context(), true); err == nil {
		t.Fatalf("%+v", o)
	}
	w.before = nil
	s, err := w.keeper("eu", "us").Status(t.Context())
	if err != nil || s.Records["eu"].Number != 2 || s.Records["us"].Number != 1 || !errors.Is(s.Open, regions.ErrMustRecover) {
		t.Fatalf("%+v, %v", s, err)
	}
	if o := w.open("eu", "us"); o.Epoch.Number != 3 {
		t.Errorf("%+v", o)
	}
}

// A request of a recovery that arrives once more, while the recovery goes on or after it, undoes nothing.
func TestRequestsOfARecoveryComeTwice(t *testing.T) {
	build := func() (*world, *recorder, *regions.Keeper) {
		w := newWorld(t, "eu")
		w.open("eu")
		// More than one transaction, and what the copy has is what is inserted again.
		for i := range uint64(120) {
			id := batch("boot", 10*i+1, 10*i+5)
			w.manifest("eu", id, "a", accepted.Stamp{Epoch: 1, Fence: i + 1})
			c := claims.Claim{Identity: id, Hash: identity.Sum([]byte("a")), State: claims.Durable, ID: claims.ID{1}, Home: "eu", Stamp: claims.Stamp{Epoch: 1, Fence: i + 1}, DurableAt: 1}
			if _, err := w.kv.Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Claim(id.BootOf(), id.SeqStart), Value: c.Marshal()}}}}}); err != nil {
				t.Fatal(err)
			}
		}
		w.kv.Restore(w.kv.Copy(), 2)
		r := &recorder{w: w}
		k, err := regions.New(regions.Config{KV: r, Keys: keys, Regions: []regions.Region{{Name: "eu", Store: bucket{w, "eu"}}}, Rand: w.rand, Now: func() int64 { return 7 }})
		if err != nil {
			t.Fatal(err)
		}
		return w, r, k
	}
	send := func(w *world, x claims.Txn) {
		if _, err := w.kv.Commit(context.Background(), x); err != nil {
			t.Fatal(err)
		}
	}
	calm, r, k := build()
	if _, err := k.Open(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	n := len(r.txns)
	if got := len(calm.claims()); got != 120 || n < 8 {
		t.Fatalf("%d claims after %d transactions", got, n)
	}
	for first := range n {
		for late := first; late < n; late++ {
			w, r, k := build()
			r.again = func() {
				if len(r.txns) == late+1 {
					send(w, r.txns[first])
				}
			}
			o, err := k.Open(t.Context(), true)
			if err != nil {
				t.Fatalf("transaction %d again behind %d: %v", first, late, err)
			}
			if got := len(w.claims()); got != 120 || o.Epoch.Number != 2 {
				t.Fatalf("transaction %d again behind %d: %d claims, %+v", first, late, got, o)
			}
		}
		// After the end: a claim that was folded since does not come back, and one that is new does not go.
		w, r, k := build()
		o, err := k.Open(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		gone := batch("boot", 1, 5)
		send(w, claims.Txn{Parts: []claims.Part{{Deletes: []string{keys.Claim(gone.BootOf(), gone.SeqStart)}}}})
		send(w, r.txns[first])
		if got := len(w.claims()); got != 119 {
			t.Fatalf("transaction %d again after the end: %d claims", first, got)
		}
		if now, err := w.keeper("eu").Open(t.Context(), false); err != nil || now.Epoch.ID != o.Epoch.ID {
			t.Fatalf("transaction %d again after the end: %+v, %v", first, now, err)
		}
	}
}
