package regions_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// twoLost is a world of these regions, of which one is lost, and another one's bucket was lost and is empty now. Each region has decided two
// identities, of which one is folded.
func twoLost(t testing.TB, all []claims.Region, lost, empty claims.Region) (*world, *regions.Keeper) {
	w := newWorld(t, all...)
	k := w.keeper(all...)
	o := w.open(all...)
	for i, r := range all {
		id, folded := batch("claimed", uint64(10*i+1), uint64(10*i+5)), batch("boot", uint64(10*i+1), uint64(10*i+5))
		w.claim(o, id, r, "c", claims.Settled, false)
		w.manifest(r, id, "c", accepted.Stamp{Epoch: 1, Fence: 5})
		w.manifest(r, folded, "f", accepted.Stamp{Epoch: 1, Fence: 5})
		w.fold(k, o.Epoch, r, map[identity.Batch]string{folded: "f"})
	}
	w.buckets[empty] = mem.New(nil)
	w.away(lost)
	return w, k
}

// Two regions are lost for good at once. One of them gets an empty bucket, and the other one is retired with --forget, which dies at any request.
// Whoever leads tries to go on. Then the operator asks for the same again, as after any retirement that died, and retires the other one, as the guide
// says. Both succeed, and nothing is forgotten but what etcd had of the one with the empty bucket.
func TestARetirementThatForgetsIsGoneOnWith(t *testing.T) {
	for _, all := range [][]claims.Region{{"asia", "eu", "us"}, {"africa", "asia", "eu", "mars", "us"}} {
		for _, lost := range all {
			for _, empty := range all {
				for dead, more := 0, lost != empty; more && !t.Failed(); dead++ {
					more = twoAreRetired(t, all, lost, empty, dead)
				}
			}
		}
	}
}

func twoAreRetired(t *testing.T, all []claims.Region, lost, empty claims.Region, dead int) (died bool) {
	what := fmt.Sprintf("%v: %s is lost, %s empty, dead at request %d", all, lost, empty, dead)
	w, k := twoLost(t, all, lost, empty)
	i, away := 0, w.before
	w.before = func(what string) error {
		if i++; i > dead {
			return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
		}
		return away(what)
	}
	_, err := k.Retire(t.Context(), lost, true)
	if died = err != nil; died {
		w.before = away
		_, opened := k.Open(t.Context(), true)
		if _, err := k.Retire(t.Context(), lost, true); err != nil {
			t.Errorf("%s: asked again: %v", what, err)
			t.Logf("nobody opens either: %v", opened)
			// It says that the region with the empty bucket may be retired.
			_, err := k.Retire(t.Context(), empty, false)
			t.Logf("the other one, as it says: %v", err)
			_, err = k.Retire(t.Context(), empty, true)
			t.Logf("and with --forget: %v", err)
		}
	}
	w.before = away
	o, err := k.Retire(t.Context(), empty, false)
	if err != nil || len(o.Epoch.Regions) != len(all)-2 {
		t.Errorf("%s: %v, %v", what, o.Epoch, err)
		return died
	}
	for n, r := range all {
		id, folded := batch("claimed", uint64(10*n+1), uint64(10*n+5)), batch("boot", uint64(10*n+1), uint64(10*n+5))
		if got := w.asked(k, o.Epoch, folded, "z"); !strings.HasPrefix(got, "CONFLICT") {
			t.Errorf("%s: the fold of %s: %s", what, r, got)
		}
		if got := w.asked(k, o.Epoch, id, "z"); r != empty && !strings.HasPrefix(got, "CONFLICT") && !slices.Contains(w.claims(), line(id, r, "c")) {
			t.Errorf("%s: the claim of %s: %s", what, r, got)
		}
	}
	return died
}

// Of three regions two operators retire two, and die with one record each. The third one is lost, and etcd restored to before. One of the two is taken
// out of the settings, as the runbook says. Then it and the one that is lost wait for each other, and what the guide says of two that are lost ends that.
func TestACircleWhoseThirdRegionIsLost(t *testing.T) {
	all := []claims.Region{"asia", "eu", "us"}
	w := newWorld(t, all...)
	k, o := w.keeper(all...), w.open(all...)
	for i, r := range all {
		id := batch("boot", uint64(10*i+1), uint64(10*i+5))
		w.manifest(r, id, "f", accepted.Stamp{Epoch: 1, Fence: 5})
		w.fold(k, o.Epoch, r, map[identity.Batch]string{id: "f"})
	}
	was := w.kv.Copy()
	first, second := w.paused(w.retires("asia", all...)), w.paused(w.retires("eu", all...))
	w.diesBehind("eu", 2)
	if err := first(); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.diesBehind("asia", 2)
	if err := second(); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	w.away("us")
	w.kv.Restore(was, 2)
	if _, err := k.Open(t.Context(), true); !errors.Is(err, regions.ErrRegionSettings) || !strings.Contains(err.Error(), "[asia eu] say of each other") {
		t.Fatal(err)
	}
	left := w.keeper("asia", "us")
	if _, err := left.Retire(t.Context(), "us", true); !errors.Is(err, regions.ErrForgets) || !strings.Contains(err.Error(), "[eu]") {
		t.Fatal(err)
	}
	var of *regions.RegionError
	if _, err := left.Retire(t.Context(), "eu", true); !errors.As(err, &of) || of.Region != "us" {
		t.Fatal(err)
	}
	w.before, w.buckets["us"] = nil, mem.New(nil)
	if o, err := left.Open(t.Context(), true); !errors.Is(err, regions.ErrRegionSettings) || !strings.Contains(err.Error(), "its bucket has no record") {
		t.Fatalf("with an empty bucket: %v, %v", o.Epoch, err)
	}
	if o, err := left.Retire(t.Context(), "eu", true); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"asia", "us"}) {
		t.Fatal(o.Epoch, err)
	}
	o, err := left.Retire(t.Context(), "us", false)
	if err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"asia"}) {
		t.Fatal(o.Epoch, err)
	}
	for i, r := range all {
		if got := w.asked(left, o.Epoch, batch("boot", uint64(10*i+1), uint64(10*i+5)), "z"); !strings.HasPrefix(got, "CONFLICT") {
			t.Errorf("the fold of %s: %s", r, got)
		}
	}
}
