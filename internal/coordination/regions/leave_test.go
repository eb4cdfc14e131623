package regions_test

import (
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
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// A region that is there is retired, without --forget, and whoever does so dies when the records say it. Then etcd is lost. The region's bucket is there all
// the time, and has what was decided: no other frame gets its identity, or nobody opens before an operator has said that it may be forgotten.
func TestEtcdIsLostWhileARegionThatIsThereIsRetired(t *testing.T) {
	all := []claims.Region{"asia", "eu", "us"}
	for name, lose := range map[string]func(w *world, older *kv.Store){
		"an older copy": func(w *world, older *kv.Store) { w.kv.Restore(older, 2) },
		"nothing":       func(w *world, older *kv.Store) { w.kv.Restore(kv.New(), 2) },
	} {
		w := newWorld(t, all...)
		o := w.open(all...)
		older := w.kv.Copy()
		id := batch("boot", 1, 5)
		w.claim(o, id, "us", "a", claims.Settled, false)
		w.manifest("us", id, "a", accepted.Stamp{Epoch: 1, Fence: 5})
		w.diesBehind("eu", 2)
		if err := w.retires("us", all...)(); !errors.Is(err, errDead) {
			t.Fatal(err)
		}
		w.after = nil
		lose(w, older)
		k := w.keeper(all...)
		o, err := k.Open(t.Context(), true)
		if err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		if got := w.asked(k, o.Epoch, id, "z"); !strings.HasPrefix(got, "CONFLICT") && !slices.Contains(w.claims(), line(id, "us", "a")) {
			t.Errorf("%s: epoch %d is open with %v, and what us had decided is %s for another frame", name, o.Epoch.Number, o.Epoch.Regions, got)
		}
	}
}

// Whoever retires a region that is there dies at any request; etcd is lost, or not; whoever goes on dies at any request, too; and then the region is
// lost, or not. What was decided there is forgotten by nobody, who is not told to.
func TestRetiringARegionThatIsThereOverRestores(t *testing.T) {
	all := []claims.Region{"asia", "eu", "us"}
	// dying lets requests to etcd and the buckets through until one, which is done, or not.
	dying := func(w *world, at int) func() bool {
		i := 0
		w.before = func(string) error {
			if i++; i > at+1 {
				return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
			}
			return nil
		}
		w.after = func(string) error {
			if i > at {
				return fmt.Errorf("%w: %w", objstore.ErrUnknown, errDead)
			}
			return nil
		}
		return func() bool {
			w.before, w.after = nil, nil
			return i > at
		}
	}
	settled, recovered, late, contested := batch("boot", 1, 5), batch("boot", 11, 15), batch("late", 1, 1), batch("other", 1, 9)
	ends := map[string]int{}
	stride := 2
	if testing.Short() || mutants.Playing() {
		stride = 5
	}
	for lost := range 7 {
		for first, died := 0, true; died; first += stride {
			for n, died2 := 0, true; died2 || n%2 == 1; n++ {
				second, away := n/2*stride, n%2 == 1
				w := newWorld(t, all...)
				k := w.keeper(all...)
				o := w.open(all...)
				older := w.kv.Copy()
				w.claim(o, settled, "us", "a", claims.Settled, false)
				w.manifest("us", settled, "a", accepted.Stamp{Epoch: 1, Fence: 5})
				w.claim(o, recovered, "us", "b", claims.Claimed, true)
				w.manifest("us", recovered, "b", accepted.Stamp{Epoch: 1, Fence: 6})
				// A claim of us that was released: eu has what was decided since.
				w.manifest("us", contested, "c", accepted.Stamp{Epoch: 1, Fence: 7})
				w.claim(o, batch("other", 5, 12), "eu", "d", claims.Settled, false)
				w.manifest("eu", batch("other", 5, 12), "d", accepted.Stamp{Epoch: 1, Fence: 8})
				ended := dying(w, first)
				// A copy of etcd as it is reserved, after which us decides once more.
				var reserved *kv.Store
				dies := w.after
				w.after = func(what string) error {
					if reserved == nil && slices.Contains(w.left(), "retiring") {
						reserved = w.kv.Copy()
						w.claim(o, late, "us", "l", claims.Settled, false)
						w.manifest("us", late, "l", accepted.Stamp{Epoch: 1, Fence: 9})
					}
					return dies(what)
				}
				_, _ = k.Retire(t.Context(), "us", false)
				decided := map[identity.Batch]string{settled: "a", recovered: "b"}
				if died = ended(); reserved != nil {
					decided[late] = "l"
				} else {
					reserved = older
				}
				switch lost {
				case 1:
					w.kv.Restore(older, 2)
				case 2:
					w.kv.Restore(kv.New(), 2)
				case 3:
					w.kv.Restore(w.kv.Copy(), 2)
				case 4:
					w.kv.Restore(reserved, 2)
				case 5, 6:
					w.kv.Restore(map[int]*kv.Store{5: older, 6: reserved}[lost], 1)
					if err := k.Distrust(t.Context(), regions.Opened{Epoch: claims.Epoch{Number: 9}}); err != nil {
						t.Fatal(err)
					}
				}
				ended = dying(w, second)
				_, _ = k.Open(t.Context(), true)
				died2 = ended()
				if away {
					w.away("us")
				}
				o, err := k.Open(t.Context(), true)
				what := fmt.Sprintf("etcd %d, dead at %d and %d, us away %v", lost, first, second, away)
				if err != nil {
					if !away {
						t.Fatalf("%s: %v", what, err)
					}
					if ends["refused"]++; errors.Is(err, regions.ErrForgets) {
						ends["forgets"]++
					}
					continue
				}
				ends[fmt.Sprint("open with ", len(o.Epoch.Regions))]++
				there := w.claimed()
				for id, frame := range decided {
					if got := w.asked(k, o.Epoch, id, "z"); !strings.HasPrefix(got, "CONFLICT") && there[id] != line(id, "us", frame) {
						t.Fatalf("%s: epoch %d with %v: %s is %s: %q", what, o.Epoch.Number, o.Epoch.Regions, id, got, there)
					}
				}
				if there[batch("other", 5, 12)] != line(batch("other", 5, 12), "eu", "d") || w.asked(k, o.Epoch, contested, "c") != "free" {
					t.Fatalf("%s: %q, and the other one is %s", what, there, w.asked(k, o.Epoch, contested, "c"))
				}
			}
		}
	}
	t.Log(ends)
	for _, want := range []string{"open with 2", "open with 3", "forgets"} {
		if ends[want] == 0 {
			t.Errorf("nothing ended with %q", want)
		}
	}
}

// claimed are the claims in etcd, of any kind.
func (w *world) claimed() map[identity.Batch]string {
	out := map[identity.Batch]string{}
	for _, e := range wholeEtcd(w.kv, keys.Claims()) {
		boot, start, err := keys.ParseClaim(e.Key)
		c, err2 := claims.ParseClaim(boot, start, e.Value)
		if err != nil || err2 != nil {
			w.t.Fatal(err, err2)
		}
		out[c.Identity] = fmt.Sprintf("%s %d-%d %s %.8s", boot.Boot, c.Identity.SeqStart, c.Identity.SeqEnd, c.Home, c.Hash)
	}
	return out
}

// Two regions that are there are retired at once, by operators who forget, and etcd is lost. What one of them had decided against the other one stays
// decided, whichever is read first.
func TestTwoRegionsThatAreThereAreRetired(t *testing.T) {
	all := []claims.Region{"asia", "eu", "mars", "us"}
	for _, right := range []claims.Region{"mars", "us"} {
		wrong := map[claims.Region]claims.Region{"mars": "us", "us": "mars"}[right]
		w := newWorld(t, all...)
		o := w.open(all...)
		id := batch("boot", 1, 5)
		w.manifest(wrong, id, "left", accepted.Stamp{Epoch: 1, Fence: 5})
		w.manifest(right, id, "a", accepted.Stamp{Epoch: 1, Fence: 6})
		w.claim(o, id, right, "a", claims.Settled, false)
		for i, name := range []claims.Region{"mars", "us"} {
			w.diesBehind("eu", uint64(2+i))
			if _, err := w.keeper(all...).Retire(t.Context(), name, true); !errors.Is(err, errDead) {
				t.Fatal(err)
			}
			w.after = nil
			w.kv.Restore(kv.New(), uint64(2+i))
		}
		k := w.keeper(all...)
		o, err := k.Open(t.Context(), true)
		if err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"asia", "eu"}) {
			t.Fatal(o.Epoch, err)
		}
		if got := w.asked(k, o.Epoch, id, "a"); got != "bound" {
			t.Errorf("what %s had decided is %s", right, got)
		}
		if got := w.asked(k, o.Epoch, id, "left"); !strings.HasPrefix(got, "CONFLICT") {
			t.Errorf("what %s had left is %s", wrong, got)
		}
	}
}
