package overlaps

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func id(boot string, from, to uint64) identity.Batch {
	return identity.Batch{Agent: "a", Boot: boot, SeqStart: from, SeqEnd: to}
}

// bucket has the manifests of accepted batches.
type bucket struct {
	*testing.T
	store objstore.Store
	all   map[identity.Batch]accepted.Batch
}

func newBucket(t *testing.T) *bucket {
	return &bucket{T: t, store: mem.New(time.Now), all: map[identity.Batch]accepted.Batch{}}
}

// accept writes the manifest of a batch.
func (b *bucket) accept(id identity.Batch) accepted.Batch {
	d := identity.Sum(fmt.Append(nil, id))
	m := accept.Manifest{AuthorityID: "authority", Identity: id, FrameSHA256: d, FrameBytes: 1, RawBlobKey: layout.Blob(d, 0), AcceptedAt: int64(len(b.all)),
		CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef", RecordCount: id.Count(), MinTime: 5, MaxTime: 6}
	if _, err := b.store.Put(b.Context(), layout.Accepted(id), m.Marshal(), objstore.PutOptions{}); err != nil {
		b.Fatal(err)
	}
	b.all[id] = m.Batch()
	return m.Batch()
}

// An ordinary boot costs one listing, when its first batch comes; a batch that does not continue it costs one more.
func TestOrdinaryBatchesCostNothing(t *testing.T) {
	b := newBucket(t)
	listed := 0
	counted := fault.New(b.store, 1)
	f := &Finder{Manifests: counted, Listed: func() { listed++ }}
	find := func(want int, batches ...accepted.Batch) {
		t.Helper()
		pairs, err := f.Find(t.Context(), batches)
		if err != nil || len(pairs) != want {
			t.Fatalf("%+v, %v", pairs, err)
		}
	}
	var later []accepted.Batch
	for n := range uint64(500) {
		e := b.accept(id("x", n*10, n*10+9))
		if n > 250 {
			later = append(later, e)
		}
	}
	find(0, b.all[id("x", 2500, 2509)])
	for _, e := range later { // they were accepted before the listing, and come after it
		find(0, e)
	}
	for n := range uint64(1000) {
		find(0, b.accept(id("x", 6000+n*10, 6000+n*10+9)))
	}
	if listed != 1 || counted.Count("", "") != 1 {
		t.Fatalf("%d listings, %d requests", listed, counted.Count("", ""))
	}
	find(0, b.accept(id("x", 5500, 5509))) // in a gap
	find(2, b.accept(id("x", 5505, 6004)))
	find(0, b.all[id("x", 2500, 2509)]) // once more
	if listed != 4 {
		t.Errorf("%d listings", listed)
	}
	// Other boots and agents are nothing to it.
	find(0, b.accept(id("y", 0, 9)), b.accept(id("xx", 0, 9)))
	if listed != 6 {
		t.Errorf("%d listings", listed)
	}
}

// A manifest under a claim that moved on is in no journal, and its batch counts nowhere, or in another region.
func TestManifestsThatLostPairWithNothing(t *testing.T) {
	b := newBucket(t)
	lost := id("x", 0, 9)
	d := identity.Sum([]byte("lost"))
	m := accept.Manifest{AuthorityID: "authority", Identity: lost, FrameSHA256: d, FrameBytes: 1, RawBlobKey: layout.Blob(d, 0), AcceptedAt: 1,
		CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef", RecordCount: lost.Count(), MinTime: 5, MaxTime: 6,
		HomeRegion: "eu", ClaimEpoch: 1, ClaimFence: 7}
	if _, err := b.store.Put(t.Context(), layout.Accepted(lost), m.Marshal(), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	f := &Finder{Manifests: b.store}
	if pairs, err := f.Find(t.Context(), []accepted.Batch{b.accept(id("x", 5, 14))}); err != nil || len(pairs) > 0 {
		t.Errorf("%+v, %v: a batch that lost would be counted", pairs, err)
	}
}

// Of a manifest without a stamp somebody else may say whether it counts. One that does not yet is paired when it comes.
func TestManifestsWithoutAStampAreAskedAbout(t *testing.T) {
	b := newBucket(t)
	x, y := b.accept(id("x", 0, 9)), b.accept(id("x", 5, 14))
	counts, failed := map[identity.Batch]bool{x.Identity: true}, error(nil)
	f := &Finder{Manifests: b.store, Counts: func(_ context.Context, e accepted.Batch) (bool, error) { return counts[e.Identity], failed }}
	if pairs, err := f.Find(t.Context(), []accepted.Batch{x}); err != nil || len(pairs) > 0 {
		t.Errorf("%+v, %v: a batch that nobody has decided would be counted", pairs, err)
	}
	failed = errors.New("the journal can't be read")
	if _, err := f.Find(t.Context(), []accepted.Batch{y}); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	failed, counts[y.Identity] = nil, true
	if pairs, err := f.Find(t.Context(), []accepted.Batch{y}); err != nil || len(pairs) != 1 || pairs[0].With.Identity != x.Identity {
		t.Errorf("%+v, %v: numbers would count twice", pairs, err)
	}
}

// What all boots together expect is bounded, and what is left out costs a listing.
func TestExpectedBatchesAreBounded(t *testing.T) {
	b := newBucket(t)
	listed := 0
	f := &Finder{Manifests: b.store, Listed: func() { listed++ }, boots: map[identity.Boot]*boot{}, expected: maxExpectedOfAll - 3}
	var es []accepted.Batch
	for n := range uint64(6) {
		es = append(es, b.accept(id("x", n*10, n*10+9)))
	}
	for i, want := range []int{1, 1, 1, 1, 2, 3} {
		if pairs, err := f.Find(t.Context(), es[i:i+1]); err != nil || len(pairs) > 0 || listed != want {
			t.Fatalf("batch %d: %+v, %v, %d listings", i, pairs, err, listed)
		}
	}
	if f.expected != maxExpectedOfAll-3 {
		t.Errorf("%d are expected after all have come", f.expected-maxExpectedOfAll+3)
	}
}

// TestSchedules plays batches of random ranges that are accepted, and come to an owner in any order and several times,
// beside an oracle: of two accepted batches that share numbers the later one to come tells of the pair. Requests fail,
// and owners change.
func TestSchedules(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		b := newBucket(t)
		faulty := fault.New(b.store, seed, fault.Rule{Op: "read", Kind: fault.Before, Chance: 0.05})
		f := &Finder{Manifests: faulty}
		came := map[identity.Batch]bool{}
		told := map[[2]identity.Batch]bool{}
		var waiting []accepted.Batch
		seq := map[string]uint64{}
		for step := range 60 {
			switch rnd.IntN(4) {
			case 0, 1:
				for range 1 + rnd.IntN(4) {
					boot := []string{"x", "y"}[rnd.IntN(2)]
					from := seq[boot]
					if rnd.IntN(5) == 0 {
						from = rnd.Uint64N(from + 20)
					}
					e := id(boot, from, from+rnd.Uint64N(8))
					seq[boot] = max(seq[boot], e.SeqEnd+1)
					if _, ok := b.all[e]; !ok {
						waiting = append(waiting, b.accept(e))
					}
				}
			case 2:
				rnd.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
				n := rnd.IntN(len(waiting) + 1)
				batches := waiting[:n:n]
				for e := range came {
					if rnd.IntN(20) == 0 {
						batches = append(batches, b.all[e])
					}
				}
				pairs, err := f.Find(t.Context(), batches)
				if err != nil {
					continue // they are tried again
				}
				for _, p := range pairs {
					if p.Batch.Identity == p.With.Identity || !p.Batch.Identity.Intersects(p.With.Identity) || p.With != b.all[p.With.Identity] {
						t.Fatalf("seed %d, step %d: %+v", seed, step, p)
					}
					told[[2]identity.Batch{p.Batch.Identity, p.With.Identity}] = true
					told[[2]identity.Batch{p.With.Identity, p.Batch.Identity}] = true
				}
				for _, e := range waiting[:n] {
					came[e.Identity] = true
				}
				waiting = waiting[n:]
				for x := range came {
					for y := range came {
						if x != y && x.BootOf() == y.BootOf() && x.Intersects(y) && !told[[2]identity.Batch{x, y}] {
							t.Fatalf("seed %d, step %d: %v and %v share numbers, and no overlap is reported", seed, step, x, y)
						}
					}
				}
			case 3:
				if rnd.IntN(6) == 0 {
					f = &Finder{Manifests: faulty} // another owner, which gets some of them again
				}
				if rnd.IntN(10) == 0 {
					f.older, f.boots = f.boots, nil // many boots have come meanwhile
				}
			}
		}
	}
}

// A manifest that can't be read is reported, and keeps nothing else.
func TestDamagedManifest(t *testing.T) {
	b := newBucket(t)
	old, other, late := b.accept(id("x", 10, 19)), b.accept(id("x", 20, 29)), b.accept(id("x", 15, 24))
	if _, err := b.store.Put(t.Context(), layout.Accepted(old.Identity), []byte("{"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	damaged := 0
	f := &Finder{Manifests: b.store, Damaged: func(error) { damaged++ }}
	pairs, err := f.Find(t.Context(), []accepted.Batch{late})
	if err != nil || damaged != 1 || len(pairs) != 1 || pairs[0] != (Pair{late, other}) {
		t.Errorf("%+v, %v, %d", pairs, err, damaged)
	}
}

// A store that is down is an error, after which the same call finds everything.
func TestWithoutTheStore(t *testing.T) {
	b := newBucket(t)
	faulty := fault.New(b.store, 1)
	f := &Finder{Manifests: faulty, Fan: func(ctx context.Context, n int, do func(context.Context, int) error) error {
		var errs []error
		for i := range n {
			errs = append(errs, do(ctx, n-1-i))
		}
		return errors.Join(errs...)
	}}
	x, y, z := b.accept(id("x", 10, 19)), b.accept(id("x", 15, 24)), b.accept(id("y", 0, 1))
	faulty.Add(fault.NotApplied("list", layout.AcceptedPrefix))
	if _, err := f.Find(t.Context(), []accepted.Batch{y, z}); err == nil {
		t.Fatal("no error")
	}
	faulty.Clear()
	if pairs, err := f.Find(t.Context(), []accepted.Batch{y, z}); err != nil || len(pairs) != 1 || pairs[0] != (Pair{y, x}) {
		t.Errorf("%+v, %v", pairs, err)
	}
}

// InBlock gives what comparing with every input gives, for batches of all lengths in runs of
// all kinds.
func TestInBlock(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		seen := map[identity.Batch]bool{}
		for range 1 + rnd.IntN(40) {
			from, length := rnd.Uint64N(60), 1+rnd.Uint64N(6)
			b := id("b", from, from+length-1)
			if rnd.IntN(8) == 0 {
				b.Boot = "other"
			}
			seen[b] = true
		}
		var all []identity.Batch
		for b := range seen {
			all = append(all, b)
		}
		slices.SortFunc(all, identity.Batch.Compare)
		in, err := catalog.NewInputs(all)
		if err != nil {
			t.Fatal(err)
		}
		from := rnd.Uint64N(60)
		with := id("b", from, from+rnd.Uint64N(10))
		var want []identity.Batch
		for _, b := range all {
			if b != with && b.Intersects(with) {
				want = append(want, b)
			}
		}
		got := InBlock(in, with)
		slices.SortFunc(got, identity.Batch.Compare)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v overlaps %v, want %v", seed, with, got, want)
		}
	}
}
