package regions_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// copyWhere takes a copy of etcd before the first request to it that finds an epoch of this number there.
func (w *world) copyWhere(number uint64) (copied **kv.Store) {
	copied = new(*kv.Store)
	w.before = func(what string) error {
		if what != "etcd" || *copied != nil {
			return nil
		}
		r, err := w.kv.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: keys.Epoch()}}}}})
		if err != nil || len(r.Parts[0].Reads[0]) == 0 {
			return err
		}
		if e, err := claims.ParseEpoch(r.Parts[0].Reads[0][0].Value); err != nil || e.Number == number {
			*copied = w.kv.Copy()
		}
		return nil
	}
	return copied
}

// dieOfEtcd lets a change of the regions die before its first request to etcd that follows the move of the records.
func (w *world) dieOfEtcd(number uint64) {
	w.before = func(what string) error {
		if what == "us" {
			return errDown
		}
		b, _, err := w.buckets["eu"].Get(context.Background(), layout.RegionsKey, objstore.GetOptions{})
		r, err2 := regions.ParseRecord(b)
		if what == "etcd" && (err != nil || err2 != nil || r.Number >= number) {
			return errDead
		}
		return nil
	}
}

// A copy of etcd that was made while an epoch was recovered has claims that the epoch before it recovered, and that nobody completed:
// what they are about may belong to another region since. A retirement that died must not keep them then.
func TestACopyFromARecoveryIsNotKept(t *testing.T) {
	id, other := batch("boot", 30, 39), batch("boot", 50, 59)
	for _, cluster := range []uint64{1, 2} {
		w := newWorld(t, "asia", "eu", "us")
		k := w.keeper("asia", "eu", "us")
		if err := k.Distrust(t.Context(), w.open("asia", "eu", "us")); err != nil {
			t.Fatal(err)
		}
		w.manifest("us", id, "e", accepted.Stamp{Epoch: 1, Fence: 98})
		o := w.open("asia", "eu", "us")
		if got, want := w.claims(), []string{line(id, "us", "e")}; !slices.Equal(got, want) {
			t.Fatalf("%q", got)
		}
		// A manifest of a claim of the first epoch, which lands late: the next recovery takes it.
		w.manifest("eu", id, "n", accepted.Stamp{Epoch: 1, Fence: 99})
		copied := w.copyWhere(3)
		if err := k.Distrust(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		o = w.open("asia", "eu", "us")
		if got, want := w.claims(), []string{line(id, "eu", "n")}; o.Epoch.Number != 3 || *copied == nil || !slices.Equal(got, want) {
			t.Fatalf("%+v, %q", o, got)
		}
		// Its home goes on with it, and it is acknowledged.
		w.affirm("eu", id, accepted.Stamp{Epoch: 3, Fence: 1})
		// What is recovered in the epoch that is open may have been acknowledged before.
		w.claim(o, other, "us", "o", claims.Claimed, true)
		open := w.kv.Copy()
		w.dieOfEtcd(4)
		if o, err := k.Retire(t.Context(), "us", false); !errors.Is(err, errDead) {
			t.Fatalf("%+v, %v", o, err)
		}
		w.away("us")
		w.kv.Restore(*copied, cluster)
		if _, err := k.Open(t.Context(), true); !errors.Is(err, regions.ErrForgets) {
			t.Fatal(err)
		}
		// A later copy has what the retired region had, whichever cluster it is. Whoever says that the rest may be forgotten forgets nothing of it.
		w.kv.Restore(open, 3+cluster)
		if _, err := k.Open(t.Context(), true); !errors.Is(err, regions.ErrForgets) {
			t.Fatal(err)
		}
		o, err := k.Retire(t.Context(), "us", true)
		if err != nil || o.Epoch.Number != 5 {
			t.Fatalf("%+v, %v", o, err)
		}
		if got, want := w.claims(), []string{line(id, "eu", "n")}; !slices.Equal(got, want) {
			t.Errorf("cluster %d: %q, want %q", cluster, got, want)
		}
		if got := w.asked(k, o.Epoch, other, "o"); got != "bound" {
			t.Errorf("cluster %d: %s is %s", cluster, other, got)
		}
		if got := w.asked(k, o.Epoch, id, "n"); got != "free" {
			t.Errorf("cluster %d: %s is %s in folds", cluster, id, got)
		}
	}
}

// A request to complete a claim that was released long ago arrives in a copy of etcd in which the claim is still there: what is durable
// there was never so. What another region has with a higher stamp, or what is folded, says so.
func TestALateCompleteInACopyIsNotKept(t *testing.T) {
	id, folded := batch("boot", 60, 69), batch("boot", 80, 89)
	w := newWorld(t, "asia", "eu", "us")
	k := w.keeper("asia", "eu", "us")
	o := w.open("asia", "eu", "us")
	put := func(id identity.Batch, frame string, fence uint64, s claims.State) {
		c := claims.Claim{Identity: id, Hash: identity.Sum([]byte(frame)), State: s, ID: claims.ID{9}, Home: "us", Stamp: claims.Stamp{Epoch: 1, Fence: fence}, DurableAt: 1}
		if _, err := w.kv.Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Claim(id.BootOf(), id.SeqStart), Value: c.Marshal()}}}}}); err != nil {
			t.Fatal(err)
		}
	}
	copied := w.kv.Copy()
	// It was released and claimed for another frame, or as another range, in another region.
	w.manifest("eu", batch("boot", 55, 61), "q", accepted.Stamp{Epoch: 1, Fence: 20})
	w.manifest("eu", batch("boot", 100, 109), "q", accepted.Stamp{Epoch: 1, Fence: 3})
	w.affirm("eu", batch("boot", 100, 109), accepted.Stamp{Epoch: 1, Fence: 21})
	w.fold(k, o.Epoch, "asia", map[identity.Batch]string{folded: "r"})
	w.away("us")
	w.diesBehind("eu", 2)
	if _, err := k.Retire(t.Context(), "us", false); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	w.kv.Restore(copied, 2)
	put(id, "p", 10, claims.Durable)
	put(batch("boot", 70, 79), "p", 11, claims.Settled) // nothing speaks against it
	put(folded, "p", 12, claims.Durable)
	put(batch("boot", 100, 109), "p", 13, claims.Durable)
	// What lost against a decision of the retired region has a lower stamp.
	w.manifest("asia", batch("boot", 111, 112), "s", accepted.Stamp{Epoch: 1, Fence: 13})
	put(batch("boot", 110, 119), "p", 14, claims.Settled)
	o, err := k.Retire(t.Context(), "us", true)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{line(batch("boot", 55, 61), "eu", "q"), line(batch("boot", 100, 109), "eu", "q")}
	if got := w.claims(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, c := range []struct {
		id   identity.Batch
		want string
	}{{id, "free"}, {batch("boot", 70, 79), "bound"}, {batch("boot", 100, 109), "free"}, {batch("boot", 110, 119), "bound"}} {
		if got := w.asked(k, o.Epoch, c.id, "p"); got != c.want {
			t.Errorf("%s is %s, want %s", c.id, got, c.want)
		}
	}
	if got, want := w.asked(k, o.Epoch, folded, "r"), fmt.Sprintf("DECIDED 80-89 asia %.8s", identity.Sum([]byte("r"))); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// What lies in the bucket of a region that others call retired says nothing any more, whatever its number: a mover that had read the
// records before the retirement may still write there.
func TestTheRecordOfARetiredRegionIsIgnored(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	k := w.keeper("asia", "eu", "us")
	o := w.open("asia", "eu", "us")
	if _, err := k.Retire(t.Context(), "asia", false); err != nil {
		t.Fatal(err)
	}
	for _, number := range []uint64{2, 9} {
		b, i, err := w.buckets["asia"].Get(t.Context(), layout.RegionsKey, objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := regions.ParseRecord(b)
		if err != nil || len(r.Retired) > 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		r.Number, r.ID = number, claims.ID{byte(number)}
		if _, err := w.buckets["asia"].Replace(t.Context(), layout.RegionsKey, r.Marshal(), i.ETag, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		w.kv.Restore(w.kv.Copy(), number)
		if o, err = k.Open(t.Context(), true); err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu", "us"}) || o.Epoch.Number <= number {
			t.Fatalf("%+v, %v", o, err)
		}
	}
}

// Of two movers one knew a region that the other did not: both have records with one number. The epoch counts that all of its regions have.
func TestTwoEpochsOfOneNumber(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	o := w.open("eu", "us")
	r := regions.Record{Region: "asia", Number: 1, ID: claims.ID{9}, Regions: []claims.Region{"asia", "eu", "us"}, Joining: []claims.Region{"asia"}, Cluster: 1}
	if _, err := w.buckets["asia"].Create(t.Context(), layout.RegionsKey, r.Marshal(), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	k := w.keeper("asia", "eu", "us")
	for range 10 {
		if got, err := k.Open(t.Context(), false); err != nil || got.Epoch.ID != o.Epoch.ID {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if got, err := k.Add(t.Context(), "asia"); err != nil || got.Epoch.Number != 2 || len(got.Epoch.Regions) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
}

// An etcd that forgets, under the same cluster id, while it is being filled: the recovery opens nothing that lacks claims, or that has
// those of before.
func TestEtcdForgetsDuringARecovery(t *testing.T) {
	for at := 1; ; at++ {
		for back := 1; back <= 5; back++ {
			w := newWorld(t, "eu", "us")
			o := w.open("eu", "us")
			for i := range uint64(3) {
				w.manifest("eu", batch("boot", 10*i+1, 10*i+5), "a", accepted.Stamp{Epoch: 1, Fence: i + 1})
				w.manifest("us", batch("other", 10*i+1, 10*i+5), "a", accepted.Stamp{Epoch: 1, Fence: i + 1})
			}
			w.claim(o, batch("old", 500, 509), "us", "x", claims.Durable, false)
			stale := []claims.Put{{Key: keys.Heads(batch("old", 1, 1).BootOf()), Value: claims.Heads{{Region: "eu", Generation: 1}}.Marshal(7)}}
			if _, err := w.kv.Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Puts: stale}}}); err != nil {
				t.Fatal(err)
			}
			w.kv.Restore(w.kv.Copy(), 2)
			n, was := 0, []*kv.Store{w.kv.Copy()}
			w.before = func(what string) error {
				if what != "etcd" {
					return nil
				}
				if n++; n == at {
					w.kv.Restore(was[max(0, len(was)-back)], 2)
				}
				was = append(was, w.kv.Copy())
				return nil
			}
			o, err := w.keeper("eu", "us").Open(t.Context(), true)
			if w.before = nil; n < at {
				return // every request had its turn
			}
			complete := func() bool { return len(w.claims()) == 6 && len(wholeEtcd(w.kv, keys.Folded())) == 0 }
			if err == nil && !complete() {
				t.Fatalf("request %d, %d back: %+v with %q", at, back, o, w.claims())
			}
			if w.open("eu", "us"); !complete() {
				t.Fatalf("request %d, %d back: %q, %d heads", at, back, w.claims(), len(wholeEtcd(w.kv, keys.Folded())))
			}
		}
	}
}

// Whoever has lived through a restore under the same cluster id takes the copy's epoch out, also where it is an earlier one: a retirement
// would take it for an etcd that has everything.
func TestAnEarlierEpochIsDistrusted(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu", "us")
	copied := w.kv.Copy()
	k := w.keeper("eu", "us")
	w.kv.Restore(w.kv.Copy(), 2)
	lived := w.open("eu", "us")
	w.kv.Restore(copied, 2)
	if err := k.Distrust(t.Context(), lived); err != nil {
		t.Fatal(err)
	}
	w.away("us")
	if o, err := k.Retire(t.Context(), "us", false); !errors.Is(err, regions.ErrForgets) {
		t.Errorf("%+v, %v", o, err)
	}
	w.before = nil
	n, next := 0, regions.Opened{}
	w.before = func(what string) error {
		if n++; n == 2 {
			w.before = nil
			next = w.open("eu", "us") // while somebody else still distrusts what was there before
		}
		return nil
	}
	w.kv.Restore(copied, 2)
	if err := k.Distrust(t.Context(), lived); err != nil || next.Epoch.Number != 3 {
		t.Fatalf("%+v, %v", next, err)
	}
	if err := k.Check(t.Context(), next); err != nil || !bytes.Equal(next.Epoch.Marshal(), w.open("eu", "us").Epoch.Marshal()) {
		t.Errorf("%+v, %v", next, err)
	}
}

// A retirement that dies at any request, and an etcd that is restored to what it was at that moment, or before it, as the same cluster
// or by the book: it goes on, and forgets nothing.
func TestRetiringOverRestores(t *testing.T) {
	calm, k, _ := retiring(t)
	n, away := 0, calm.before
	calm.before = func(what string) error { n++; return away(what) }
	if _, err := k.Retire(t.Context(), "us", false); err != nil {
		t.Fatal(err)
	}
	for dead := range n {
		for _, cluster := range []uint64{1, 2} {
			for _, back := range []int{0, 1, 5, n} {
				w, k, before := retiring(t)
				i, away, copies := 0, w.before, []*kv.Store{w.kv.Copy()}
				w.before = func(what string) error {
					if i++; i > dead+1 {
						return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
					}
					return away(what)
				}
				w.after = func(what string) error {
					if what == "etcd" {
						copies = append(copies, w.kv.Copy())
					}
					if i > dead {
						return fmt.Errorf("%w: %w", objstore.ErrUnknown, errDead)
					}
					return nil
				}
				if o, err := k.Retire(t.Context(), "us", false); err == nil {
					t.Fatalf("request %d: %+v", dead, o)
				}
				w.before, w.after = away, nil
				s, err := k.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if len(s.Records["eu"].Retired) == 0 {
					continue // nothing has begun, and etcd with a region lost is more than is promised
				}
				w.kv.Restore(copies[max(0, len(copies)-1-back)], cluster)
				o, err := k.Open(t.Context(), true)
				if err == nil && o.Epoch.ID == before.Epoch.ID {
					t.Fatalf("request %d: %+v is open", dead, o)
				}
				if errors.Is(err, regions.ErrForgets) && cluster+uint64(back) > 1 {
					// It is not known that the copy has everything.
					o, err = k.Retire(t.Context(), "us", true)
				}
				if err != nil {
					t.Fatalf("request %d, cluster %d, %d back: %v", dead, cluster, back, err)
				}
				if w.retired(k, o); t.Failed() {
					t.Fatalf("request %d, cluster %d, %d back", dead, cluster, back)
				}
			}
		}
	}
}

// One adds a region. At any of its requests another region is lost, and retired by somebody who may die anywhere; then the addition goes on. What
// the lost region had decided is kept, or the retirement is refused: nothing drops it from etcd once the records say that the region is retired.
func TestARetirementReservesWhatEtcdHas(t *testing.T) {
	all, id := []claims.Region{"africa", "asia", "eu", "us"}, batch("boot", 1, 5)
	ends := map[string]int{}
	for at := 1; ; at++ {
		ran := false
		for dead := 0; dead < 24; dead++ {
			w := newWorld(t, all...)
			o := w.open("asia", "eu", "us")
			w.claim(o, id, "us", "a", claims.Durable, false)
			w.manifest("us", id, "a", accepted.Stamp{Epoch: 1, Fence: 5})
			i := 0
			w.before = func(string) error {
				if i++; i != at {
					return nil
				}
				ran = true
				n := dead
				w.before = func(what string) error {
					if n--; n < 0 {
						return errDead
					}
					if what == "us" {
						return errDown
					}
					return nil
				}
				_, _ = w.keeper(all...).Retire(context.Background(), "us", false)
				w.away("us")
				return nil
			}
			_, added := w.keeper(all...).Add(t.Context(), "africa")
			if !ran {
				break
			}
			w.away("us")
			o, err := w.keeper(all...).Retire(t.Context(), "us", false)
			if errors.Is(err, regions.ErrForgets) {
				ends["refused"]++
				if w.isRetired("us") {
					t.Errorf("retired at request %d, %d: by the records it is, and etcd does not have everything: %v", at, dead, err)
				}
				continue
			}
			ends["retired"]++
			if got := w.asked(w.keeper(all...), o.Epoch, id, "z"); err != nil || len(got) < 8 || got[:8] != "CONFLICT" {
				t.Errorf("retired at request %d, died at %d: %v, %v: %s", at, dead, added, err, got)
			}
		}
		if !ran {
			break
		}
	}
	if len(ends) != 2 {
		t.Error(ends)
	}
}

// isRetired: the records that can be read say so.
func (w *world) isRetired(name claims.Region) bool {
	w.t.Helper()
	s, err := w.keeper("africa", "asia", "eu", "us").Status(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.ContainsFunc(s.Newest.Retired, func(t regions.Retired) bool { return t.Name == name })
}

// The other way round: an addition waits at any of its requests while a region is lost, and goes on at any request of the retirement.
func TestARetirementFindsThatEtcdHasChanged(t *testing.T) {
	all, id := []claims.Region{"africa", "asia", "eu", "us"}, batch("boot", 1, 5)
	ends := map[string]int{}
	for at := 1; at < 40; at++ {
		for goesOn := 1; goesOn < 16; goesOn++ {
			w := newWorld(t, all...)
			o := w.open("asia", "eu", "us")
			w.claim(o, id, "us", "a", claims.Durable, false)
			w.manifest("us", id, "a", accepted.Stamp{Epoch: 1, Fence: 5})
			add, stop := iter.Pull(func(yield func(struct{}) bool) {
				i := 0
				w.before = func(string) error {
					if i++; i == at {
						yield(struct{}{})
					}
					return nil
				}
				_, _ = w.keeper(all...).Add(context.Background(), "africa")
			})
			defer stop()
			if _, waits := add(); !waits {
				break
			}
			i := 0
			w.before = func(what string) error {
				if i++; i == goesOn {
					w.away("us")
					add()
				}
				if what == "us" {
					return errDown
				}
				return nil
			}
			o, err := w.keeper(all...).Retire(t.Context(), "us", false)
			w.away("us")
			if errors.Is(err, regions.ErrOvertaken) {
				o, err = w.keeper(all...).Retire(t.Context(), "us", false)
			}
			if errors.Is(err, regions.ErrForgets) {
				ends["refused"]++
				if w.isRetired("us") {
					t.Errorf("retired at request %d, %d: by the records it is, and etcd does not have everything: %v", at, goesOn, err)
				}
				continue
			}
			ends["retired"]++
			if got := w.asked(w.keeper(all...), o.Epoch, id, "z"); err != nil || len(got) < 8 || got[:8] != "CONFLICT" {
				t.Errorf("waits at request %d, goes on at %d: %v: %s", at, goesOn, err, got)
			}
		}
	}
	if len(ends) != 2 {
		t.Error(ends)
	}
}

// Etcd was restored to a copy by the book, and whoever moves the epoch notes that it may lack claims, before the records name it. Then the end of the
// recovery of long ago comes a second time into the copy. The region that alone has what was decided last is not retired as if etcd had it.
func TestTheEndOfARecoveryComesIntoACopyThatIsDoubted(t *testing.T) {
	all := []claims.Region{"asia", "eu", "us"}
	w := newWorld(t, all...)
	l, k := w.late()
	w.manifest("eu", batch("boot", 1, 5), "a", accepted.Stamp{})
	o, err := k.Open(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	writes := slices.Clone(l.writes)
	copied := w.kv.Copy()
	id := batch("boot", 11, 15)
	w.claim(o, id, "us", "b", claims.Settled, false)
	w.manifest("us", id, "b", accepted.Stamp{Epoch: 1, Fence: 5})
	w.kv.Restore(copied, 2)
	// Whoever recovers dies when all records name the new etcd.
	w.diesBehind("us", 2)
	if _, err := w.keeper(all...).Open(t.Context(), true); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.after = nil
	w.away("us")
	if _, err := w.keeper(all...).Retire(t.Context(), "us", false); !errors.Is(err, regions.ErrForgets) {
		t.Fatal(err)
	}
	for _, again := range writes {
		again()
	}
	retired, err := w.keeper(all...).Retire(t.Context(), "us", false)
	if errors.Is(err, regions.ErrForgets) {
		return
	}
	t.Errorf("us is retired without a word of what is forgotten: %v, %v; what it had decided is %s for another frame", retired.Epoch, err, w.asked(k, retired.Epoch, id, "z"))
}
