package folds

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// buckets are those of three regions; puts counts writes that were asked for, by key.
type buckets struct {
	t    testing.TB
	mems map[claims.Region]*mem.Store
	puts map[string]int
	// before is called before each write: an error is its answer, and applied says whether it was done.
	before func(r claims.Region, key string) (applied bool, err error)
}

func newBuckets(t testing.TB) *buckets {
	b := &buckets{t: t, mems: map[claims.Region]*mem.Store{}, puts: map[string]int{}}
	for _, r := range []claims.Region{"asia", "eu", "us"} {
		b.mems[r] = mem.New(nil)
	}
	return b
}

// seenBy is a bucket as a process reaches it.
type seenBy struct {
	*mem.Store
	of *buckets
	r  claims.Region
}

func (s seenBy) write(key string, do func() (objstore.Info, error)) (objstore.Info, error) {
	s.of.puts[string(s.r)+" "+key]++
	if s.of.before != nil {
		applied, err := s.of.before(s.r, key)
		if applied {
			_, _ = do()
		}
		if err != nil {
			return objstore.Info{}, err
		}
	}
	return do()
}

func (s seenBy) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(key, func() (objstore.Info, error) { return s.Store.Create(ctx, key, b, o) })
}

func (s seenBy) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(key, func() (objstore.Info, error) { return s.Store.Replace(ctx, key, b, etag, o) })
}

func (b *buckets) region(r claims.Region) Region { return Region{r, seenBy{b.mems[r], b, r}} }

func (b *buckets) preparer() Preparer {
	return Preparer{Own: b.region("asia"), Others: []Region{b.region("eu"), b.region("us")}, SealAt: 8}
}

func (b *buckets) folder() Folder {
	return Folder{Regions: []Region{b.region("asia"), b.region("eu"), b.region("us")}, Homes: living, SealAt: 8}
}

// prepared is all that is prepared of the boot, and whether every part lies in every bucket.
func (b *buckets) prepared() (out []Entry) {
	b.t.Helper()
	h, err := ReadPrepared(b.t.Context(), b.mems["asia"], "asia", boot)
	if err != nil {
		b.t.Fatal(err)
	}
	lists := [][]Entry{h.Tail}
	for _, p := range h.Parts {
		for r, m := range b.mems {
			es, err := ReadPart(b.t.Context(), m, boot, p)
			if err != nil {
				b.t.Fatalf("region %s: %v", r, err)
			}
			if r == "asia" {
				lists = append(lists, es)
			}
		}
	}
	if out, err = Merge(living, lists...); err != nil {
		b.t.Fatal(err)
	}
	for r, m := range b.mems {
		n := 0
		for got, err := range PreparedBoots(b.t.Context(), m, "asia") {
			if n++; err != nil || got != boot {
				b.t.Fatal(got, err)
			}
		}
		if n != 1 {
			b.t.Fatalf("region %s names %d boots", r, n)
		}
	}
	return out
}

// What a region has accepted is prepared bit by bit, in any order; nothing of it is a fold.
func TestPrepare(t *testing.T) {
	b := newBuckets(t)
	p := b.preparer()
	all := run(0, 40, "asia")
	for _, add := range [][]Entry{all[10:30], all[5:15], nil, all[30:], all[:20]} {
		if _, err := p.Add(t.Context(), boot, add); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.prepared(); !slices.Equal(got, all) {
		t.Errorf("%d entries, want %d", len(got), len(all))
	}
	// Of ranges that meet, and of other frames, what came first stays.
	other := entry(21, 30, "asia")
	other.Digest[0]++
	got, err := p.Add(t.Context(), boot, []Entry{entry(5, 12, "asia"), other, entry(401, 401, "asia"), entry(402, 410, "asia")})
	if err != nil || got != (Prepared{Added: 2, Left: 2}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got := b.prepared(); len(got) != len(all)+2 {
		t.Errorf("%d entries", len(got))
	}
	for _, bad := range [][]Entry{run(0, 1, "eu"), {entry(5, 9, "asia"), entry(9, 10, "asia")}, {{Start: 2, End: 1, Home: "asia"}}} {
		if got, err := p.Add(t.Context(), boot, bad); !errors.Is(err, claims.ErrInvalid) {
			t.Errorf("%+v: %+v, %v", bad, got, err)
		}
	}
	for r, m := range b.mems {
		for l, err := range List(t.Context(), m) {
			if err != nil || l.Head || l.Boot != boot || len(l.Parts) < 4 {
				t.Errorf("region %s: %+v, %v", r, l, err)
			}
		}
	}
	if _, err := ReadPrepared(t.Context(), b.mems["eu"], "us", boot); !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
}

// Preparers at once, whose requests are lost, late and doubled: everything is prepared, once, and every part precedes the head that names it.
func TestPrepareSimulation(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 85))
		b := newBuckets(t)
		all := run(0, 30, "asia")
		var late []func()
		depth, sure := 0, map[Entry]bool{}
		var one func()
		b.before = func(r claims.Region, key string) (bool, error) {
			if depth < 3 && rnd.IntN(6) == 0 {
				depth++
				one()
				depth--
			}
			if len(late) > 0 && rnd.IntN(3) == 0 {
				i := rnd.IntN(len(late))
				fn := late[i]
				late = slices.Delete(late, i, i+1)
				fn()
			}
			unknown := fmt.Errorf("no answer: %w", objstore.ErrUnknown)
			switch rnd.IntN(12) {
			case 0:
				return false, unknown
			case 1:
				return true, unknown
			case 2:
				return false, errCrash
			case 3:
				return true, errCrash
			}
			return false, nil
		}
		one = func() {
			from := rnd.IntN(len(all))
			to := min(from+1+rnd.IntN(12), len(all))
			add := all[from:to]
			if rnd.IntN(4) == 0 {
				add = []Entry{entry(all[from].Start, all[from].End+3, "asia")}
			}
			_, err := b.preparer().Add(t.Context(), boot, add)
			if err != nil && !errors.Is(err, errCrash) && !errors.Is(err, objstore.ErrUnknown) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			// What is there stays there, whatever comes late.
			if err == nil {
				for _, e := range b.prepared() {
					sure[e] = true
				}
			}
			if h, err := ReadPrepared(t.Context(), b.mems["asia"], "asia", boot); err == nil {
				for _, p := range h.Parts {
					for r, m := range b.mems {
						if _, err := ReadPart(t.Context(), m, boot, p); err != nil {
							t.Fatalf("seed %d: region %s: %v", seed, r, err)
						}
					}
				}
			}
		}
		for range 8 {
			one()
		}
		b.before = nil
		if len(sure) > 0 {
			there := b.prepared()
			for e := range sure {
				if !slices.Contains(there, e) {
					t.Fatalf("seed %d: %+v is not prepared any more", seed, e)
				}
			}
		}
		for i := range all {
			if _, err := b.preparer().Add(t.Context(), boot, all[i:i+1]); err != nil {
				t.Fatal(err)
			}
		}
		got := b.prepared()
		for i, e := range got {
			if i > 0 && got[i-1].meets(e) {
				t.Fatalf("seed %d: %+v and %+v", seed, got[i-1], e)
			}
		}
		for _, e := range all {
			if len(meeting(got, e.Start, e.End)) == 0 {
				t.Fatalf("seed %d: %+v is not prepared", seed, e)
			}
		}
	}
}

// bulk is all that is prepared, to be added to heads.
func (b *buckets) bulk() Bulk {
	h, err := ReadPrepared(b.t.Context(), b.mems["asia"], "asia", boot)
	if err != nil {
		b.t.Fatal(err)
	}
	return Bulk{Parts: h.Parts, Entries: h.Tail}
}

// folded is what each region has.
func (b *buckets) folded() []Entry {
	b.t.Helper()
	l := NewLooker(b.folder(), 0)
	out, err := l.All(b.t.Context(), boot)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

func (b *buckets) generations() (out []uint64) {
	b.t.Helper()
	for _, r := range []claims.Region{"asia", "eu", "us"} {
		h, _, err := readOrNone(b.t.Context(), b.mems[r], boot)
		if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, h.Generation)
	}
	return out
}

// Heads are raised in all regions, also by nothing: who has read one before can't move it any more.
func TestRaise(t *testing.T) {
	b := newBuckets(t)
	p, f := b.preparer(), b.folder()
	if _, err := p.Add(t.Context(), boot, run(10, 20, "asia")); err != nil {
		t.Fatal(err)
	}
	// Heads that differ, with a part of which one region alone has the head.
	lone := f
	lone.Regions = f.Regions[1:2]
	if _, err := lone.Fold(t.Context(), boot, claims.Folds{}, run(100, 10, "eu")); err != nil {
		t.Fatal(err)
	}
	before, err := f.Stand(t.Context(), boot)
	if err != nil || before.Head.Count() != 10 {
		t.Fatalf("%+v, %v", before, err)
	}
	if es, err := before.Entries(t.Context(), before.Head.Parts[0]); err != nil || len(es) != 10 {
		t.Errorf("%d entries, %v", len(es), err)
	}
	nothing, err := f.Stand(t.Context(), boot)
	if err != nil {
		t.Fatal(err)
	}
	clear(b.puts)
	has := func(r claims.Region, d identity.Digest) bool {
		return slices.ContainsFunc(b.bulk().Parts, func(p Part) bool { return p.Name == d })
	}
	if err := f.Raise(t.Context(), before, b.bulk(), has); err != nil {
		t.Fatal(err)
	}
	want, err := Merge(living, run(10, 20, "asia"), run(100, 10, "eu"))
	if err != nil {
		t.Fatal(err)
	}
	if got := b.folded(); !slices.Equal(got, want) {
		t.Errorf("%d entries, want %d", len(got), len(want))
	}
	if got := b.generations(); !slices.Equal(got, []uint64{1, 2, 1}) {
		t.Errorf("generations %d", got)
	}
	// Three heads, and the part that two regions did not have; what was prepared was there.
	if len(b.puts) != 5 {
		t.Errorf("%d writes: %v", len(b.puts), b.puts)
	}
	if err := f.Raise(t.Context(), nothing, Bulk{}, nil); !errors.Is(err, ErrMoved) {
		t.Errorf("a head that has moved: %v", err)
	}
	if nothing, err = f.Stand(t.Context(), boot); err != nil {
		t.Fatal(err)
	}
	if err := f.Raise(t.Context(), nothing, Bulk{}, nil); err != nil {
		t.Fatal(err)
	}
	if got := b.generations(); !slices.Equal(got, []uint64{2, 3, 2}) || !slices.Equal(b.folded(), want) {
		t.Errorf("generations %d", got)
	}
	// Of a boot without folds an empty head comes into being.
	other := identity.Boot{Agent: "a", Boot: "other"}
	first, err := f.Stand(t.Context(), other)
	late, err2 := f.Stand(t.Context(), other)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	if err := f.Raise(t.Context(), first, Bulk{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Raise(t.Context(), late, Bulk{Entries: run(1, 1, "asia")}, nil); !errors.Is(err, ErrMoved) {
		t.Errorf("a head that came into being: %v", err)
	}
	if h, err := Read(t.Context(), b.mems["us"], other); err != nil || h.Generation != 1 || h.Count() != 0 {
		t.Errorf("%+v, %v", h, err)
	}
	// A region that does not answer is waited for.
	away := f
	away.Regions = slices.Clone(f.Regions)
	away.Regions[2].Store = nothingThere{away.Regions[2].Store}
	if s, err := away.Stand(t.Context(), boot); !errors.Is(err, ErrBehind) {
		t.Errorf("%+v, %v", s, err)
	}
}

// nothingThere does not answer.
type nothingThere struct{ Store }

func (nothingThere) Get(context.Context, string, objstore.GetOptions) ([]byte, objstore.Info, error) {
	return nil, objstore.Info{}, objstore.ErrUnavailable
}

// Whatever becomes of the writes of one who raises: it has done so, or says that it has not; and of two only one moves a head from where both
// have read it.
func TestRaiseSimulation(t *testing.T) {
	moved := 0
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 86))
		b := newBuckets(t)
		if _, err := b.preparer().Add(t.Context(), boot, run(10, 20, "asia")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.folder().Fold(t.Context(), boot, claims.Folds{}, run(100, 3, "eu")); err != nil {
			t.Fatal(err)
		}
		f := b.folder()
		stand := func() *Standing {
			s, err := f.Stand(t.Context(), boot)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		one, two := stand(), stand()
		b.before = func(claims.Region, string) (bool, error) {
			unknown := fmt.Errorf("no answer: %w", objstore.ErrUnknown)
			switch rnd.IntN(8) {
			case 0:
				return false, unknown
			case 1:
				return true, unknown
			case 2:
				return true, nil // it is sent twice
			case 3:
				return false, objstore.ErrConflict
			}
			return false, nil
		}
		err := f.Raise(t.Context(), one, b.bulk(), nil)
		if err != nil && !errors.Is(err, objstore.ErrUnknown) && !errors.Is(err, objstore.ErrConflict) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		b.before = nil
		// One that has read the same heads changes no more, wherever the first one was through.
		if err == nil {
			if err := f.Raise(t.Context(), two, Bulk{Entries: run(200, 1, "us")}, nil); !errors.Is(err, ErrMoved) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			moved++
			if got := b.generations(); !slices.Equal(got, []uint64{2, 2, 2}) || len(b.folded()) != 23 {
				t.Fatalf("seed %d: generations %d", seed, got)
			}
		}
	}
	if moved < 300 {
		t.Errorf("%d of 400", moved)
	}
}

// What lies below the prefix of a region and is no prepared head is of a later release.
func TestUnknownPreparedKeys(t *testing.T) {
	b := newBuckets(t)
	if _, err := b.mems["eu"].Create(t.Context(), layout.PreparedOf("asia")+"x", nil, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for got, err := range PreparedBoots(t.Context(), b.mems["eu"], "asia") {
		if err == nil {
			t.Error(got)
		}
	}
}

// A lenient folder leaves out what contradicts the folds, and folds the rest.
func TestALenientFolder(t *testing.T) {
	b := newBuckets(t)
	f := b.folder()
	if _, err := f.Fold(t.Context(), boot, claims.Folds{}, run(0, 10, "eu")); err != nil { // a part
		t.Fatal(err)
	}
	if _, err := f.Fold(t.Context(), boot, claims.Folds{}, run(10, 2, "eu")); err != nil {
		t.Fatal(err)
	}
	bad := entry(111, 120, "eu")
	bad.Digest[3]++
	add := []Entry{entry(5, 6, "us"), entry(31, 40, "us"), entry(101, 110, "eu"), bad, entry(121, 130, "us")}
	if m, err := f.Fold(t.Context(), boot, claims.Folds{}, add); !errors.Is(err, ErrContradiction) {
		t.Fatalf("%+v, %v", m, err)
	}
	f.Lenient = true
	m, err := f.Fold(t.Context(), boot, claims.Folds{}, add)
	if err != nil || m.Left != 3 {
		t.Fatalf("%+v, %v", m, err)
	}
	if want, got := append(run(0, 12, "eu"), entry(121, 130, "us")), b.folded(); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}
