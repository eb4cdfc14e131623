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
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ending is a world in which eu is the only region left: asia is retired, and us has a bucket and takes no part. eu has a batch that is
// folded, and two that are settled in etcd.
func ending(t testing.TB) (*world, *regions.Keeper, regions.Opened) {
	w := newWorld(t, "asia", "eu", "us")
	w.open("asia", "eu")
	if _, err := w.keeper("asia", "eu").Retire(t.Context(), "asia", false); err != nil {
		t.Fatal(err)
	}
	k := w.keeper("asia", "eu", "us")
	o, err := k.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	w.fold(k, o.Epoch, "eu", map[identity.Batch]string{batch("boot", 1, 5): "a"})
	for i, id := range []identity.Batch{batch("boot", 1, 5), batch("boot", 6, 9), batch("other", 1, 4)} {
		w.manifest("eu", id, "a", accepted.Stamp{Epoch: o.Epoch.Number, Fence: uint64(i) + 1})
		if i > 0 {
			w.claim(o, id, "eu", "a", claims.Settled, false)
		}
	}
	return w, k, o
}

// forgotten are the batches of that world that are not decided any more, neither by a claim nor by a fold.
func (w *world) forgotten(k *regions.Keeper, e claims.Epoch) (out []string) {
	w.t.Helper()
	there := map[string]bool{}
	for _, e := range wholeEtcd(w.kv, keys.Claims()) {
		there[e.Key] = true
	}
	for _, id := range []identity.Batch{batch("boot", 1, 5), batch("boot", 6, 9), batch("other", 1, 4)} {
		folded := fmt.Sprintf("DECIDED %d-%d eu %.8s", id.SeqStart, id.SeqEnd, identity.Sum([]byte("a")))
		if got := w.asked(k, e, id, "a"); got != folded && !there[keys.Claim(id.BootOf(), id.SeqStart)] {
			out = append(out, fmt.Sprintf("%s: %s", id, got))
		}
	}
	return out
}

// left are the keys in etcd.
func (w *world) left() (out []string) {
	w.t.Helper()
	r, err := w.kv.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: string(keys), End: strings.TrimSuffix(string(keys), "/") + "0"}}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range r.Parts[0].Reads[0] {
		out = append(out, strings.TrimPrefix(e.Key, string(keys)))
	}
	return out
}

// dissolved wants that nobody decides anything any more.
func (w *world) dissolved(what string) {
	w.t.Helper()
	for _, recover := range []bool{false, true} {
		if o, err := w.keeper("asia", "eu", "us").Open(w.t.Context(), recover); !errors.Is(err, regions.ErrDissolved) {
			w.t.Errorf("%s: %+v, %v", what, o, err)
		}
	}
	if left := w.left(); len(left) > 0 {
		w.t.Errorf("%s: etcd still has %q", what, left)
	}
}

func TestDissolve(t *testing.T) {
	w, k, was := ending(t)
	copied := w.kv.Copy()
	r, err := k.Dissolve(t.Context(), "eu")
	if err != nil {
		t.Fatal(err)
	}
	if !r.Dissolved || r.Number != was.Epoch.Number+1 || !slices.Equal(r.Regions, []claims.Region{"eu"}) || r.Cluster != was.Cluster || len(r.Retired) != 1 || r.Retired[0] != (regions.Retired{Name: "asia", Done: true}) {
		t.Errorf("%+v", r)
	}
	body, _, err := w.buckets["eu"].Get(t.Context(), layout.RegionsKey, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if there, err := regions.ParseRecord(body); err != nil || there.Number != r.Number || !there.Dissolved {
		t.Errorf("%+v, %v", there, err)
	}
	w.dissolved("dissolved")
	if err := k.Check(t.Context(), was); !errors.Is(err, regions.ErrDissolved) {
		t.Errorf("whoever serves the epoch gets %v", err)
	}
	if s, err := k.Status(t.Context()); err != nil || !errors.Is(s.Open, regions.ErrDissolved) {
		t.Errorf("%+v, %v", s, err)
	}
	if again, err := k.Dissolve(t.Context(), "eu"); err != nil || again.Number != r.Number || again.ID != r.ID {
		t.Errorf("a second time: %+v, %v", again, err)
	}
	// Etcd that comes back from before does not begin anything by itself, and goes again.
	for _, cluster := range []uint64{was.Cluster, 9} {
		w.kv.Restore(copied, cluster)
		w.dissolved(fmt.Sprintf("restored as cluster %d", cluster))
	}
	if _, err := k.Add(t.Context(), "asia"); !errors.Is(err, regions.ErrRegionSettings) {
		t.Errorf("a retired region is added: %v", err)
	}
	// The way back is to add a region.
	o, err := k.Add(t.Context(), "us")
	if err != nil || o.Epoch.Number != r.Number+1 || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu", "us"}) {
		t.Fatalf("%+v, %v", o, err)
	}
	if got := w.forgotten(k, o.Epoch); len(got)+len(w.claims()) > 0 {
		t.Errorf("%q, and claims %q", got, w.claims())
	}
	if now, err := k.Open(t.Context(), false); err != nil || now.Epoch.ID != o.Epoch.ID {
		t.Errorf("%+v, %v", now, err)
	}
}

// The linearizer of one region begins again with that region alone.
func TestABeginningAfterADissolution(t *testing.T) {
	w, k, was := ending(t)
	if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
		t.Fatal(err)
	}
	w.manifest("eu", batch("meanwhile", 1, 3), "m", accepted.Stamp{}) // by a collector without a linearizer
	o, err := k.Add(t.Context(), "eu")
	if err != nil || o.Epoch.Number != was.Epoch.Number+2 || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu"}) {
		t.Fatalf("%+v, %v", o, err)
	}
	if got := w.claims(); !slices.Equal(got, []string{line(batch("meanwhile", 1, 3), "eu", "m")}) || len(w.forgotten(k, o.Epoch)) > 0 {
		t.Errorf("%q, and forgotten %q", got, w.forgotten(k, o.Epoch))
	}
	if s, err := k.Status(t.Context()); err != nil || s.Open != nil || s.Records["eu"].Dissolved || len(s.Records["eu"].Retired) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

// Somebody begins a linearizer again, and is slow: meanwhile another one has done so, and has dissolved it once more. It is not begun over that.
func TestABeginningThatIsLate(t *testing.T) {
	w, k, _ := ending(t)
	if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
		t.Fatal(err)
	}
	finish := w.paused(func() error { _, err := w.keeper("asia", "eu", "us").Add(context.Background(), "eu"); return err })
	if o, err := k.Add(t.Context(), "eu"); err != nil || len(o.Epoch.Regions) != 1 {
		t.Fatal(o, err)
	}
	for _, e := range wholeEtcd(w.kv, keys.Claims()) {
		boot, start, err := keys.ParseClaim(e.Key)
		c, err2 := claims.ParseClaim(boot, start, e.Value)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		c.State, c.Recovered, c.Stamp.Fence, c.DurableAt = claims.Settled, false, 9, 1
		if _, err := w.kv.Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: e.Key, Value: c.Marshal()}}}}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
		t.Fatal(err)
	}
	if err := finish(); !errors.Is(err, regions.ErrDissolved) {
		t.Error(err)
	}
	w.dissolved("a late beginning")
}

func TestDissolveRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		region  claims.Region
		change  func(*world, *regions.Keeper, regions.Opened)
		want    error
		claimed int // claims that are left undecided; -1: the error is none of these
	}{
		"a region that takes no part": {"us", nil, regions.ErrRegionSettings, -1},
		"a region that is retired":    {"asia", nil, regions.ErrRegionSettings, -1},
		"no region":                   {"Eu!", nil, claims.ErrInvalid, -1},
		"one of two": {"eu", func(w *world, k *regions.Keeper, _ regions.Opened) {
			if _, err := k.Add(t.Context(), "us"); err != nil {
				t.Fatal(err)
			}
		}, regions.ErrRegionSettings, -1},
		"a region that may know more": {"eu", func(w *world, _ *regions.Keeper, _ regions.Opened) { w.away("us") }, errDown, -1},
		"its own region is away":      {"eu", func(w *world, _ *regions.Keeper, _ regions.Opened) { w.away("eu") }, errDown, -1},
		"etcd was restored":           {"eu", func(w *world, _ *regions.Keeper, _ regions.Opened) { w.kv.Restore(w.kv.Copy(), 5) }, regions.ErrMustRecover, -1},
		"a recovery did not end": {"eu", func(w *world, _ *regions.Keeper, _ regions.Opened) {
			if _, err := w.kv.Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Deletes: []string{keys.Filled()}}}}); err != nil {
				t.Fatal(err)
			}
		}, regions.ErrMustRecover, -1},
		"a claim": {"eu", func(w *world, _ *regions.Keeper, o regions.Opened) {
			w.claim(o, batch("open", 1, 1), "eu", "x", claims.Claimed, false)
		}, nil, 1},
		"a recovered claim": {"eu", func(w *world, _ *regions.Keeper, o regions.Opened) {
			w.claim(o, batch("open", 1, 1), "eu", "x", claims.Claimed, true)
		}, nil, 1},
		"what is durable": {"eu", func(w *world, _ *regions.Keeper, o regions.Opened) {
			w.claim(o, batch("open", 1, 1), "eu", "x", claims.Durable, false)
		}, nil, 0},
		"what is settled elsewhere": {"eu", func(w *world, _ *regions.Keeper, o regions.Opened) {
			w.claim(o, batch("open", 1, 1), "asia", "x", claims.Settled, false)
		}, nil, 0},
		"a claim that can't be read": {"eu", func(w *world, _ *regions.Keeper, _ regions.Opened) {
			if _, err := w.kv.Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Claim(batch("open", 1, 1).BootOf(), 1), Value: []byte("?")}}}}}); err != nil {
				t.Fatal(err)
			}
		}, nil, 0},
	} {
		w, k, o := ending(t)
		if c.change != nil {
			c.change(w, k, o)
		}
		before := w.left()
		_, err := k.Dissolve(t.Context(), c.region)
		var u *regions.UndecidedError
		switch {
		case c.want != nil && !errors.Is(err, c.want), c.want == nil && !errors.As(err, &u):
			t.Errorf("%s: %v, want %v", name, err, c.want)
		case u != nil && (u.Claimed != c.claimed || u.Claimed+u.Durable+u.Other != 1 || u.First != batch("open", 1, 1)):
			t.Errorf("%s: %+v", name, u)
		}
		// Nothing was written.
		if w.before = nil; !slices.Equal(w.left(), before) {
			t.Errorf("%s: etcd has %q, before %q", name, w.left(), before)
		}
		if s, err := k.Status(t.Context()); err != nil || s.Records["eu"].Dissolved {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	if _, err := newWorld(t, "eu").keeper("eu").Dissolve(t.Context(), "eu"); !errors.Is(err, regions.ErrRegionSettings) {
		t.Errorf("before the first epoch: %v", err)
	}
}

// Many claims are read, page after page.
func TestDissolveReadsEveryClaim(t *testing.T) {
	w, k, o := ending(t)
	for i := range uint64(2*claims.MaxScan + 5) {
		w.claim(o, batch("many", 10*i+1, 10*i+2), "eu", "a", claims.Settled, false)
	}
	w.claim(o, batch("z", 1, 1), "eu", "x", claims.Durable, false)
	var u *regions.UndecidedError
	if _, err := k.Dissolve(t.Context(), "eu"); !errors.As(err, &u) || u.Durable != 1 || u.First != batch("z", 1, 1) {
		t.Errorf("%v", err)
	}
	w.claim(o, batch("z", 1, 1), "eu", "x", claims.Settled, false)
	if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
		t.Error(err)
	}
	w.dissolved("of many claims")
	o, err := k.Add(t.Context(), "eu")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []uint64{0, folds.MaxAdd + 1, claims.MaxScan - 1, claims.MaxScan, 2*claims.MaxScan + 4} {
		if got := w.asked(k, o.Epoch, batch("many", 10*i+1, 10*i+2), "a"); !strings.HasPrefix(got, "DECIDED") {
			t.Errorf("claim %d: %s", i, got)
		}
	}
}

// Of a boot of which no more can be folded etcd does not stay frozen, and the linearizer goes on.
func TestDissolveWithABootThatIsFull(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		w, k, was := ending(t)
		full, asked := 0, 0
		w.before = func(what string) error {
			if what == "etcd" {
				asked++ // first when it is looked at, before the records are read
			} else if asked > 1 && frozen == slices.Contains(w.left(), "dissolving") {
				full++
				return folds.ErrFull
			}
			return nil
		}
		if _, err := k.Dissolve(t.Context(), "eu"); !errors.Is(err, folds.ErrFull) || full == 0 {
			t.Errorf("frozen %v: %v", frozen, err)
		}
		w.before = nil
		if o, err := k.Open(t.Context(), false); err != nil || o.Epoch.ID != was.Epoch.ID {
			t.Errorf("frozen %v: %+v, %v", frozen, o, err)
		}
	}
}

// One that dies at any request leaves a linearizer that goes on as before, or one that is dissolved by whoever leads next.
func TestKilledAtEveryRequestOfDissolving(t *testing.T) {
	calm, k, _ := ending(t)
	n := 0
	calm.before = func(string) error { n++; return nil }
	if _, err := k.Dissolve(t.Context(), "eu"); err != nil || n < 12 {
		t.Fatalf("%d requests, %v", n, err)
	}
	ended, went := 0, 0
	for dead := range n {
		for _, applied := range []bool{false, true} {
			w, k, was := ending(t)
			before := w.left()
			i := 0
			w.before = func(what string) error {
				if i++; i > dead+1 || i == dead+1 && !applied {
					if what == "etcd" {
						return fmt.Errorf("%w: %w", claims.ErrUnavailable, errDead)
					}
					return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
				}
				return nil
			}
			w.after = func(what string) error {
				switch {
				case i <= dead:
					return nil
				case what == "etcd":
					return fmt.Errorf("%w: %w", claims.ErrUnknown, errDead)
				}
				return fmt.Errorf("%w: %w", objstore.ErrUnknown, errDead)
			}
			if _, err := k.Dissolve(t.Context(), "eu"); err == nil {
				t.Fatalf("request %d: it is dissolved", dead)
			}
			w.before, w.after = nil, nil
			o, err := w.keeper("asia", "eu", "us").Open(t.Context(), true)
			switch {
			case errors.Is(err, regions.ErrDissolved):
				ended++
				w.dissolved(fmt.Sprintf("request %d", dead))
			case err != nil || o.Epoch.ID != was.Epoch.ID:
				t.Fatalf("request %d: %+v, %v", dead, o, err)
			default:
				went++
				if got := w.left(); !slices.Equal(got, before) {
					t.Fatalf("request %d: %q", dead, got)
				}
				if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
					t.Fatalf("request %d: %v", dead, err)
				}
				w.dissolved(fmt.Sprintf("request %d, and again", dead))
			}
		}
	}
	if ended < 5 || went < 5 {
		t.Errorf("%d were gone on with, %d not begun", ended, went)
	}
}

// try claims an identity as collectors do, in an epoch; false: etcd has another one, or none.
func (w *world) try(o regions.Opened, id identity.Batch) bool {
	w.t.Helper()
	c := claims.Claim{Identity: id, Hash: identity.Sum([]byte("late")), State: claims.Claimed, ID: claims.ID{3}, Home: "eu", Stamp: claims.Stamp{Epoch: o.Epoch.Number}}
	r, err := w.kv.Commit(context.Background(), claims.Txn{
		Guards: []claims.Guard{{Key: keys.Epoch(), Is: claims.Holds, Value: o.Epoch.Marshal()}},
		Parts:  []claims.Part{{Puts: []claims.Put{{Key: keys.Claim(id.BootOf(), id.SeqStart), Value: c.Marshal()}}}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Held
}

// A claim that comes at any moment is refused, or it keeps the linearizer from being dissolved; then that goes on in the same epoch.
func TestAClaimBesideADissolution(t *testing.T) {
	refused, kept := 0, 0
	for at := 1; ; at++ {
		w, k, was := ending(t)
		i, claimed := 0, false
		w.before = func(string) error {
			if i++; i == at {
				claimed = w.try(was, batch("late", 1, 1))
			}
			return nil
		}
		_, err := k.Dissolve(t.Context(), "eu")
		w.before = nil
		if i < at {
			break
		}
		var u *regions.UndecidedError
		switch {
		case claimed && (!errors.As(err, &u) || u.Claimed != 1):
			t.Fatalf("request %d: a claim was made, and %v", at, err)
		case claimed:
			kept++
			if o, err := k.Open(t.Context(), false); err != nil || o.Epoch.ID != was.Epoch.ID {
				t.Fatalf("request %d: %+v, %v", at, o, err)
			}
			if !w.try(was, batch("late", 2, 2)) {
				t.Fatalf("request %d: the epoch has not come back", at)
			}
		case err != nil:
			t.Fatalf("request %d: %v", at, err)
		default:
			refused++
			w.dissolved(fmt.Sprintf("request %d", at))
		}
	}
	if refused < 5 || kept < 5 {
		t.Errorf("%d claims were refused, %d kept it from being dissolved", refused, kept)
	}
}

// A dissolution and another change of the regions, of which one comes at any request of the other: they end as if one had come after the
// other, and what is in etcd is of an epoch that the buckets have.
func TestADissolutionAndAnotherMover(t *testing.T) {
	dissolve := func(k *regions.Keeper) error {
		_, err := k.Dissolve(context.Background(), "eu")
		return err
	}
	add := func(r claims.Region) func(*regions.Keeper) error {
		return func(k *regions.Keeper) error {
			_, err := k.Add(context.Background(), r)
			return err
		}
	}
	open := func(k *regions.Keeper) error {
		_, err := k.Open(context.Background(), true)
		return err
	}
	// By its name africa comes before eu, and us behind it; the record of either is written behind that of eu.
	for name, pair := range map[string][2]func(*regions.Keeper) error{
		"dissolve, add us in between": {dissolve, add("us")}, "dissolve, add a first one in between": {dissolve, add("africa")}, "dissolve, open in between": {dissolve, open},
		"dissolve twice": {dissolve, dissolve}, "add us, dissolve in between": {add("us"), dissolve}, "add a first one, dissolve in between": {add("africa"), dissolve},
	} {
		ends := map[bool]int{}
		for at := 1; ; at++ {
			w, _, was := ending(t)
			w.buckets["africa"] = newWorld(t, "africa").buckets["africa"]
			names := []claims.Region{"africa", "asia", "eu", "us"}
			i, next := 0, 0
			var other error
			w.before = func(string) error {
				if i++; i == at {
					before := w.before
					w.before = nil
					other = pair[1](w.keeper(names...))
					if o, err := w.keeper(names...).Open(t.Context(), false); err == nil && o.Epoch.ID != was.Epoch.ID {
						// Something is decided in the epoch that was begun meanwhile.
						next++
						w.claim(o, batch("next", 1, 1), "eu", "n", claims.Settled, false)
					}
					w.before = before
				}
				return nil
			}
			err := pair[0](w.keeper(names...))
			w.before = nil
			if i < at {
				break
			}
			k := w.keeper(names...)
			o, opened := k.Open(t.Context(), true)
			ended := errors.Is(opened, regions.ErrDissolved)
			ends[ended]++
			s, serr := k.Status(t.Context())
			newest := s.Newest
			switch {
			case serr != nil || newest.Dissolved != ended:
				t.Fatalf("%s, request %d: %+v, %v, and opened: %v", name, at, newest, serr, opened)
			case ended && len(w.left()) > 0:
				t.Fatalf("%s, request %d: etcd has %q", name, at, w.left())
			case ended:
				// Whoever was told that a region takes part was told so before.
				if strings.HasPrefix(name, "add") && err == nil {
					t.Fatalf("%s, request %d: added, and dissolved", name, at)
				}
			case opened != nil:
				t.Fatalf("%s, request %d: %v", name, at, opened)
			default:
				if there := wholeEtcd(w.kv, keys.Claims()); strings.HasPrefix(name, "dissolve, add") && next > 0 && len(there) == 0 {
					t.Fatalf("%s, request %d: what was decided meanwhile is gone", name, at)
				}
				if got := w.forgotten(k, o.Epoch); len(got) > 0 {
					t.Fatalf("%s, request %d: %q (%v, %v)", name, at, got, err, other)
				}
				// It is open again by whoever added a region, and by nobody else.
				if len(o.Epoch.Regions) == 1 && (err == nil || name == "dissolve twice") {
					t.Fatalf("%s, request %d: %+v (%v, %v)", name, at, o, err, other)
				}
			}
			// The record of eu is read fourth. Whoever has read it before it said so has added nothing.
			if strings.HasPrefix(name, "add") && other == nil && at > 4 && (!ended || !errors.Is(err, regions.ErrDissolved)) {
				t.Fatalf("%s, request %d: dissolved in between, and %+v, %v", name, at, o, err)
			}
			if strings.HasPrefix(name, "add") && err == nil && !ended && len(o.Epoch.Regions) != 2 {
				t.Fatalf("%s, request %d: %+v", name, at, o)
			}
		}
		t.Logf("%s: ended %d, open %d", name, ends[true], ends[false])
	}
}

// late is etcd and the bucket of eu, whose writes are kept so that they can come again.
type late struct {
	regions.Store
	w      *world
	writes []func()
	// behind is called behind each write.
	behind func(n int)
}

func (l *late) keep(fn func()) {
	l.writes = append(l.writes, fn)
	if l.behind != nil {
		l.behind(len(l.writes))
	}
}

func (l *late) Commit(ctx context.Context, x claims.Txn) (claims.Result, error) {
	x.Parts = cloned(x.Parts)
	r, err := l.w.kv.Commit(ctx, x)
	if len(x.Parts[0].Puts)+len(x.Parts[0].Deletes) > 0 {
		l.keep(func() { _, _ = l.w.kv.Commit(context.Background(), x) })
	}
	return r, err
}

func (l *late) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	body = slices.Clone(body)
	i, err := l.Store.Replace(ctx, key, body, etag, o)
	l.keep(func() { _, _ = l.Store.Replace(context.Background(), key, body, etag, o) })
	return i, err
}

func (w *world) late() (*late, *regions.Keeper) {
	w.t.Helper()
	l := &late{Store: w.buckets["eu"], w: w}
	k, err := regions.New(regions.Config{KV: l, Keys: keys, Regions: []regions.Region{{Name: "asia", Store: w.buckets["asia"]}, {Name: "eu", Store: l}, {Name: "us", Store: w.buckets["us"]}}, Rand: w.rand, Now: func() int64 { return 7 }})
	if err != nil {
		w.t.Fatal(err)
	}
	return l, k
}

// Requests of a dissolution that come again, behind any later one, change nothing.
func TestRequestsOfADissolutionComeLate(t *testing.T) {
	// Of one that ended: while it goes on, and in the epoch that was begun after it.
	w, _, _ := ending(t)
	l, k := w.late()
	if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
		t.Fatal(err)
	}
	n := len(l.writes)
	if n < 4 {
		t.Fatalf("%d writes", n)
	}
	for first := range n {
		for behind := first + 1; behind <= n; behind++ {
			w, _, _ := ending(t)
			l, k := w.late()
			l.behind = func(n int) {
				if n == behind {
					l.behind = nil
					l.writes[first]()
				}
			}
			if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
				t.Fatalf("write %d again behind %d: %v", first, behind, err)
			}
			w.dissolved(fmt.Sprintf("write %d again behind %d", first, behind))
			o, err := k.Add(t.Context(), "us")
			if err != nil {
				t.Fatal(err)
			}
			if got := w.forgotten(k, o.Epoch); len(got) > 0 {
				t.Fatal(got)
			}
			w.claim(o, batch("next", 1, 1), "us", "n", claims.Settled, false)
			l.writes[first]()
			if now, err := k.Open(t.Context(), false); err != nil || now.Epoch.ID != o.Epoch.ID || len(wholeEtcd(w.kv, keys.Claims())) != 1 {
				t.Fatalf("write %d in the next epoch: %+v, %v, %q", first, now, err, w.left())
			}
		}
	}
	// Of one that was refused because of a claim, which is settled since: what it has written does not freeze etcd again.
	w, _, was := ending(t)
	l, _ = w.late()
	w.before = nil
	reads := 0
	kv := &hooked{KV: l, before: func() {
		// Between the first reading of the claims and the freezing.
		if reads++; reads == 3 && !w.try(was, batch("late", 1, 1)) {
			t.Fatal("no claim")
		}
	}}
	k, err := regions.New(regions.Config{KV: kv, Keys: keys, Regions: []regions.Region{{Name: "eu", Store: l}}, Rand: w.rand, Now: func() int64 { return 7 }})
	if err != nil {
		t.Fatal(err)
	}
	var u *regions.UndecidedError
	if _, err := k.Dissolve(t.Context(), "eu"); !errors.As(err, &u) || len(l.writes) != 3 {
		t.Fatalf("%v, %d writes", err, len(l.writes))
	}
	w.claim(was, batch("late", 1, 1), "eu", "late", claims.Settled, false)
	for i, again := range l.writes {
		again()
		if o, err := k.Open(t.Context(), true); err != nil || o.Epoch.ID != was.Epoch.ID || !w.try(was, batch("late", uint64(i)+2, uint64(i)+2)) {
			t.Fatalf("write %d again: %+v, %v", i, o, err)
		}
		w.claim(was, batch("late", uint64(i)+2, uint64(i)+2), "eu", "late", claims.Settled, false)
	}
}

// hooked is a store of claims of which a test sees each transaction before it is made.
type hooked struct {
	claims.KV
	before func()
}

func (h *hooked) Commit(ctx context.Context, x claims.Txn) (claims.Result, error) {
	h.before()
	return h.KV.Commit(ctx, x)
}

// A copy of etcd that was made while a linearizer was being dissolved is no reason to dissolve it.
func TestACopyOfADissolution(t *testing.T) {
	w, _, was := ending(t)
	l, k := w.late()
	var frozen func(cluster uint64)
	l.behind = func(int) {
		if frozen == nil && slices.Contains(w.left(), "dissolving") {
			c := w.kv.Copy()
			frozen = func(cluster uint64) { w.kv.Restore(c, cluster) }
		}
	}
	if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Add(t.Context(), "eu"); err != nil {
		t.Fatal(err)
	}
	// Nor is one that was restored while it is: what was decided since that copy etcd does not know.
	other, _, _ := ending(t)
	l, k2 := other.late()
	l.behind = func(int) {
		if slices.Contains(other.left(), "dissolving") {
			l.behind = nil
			other.kv.Restore(other.kv.Copy(), 7)
		}
	}
	if _, err := k2.Dissolve(t.Context(), "eu"); !errors.Is(err, regions.ErrMustRecover) {
		t.Errorf("%v", err)
	}
	if o, err := k2.Open(t.Context(), true); err != nil || o.Cluster != 7 || len(other.forgotten(k2, o.Epoch)) > 0 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, cluster := range []uint64{was.Cluster, 4} {
		frozen(cluster)
		if o, err := k.Open(t.Context(), true); err != nil || len(w.forgotten(k, o.Epoch)) > 0 || slices.Contains(w.left(), "dissolving") {
			t.Errorf("cluster %d: %+v, %v, %q", cluster, o, err, w.left())
		}
	}
}
