package regions_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
)

// A region is retired while another one is added, at any request of that, and the other way round: what is retired stays so, whoever is first.
func TestARetirementAndAnAddition(t *testing.T) {
	names := []claims.Region{"africa", "asia", "eu", "us"}
	add := func(k *regions.Keeper) error { _, err := k.Add(context.Background(), "africa"); return err }
	retire := func(k *regions.Keeper) error { _, err := k.Retire(context.Background(), "us", false); return err }
	for name, pair := range map[string][2]func(*regions.Keeper) error{"add, retire in between": {add, retire}, "retire, add in between": {retire, add}} {
		for at := 1; ; at++ {
			w := newWorld(t, names...)
			w.open("asia", "eu", "us")
			i := 0
			var other error
			w.before = func(string) error {
				if i++; i == at {
					before := w.before
					w.before = nil
					other = pair[1](w.keeper(names...))
					w.before = before
				}
				return nil
			}
			err := pair[0](w.keeper(names...))
			w.before = nil
			if i < at {
				break
			}
			// Nothing is retired while a recovery fills etcd.
			want := []claims.Region{"africa", "asia", "eu"}
			for _, err := range []error{err, other} {
				switch {
				case errors.Is(err, regions.ErrForgets):
					want = names
				case err != nil && !errors.Is(err, regions.ErrOvertaken):
					t.Errorf("%s, request %d: %v", name, at, err)
				}
			}
			// Whoever was overtaken has its records in all buckets, and the next to open goes on with that.
			if o, err := w.keeper(names...).Open(t.Context(), true); err != nil || !slices.Equal(o.Epoch.Regions, want) {
				t.Errorf("%s, request %d: %v, %v, want %v", name, at, o.Epoch, err, want)
			}
		}
	}
}

// Of two regions each is retired by another mover at once. One of them is; or nobody decides anything, until an operator says by the settings
// which of them is lost.
func TestTwoRegionsThatRetireEachOther(t *testing.T) {
	ends := map[string]int{}
	for at := 1; ; at++ {
		w := newWorld(t, "eu", "us")
		w.open("eu", "us")
		i := 0
		var other error
		w.before = func(string) error {
			if i++; i == at {
				before := w.before
				w.before = nil
				_, other = w.keeper("eu", "us").Retire(context.Background(), "us", false)
				w.before = before
			}
			return nil
		}
		_, err := w.keeper("eu", "us").Retire(t.Context(), "eu", false)
		w.before = nil
		if i < at {
			break
		}
		was, left := w.kv.Copy(), w.left()
		o, opened := w.keeper("eu", "us").Open(t.Context(), true)
		switch {
		case opened == nil && (err == nil) != (other == nil) && len(o.Epoch.Regions) == 1 && slices.Contains(o.Epoch.Regions, "eu") == (other == nil):
			ends["one is retired"]++
			continue
		case !errors.Is(opened, regions.ErrRegionSettings) || !slices.Equal(w.left(), left):
			t.Fatalf("request %d: %v, %v; opened %v, %v", at, err, other, o.Epoch, opened)
		}
		ends["refused"]++
		for _, k := range []func() error{
			func() error { _, err := w.keeper("eu", "us").Add(t.Context(), "eu"); return err },
			func() error { _, err := w.keeper("eu", "us").Retire(t.Context(), "eu", true); return err },
			func() error { _, err := w.keeper("eu", "us").Dissolve(t.Context(), "eu"); return err },
		} {
			if err := k(); !errors.Is(err, regions.ErrRegionSettings) {
				t.Errorf("request %d: %v", at, err)
			}
		}
		if o, err := w.keeper("eu").Open(t.Context(), true); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu"}) {
			t.Errorf("request %d: with eu alone: %v, %v", at, o.Epoch, err)
		}
		if s, err := w.keeper("eu").Status(t.Context()); err != nil || len(s.Records["eu"].Retired) != 1 {
			t.Errorf("request %d: %+v, %v", at, s, err)
		}
		// The epoch that etcd has is not the one in which eu was retired, although it has its number: what etcd has of eu is still to be kept.
		w.kv.Restore(was, 1)
		if _, err := w.keeper("us").Open(t.Context(), true); err != nil {
			t.Errorf("request %d: with us alone: %v", at, err)
		}
		if s, err := w.keeper("us").Status(t.Context()); err != nil || !slices.Equal(s.Records["us"].Retired, []regions.Retired{{Name: "eu"}}) {
			t.Errorf("request %d: %+v, %v", at, s, err)
		}
	}
	if len(ends) != 2 {
		t.Errorf("%v", ends)
	}
}

// The record has room for so many names that are never used again. A further region is not retired: nobody could read the record.
func TestRegionsAreRetiredAsLongAsThereIsRoom(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu")
	names := []claims.Region{"eu"}
	var err error
	for i := 0; err == nil && i < 100; i++ {
		name := claims.Region(fmt.Sprintf("gone-%d", i))
		w.buckets[name] = w.buckets["us"]
		k := w.keeper("eu", name)
		if _, err := k.Add(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if _, err = k.Retire(t.Context(), name, false); err == nil {
			names = append(names, name)
			w.buckets["us"] = newWorld(t, "us").buckets["us"]
		}
	}
	if !errors.Is(err, regions.ErrRegionSettings) || len(names) != 65 {
		t.Errorf("%d regions: %v", len(names), err)
	}
	s, err := w.keeper("eu").Status(t.Context())
	if err != nil || len(s.Unread) > 0 || len(s.Records["eu"].Retired) != 64 {
		t.Errorf("%+v, %v", s, err)
	}
}

// The bucket of a region that has a linearizer of its own is in the settings: nobody's regions are dropped for it. Once that linearizer was
// dissolved it is a bucket like any other, also if its epoch is the higher one.
func TestTheBucketOfAnotherLinearizer(t *testing.T) {
	for _, epochs := range []int{1, 5} {
		for _, name := range []claims.Region{"africa", "zanzibar"} {
			w, own := newWorld(t, name, "eu", "us"), newWorld(t, name)
			own.buckets = w.buckets
			was := w.open("eu", "us")
			for n := range epochs {
				own.kv.Restore(own.kv.Copy(), uint64(70+n))
				own.open(name)
			}
			all := []claims.Region{name, "eu", "us"}
			k := w.keeper(all...)
			for what, do := range map[string]func() error{
				"open":   func() error { _, err := k.Open(t.Context(), true); return err },
				"check":  func() error { return k.Check(t.Context(), was) },
				"add":    func() error { _, err := k.Add(t.Context(), name); return err },
				"retire": func() error { _, err := k.Retire(t.Context(), "us", false); return err },
			} {
				if err := do(); !errors.Is(err, regions.ErrRegionSettings) {
					t.Errorf("%d epochs of %s: %s: %v", epochs, name, what, err)
				}
			}
			if o, err := w.keeper("eu", "us").Open(t.Context(), false); err != nil || o.Epoch.ID != was.Epoch.ID {
				t.Errorf("%v, %v", o.Epoch, err)
			}
			if _, err := own.keeper(name).Dissolve(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			if o, err := k.Open(t.Context(), true); err != nil || o.Epoch.ID != was.Epoch.ID {
				t.Errorf("%v, %v", o.Epoch, err)
			}
			if o, err := k.Add(t.Context(), name); err != nil || len(o.Epoch.Regions) != 3 || o.Epoch.Number <= uint64(epochs+1) {
				t.Errorf("%v, %v", o.Epoch, err)
			}
		}
	}
}

// While a linearizer is dissolved, one adds a region and dies, and another one goes on with that. Once it is dissolved nobody opens an epoch.
func TestADissolutionAndTwoMovers(t *testing.T) {
	names := []claims.Region{"africa", "asia", "eu", "us"}
	ended := 0
	for dead := range 40 {
		for at := 1; at < 40; at++ {
			w, _, _ := ending(t)
			w.buckets["africa"] = newWorld(t, "africa").buckets["africa"]
			dieBehind := func(requests int) {
				w.before = func(string) error {
					if requests--; requests < 0 {
						return errDead
					}
					return nil
				}
			}
			i, late := 0, false
			w.before = func(string) error {
				if i++; i != at {
					return nil
				}
				w.before = nil
				s, err := w.keeper(names...).Status(context.Background())
				late = err != nil || s.Records["eu"].Dissolved // whoever adds a region then begins another linearizer
				dieBehind(dead)
				_, _ = w.keeper(names...).Add(context.Background(), "africa")
				dieBehind(6) // behind the first of its records
				_, _ = w.keeper(names...).Open(context.Background(), true)
				w.before = nil
				return nil
			}
			_, err := w.keeper(names...).Dissolve(t.Context(), "eu")
			w.before = nil
			if err != nil || late || i < at {
				continue
			}
			ended++
			if o, err := w.keeper(names...).Open(t.Context(), true); !errors.Is(err, regions.ErrDissolved) {
				t.Errorf("add dies at %d, others come at %d: %v, %v", dead, at, o.Epoch, err)
			}
		}
	}
	if ended < 50 {
		t.Error(ended)
	}
}
