package regions_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// onceMoved does something else when all records of a first epoch are written, before its mover goes on with etcd.
func (w *world) onceMoved(do func()) {
	w.before = func(what string) error {
		if n := w.numbers(); what == "etcd" && n["eu"] == 1 && n["us"] == 1 {
			w.before = nil
			do()
		}
		return nil
	}
}

// Somebody begins the first epoch, and is slow between the records and etcd. Meanwhile others have opened an epoch, have retired a region, and
// etcd has no epoch again: it was dissolved, is being dissolved, or was distrusted. The first epoch is over, and is not opened.
func TestAnEpochThatWasOvertakenIsNotOpened(t *testing.T) {
	for name, ends := range map[string]func(*world, *regions.Keeper, regions.Opened){
		"dissolved": func(w *world, k *regions.Keeper, _ regions.Opened) {
			if _, err := k.Dissolve(context.Background(), "eu"); err != nil {
				t.Error(err)
			}
		},
		"frozen": func(w *world, k *regions.Keeper, o regions.Opened) {
			w.after = func(string) error {
				if slices.Contains(w.left(), "dissolving") {
					return errDead
				}
				return nil
			}
			if _, err := k.Dissolve(context.Background(), "eu"); !errors.Is(err, errDead) {
				t.Error(err)
			}
			w.after = nil
		},
		"distrusted": func(w *world, k *regions.Keeper, o regions.Opened) {
			if err := k.Distrust(context.Background(), o); err != nil {
				t.Error(err)
			}
		},
	} {
		w := newWorld(t, "eu", "us")
		k := w.keeper("eu", "us")
		id := batch("boot", 1, 5)
		w.onceMoved(func() {
			w.open("eu", "us")
			o, err := k.Retire(context.Background(), "us", false)
			if err != nil {
				t.Fatal(err)
			}
			w.claim(o, id, "eu", "a", claims.Settled, false)
			w.manifest("eu", id, "a", accepted.Stamp{Epoch: o.Epoch.Number, Fence: 9})
			ends(w, k, o)
		})
		if o, err := w.keeper("eu", "us").Open(t.Context(), true); !errors.Is(err, regions.ErrOvertaken) {
			t.Errorf("%s: %v is open: %v", name, o.Epoch, err)
		}
		o, err := k.Open(t.Context(), true)
		if name == "dissolved" {
			if !errors.Is(err, regions.ErrDissolved) {
				t.Errorf("%s: %v, %v", name, o.Epoch, err)
			}
		} else if err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu"}) {
			t.Errorf("%s: %v, %v", name, o.Epoch, err)
		}
	}
}

// Etcd is restored to a copy from a dissolution that was refused since, under the same cluster id. Whoever notices takes the mark out, which
// would bring the epoch back as it was then.
func TestACopyOfADissolutionIsDistrusted(t *testing.T) {
	w, k, was := ending(t)
	l, _ := w.late()
	id := batch("late", 1, 4)
	frozen := w.kv.Copy()
	l.behind = func(int) {
		if slices.Contains(w.left(), "dissolving") {
			frozen = w.kv.Copy()
		}
	}
	// A claim comes between the first look at the claims and the freezing.
	n := 0
	w.before = nil
	late := w.lateBefore(l, func() {
		if n++; n == 3 {
			w.claim(was, id, "eu", "a", claims.Claimed, false)
		}
	})
	var u *regions.UndecidedError
	if _, err := late.Dissolve(t.Context(), "eu"); !errors.As(err, &u) {
		t.Fatal(err)
	}
	lived, err := k.Open(t.Context(), false)
	if err != nil || lived.Epoch.ID != was.Epoch.ID {
		t.Fatal(lived, err)
	}
	// Decided since.
	w.manifest("eu", batch("since", 1, 9), "b", accepted.Stamp{Epoch: was.Epoch.Number, Fence: 99})
	w.kv.Restore(frozen, was.Cluster)
	if err := k.Distrust(t.Context(), lived); err != nil {
		t.Fatal(err)
	}
	o, err := k.Open(t.Context(), true)
	if err != nil || o.Epoch.Number <= was.Epoch.Number || !slices.Contains(w.claims(), line(batch("since", 1, 9), "eu", "b")) {
		t.Errorf("%v, %v", o.Epoch, err)
	}
}

func (w *world) lateBefore(l *late, before func()) *regions.Keeper {
	k, err := regions.New(regions.Config{KV: &hooked{KV: l, before: before}, Keys: keys, Regions: []regions.Region{{Name: "eu", Store: l}}, Rand: w.rand, Now: func() int64 { return 7 }})
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// retires is a retirement of one of these regions, as a call.
func (w *world) retires(name claims.Region, of ...claims.Region) func() error {
	return func() error { _, err := w.keeper(of...).Retire(context.Background(), name, false); return err }
}

// diesBehind lets whoever is at work die once a region's record has this number.
func (w *world) diesBehind(name claims.Region, number uint64) {
	w.after = func(what string) error {
		if what != "etcd" && w.numbers()[name] == number {
			return errDead
		}
		return nil
	}
}

// Two retirements write one record each. An operator asks for the first of them, which died, and only sees that one; while he goes on with it the
// other one gets the region that both have. He is not told that the region is retired.
func TestARetirementThatIsGoneOnWithIsOvertaken(t *testing.T) {
	all := []claims.Region{"asia", "eu", "us"}
	w := newWorld(t, all...)
	w.open(all...)
	first := w.paused(w.retires("asia", all...))
	// The other one reads what was there before, and reserves etcd once more.
	finish := w.paused(w.retires("eu", all...))
	w.diesBehind("eu", 2)
	if err := first(); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	asks := func() error {
		// It has replaced the record of eu when the other one goes on.
		w.after = func(what string) error {
			if w.numbers()["eu"] == 3 {
				w.after = nil
				if err := finish(); err != nil {
					t.Log(err)
				}
			}
			return nil
		}
		o, err := w.keeper(all...).Retire(context.Background(), "asia", false)
		if err == nil && slices.Contains(o.Epoch.Regions, "asia") {
			t.Errorf("told that asia is retired: %v", o.Epoch)
		}
		return err
	}
	if err := asks(); !errors.Is(err, regions.ErrOvertaken) {
		t.Error(err)
	}
	if o, err := w.keeper(all...).Open(t.Context(), true); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"asia", "us"}) {
		t.Errorf("%v, %v", o.Epoch, err)
	}
}

// Of two regions one is being retired. Somebody adds a third, and dies when the first region's record has it; then the other of the two is not
// retired either: the first retirement knows of no third region, in which it would find out.
func TestARetirementThatBeganHoldsTheOtherBesideAnAddition(t *testing.T) {
	all := []claims.Region{"eu", "us", "zanzibar"}
	w := newWorld(t, all...)
	w.open("eu", "us")
	finish := w.paused(w.retires("eu", all...))
	w.diesBehind("eu", 2)
	if _, err := w.keeper(all...).Add(t.Context(), "zanzibar"); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.diesBehind("eu", 3)
	if err := w.retires("us", all...)(); !errors.Is(err, regions.ErrRetiring) {
		t.Error(err)
	}
	w.diesBehind("us", 2)
	if err := finish(); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	if o, err := w.keeper(all...).Open(t.Context(), true); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"us"}) {
		t.Errorf("%v, %v", o.Epoch, err)
	}
}

// A region is being added, and that died. An operator retires it; meanwhile somebody else, who knows nothing of it, retires the region that alone
// had its record. It was never added, and its retirement fails: its name may be used.
func TestARetirementOfARegionThatWasNeverAdded(t *testing.T) {
	all := []claims.Region{"asia", "eu", "us", "zanzibar"}
	w := newWorld(t, all...)
	w.open("asia", "eu", "us")
	other := w.paused(w.retires("asia", all...))
	w.diesBehind("asia", 2)
	if _, err := w.keeper(all...).Add(t.Context(), "zanzibar"); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	finish := w.paused(w.retires("zanzibar", all...))
	if err := other(); err != nil {
		t.Log(err)
	}
	if err := finish(); !errors.Is(err, regions.ErrRegionSettings) {
		t.Error(err)
	}
	o, err := w.keeper(all...).Open(t.Context(), true)
	if err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu", "us"}) || slices.Contains(o.Retired, "zanzibar") {
		t.Errorf("%v, retired %v, %v", o.Epoch, o.Retired, err)
	}
}

// The bucket of the last region was lost, and another one took its place, or a backup. The record of a region that was retired long before is all that
// is left: it does not bring that region back.
func TestTheRecordOfLongAgoIsNotRecovered(t *testing.T) {
	w := newWorld(t, "asia", "us")
	w.open("asia", "us")
	k := w.keeper("asia", "us")
	backup, _, err := w.buckets["us"].Get(t.Context(), layout.RegionsKey, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Retire(t.Context(), "asia", false); err != nil {
		t.Fatal(err)
	}
	for name, restore := range map[string]func() error{
		"empty": func() error { return nil },
		"a backup": func() error {
			_, err := w.buckets["us"].Create(t.Context(), layout.RegionsKey, backup, objstore.PutOptions{})
			return err
		},
	} {
		w.buckets["us"] = newWorld(t, "us").buckets["us"]
		if err := restore(); err != nil {
			t.Fatal(err)
		}
		for _, k := range []*regions.Keeper{k, w.keeper("us")} {
			if o, err := k.Open(t.Context(), true); !errors.Is(err, regions.ErrRegionSettings) {
				t.Errorf("%s: %v: %v, %v", name, k.Names(), o.Epoch, err)
			}
		}
	}
	// Nothing is left: the first epoch of an empty etcd.
	w.buckets["us"] = newWorld(t, "us").buckets["us"]
	w.kv.Restore(kv.New().Copy(), 2)
	if o, err := w.keeper("us").Open(t.Context(), true); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"us"}) {
		t.Errorf("%v, %v", o.Epoch, err)
	}
}

// Etcd is restored to a copy from the end of a recovery, under the same cluster id, and the epoch is taken out. Then the recovery's requests come a
// second time: they do not open the epoch over the copy.
func TestARecoveryThatComesTwiceIntoACopy(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	l, k := w.late()
	w.manifest("eu", batch("boot", 1, 5), "a", accepted.Stamp{})
	var copies []*kv.Store
	l.behind = func(int) {
		if slices.Contains(w.left(), "epoch") {
			copies = append(copies, w.kv.Copy())
		}
	}
	o, err := k.Open(t.Context(), true)
	if err != nil || len(copies) < 4 {
		t.Fatal(err, len(copies))
	}
	l.behind = nil
	n := len(l.writes)
	for i, c := range copies {
		for first := range n {
			w.kv.Restore(c, o.Cluster)
			if err := k.Distrust(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			for _, again := range l.writes[first:n] {
				again()
			}
			if o, err := k.Open(t.Context(), false); !errors.Is(err, regions.ErrMustRecover) {
				t.Errorf("copy %d, from write %d on: %v is open: %v, %v", i, first, o.Epoch, w.left(), err)
			}
		}
	}
}

// turns lets calls take turns, each until it has made some more requests; n < 0 is until it ends.
func (w *world) turns() (call func(fn func()) (next func(n int) (more bool))) {
	var yield func(struct{}) bool
	w.before = func(string) error {
		if !yield(struct{}{}) {
			return errDead
		}
		return nil
	}
	return func(fn func()) func(int) bool {
		var own func(struct{}) bool
		next, stop := iter.Pull(func(y func(struct{}) bool) {
			own, yield = y, y
			fn()
		})
		w.t.Cleanup(stop)
		return func(n int) bool {
			for more := true; n != 0; n-- {
				yield = own
				if _, more = next(); !more {
					return false
				}
			}
			return true
		}
	}
}

// One adds a region, and is slow behind its records. Somebody retires another region, and is slow at any request. The first one goes on until it is
// slow again. Then the region is lost, and both end, the retirement first. What the lost region had decided is kept, or the retirement is refused.
func TestARetirementAndAnAdditionTakeTurns(t *testing.T) {
	all, id := []claims.Region{"africa", "asia", "eu", "us"}, batch("boot", 1, 5)
	ends := map[bool]int{}
	for first := 12; first < 26; first++ {
		for second := 1; second < 12; second++ {
			for third := 6; third < 12; third++ {
				w := newWorld(t, all...)
				o := w.open("asia", "eu", "us")
				w.claim(o, id, "us", "a", claims.Durable, false)
				w.manifest("us", id, "a", accepted.Stamp{Epoch: 1, Fence: 5})
				call := w.turns()
				lost := false
				take, before := w.before, func(what string) error {
					if lost && what == "us" {
						return errDown
					}
					return nil
				}
				w.before = func(what string) error { return errors.Join(take(what), before(what)) }
				add := call(func() { _, _ = w.keeper(all...).Add(context.Background(), "africa") })
				retire := call(func() { _, _ = w.keeper(all...).Retire(context.Background(), "us", false) })
				if !add(first) {
					break
				}
				retire(second)
				add(third)
				lost = true
				retire(-1)
				add(-1)
				w.before = before
				o, err := w.keeper(all...).Retire(t.Context(), "us", false)
				if ends[err == nil]++; errors.Is(err, regions.ErrForgets) {
					continue
				}
				if got := w.asked(w.keeper(all...), o.Epoch, id, "z"); err != nil || len(got) < 8 || got[:8] != "CONFLICT" {
					t.Fatalf("after %d, %d and %d requests: %v: %s", first, second, third, err, got)
				}
			}
		}
	}
	if len(ends) != 2 {
		t.Error(ends)
	}
	t.Log(ends)
}
