package regions_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// fold folds identities of boot "boot" with frames, all of one home, as if they were settled; it gives what etcd then knows.
func (w *world) fold(k *regions.Keeper, e claims.Epoch, home claims.Region, frames map[identity.Batch]string) claims.Folds {
	w.t.Helper()
	var add []folds.Entry
	for id, f := range frames {
		add = append(add, folds.Entry{Start: id.SeqStart, End: id.SeqEnd, Home: home, Digest: folds.DigestOf(identity.Sum([]byte(f)))})
	}
	slices.SortFunc(add, func(a, b folds.Entry) int { return int(a.Start) - int(b.Start) })
	m, err := w.folder(k, e).Fold(context.Background(), batch("boot", 1, 1).BootOf(), claims.Folds{}, add)
	if err != nil {
		w.t.Fatal(err)
	}
	return claims.Folds{Heads: m.Heads, Modified: 1, Epoch: e.Number}
}

// What is folded answers; who is refused is told by which frame, as the home's manifest has it.
func TestFolded(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.manifest("eu", batch("boot", 1, 5), "a", accepted.Stamp{Epoch: 1, Fence: 10})
	w.manifest("eu", batch("boot", 6, 9), "b", accepted.Stamp{Epoch: 1, Fence: 11})
	w.manifest("eu", batch("boot", 20, 29), "c", accepted.Stamp{Epoch: 1, Fence: 12})
	k := w.keeper("eu", "us")
	o, err := k.Open(context.Background(), true)
	if err != nil {
		t.Fatal(err)
	}
	known := w.fold(k, o.Epoch, "eu", map[identity.Batch]string{batch("boot", 1, 5): "a", batch("boot", 6, 9): "b", batch("boot", 20, 29): "x", batch("boot", 30, 31): "a"})
	f := k.Folded(k.Folder(o.Epoch, o.Retired))
	decide := func(id identity.Batch) (claims.Answer, claims.Looked, error) {
		return f.Decide(context.Background(), claims.Op{Kind: claims.DoClaim, Identity: id, Hash: identity.Sum([]byte("a"))}, known)
	}
	for _, c := range []struct {
		id, by identity.Batch
		want   claims.Outcome
		frame  string
	}{
		{batch("boot", 1, 5), batch("boot", 1, 5), claims.Decided, "a"},
		{batch("boot", 6, 9), batch("boot", 6, 9), claims.Conflict, "b"},
		{batch("boot", 4, 7), batch("boot", 1, 5), claims.RangeConflict, "a"},
		{batch("boot", 9, 12), batch("boot", 6, 9), claims.RangeConflict, "b"},
		{batch("boot", 30, 31), batch("boot", 30, 31), claims.Decided, "a"},
	} {
		a, _, err := decide(c.id)
		if err != nil || a.Outcome != c.want || a.Claim.Identity != c.by || a.Claim.Hash != identity.Sum([]byte(c.frame)) || a.Claim.Home != "eu" || a.Claim.State != claims.Settled || a.Claim.Stamp.Epoch != o.Epoch.Number {
			t.Errorf("%s: %+v, %v, want %s", c.id, a, err, c.want)
		}
	}
	if a, looked, err := decide(batch("boot", 10, 19)); err != nil || a.Outcome != 0 || !looked.Suffices(known) {
		t.Errorf("free: %+v, %+v, %v", a, looked, err)
	}
	// A manifest of another frame than the one that is folded, one that is not there, and a head that nobody has.
	for _, id := range []identity.Batch{batch("boot", 21, 22), batch("boot", 31, 32)} {
		if a, _, err := decide(id); err == nil || a.Outcome == claims.Decided {
			t.Errorf("%s: %+v, %v", id, a, err)
		}
	}
	known.Heads[0].Generation++
	known.Heads[1].Generation++
	if a, _, err := decide(batch("boot", 10, 19)); !errors.Is(err, folds.ErrBehind) {
		t.Errorf("%+v, %v", a, err)
	}
	known.Heads[0].Generation--
	spans, err := f.Spans(context.Background(), batch("boot", 5, 30), known)
	if want := []claims.Span{{Start: 1, End: 9, Home: "eu"}, {Start: 20, End: 31, Home: "eu"}}; err != nil || !slices.Equal(spans, want) {
		t.Errorf("%+v, %v", spans, err)
	}
}

// A fold that one region alone has must not make a recovery leave an identity out: whoever reads the others later would find it free.
func TestRecoveryWaitsForFolds(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	w.manifest("us", batch("boot", 1, 5), "a", accepted.Stamp{Epoch: 1, Fence: 10})
	w.open("asia", "eu", "us")
	w.kv.Restore(kv.New(), 2)
	w.head("us", folds.Entry{Start: 1, End: 5, Home: "us", Digest: folds.DigestOf(identity.Sum([]byte("a")))})
	c := regions.Config{KV: etcd{w}, Keys: keys, Rand: w.rand, Now: func() int64 { return 7 }}
	for _, n := range []claims.Region{"asia", "eu", "us"} {
		c.Regions = append(c.Regions, regions.Region{Name: n, Store: w.buckets[n]})
	}
	c.Regions[0].Store = withoutFolds{w.buckets["asia"]}
	k, err := regions.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if o, err := k.Open(context.Background(), true); !errors.Is(err, folds.ErrBehind) {
		t.Errorf("%+v, %v", o, err)
	}
}

// head writes the first head of boot "boot" into one region alone.
func (w *world) head(r claims.Region, entries ...folds.Entry) folds.Head {
	w.t.Helper()
	h := folds.Head{Boot: batch("boot", 1, 1).BootOf(), Generation: 1, Tail: entries}
	if _, err := w.buckets[r].Create(w.t.Context(), layout.FoldHead(h.Boot), h.Marshal(), objstore.PutOptions{}); err != nil {
		w.t.Fatal(err)
	}
	return h
}

// withoutFolds does not answer for folds.
type withoutFolds struct{ regions.Store }

func (s withoutFolds) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if strings.HasPrefix(key, layout.FoldsPrefix) {
		return nil, objstore.Info{}, objstore.ErrUnavailable
	}
	return s.Store.Get(ctx, key, o)
}

// What is folded a recovery neither reads nor inserts, nor what lost to it; and every region has it then.
func TestRecoveryLeavesOutWhatIsFolded(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.manifest("eu", batch("boot", 1, 5), "a", accepted.Stamp{Epoch: 1, Fence: 10})
	w.manifest("us", batch("boot", 1, 5), "b", accepted.Stamp{Epoch: 1, Fence: 99}) // left behind
	w.manifest("us", batch("boot", 5, 7), "b", accepted.Stamp{Epoch: 1, Fence: 99}) // left behind
	w.manifest("us", batch("boot", 8, 9), "b", accepted.Stamp{Epoch: 1, Fence: 11})
	h := w.head("us", folds.Entry{Start: 1, End: 5, Home: "eu", Digest: folds.DigestOf(identity.Sum([]byte("a")))})
	o := w.open("eu", "us")
	if o.Recovered.Claims != 1 || o.Recovered.Manifests != 1 {
		t.Errorf("%+v", o.Recovered)
	}
	for r, s := range w.buckets {
		if got, err := folds.Read(context.Background(), s, h.Boot); err != nil || !slices.Equal(got.Tail, h.Tail) {
			t.Errorf("region %s has %+v, %v", r, got, err)
		}
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
		gone := batch("boot", 1, 5).BootOf()
		send(w, claims.Txn{Parts: []claims.Part{{Deletes: []string{keys.Claim(gone, 1), keys.Claim(gone, 1101)}}}})
		send(w, r.txns[first])
		if got := len(w.claims()); got != 118 {
			t.Fatalf("transaction %d again after the end: %d claims", first, got)
		}
		if now, err := w.keeper("eu").Open(t.Context(), false); err != nil || now.Epoch.ID != o.Epoch.ID {
			t.Fatalf("transaction %d again after the end: %+v, %v", first, now, err)
		}
	}
}
