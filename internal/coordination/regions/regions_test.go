package regions_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const keys = claims.Keys("/test/identity/v1/")

var errDown = fmt.Errorf("%w: the region is away", objstore.ErrUnavailable)

// world is etcd and three buckets, whose requests can be counted and refused.
type world struct {
	t       testing.TB
	kv      *kv.Store
	buckets map[claims.Region]*mem.Store
	// before is called before each request to etcd or a bucket; after behind it. An error is the answer.
	before, after func(what string) error
	// held keeps a write back, which its caller then does not know of; it may be done later.
	held func(r claims.Region, key string, do func() error) bool
	rand *rand.ChaCha8
}

func newWorld(t testing.TB, names ...claims.Region) *world {
	w := &world{t: t, kv: kv.New(), buckets: map[claims.Region]*mem.Store{}, rand: rand.NewChaCha8([32]byte{1})}
	for _, n := range names {
		w.buckets[n] = mem.New(nil)
	}
	return w
}

func (w *world) call(what string, fn func() error) error {
	if w.before != nil {
		if err := w.before(what); err != nil {
			return err
		}
	}
	err := fn()
	if w.after != nil {
		if e := w.after(what); e != nil {
			return e
		}
	}
	return err
}

// etcd is the store of claims as a keeper reaches it.
type etcd struct{ w *world }

func (e etcd) Commit(ctx context.Context, t claims.Txn) (r claims.Result, err error) {
	err = e.w.call("etcd", func() error { r, err = e.w.kv.Commit(ctx, t); return err })
	return r, err
}

// bucket is the bucket of a region as a keeper reaches it.
type bucket struct {
	w    *world
	name claims.Region
}

func (b bucket) Get(ctx context.Context, key string, o objstore.GetOptions) (body []byte, i objstore.Info, err error) {
	err = b.w.call(string(b.name), func() error { body, i, err = b.w.buckets[b.name].Get(ctx, key, o); return err })
	return body, i, err
}

func (b bucket) List(ctx context.Context, o objstore.ListOptions) (p objstore.Page, err error) {
	o.Limit = 3 // several pages
	err = b.w.call(string(b.name), func() error { p, err = b.w.buckets[b.name].List(ctx, o); return err })
	return p, err
}

func (b bucket) keeps(key string, do func() error) bool {
	return b.w.held != nil && b.w.held(b.name, key, do)
}

func (b bucket) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (i objstore.Info, err error) {
	if b.keeps(key, func() error { _, err := b.w.buckets[b.name].Create(ctx, key, body, o); return err }) {
		return i, objstore.ErrUnknown
	}
	err = b.w.call(string(b.name), func() error { i, err = b.w.buckets[b.name].Create(ctx, key, body, o); return err })
	return i, err
}

func (b bucket) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (i objstore.Info, err error) {
	if b.keeps(key, func() error { _, err := b.w.buckets[b.name].Replace(ctx, key, body, etag, o); return err }) {
		return i, objstore.ErrUnknown
	}
	err = b.w.call(string(b.name), func() error { i, err = b.w.buckets[b.name].Replace(ctx, key, body, etag, o); return err })
	return i, err
}

func (w *world) keeper(names ...claims.Region) *regions.Keeper {
	w.t.Helper()
	c := regions.Config{KV: etcd{w}, Keys: keys, Rand: w.rand, Now: func() int64 { return 7 }, SealAt: 4}
	for _, n := range names {
		c.Regions = append(c.Regions, regions.Region{Name: n, Store: bucket{w, n}})
	}
	k, err := regions.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

func (w *world) open(names ...claims.Region) regions.Opened {
	w.t.Helper()
	o, err := w.keeper(names...).Open(w.t.Context(), true)
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

func batch(boot string, from, to uint64) identity.Batch {
	return identity.Batch{Agent: "agent", Boot: boot, SeqStart: from, SeqEnd: to}
}

// manifest writes an identity manifest into a region.
func (w *world) manifest(r claims.Region, id identity.Batch, frame string, s accepted.Stamp) {
	w.t.Helper()
	sum := identity.Sum([]byte(frame))
	m := accept.Manifest{
		AuthorityID: "authority-" + string(r), Identity: id, FrameSHA256: sum, FrameBytes: uint64(len(frame)), RawBlobKey: layout.Blob(sum, 0),
		AcceptedAt: 1, CollectorID: "c", AttemptID: strings.Repeat("0", 32), RecordCount: id.Count(), MinTime: 1, MaxTime: 2,
		HomeRegion: string(r), ClaimEpoch: s.Epoch, ClaimFence: s.Fence,
	}
	if s.IsZero() {
		m.HomeRegion = ""
	}
	if _, err := w.buckets[r].Create(w.t.Context(), layout.Accepted(id), m.Marshal(), objstore.PutOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) affirm(r claims.Region, id identity.Batch, s accepted.Stamp) {
	w.t.Helper()
	if _, err := w.buckets[r].Create(w.t.Context(), layout.Affirmation(id, s), []byte("{}"), objstore.PutOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// claims are those in etcd: identity, home and the frame's hash.
func (w *world) claims() []string {
	w.t.Helper()
	all := keys.Claims()
	r, err := w.kv.Commit(w.t.Context(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: all, End: all[:len(all)-1] + "0"}}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range r.Parts[0].Reads[0] {
		boot, start, err := keys.ParseClaim(e.Key)
		if err != nil {
			w.t.Fatal(err)
		}
		c, err := claims.ParseClaim(boot, start, e.Value)
		if err != nil {
			w.t.Fatal(err)
		}
		if c.State != claims.Claimed || !c.Recovered {
			w.t.Errorf("%s is %+v", c.Identity, c)
		}
		out = append(out, fmt.Sprintf("%s %d-%d %s %.8s", c.Identity.Boot, c.Identity.SeqStart, c.Identity.SeqEnd, c.Home, c.Hash))
	}
	return out
}

func line(id identity.Batch, home claims.Region, frame string) string {
	return fmt.Sprintf("%s %d-%d %s %.8s", id.Boot, id.SeqStart, id.SeqEnd, home, identity.Sum([]byte(frame)))
}

func TestFirstEpoch(t *testing.T) {
	w := newWorld(t, "eu", "us")
	// Somebody who may not recover waits for somebody who may.
	if _, err := w.keeper("us", "eu").Open(t.Context(), false); !errors.Is(err, regions.ErrMustRecover) {
		t.Fatal(err)
	}
	first := w.open("us", "eu")
	if first.Epoch.Number != 1 || !slices.Equal(first.Epoch.Regions, []claims.Region{"eu", "us"}) {
		t.Fatalf("%+v", first)
	}
	again, err := w.keeper("eu", "us").Open(t.Context(), false)
	if err != nil || again.Epoch.ID != first.Epoch.ID || again.Cluster != first.Cluster {
		t.Fatalf("%+v, %v", again, err)
	}
	// With one region away what was opened stays open, and can be opened by others: a later epoch would be in both.
	w.before = func(what string) error {
		if what == "us" {
			return errDown
		}
		return nil
	}
	k := w.keeper("eu", "us")
	if err := k.Check(t.Context(), first); err != nil {
		t.Error(err)
	}
	if o, err := k.Open(t.Context(), false); err != nil || o.Epoch.ID != first.Epoch.ID {
		t.Errorf("%+v, %v", o, err)
	}
}

// The first epoch finds what the regions accepted before there was a linearizer, and what they hold against each other.
func TestRecoveryTakesTheHighestStamp(t *testing.T) {
	w := newWorld(t, "eu", "us")
	one, two, three, four := batch("boot", 1, 5), batch("boot", 6, 10), batch("boot", 11, 20), batch("boot", 15, 16)
	old := batch("other", 1, 1)
	w.manifest("eu", one, "a", accepted.Stamp{Epoch: 1, Fence: 10})
	w.manifest("us", one, "b", accepted.Stamp{Epoch: 1, Fence: 9}) // left behind under a claim that was released
	w.manifest("eu", two, "c", accepted.Stamp{Epoch: 2, Fence: 1})
	w.manifest("us", two, "c", accepted.Stamp{Epoch: 1, Fence: 8})
	w.affirm("us", two, accepted.Stamp{Epoch: 2, Fence: 3}) // us completed a later claim with its old manifest
	w.affirm("us", two, accepted.Stamp{Epoch: 1, Fence: 99})
	w.manifest("eu", three, "d", accepted.Stamp{Epoch: 1, Fence: 12})
	w.manifest("us", four, "e", accepted.Stamp{Epoch: 1, Fence: 13}) // meets it, and is later
	w.manifest("us", old, "f", accepted.Stamp{})
	o := w.open("eu", "us")
	want := []string{line(one, "eu", "a"), line(two, "us", "c"), line(four, "us", "e"), line(old, "us", "f")}
	if got := w.claims(); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if o.Recovered.Claims != 4 || o.Recovered.Boots != 2 || o.Recovered.Manifests != 7 {
		t.Errorf("%+v", o.Recovered)
	}
}

// A restored etcd is noticed by its cluster, and nothing of the copy is believed.
func TestRestore(t *testing.T) {
	w := newWorld(t, "eu", "us")
	first := w.open("eu", "us")
	copied := w.kv.Copy()
	id := batch("boot", 1, 3)
	w.manifest("eu", id, "a", accepted.Stamp{Epoch: 1, Fence: 50})
	// In the copy the identity is durable with another frame, which no region has.
	wrong := claims.Claim{Identity: id, Hash: identity.Sum([]byte("z")), State: claims.Durable, ID: claims.ID{1}, Home: "us", Stamp: claims.Stamp{Epoch: 1, Fence: 4}, DurableAt: 1}
	puts := []claims.Put{{Key: keys.Claim(id.BootOf(), 1), Value: wrong.Marshal()}, {Key: keys.Claim(id.BootOf(), 50), Value: wrong.Marshal()}}
	if _, err := copied.Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Puts: puts}}}); err != nil {
		t.Fatal(err)
	}
	w.kv.Restore(copied, 2)
	k := w.keeper("eu", "us")
	if err := k.Check(t.Context(), first); !errors.Is(err, regions.ErrMustRecover) {
		t.Fatal(err)
	}
	if _, err := k.Open(t.Context(), false); !errors.Is(err, regions.ErrMustRecover) {
		t.Fatal(err)
	}
	second := w.open("eu", "us")
	if second.Epoch.Number != 2 || second.Cluster != 2 {
		t.Errorf("%+v", second)
	}
	if got := w.claims(); !slices.Equal(got, []string{line(id, "eu", "a")}) {
		t.Errorf("%q", got)
	}
	if err := k.Check(t.Context(), first); !errors.Is(err, regions.ErrOvertaken) {
		t.Errorf("the first epoch: %v", err)
	}
	// Lost altogether: the records alone tell which epoch is next.
	w.kv.Restore(kv.New(), 2)
	if third := w.open("eu", "us"); third.Epoch.Number != 3 {
		t.Errorf("%+v", third)
	}
}

// Two epochs of one number: the ids tell which is the regions'.
func TestEpochsOfOneNumber(t *testing.T) {
	w := newWorld(t, "eu")
	first := w.open("eu")
	other := first.Epoch
	other.ID = claims.ID{9}
	puts := []claims.Put{{Key: keys.Epoch(), Value: other.Marshal()}, {Key: keys.Filled(), Value: other.Marshal()}}
	if _, err := w.kv.Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Puts: puts}}}); err != nil {
		t.Fatal(err)
	}
	if err := w.keeper("eu").Check(t.Context(), first); !errors.Is(err, regions.ErrMustRecover) {
		t.Error(err)
	}
}

// A recovery waits for every region, and has moved nothing by then.
func TestRecoveryWaitsForARegion(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu", "us")
	w.kv.Restore(kv.New(), 2)
	w.before = func(what string) error {
		if what == "us" {
			return errDown
		}
		return nil
	}
	var away *regions.RegionError
	if _, err := w.keeper("eu", "us").Open(t.Context(), true); !errors.As(err, &away) || away.Region != "us" || !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	// Settings without the region don't make it go away.
	if _, err := w.keeper("eu").Open(t.Context(), true); !errors.Is(err, regions.ErrRegionSettings) {
		t.Fatal(err)
	}
	w.before = nil
	if o := w.open("eu", "us"); o.Epoch.Number != 2 {
		t.Errorf("%+v", o)
	}
}

// A manifest that can't be read stops the recovery: its identity must not be given to another frame.
func TestRecoveryStopsAtDamage(t *testing.T) {
	w := newWorld(t, "eu")
	id := batch("boot", 1, 3)
	if _, err := w.buckets["eu"].Create(t.Context(), layout.Accepted(id), []byte("{"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	var at *regions.RegionError
	if _, err := w.keeper("eu").Open(t.Context(), true); !errors.As(err, &at) || !accept.ManifestKind.Is(err) {
		t.Fatal(err)
	}
	if _, err := w.keeper("eu").Open(t.Context(), false); !errors.Is(err, regions.ErrMustRecover) {
		t.Error(err)
	}
}

func TestAddARegion(t *testing.T) {
	w := newWorld(t, "eu", "us")
	first := w.open("eu")
	w.manifest("us", batch("boot", 1, 1), "a", accepted.Stamp{})
	k := w.keeper("eu", "us")
	// Settings alone add nothing.
	if o, err := k.Open(t.Context(), true); err != nil || o.Epoch.ID != first.Epoch.ID {
		t.Fatal(o, err)
	}
	if _, err := k.Add(t.Context(), "asia"); !errors.Is(err, regions.ErrRegionSettings) {
		t.Error(err)
	}
	// A coordinator that does not know the others can't add one without them.
	if _, err := w.keeper("us").Add(t.Context(), "us"); !errors.Is(err, regions.ErrRegionSettings) {
		t.Error(err)
	}
	o, err := k.Add(t.Context(), "us")
	if err != nil || !slices.Equal(o.Epoch.Regions, []claims.Region{"eu", "us"}) {
		t.Fatal(o, err)
	}
	if got := w.claims(); len(got) != 1 {
		t.Errorf("what the region had accepted: %q", got)
	}
	again, err := k.Add(t.Context(), "us")
	if err != nil || again.Epoch.ID != o.Epoch.ID {
		t.Errorf("added twice: %+v, %v", again, err)
	}
	if s, err := k.Status(t.Context()); err != nil || s.Open != nil || len(s.Records) != 2 || s.Records["us"].Region != "us" {
		t.Errorf("%+v, %v", s, err)
	}
}

// A bucket that is another region's, by a mistake in the settings.
func TestTwoNamesOfOneBucket(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu")
	w.buckets["us"] = w.buckets["eu"]
	if _, err := w.keeper("eu", "us").Add(t.Context(), "us"); !errors.Is(err, regions.ErrRegionSettings) {
		t.Fatal(err)
	}
}

var errDead = errors.New("the process has died")

// A recovery that dies at any request leaves nothing that the next one trusts, whether the request was applied or not.
func TestKilledAtEveryRequestOfARecovery(t *testing.T) {
	build := func() *world {
		w := newWorld(t, "eu", "us")
		w.open("eu", "us")
		for i := range uint64(5) {
			w.manifest("eu", batch("boot", 10*i+1, 10*i+5), "a", accepted.Stamp{Epoch: 1, Fence: 2 * i})
			w.manifest("us", batch("boot", 10*i+3, 10*i+5), "b", accepted.Stamp{Epoch: 1, Fence: 3 * i})
		}
		w.kv.Restore(w.kv.Copy(), 2)
		return w
	}
	calm := build()
	n := 0
	calm.before = func(string) error { n++; return nil }
	calm.open("eu", "us")
	want := calm.claims()
	if len(want) != 5 || n < 20 {
		t.Fatalf("%d requests, %q", n, want)
	}
	for dead := range n {
		for _, applied := range []bool{false, true} {
			w := build()
			i := 0
			w.before = func(what string) error {
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
			if o, err := w.keeper("eu", "us").Open(t.Context(), true); err == nil {
				t.Fatalf("request %d: opened %+v", dead, o)
			}
			w.before, w.after = nil, nil
			// What it left is no open epoch, unless it had done everything.
			if o, err := w.keeper("eu", "us").Open(t.Context(), false); err == nil && !slices.Equal(w.claims(), want) {
				t.Fatalf("request %d: %+v with %q", dead, o, w.claims())
			}
			w.open("eu", "us")
			if got := w.claims(); !slices.Equal(got, want) {
				t.Fatalf("request %d: %q, want %q", dead, got, want)
			}
		}
	}
}

// Two recoveries, of which one overtakes the other at any request: the one that was overtaken opens nothing and writes nothing
// into the epoch of the other.
func TestOvertakenAtEveryRequest(t *testing.T) {
	for at := 1; ; at++ {
		w := newWorld(t, "eu", "us")
		w.manifest("eu", batch("boot", 1, 5), "a", accepted.Stamp{})
		w.manifest("us", batch("boot", 6, 7), "b", accepted.Stamp{})
		i, other := 0, regions.Opened{}
		w.before = func(string) error {
			if i++; i == at {
				w.before = nil
				// Manifests that come while the first one lists: only the second has them, and decides otherwise.
				w.manifest("us", batch("late", 1, 1), "c", accepted.Stamp{Epoch: 1, Fence: 1})
				w.manifest("eu", batch("boot", 6, 7), "d", accepted.Stamp{Epoch: 1, Fence: 1})
				other = w.open("eu", "us")
			}
			return nil
		}
		o, err := w.keeper("eu", "us").Open(t.Context(), true)
		if other.Epoch.Number == 0 {
			if err != nil {
				t.Fatal(err)
			}
			return // every request had its turn
		}
		now, checked := w.keeper("eu", "us").Open(t.Context(), false)
		switch {
		case checked != nil:
			// The one that was overtaken took the epoch after that; it died of it, or goes on, but nothing is open in between.
			if err == nil {
				t.Fatalf("request %d: %+v is said to be open, and is not: %v", at, o, checked)
			}
		case err == nil && now.Epoch.ID != o.Epoch.ID, err != nil && now.Epoch.ID != other.Epoch.ID:
			t.Fatalf("request %d: %+v (%v) and %+v, but %+v is open", at, o, err, other, now)
		}
		w.open("eu", "us")
		want := []string{line(batch("boot", 1, 5), "eu", "a"), line(batch("boot", 6, 7), "eu", "d"), line(batch("late", 1, 1), "us", "c")}
		if got := w.claims(); !slices.Equal(got, want) {
			t.Fatalf("request %d: %q", at, got)
		}
	}
}
