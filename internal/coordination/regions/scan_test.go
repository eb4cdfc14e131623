package regions_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// atOnce calls all at the same time.
func atOnce(n int, fn func(int) bool) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

// More boots, and more manifests of one, than are read at once, with many requests under way: the same claims as from few.
func TestRecoveryOfMany(t *testing.T) {
	w := &world{t: t, kv: kv.New(), buckets: map[claims.Region]*mem.Store{"eu": mem.New(nil), "us": mem.New(nil)}, rand: rand.NewChaCha8([32]byte{1})}
	var want []string
	total := 0
	put := func(r claims.Region, boot string, seq, fence uint64, frame string) {
		total++
		w.manifest(r, batch(boot, seq, seq), frame, accepted.Stamp{Epoch: 1, Fence: fence})
	}
	for i := range 700 {
		boot := fmt.Sprintf("a%03d", i)
		put("eu", boot, 1, 5, "x")
		put("us", boot, 1, 6, "x")
		put("us", boot, 2, 7, "y")
		want = append(want, line(batch(boot, 1, 1), "us", "x"), line(batch(boot, 2, 2), "us", "y"))
	}
	// Those of one region are listed behind thousands of another's, and compared with them nevertheless.
	const many = 9000
	for seq := uint64(1); seq <= many; seq++ {
		put("eu", "big", seq, 2*seq, "x")
		home := claims.Region("eu")
		if seq%3 == 0 {
			put("us", "big", seq, 2*seq+1, "x")
			home = "us"
		}
		if seq == 1 {
			put("us", "big", seq, 1, "z")
		}
		if seq == 6 {
			w.affirm("eu", batch("big", seq, seq), accepted.Stamp{Epoch: 2, Fence: 1})
			home = "eu"
		}
		if seq == many-1 {
			continue // folded, see below
		}
		want = append(want, line(batch("big", seq, seq), home, "x"))
	}
	c := regions.Config{KV: w.kv, Keys: keys, Rand: w.rand, Now: func() int64 { return 7 }, Parallel: atOnce}
	f := folds.Folder{Homes: func(claims.Region) (retired, known bool) { return false, true }}
	for n, b := range w.buckets {
		c.Regions = append(c.Regions, regions.Region{Name: n, Store: b})
		f.Regions = append(f.Regions, folds.Region{Name: n, Store: b})
	}
	entry, err := folds.EntryOf(claims.Claim{Identity: batch("big", many-1, many-1), Hash: identity.Sum([]byte("x")), State: claims.Settled, Home: "eu"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Fold(t.Context(), batch("big", 1, 1).BootOf(), claims.Folds{}, []folds.Entry{entry}); err != nil {
		t.Fatal(err)
	}
	k, err := regions.New(c)
	if err != nil {
		t.Fatal(err)
	}
	o, err := k.Open(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	got := w.claims()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d claims, want %d", len(got), len(want))
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				t.Fatalf("%q, want %q", got[i], want[i])
			}
		}
	}
	if o.Recovered.Claims != uint64(len(want)) || o.Recovered.Boots != 701 || o.Recovered.Manifests != uint64(total-1) {
		t.Errorf("%+v of %d manifests", o.Recovered, total)
	}
}
