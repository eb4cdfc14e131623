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
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// sleepsBeforeEtcd retires us, which is there, and stops before it puts its epoch into etcd: the records say that us is retired. Etcd was copied when it was
// reserved, and us has decided once more since. wakes is called there; the request to put the epoch is done after it, and the mover dies then.
func (w *world) sleepsBeforeEtcd(o regions.Opened, late identity.Batch, wakes func(reserved *kv.Store)) {
	w.t.Helper()
	var reserved *kv.Store
	begun := false
	w.before = func(what string) error {
		switch n := w.numbers(); {
		case begun:
			return errDead
		case what == "etcd" && n["asia"] == 2 && n["eu"] == 2:
			begun = true
			wakes(reserved)
		}
		return nil
	}
	w.after = func(what string) error {
		if what == "etcd" && reserved == nil && slices.Contains(w.left(), "retiring") {
			reserved = w.kv.Copy()
			w.claim(o, late, "us", "l", claims.Settled, false)
			w.manifest("us", late, "l", accepted.Stamp{Epoch: 1, Fence: 9})
		}
		return nil
	}
	if o, err := w.retireNow("us"); err == nil {
		w.t.Fatalf("%+v", o)
	}
	w.before, w.after = nil, nil
	if !begun || reserved == nil {
		w.t.Fatal("it has not come so far")
	}
}

func (w *world) retireNow(name claims.Region) (regions.Opened, error) {
	return w.keeper("asia", "eu", "us").Retire(w.t.Context(), name, false)
}

// knows wants that an identity which us has decided is no other frame's.
func (w *world) knows(k *regions.Keeper, o regions.Opened, id identity.Batch, frame string) {
	w.t.Helper()
	if got := w.asked(k, o.Epoch, id, "z"); !strings.HasPrefix(got, "CONFLICT") && w.claimed()[id] != line(id, "us", frame) {
		w.t.Errorf("epoch %d is open with %v, and what us had decided is %s for another frame", o.Epoch.Number, o.Epoch.Regions, got)
	}
}

// Whoever retires us, which is there, is slow between the records and etcd. Etcd is restored by the book meanwhile, to a copy that was made when it was
// reserved; us had decided more since. Then the request that puts the epoch there comes into the copy, and leaves it not filled, with us beside the epoch.
// The next mover doubts that copy before the records name its cluster, and dies then. Etcd is not believed, and us's bucket is read.
func TestALateBeginInACopyIsNotBelieved(t *testing.T) {
	all, late := []claims.Region{"asia", "eu", "us"}, batch("late", 1, 1)
	w := newWorld(t, all...)
	o := w.open(all...)
	w.sleepsBeforeEtcd(o, late, func(reserved *kv.Store) { w.kv.Restore(reserved, 2) })
	k := w.keeper(all...)
	w.diesBehind("eu", 3)
	if o, err := k.Open(t.Context(), true); !errors.Is(err, errDead) {
		t.Fatalf("%+v, %v", o, err)
	}
	w.after = nil
	o, err := k.Open(t.Context(), true)
	if errors.Is(err, regions.ErrForgets) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	w.knows(k, o, late, "l")
}

// The same under etcd's cluster id. A coordinator notices that etcd went back, and says so: the epoch that came there late is a later one, but nobody ever
// opened it, so it goes. Whoever opens reads us's bucket.
func TestALaterEpochThatWasNeverOpenedIsDistrusted(t *testing.T) {
	all, late := []claims.Region{"asia", "eu", "us"}, batch("late", 1, 1)
	w := newWorld(t, all...)
	was := w.open(all...)
	w.sleepsBeforeEtcd(was, late, func(reserved *kv.Store) { w.kv.Restore(reserved, 1) })
	k := w.keeper(all...)
	if err := k.Distrust(t.Context(), was); err != nil {
		t.Fatal(err)
	}
	o, err := k.Open(t.Context(), true)
	if errors.Is(err, regions.ErrForgets) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	w.knows(k, o, late, "l")
}

// us is retired, and whoever does so dies behind the records. Etcd is restored by the book, and us's bucket was emptied (or is another one). Etcd's epoch
// has us, so its bucket had a record. Nobody goes on before an operator says that it may be forgotten.
func TestAnEmptiedBucketOfARegionThatIsRetired(t *testing.T) {
	all, id := []claims.Region{"asia", "eu", "us"}, batch("boot", 1, 5)
	for name, lose := range map[string]func(w *world, older *kv.Store){
		"an older copy": func(w *world, older *kv.Store) { w.kv.Restore(older, 2) },
	} {
		w := newWorld(t, all...)
		o := w.open(all...)
		older := w.kv.Copy()
		w.claim(o, id, "us", "a", claims.Settled, false)
		w.manifest("us", id, "a", accepted.Stamp{Epoch: 1, Fence: 5})
		w.diesBehind("eu", 2)
		if _, err := w.retireNow("us"); !errors.Is(err, errDead) {
			t.Fatal(err)
		}
		w.after = nil
		lose(w, older)
		w.buckets["us"] = newWorld(t, "us").buckets["us"]
		k := w.keeper(all...)
		o, err := k.Open(t.Context(), true)
		if errors.Is(err, regions.ErrForgets) || errors.Is(err, regions.ErrRegionSettings) {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Log(name)
		w.knows(k, o, id, "a")
	}
}

// Two regions are being retired, and etcd is lost. Whoever retires one of them, whatever is forgotten by it, is refused for the other one, whose bucket is
// only away for a moment.
func TestToForgetOneRegionForgetsNoOther(t *testing.T) {
	all, id := []claims.Region{"africa", "asia", "eu", "us"}, batch("boot", 1, 5)
	w := newWorld(t, all...)
	o := w.open(all...)
	w.claim(o, id, "us", "a", claims.Settled, false)
	w.manifest("us", id, "a", accepted.Stamp{Epoch: 1, Fence: 5})
	k := w.keeper(all...)
	// us is retired; whoever does so dies behind the records.
	w.diesBehind("eu", 2)
	if _, err := k.Retire(t.Context(), "us", false); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	// africa is lost for good before anybody goes on. etcd has everything of us.
	w.kv.Restore(kv.New(), 2)
	w.before = func(what string) error {
		if what == "africa" || what == "us" {
			return errDown
		}
		return nil
	}
	// The operator is asked about africa, which is lost; nothing is said of us.
	o, err := k.Retire(t.Context(), "africa", true)
	if err != nil {
		t.Log(err)
		return
	}
	w.before = nil
	w.knows(k, o, id, "a")
}

// Etcd is lost, and us has a manifest that nobody can read, so no recovery ends. An operator retires us, whatever is forgotten by it. That is the way out, and
// it does not wait for us's bucket, though its record can be read: neither where the retirement begins, nor where one that died is gone on with.
func TestToForgetDoesNotReadTheBucket(t *testing.T) {
	all := []claims.Region{"asia", "eu", "us"}
	for _, died := range []bool{false, true} {
		w := newWorld(t, all...)
		o := w.open(all...)
		id := batch("boot", 1, 5)
		w.claim(o, id, "us", "a", claims.Settled, false)
		if _, err := w.buckets["us"].Create(t.Context(), layout.Accepted(id), []byte("?"), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		k := w.keeper(all...)
		if died {
			w.diesBehind("eu", 2)
			if _, err := k.Retire(t.Context(), "us", false); !errors.Is(err, errDead) {
				t.Fatal(err)
			}
			w.after = nil
		}
		w.kv.Restore(kv.New(), 2)
		for range 2 {
			_, _ = k.Open(t.Context(), true)
			if o, err := k.Retire(t.Context(), "us", true); err != nil {
				t.Errorf("died before %v: %v: %v", died, o.Epoch, err)
			}
		}
	}
}

// A retirement that died is gone on with by an addition, which dies when it has noted in one record that everything is folded. Etcd is restored, and the
// retired region is off. One record says that the others have everything: nothing is asked of an operator.
func TestOneRecordSaysThatEverythingIsFolded(t *testing.T) {
	all := []claims.Region{"africa", "asia", "eu", "us"}
	w := newWorld(t, all...)
	o := w.open("asia", "eu", "us")
	id := batch("boot", 1, 5)
	w.claim(o, id, "us", "a", claims.Settled, false)
	w.manifest("us", id, "a", accepted.Stamp{Epoch: 1, Fence: 5})
	w.diesBehind("eu", 2)
	if _, err := w.keeper("asia", "eu", "us").Retire(t.Context(), "us", false); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	k := w.keeper(all...)
	w.after = func(string) error {
		b, _, err := w.buckets["asia"].Get(t.Context(), layout.RegionsKey, objstore.GetOptions{})
		r, err2 := regions.ParseRecord(b)
		if err == nil && err2 == nil && slices.Contains(r.Retired, regions.Retired{Name: "us", Done: true}) {
			return errDead
		}
		return nil
	}
	if _, err := k.Add(t.Context(), "africa"); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	w.kv.Restore(kv.New(), 2)
	w.away("us")
	o, err := k.Open(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	w.knows(k, o, id, "a")
}

// recording is etcd as a keeper reaches it; its writes can come a second time.
type recording struct {
	w      *world
	writes *[]claims.Txn
}

func (e recording) Commit(ctx context.Context, t claims.Txn) (r claims.Result, err error) {
	t.Parts = cloned(t.Parts)
	err = e.w.call("etcd", func() error { r, err = e.w.kv.Commit(ctx, t); return err })
	if len(t.Parts[0].Puts)+len(t.Parts[0].Deletes) > 0 {
		*e.writes = append(*e.writes, t)
	}
	return r, err
}

// Whoever retires us, which is there, waits at any request while etcd is restored to any copy, by the book or under the same cluster id, with or without
// requests that come twice; goes on for some requests, and dies. A coordinator notices that etcd went back, if that is to be noticed. The next one dies at
// any request; and whoever is next has opened an epoch that knows what us decided, or is refused.
func TestARetirementThatWaitsOverARestore(t *testing.T) {
	all, settled, late := []claims.Region{"asia", "eu", "us"}, batch("boot", 1, 5), batch("late", 1, 1)
	bad := map[string]int{}
	n, opened, refused := 0, 0, 0
	stride := 1
	if testing.Short() || mutants.Playing() {
		stride = 3
	}
	for waits := 1; waits < 40; waits += stride {
		ended := false
		for back := 0; back < 6; back++ {
			for _, cluster := range []uint64{1, 2} {
				for again := range 2 {
					for _, more := range []int{0, 1, 3, 9} {
						for dies := more; dies < 34; dies += 8 {
							away := (dies+more+back)%2 == 0
							w := newWorld(t, all...)
							w.claim(w.open(all...), settled, "us", "a", claims.Settled, false)
							was := w.open(all...)
							w.manifest("us", settled, "a", accepted.Stamp{Epoch: 1, Fence: 5})
							copies := []*kv.Store{w.kv.Copy()}
							var writes []claims.Txn
							replay := func() {
								for _, x := range writes {
									_, _ = w.kv.Commit(t.Context(), x)
								}
							}
							c := regions.Config{KV: recording{w, &writes}, Keys: keys, Rand: w.rand, Now: func() int64 { return 7 }, SealAt: 4}
							for _, r := range all {
								c.Regions = append(c.Regions, regions.Region{Name: r, Store: bucket{w, r}})
							}
							a, err := regions.New(c)
							if err != nil {
								t.Fatal(err)
							}
							i, decided := 0, false
							w.before = func(what string) error {
								if i++; i == waits {
									if back >= len(copies) {
										return errDead
									}
									w.kv.Restore(copies[len(copies)-1-back], cluster)
									if again == 1 {
										replay()
									}
								}
								if i > waits+more {
									return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
								}
								return nil
							}
							w.after = func(what string) error {
								if what == "etcd" && i < waits {
									copies = append(copies, w.kv.Copy())
								}
								if !decided && i < waits && slices.Contains(w.left(), "retiring") {
									decided = true
									w.claim(was, late, "us", "l", claims.Settled, false)
									w.manifest("us", late, "l", accepted.Stamp{Epoch: 1, Fence: 9})
								}
								return nil
							}
							_, err = a.Retire(t.Context(), "us", false)
							w.before, w.after = nil, nil
							if i < waits {
								ended = true
							}
							if err == nil || back >= len(copies) {
								break // it has ended, which is another test
							}
							k := w.keeper(all...)
							if cluster == 1 {
								if err := k.Distrust(t.Context(), was); err != nil {
									t.Fatal(err)
								}
							}
							if again == 1 {
								replay()
							}
							j := 0
							w.before = func(string) error {
								if j++; j > dies {
									return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
								}
								return nil
							}
							_, _ = k.Open(t.Context(), true)
							w.before = nil
							if again == 1 {
								replay()
							}
							if away {
								w.away("us")
							}
							n++
							o, err := k.Open(t.Context(), true)
							if err != nil {
								refused++
								if !away && !errors.Is(err, regions.ErrForgets) {
									bad[err.Error()]++
								} else if !away {
									bad["refused while us is there: "+err.Error()]++
								}
								continue
							}
							opened++
							ids := []string{"settled", "late"}
							for x, id := range []struct {
								on bool
								f  string
							}{{true, "a"}, {decided, "l"}} {
								of := settled
								if x == 1 {
									of = late
								}
								if got := w.asked(k, o.Epoch, of, "z"); id.on && !strings.HasPrefix(got, "CONFLICT") && w.claimed()[of] != line(of, "us", id.f) {
									bad[fmt.Sprintf("%s is %s: cluster %d, again %d, regions %v, retiring away %v", ids[x], got, cluster, again, o.Epoch.Regions, away)]++
									if bad["first"] == 0 {
										bad["first"] = 1
										t.Logf("first: waits %d back %d more %d dies %d", waits, back, more, dies)
									}
								}
							}
						}
					}
				}
			}
		}
		if ended {
			break
		}
	}
	t.Log(n, opened, refused)
	for what, n := range bad {
		t.Errorf("%d: %s", n, what)
	}
}
