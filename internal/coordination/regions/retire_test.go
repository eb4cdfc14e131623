package regions_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// claim puts one into etcd, of the epoch that is open.
func (w *world) claim(o regions.Opened, id identity.Batch, home claims.Region, frame string, s claims.State, recovered bool) {
	w.t.Helper()
	c := claims.Claim{Identity: id, Hash: identity.Sum([]byte(frame)), State: s, ID: claims.ID{9}, Home: home, Stamp: claims.Stamp{Epoch: o.Epoch.Number}, Recovered: recovered}
	if s != claims.Claimed {
		c.Stamp.Fence, c.DurableAt = 5, 1
	}
	if _, err := w.kv.Commit(w.t.Context(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Claim(id.BootOf(), id.SeqStart), Value: c.Marshal()}}}}}); err != nil {
		w.t.Fatal(err)
	}
}

// away refuses every request to the bucket of a region.
func (w *world) away(r claims.Region) {
	w.before = func(what string) error {
		if what == string(r) {
			return errDown
		}
		return nil
	}
}

// folder moves the folds of an epoch, with the retired regions that the records name.
func (w *world) folder(k *regions.Keeper, e claims.Epoch) folds.Folder {
	w.t.Helper()
	s, err := k.Status(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	var retired []claims.Region
	for _, r := range s.Records {
		for _, t := range r.Retired {
			retired = append(retired, t.Name)
		}
	}
	return k.Folder(e, retired)
}

// asked is what folds say of an identity with a frame: an outcome and the claim, "free" or "bound".
func (w *world) asked(k *regions.Keeper, e claims.Epoch, id identity.Batch, frame string) string {
	w.t.Helper()
	known := claims.Folds{At: 1 << 40, Epoch: e.Number}
	a, looked, err := k.Folded(w.folder(k, e)).Decide(context.Background(), claims.Op{Kind: claims.DoClaim, Identity: id, Hash: identity.Sum([]byte(frame))}, known)
	switch {
	case err != nil:
		return err.Error()
	case a.Outcome != 0:
		return fmt.Sprintf("%s %d-%d %s %.8s", a.Outcome, a.Claim.Identity.SeqStart, a.Claim.Identity.SeqEnd, a.Claim.Home, a.Claim.Hash)
	case !looked.Suffices(known):
		return "not looked at"
	case looked.Bound:
		return "bound"
	}
	return "free"
}

// retiring is a world whose region "us" has decided much, and is lost: what it had of the identities is in etcd, in folds and in copies.
func retiring(t testing.TB) (*world, *regions.Keeper, regions.Opened) {
	w := newWorld(t, "asia", "eu", "us")
	k := w.keeper("asia", "eu", "us")
	o := w.open("asia", "eu", "us")
	// Only eu has the head, besides the region that is lost.
	w.away("asia")
	w.fold(k, o.Epoch, "us", map[identity.Batch]string{batch("boot", 1, 5): "a", batch("boot", 6, 9): "b"})
	lone := folds.Entry{Start: 1, End: 1, Home: "us", Digest: folds.DigestOf(identity.Sum([]byte("a")))}
	if _, err := k.Folder(o.Epoch, o.Retired).Fold(t.Context(), batch("lone", 1, 1).BootOf(), claims.Folds{}, []folds.Entry{lone}); err != nil {
		t.Fatal(err)
	}
	w.before = nil
	w.claim(o, batch("boot", 10, 19), "us", "c", claims.Settled, false)
	w.claim(o, batch("boot", 20, 29), "us", "d", claims.Durable, false)
	w.claim(o, batch("boot", 30, 39), "us", "e", claims.Claimed, true)
	w.claim(o, batch("boot", 40, 49), "us", "f", claims.Claimed, false)
	w.claim(o, batch("boot", 50, 59), "eu", "g", claims.Durable, false)
	w.manifest("eu", batch("boot", 50, 59), "g", accepted.Stamp{Epoch: 1, Fence: 50})
	w.manifest("eu", batch("boot", 20, 29), "d", accepted.Stamp{Epoch: 1, Fence: 4}) // a copy
	w.manifest("asia", batch("boot", 6, 9), "b", accepted.Stamp{Epoch: 1, Fence: 5}) // a copy
	w.manifest("eu", batch("boot", 10, 19), "z", accepted.Stamp{Epoch: 1, Fence: 4})
	w.manifest("eu", batch("boot", 1, 2), "z", accepted.Stamp{Epoch: 9, Fence: 99})
	w.away("us")
	return w, k, o
}

// retired checks what is left of it.
func (w *world) retired(k *regions.Keeper, o regions.Opened) {
	w.t.Helper()
	if !slices.Equal(o.Epoch.Regions, []claims.Region{"asia", "eu"}) {
		w.t.Errorf("%+v", o.Epoch)
	}
	// What has a copy is that region's; of the rest nothing stands in the way of the same frame.
	want := []string{line(batch("boot", 6, 9), "asia", "b"), line(batch("boot", 20, 29), "eu", "d"), line(batch("boot", 50, 59), "eu", "g")}
	if got := w.claims(); !slices.Equal(got, want) {
		w.t.Errorf("%q\nwant %q", got, want)
	}
	hash := func(frame string) identity.Digest { return identity.Sum([]byte(frame)) }
	lost := func(frame string) (d identity.Digest) {
		short := folds.DigestOf(hash(frame))
		copy(d[:], short[:])
		return d
	}
	for _, c := range []struct {
		id    identity.Batch
		frame string
		want  string
	}{
		{batch("boot", 1, 5), "a", "bound"},
		{batch("boot", 10, 19), "c", "bound"},
		{batch("boot", 20, 29), "d", "bound"},
		{batch("boot", 30, 39), "e", "bound"},
		{batch("boot", 40, 49), "f", "free"},
		{batch("boot", 40, 49), "z", "free"},
		{batch("boot", 10, 19), "z", fmt.Sprintf("CONFLICT 10-19 us %.8s", lost("c"))},
		{batch("boot", 20, 29), "z", fmt.Sprintf("CONFLICT 20-29 us %.8s", hash("d"))},
		{batch("boot", 35, 45), "f", fmt.Sprintf("RANGE_CONFLICT 30-39 us %.8s", lost("e"))},
	} {
		if got := w.asked(k, o.Epoch, c.id, c.frame); got != c.want {
			w.t.Errorf("%s of %q: %s, want %s", c.id, c.frame, got, c.want)
		}
	}
}

// A region that is lost is retired: which frame its identities belong to stays known, whatever is lost next.
func TestRetire(t *testing.T) {
	w, k, _ := retiring(t)
	o, err := k.Retire(t.Context(), "us", false)
	if err != nil {
		t.Fatal(err)
	}
	w.retired(k, o)
	s, err := k.Status(t.Context())
	if err != nil || s.Open != nil || len(s.Records["eu"].Retired) != 1 || s.Records["eu"].Retired[0] != (regions.Retired{Name: "us", Done: true}) {
		t.Errorf("%+v, %v", s, err)
	}
	if again, err := k.Retire(t.Context(), "us", false); err != nil || again.Epoch.Number != o.Epoch.Number {
		t.Errorf("again: %+v, %v", again, err)
	}
	if _, err := k.Add(t.Context(), "us"); !errors.Is(err, regions.ErrRegionSettings) {
		t.Errorf("added again: %v", err)
	}
	// Etcd is restored to nothing, and the region's own bucket is not in the settings any more.
	w.kv.Restore(w.kv.Copy(), 2)
	left := w.keeper("asia", "eu")
	if o, err = left.Open(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	w.retired(left, o)
	if s, err := left.Status(t.Context()); err != nil || s.Records["eu"].Retired[0] != (regions.Retired{Name: "us", Done: true}) {
		t.Errorf("%+v, %v", s, err)
	}
	// One of two that are left may be away: the other has every head.
	w.away("eu")
	for _, id := range []identity.Batch{batch("boot", 1, 5), batch("lone", 1, 1)} {
		if got := w.asked(left, o.Epoch, id, "a"); got != "bound" {
			t.Error(got)
		}
	}
	// What was accepted again, and folded with its new home, is decided there.
	w.before = nil
	w.fold(left, o.Epoch, "eu", map[identity.Batch]string{batch("boot", 20, 29): "d"})
	if got, want := w.asked(left, o.Epoch, batch("boot", 20, 29), "d"), fmt.Sprintf("DECIDED 20-29 eu %.8s", identity.Sum([]byte("d"))); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if o, err = left.Retire(t.Context(), "eu", false); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"asia"}) {
		t.Fatalf("%+v, %v", o, err)
	}
	if got := w.asked(left, o.Epoch, batch("boot", 50, 59), "g"); got != "bound" {
		t.Error(got)
	}
	if _, err := left.Retire(t.Context(), "asia", false); !errors.Is(err, regions.ErrRegionSettings) {
		t.Errorf("the last one: %v", err)
	}
}

func TestRetireRefuses(t *testing.T) {
	w, k, _ := retiring(t)
	for _, name := range []claims.Region{"", "Us", "mars"} {
		if o, err := k.Retire(t.Context(), name, true); err == nil {
			t.Errorf("%q: %+v", name, o)
		}
	}
	// Another region is away too.
	w.before = func(what string) error {
		if what != "etcd" && what != "asia" {
			return errDown
		}
		return nil
	}
	var of *regions.RegionError
	if o, err := k.Retire(t.Context(), "us", true); !errors.As(err, &of) || of.Region != "eu" {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := newWorld(t, "eu", "us").keeper("eu", "us").Retire(t.Context(), "us", true); !errors.Is(err, regions.ErrRegionSettings) {
		t.Errorf("before the first epoch: %+v, %v", o, err)
	}
	// Etcd was restored: what it has need not be all.
	w.away("us")
	w.kv.Restore(w.kv.Copy(), 2)
	if o, err := k.Retire(t.Context(), "us", false); !errors.Is(err, regions.ErrForgets) || !errors.Is(err, regions.ErrMustRecover) {
		t.Errorf("%+v, %v", o, err)
	}
	if n, err := k.Status(t.Context()); err != nil || n.Epoch.Number != 1 || len(n.Records["eu"].Retired) > 0 {
		t.Errorf("%+v, %v", n, err)
	}
	o, err := k.Retire(t.Context(), "us", true)
	if err != nil {
		t.Fatal(err)
	}
	// What a copy of etcd says stays, unless something speaks against it.
	for id, frame := range map[identity.Batch]string{batch("boot", 10, 19): "c", batch("boot", 20, 29): "d", batch("boot", 30, 39): "e"} {
		if got := w.asked(k, o.Epoch, id, frame); got != "bound" {
			t.Errorf("%s: %s", id, got)
		}
	}
}

// Two of three regions are lost for good. One of them gets an empty bucket, so that the other one can be retired, and is retired next: what no fold has
// of it is forgotten, and nothing else is.
func TestRetireTwoThatAreLost(t *testing.T) {
	w, k, o := retiring(t)
	folded, claimed := batch("boot", 60, 69), batch("boot", 70, 79)
	w.before = nil
	w.fold(k, o.Epoch, "asia", map[identity.Batch]string{folded: "a"})
	w.claim(o, claimed, "asia", "b", claims.Settled, false)
	w.before = func(what string) error {
		if what == "us" || what == "asia" {
			return errDown
		}
		return nil
	}
	var of *regions.RegionError
	for _, r := range []claims.Region{"us", "asia"} {
		if _, err := k.Retire(t.Context(), r, true); !errors.As(err, &of) {
			t.Errorf("%s: %v", r, err)
		}
	}
	w.away("us")
	w.buckets["asia"] = mem.New(nil)
	if _, err := k.Retire(t.Context(), "us", false); !errors.As(err, &of) || of.Region != "asia" || !errors.Is(err, regions.ErrRegionSettings) {
		t.Error(err)
	}
	if _, err := k.Retire(t.Context(), "us", true); err != nil {
		t.Fatal(err)
	}
	o, err := k.Retire(t.Context(), "asia", false)
	if err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu"}) {
		t.Fatalf("%v, %v", o.Epoch, err)
	}
	for id, frame := range map[identity.Batch]string{batch("boot", 10, 19): "c", batch("boot", 20, 29): "d", batch("boot", 30, 39): "e", folded: "a"} {
		if got := w.asked(k, o.Epoch, id, frame); got != "bound" {
			t.Errorf("%s: %s", id, got)
		}
	}
	if got := w.asked(k, o.Epoch, claimed, "z"); got != "free" {
		t.Errorf("%s: %s", claimed, got)
	}
}

// A folder sleeps, while a region is retired, another one is added, and accepts a batch again that was accepted in the retired one. The folder goes
// on, and does not know the region that was added: it is not one that was retired, and the batch keeps its home.
func TestAFolderOfAnEarlierEpoch(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	k := w.keeper("asia", "eu", "us")
	w.open("asia", "us")
	id := batch("boot", 1, 9)
	sleeper := k.Folder(w.open("asia", "us").Epoch, nil)
	w.fold(k, w.open("asia", "us").Epoch, "us", map[identity.Batch]string{id: "a"})
	if _, err := w.keeper("asia", "us").Retire(t.Context(), "us", false); err != nil {
		t.Fatal(err)
	}
	o, err := k.Add(t.Context(), "eu")
	if err != nil {
		t.Fatal(err)
	}
	if got := w.asked(k, o.Epoch, id, "a"); got != "bound" {
		t.Fatal(got)
	}
	w.manifest("eu", id, "a", accepted.Stamp{Epoch: o.Epoch.Number, Fence: 1})
	w.fold(k, o.Epoch, "eu", map[identity.Batch]string{id: "a"})
	decided := w.asked(k, o.Epoch, id, "a")
	if !strings.HasPrefix(decided, "DECIDED 1-9 eu") {
		t.Fatal(decided)
	}
	for _, home := range []claims.Region{"us", "asia"} {
		add := []folds.Entry{{Start: 1, End: 9, Home: home, Digest: folds.DigestOf(identity.Sum([]byte("a")))}}
		if _, err := sleeper.Fold(t.Context(), id.BootOf(), claims.Folds{}, add); err == nil {
			t.Errorf("a folder of epoch 1 folds %s", home)
		}
		if got := w.asked(k, o.Epoch, id, "a"); got != decided {
			t.Errorf("%s, %s before", got, decided)
		}
	}
	// In the present epoch either home is known.
	if _, err := k.Folder(o.Epoch, o.Retired).Fold(t.Context(), id.BootOf(), claims.Folds{}, []folds.Entry{{Start: 1, End: 9, Home: "us", Digest: folds.DigestOf(identity.Sum([]byte("a")))}}); err != nil {
		t.Error(err)
	}
	if now, err := k.Open(t.Context(), false); err != nil || !slices.Equal(now.Retired, []claims.Region{"us"}) || !slices.Equal(o.Retired, now.Retired) {
		t.Errorf("%+v, %v", now, err)
	}
}

// Etcd was restored, and the recovery has died at any request. The records may name the new etcd by then, which has an epoch that was filled:
// all the same it does not have what was decided after the copy was made.
func TestRetireAfterARecoveryThatDied(t *testing.T) {
	restored := func() (*world, *regions.Keeper) {
		w, k, _ := retiring(t)
		w.before = nil
		w.kv.Restore(w.kv.Copy(), 2)
		return w, k
	}
	calm, k := restored()
	n := 0
	calm.before = func(string) error { n++; return nil }
	if _, err := k.Open(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for dead := range n {
		for _, applied := range []bool{false, true} {
			w, k := restored()
			i := 0
			w.before = func(string) error {
				if i++; i > dead+1 || i == dead+1 && !applied {
					return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
				}
				return nil
			}
			w.after = func(string) error {
				if i > dead {
					return fmt.Errorf("%w: %w", objstore.ErrUnknown, errDead)
				}
				return nil
			}
			if o, err := k.Open(t.Context(), true); err == nil {
				t.Fatalf("request %d: %+v", dead, o)
			}
			w.before, w.after = nil, nil
			s, err := k.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.Open == nil {
				continue
			}
			if s.Epoch.Number == 1 && s.Records["us"].Number > 1 {
				moved++
			}
			w.away("us")
			if o, err := k.Retire(t.Context(), "us", false); !errors.Is(err, regions.ErrForgets) {
				t.Fatalf("request %d, applied %v: %+v, %v", dead, applied, o, err)
			}
		}
	}
	if moved == 0 {
		t.Error("no recovery has died between the records and etcd")
	}
}

// One that dies at any request is gone on with by whoever opens next, and forgets nothing.
func TestKilledAtEveryRequestOfRetiring(t *testing.T) {
	calm, k, _ := retiring(t)
	n := 0
	away := calm.before
	calm.before = func(what string) error { n++; return away(what) }
	if _, err := k.Retire(t.Context(), "us", false); err != nil || n < 30 {
		t.Fatalf("%d requests, %v", n, err)
	}
	for dead := range n {
		for _, applied := range []bool{false, true} {
			w, k, before := retiring(t)
			i, away := 0, w.before
			w.before = func(what string) error {
				if i++; i > dead+1 || i == dead+1 && !applied {
					return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
				}
				return away(what)
			}
			w.after = func(string) error {
				if i > dead {
					return fmt.Errorf("%w: %w", objstore.ErrUnknown, errDead)
				}
				return nil
			}
			if o, err := k.Retire(t.Context(), "us", false); err == nil {
				t.Fatalf("request %d: %+v", dead, o)
			}
			w.before, w.after = away, nil
			// Nothing happened, or it goes on.
			o, err := k.Open(t.Context(), true)
			if err == nil && o.Epoch.ID == before.Epoch.ID {
				o, err = k.Retire(t.Context(), "us", false)
			}
			if err != nil {
				t.Fatalf("request %d: %v", dead, err)
			}
			w.retired(k, o)
			if t.Failed() {
				t.Fatalf("request %d, applied %v", dead, applied)
			}
		}
	}
}
