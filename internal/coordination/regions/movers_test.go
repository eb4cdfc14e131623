package regions_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
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

// paused is a call that has come to the first record which it writes, and waits there. finish lets it end.
func (w *world) paused(call func() error) (finish func() error) {
	var err error
	next, _ := iter.Pull(func(yield func(struct{}) bool) {
		w.held = func(_ claims.Region, key string, _ func() error) bool {
			if key == layout.RegionsKey {
				w.held = nil
				yield(struct{}{})
			}
			return false
		}
		err = call()
	})
	if _, waits := next(); !waits {
		w.t.Errorf("it has ended before it wrote a record: %v", err)
	}
	return func() error {
		next()
		return err
	}
}

// numbers are those of the records.
func (w *world) numbers() map[claims.Region]uint64 {
	w.t.Helper()
	out := map[claims.Region]uint64{}
	for n, b := range w.buckets {
		body, _, err := b.Get(w.t.Context(), layout.RegionsKey, objstore.GetOptions{})
		if errors.Is(err, objstore.ErrNotFound) {
			continue
		}
		r, err2 := regions.ParseRecord(body)
		if err != nil || err2 != nil {
			w.t.Fatal(err, err2)
		}
		out[n] = r.Number
	}
	return out
}

// One retires asia, and has read all records. Another one adds africa and dies at any request, and a third one goes on with that until it is
// about to write, or a few requests further. Then the retirement goes on. Whatever comes of it, no record in the new region's bucket brings asia back.
func TestAnAdditionIsGoneOnWithWhileARegionIsRetired(t *testing.T) {
	names := []claims.Region{"africa", "asia", "eu", "us"}
	retired := 0
	for dead := range 20 {
		for at := 1; at < 30; at++ {
			w := newWorld(t, names...)
			w.open("asia", "eu", "us")
			finish := w.paused(func() error {
				_, err := w.keeper(names...).Retire(context.Background(), "asia", false)
				return err
			})
			n := dead
			w.before = func(string) error {
				if n--; n < 0 {
					return errDead
				}
				return nil
			}
			_, _ = w.keeper(names...).Add(context.Background(), "africa")
			i, done := 0, false
			var err error
			w.before = func(string) error {
				if i++; i == at {
					w.before, done = nil, true
					err = finish()
				}
				return nil
			}
			_, _ = w.keeper(names...).Open(t.Context(), true)
			if w.before = nil; !done {
				_ = finish()
				break
			}
			if err != nil && !errors.Is(err, regions.ErrForgets) && !errors.Is(err, regions.ErrOvertaken) {
				t.Errorf("dead at %d, retired at %d: %v", dead, at, err)
			}
			o, err2 := w.keeper(names...).Open(t.Context(), true)
			if err2 != nil || slices.Contains(o.Epoch.Regions, "asia") == (err == nil) {
				t.Errorf("dead at %d, retired at %d: %v; %v, %v", dead, at, err, o.Epoch, err2)
			}
			if err == nil {
				retired++
			}
		}
	}
	if retired < 50 {
		t.Error(retired)
	}
}

// Two retirements of different regions die where each has written one record, in the bucket of the other's region. One of them counts, and is
// gone on with.
func TestTwoRetirementsThatDie(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	w.open("asia", "eu", "us")
	k := w.keeper("asia", "eu", "us")
	retire := func(name claims.Region) func() error {
		return func() error {
			_, err := w.keeper("asia", "eu", "us").Retire(context.Background(), name, false)
			return err
		}
	}
	// The first to have read everything can't write any more in etcd, but in the buckets.
	finish := w.paused(retire("asia"))
	dies := func() {
		w.after = func(what string) error {
			if what != "etcd" && len(w.numbers()) == 3 && w.numbers()["us"] == 1 && (w.numbers()["eu"] == 2 || w.numbers()["asia"] == 2) {
				return errDead
			}
			return nil
		}
	}
	two := w.paused(retire("eu"))
	dies()
	if err := two(); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	if err := finish(); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	if got := w.numbers(); got["asia"] != 2 || got["eu"] != 2 || got["us"] != 1 {
		t.Fatal(got)
	}
	if o, err := k.Open(t.Context(), true); err != nil || o.Epoch.Number != 3 || !slices.Equal(o.Epoch.Regions, []claims.Region{"asia", "us"}) {
		t.Errorf("%v, %v", o.Epoch, err)
	}
	// The other one was not begun: its record lies with the retired region.
	if o, err := k.Retire(t.Context(), "asia", false); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"us"}) {
		t.Errorf("%v, %v", o.Epoch, err)
	}
}

// Somebody adds a region, and is slow: meanwhile another one has done so, and has retired it. It is not added again, and the records can be read.
func TestAnAdditionThatIsLate(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu")
	k := w.keeper("eu", "us")
	finish := w.paused(func() error { _, err := w.keeper("eu", "us").Add(context.Background(), "us"); return err })
	if _, err := k.Add(t.Context(), "us"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Retire(t.Context(), "us", false); err != nil {
		t.Fatal(err)
	}
	if err := finish(); !errors.Is(err, regions.ErrRegionSettings) {
		t.Error(err)
	}
	if o, err := k.Open(t.Context(), false); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu"}) {
		t.Errorf("%v, %v", o.Epoch, err)
	}
}

// Two begin the first epoch at once, with settings that differ. Whoever is second does not leave a region out that its settings do not have, also
// where the first one died before etcd had its epoch.
func TestTwoFirstEpochs(t *testing.T) {
	for _, pair := range [][2][]claims.Region{{{"asia", "eu"}, {"eu", "us"}}, {{"eu", "us"}, {"asia", "eu"}}, {{"asia", "us"}, {"eu", "us"}}} {
		w := newWorld(t, "asia", "eu", "us")
		var first regions.Opened
		w.held = func(r claims.Region, key string, _ func() error) bool {
			if key == layout.RegionsKey && slices.Contains(pair[1], r) {
				w.held = nil
				first = w.open(pair[1]...)
			}
			return false
		}
		o, err := w.keeper(pair[0]...).Open(t.Context(), true)
		if !errors.Is(err, regions.ErrRegionSettings) || first.Epoch.Number != 1 {
			t.Errorf("%v: %v, %v after %v", pair, o.Epoch, err, first.Epoch)
		}
		if o, err := w.keeper(pair[1]...).Open(t.Context(), false); err != nil || o.Epoch.ID != first.Epoch.ID {
			t.Errorf("%v: %v, %v after %v", pair, o.Epoch, err, first.Epoch)
		}
		w = newWorld(t, "asia", "eu", "us")
		w.held = func(r claims.Region, key string, _ func() error) bool {
			if key == layout.RegionsKey && slices.Contains(pair[1], r) {
				w.held = nil
				w.before = func(what string) error {
					if n := w.numbers(); what == "etcd" && n[pair[1][0]] > 0 && n[pair[1][1]] > 0 {
						return errDead
					}
					return nil
				}
				if _, err := w.keeper(pair[1]...).Open(t.Context(), true); !errors.Is(err, errDead) {
					t.Error(err)
				}
				w.before = nil
			}
			return false
		}
		if o, err := w.keeper(pair[0]...).Open(t.Context(), true); !errors.Is(err, regions.ErrRegionSettings) {
			t.Errorf("%v: %v, %v after one that died", pair, o.Epoch, err)
		}
		if o, err := w.keeper(pair[1]...).Open(t.Context(), true); err != nil || !slices.Equal(o.Epoch.Regions, pair[1]) {
			t.Errorf("%v: %v, %v after one that died", pair, o.Epoch, err)
		}
	}
}

// Of two regions each is retired by another mover at once. One of them is, and the other mover gets an error.
func TestTwoRegionsThatRetireEachOther(t *testing.T) {
	for _, forget := range []bool{false, true} {
		for at := 1; ; at++ {
			w := newWorld(t, "eu", "us")
			w.open("eu", "us")
			i := 0
			var other error
			w.before = func(string) error {
				if i++; i == at {
					before := w.before
					w.before = nil
					_, other = w.keeper("eu", "us").Retire(context.Background(), "us", forget)
					w.before = before
				}
				return nil
			}
			_, err := w.keeper("eu", "us").Retire(t.Context(), "eu", forget)
			w.before = nil
			if i < at {
				if at < 10 {
					t.Errorf("%d requests only", i)
				}
				break
			}
			for _, err := range []error{err, other} {
				if err != nil && !errors.Is(err, regions.ErrRegionSettings) && !errors.Is(err, regions.ErrForgets) && !errors.Is(err, regions.ErrRetiring) && !errors.Is(err, regions.ErrOvertaken) {
					t.Errorf("request %d: %v", at, err)
				}
			}
			o, opened := w.keeper("eu", "us").Open(t.Context(), true)
			if opened != nil || (err == nil) == (other == nil) || len(o.Epoch.Regions) != 1 || slices.Contains(o.Epoch.Regions, "eu") != (other == nil) {
				t.Errorf("request %d: %v, %v; opened %v, %v", at, err, other, o.Epoch, opened)
			}
		}
	}
}

// They do so while etcd has forgotten its epoch, forget what it had, and die. Nobody decides anything until an operator says by the settings
// which region is lost.
func TestTwoRegionsThatRetireEachOtherAndForget(t *testing.T) {
	w := newWorld(t, "eu", "us")
	was := w.kv.Copy()
	if err := w.keeper("eu", "us").Distrust(t.Context(), w.open("eu", "us")); err != nil {
		t.Fatal(err)
	}
	finish := w.paused(func() error { _, err := w.keeper("eu", "us").Retire(context.Background(), "us", true); return err })
	i := 0
	w.after = func(what string) error {
		// Of the first to write: it reads etcd, and both records.
		if i++; i > 3 {
			return errDead
		}
		return nil
	}
	if _, err := w.keeper("eu", "us").Retire(t.Context(), "eu", true); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	if err := finish(); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	left := fmt.Sprint(w.left(), w.numbers())
	for _, do := range []func() error{
		func() error { _, err := w.keeper("eu", "us").Open(t.Context(), true); return err },
		func() error { _, err := w.keeper("eu", "us").Add(t.Context(), "eu"); return err },
		func() error { _, err := w.keeper("eu", "us").Retire(t.Context(), "eu", true); return err },
		func() error { _, err := w.keeper("eu", "us").Dissolve(t.Context(), "eu"); return err },
	} {
		if err := do(); !errors.Is(err, regions.ErrRegionSettings) {
			t.Error(err)
		}
	}
	if err := w.keeper("eu", "us").Check(t.Context(), regions.Opened{}); err == nil || !strings.Contains(err.Error(), "[eu us] say of each other") {
		t.Error(err)
	}
	if now := fmt.Sprint(w.left(), w.numbers()); now != left {
		t.Errorf("%s, and before %s", now, left)
	}
	if _, err := w.keeper("eu").Open(t.Context(), true); !errors.Is(err, regions.ErrForgets) {
		t.Error(err)
	}
	if o, err := w.keeper("eu").Retire(t.Context(), "us", true); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu"}) {
		t.Errorf("with eu alone: %v, %v", o.Epoch, err)
	}
	if s, err := w.keeper("eu").Status(t.Context()); err != nil || !slices.Equal(s.Records["eu"].Retired, []regions.Retired{{Name: "us", Done: true}}) {
		t.Errorf("%+v, %v", s, err)
	}
	w.kv.Restore(was, 1)
	if _, err := w.keeper("us").Open(t.Context(), true); !errors.Is(err, regions.ErrForgets) {
		t.Error(err)
	}
	if o, err := w.keeper("us").Retire(t.Context(), "eu", true); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"us"}) {
		t.Errorf("with us alone: %v, %v", o.Epoch, err)
	}
	if s, err := w.keeper("us").Status(t.Context()); err != nil || !slices.Equal(s.Records["us"].Retired, []regions.Retired{{Name: "eu", Done: true}}) {
		t.Errorf("%+v, %v", s, err)
	}
}

// A retirement of one of two regions dies before it has written a record. The other one is not retired beside it: neither of them would have
// the other's record. The first can be gone on with, or is over with the next epoch; or an operator says that nobody goes on with it.
func TestARetirementThatBeganHoldsTheOther(t *testing.T) {
	begun := func() *world {
		w := newWorld(t, "eu", "us")
		w.open("eu", "us")
		w.after = func(string) error {
			r, err := w.kv.Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: keys.Retiring()}}}}})
			if err != nil || len(r.Parts[0].Reads[0]) > 0 {
				return errDead
			}
			return nil
		}
		if _, err := w.keeper("eu", "us").Retire(t.Context(), "us", false); !errors.Is(err, errDead) {
			t.Fatal(err)
		}
		w.after = nil
		if n := w.numbers(); n["eu"] != 1 || n["us"] != 1 {
			t.Fatal(n)
		}
		if _, err := w.keeper("eu", "us").Retire(t.Context(), "eu", false); !errors.Is(err, regions.ErrRetiring) {
			t.Fatal(err)
		}
		return w
	}
	w := begun()
	if o, err := w.keeper("eu", "us").Retire(t.Context(), "us", false); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu"}) {
		t.Errorf("gone on with: %v, %v", o.Epoch, err)
	}
	w = begun()
	if o, err := w.keeper("eu", "us").Retire(t.Context(), "eu", true); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"us"}) {
		t.Errorf("by an operator's word: %v, %v", o.Epoch, err)
	}
	for name, next := range map[string]func(*world){
		"another etcd": func(w *world) { w.kv.Restore(w.kv.Copy(), 2) },
		"distrust": func(w *world) {
			if err := w.keeper("eu", "us").Distrust(t.Context(), regions.Opened{Epoch: claims.Epoch{Number: 2}}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		w := begun()
		next(w)
		w.open("eu", "us")
		if o, err := w.keeper("eu", "us").Retire(t.Context(), "eu", false); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"us"}) {
			t.Errorf("%s: %v, %v", name, o.Epoch, err)
		}
	}
	// A third one, whose addition died, is retired in between.
	w = begun()
	w.buckets["africa"] = newWorld(t, "africa").buckets["africa"]
	k := w.keeper("africa", "eu", "us")
	w.diesBehind("us", 2)
	if _, err := k.Add(t.Context(), "africa"); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.diesBehind("eu", 3)
	if _, err := k.Retire(t.Context(), "africa", false); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	if _, err := k.Retire(t.Context(), "eu", false); !errors.Is(err, regions.ErrRetiring) {
		t.Errorf("behind the retirement of a third one: %v", err)
	}
}

// The bucket of a region that was retired long ago is all that answers. It knows of nothing since: the region does not take the others' place.
func TestTheRecordOfLongAgoIsNotTheLastOne(t *testing.T) {
	w := newWorld(t, "africa", "asia", "us")
	w.open("asia", "us")
	k := w.keeper("africa", "asia", "us")
	step := func(_ regions.Opened, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	step(k.Retire(t.Context(), "asia", false))
	left := fmt.Sprint(w.left(), w.numbers())
	w.away("us")
	for _, forget := range []bool{false, true} {
		if _, err := w.keeper("asia", "us").Retire(t.Context(), "us", forget); !errors.Is(err, regions.ErrRegionSettings) {
			t.Errorf("forget %v: %v", forget, err)
		}
	}
	w.before = nil
	if now := fmt.Sprint(w.left(), w.numbers()); now != left {
		t.Errorf("%s, and before %s", now, left)
	}
	// Etcd knows nothing either, but a region that does not answer may.
	step(k.Add(t.Context(), "africa"))
	step(k.Retire(t.Context(), "us", false))
	w.kv.Restore(kv.New().Copy(), 2)
	w.before = func(what string) error {
		if what == "africa" || what == "us" {
			return errDown
		}
		return nil
	}
	var of *regions.RegionError
	if _, err := k.Retire(t.Context(), "us", true); !errors.As(err, &of) || of.Region != "africa" {
		t.Error(err)
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

// The bucket of a region that has a linearizer of its own is in the settings: nobody's regions are dropped for it, and it is not added, also
// not once that linearizer was dissolved.
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
			// What that linearizer has decided would win over what this one has: by its folds, and by its stamps.
			id := batch("boot", 1, 5)
			w.manifest("eu", id, "eu", accepted.Stamp{Epoch: 1, Fence: 9})
			w.manifest(name, id, "own", accepted.Stamp{Epoch: 2, Fence: 9})
			left := w.left()
			if _, _, err := k.Prepare(t.Context(), name, goOn); !errors.Is(err, regions.ErrRegionSettings) {
				t.Error(err)
			}
			if o, err := k.Add(t.Context(), name); !errors.Is(err, regions.ErrRegionSettings) || !slices.Equal(w.left(), left) {
				t.Errorf("%v, %v, %q", o.Epoch, err, w.left())
			}
			w.buckets[name] = newWorld(t, name).buckets[name]
			if o, err := k.Add(t.Context(), name); err != nil || len(o.Epoch.Regions) != 3 || !slices.Equal(w.claims(), []string{line(id, "eu", "eu")}) {
				t.Errorf("an empty bucket: %v, %v, %q", o.Epoch, err, w.claims())
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
