package regions_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// counting counts the requests to a bucket, by operation and family of keys. It is safe for concurrent use.
type counting struct {
	regions.Store
	mu *sync.Mutex
	n  map[string]int
	// limit of a page; 0 is the store's own.
	limit int
}

func (c counting) count(op, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[op+" "+key[:strings.IndexByte(key, '/')]]++
}

func (c counting) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	c.count("get", key)
	return c.Store.Get(ctx, key, o)
}

func (c counting) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	c.count("list", o.Prefix)
	o.Limit = cmp.Or(c.limit, o.Limit)
	return c.Store.List(ctx, o)
}

func (c counting) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	c.count("put", key)
	return c.Store.Create(ctx, key, b, o)
}

func (c counting) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	c.count("put", key)
	return c.Store.Replace(ctx, key, b, etag, o)
}

// longTail is how many identities of the last boot are not folded: more than a page that is read ahead has.
const longTail = 600

// long is a world of boots with so many identities each, all but the last five of which are folded; every third boot has a gap.
func long(t testing.TB, boots, each int) *world {
	w := &world{t: t, kv: kv.New(), buckets: map[claims.Region]*mem.Store{"eu": mem.New(nil), "us": mem.New(nil)}, rand: rand.NewChaCha8([32]byte{1})}
	f := folds.Folder{Homes: func(claims.Region) (retired, known bool) { return false, true }}
	for _, n := range []claims.Region{"eu", "us"} {
		f.Regions = append(f.Regions, folds.Region{Name: n, Store: w.buckets[n]})
	}
	for b := range boots {
		home := []claims.Region{"eu", "us"}[b%2]
		known, add, left := claims.Folds{}, []folds.Entry(nil), 5
		if b == boots-1 {
			left = longTail
		}
		for i := range each {
			seq := uint64(10*i + 1)
			if b%3 == 0 && i >= each/2 {
				seq += 5
			}
			id := batch(fmt.Sprintf("b%03d", b), seq, seq+9)
			w.manifest(home, id, "x", accepted.Stamp{Epoch: 1, Fence: uint64(i) + 1})
			if i == each/2 {
				// A copy that lost, and one for another frame, in the middle of what is folded; and affirmations of old claims.
				other := []claims.Region{"us", "eu"}[b%2]
				w.manifest(other, id, "x", accepted.Stamp{Epoch: 1, Fence: 1})
				w.manifest(other, batch(id.Boot, seq+3, seq+4), "z", accepted.Stamp{Epoch: 9, Fence: 1})
			}
			if i%3 == 0 {
				w.affirm(home, id, accepted.Stamp{Epoch: 2, Fence: uint64(i) + 1})
			}
			if i >= each-left {
				continue
			}
			add = append(add, folds.Entry{Start: id.SeqStart, End: id.SeqEnd, Home: home, Digest: folds.DigestOf(identity.Sum([]byte("x")))})
			if len(add) == folds.MaxAdd || i == each-left-1 {
				m, err := f.Fold(t.Context(), id.BootOf(), known, add)
				if err != nil {
					t.Fatal(err)
				}
				known, add = claims.Folds{Heads: m.Heads, Modified: 1, At: 1, Epoch: 1}, nil
			}
		}
	}
	return w
}

// recoverCounting loses etcd, and gives the requests of the recovery.
func (w *world) recoverCounting(parallel func(int, func(int) bool), limit int) (regions.Opened, map[string]int) {
	w.t.Helper()
	w.open(slices.Sorted(maps.Keys(w.buckets))...)
	w.kv.Restore(kv.New(), 2)
	n, mu := map[string]int{}, new(sync.Mutex)
	c := regions.Config{KV: w.kv, Keys: keys, Rand: w.rand, Now: func() int64 { return 7 }, Parallel: parallel}
	for name, b := range w.buckets {
		c.Regions = append(c.Regions, regions.Region{Name: name, Store: counting{b, mu, n, limit}})
	}
	k, err := regions.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	o, err := k.Open(w.t.Context(), true)
	if err != nil {
		w.t.Fatal(err)
	}
	return o, n
}

// A recovery of boots with long histories costs requests that do not grow with what is folded of them, but for the parts that the heads
// name; and it finds the same.
func TestRecoveryOfALongHistory(t *testing.T) {
	const boots = 7
	counts := map[int]map[string]int{}
	for _, each := range []int{2500, 10_000} {
		w := long(t, boots, each)
		o, n := w.recoverCounting(atOnce, 0)
		counts[each] = n
		if n := 5*(boots-1) + longTail; o.Recovered.Claims != uint64(n) || o.Recovered.Boots != boots || len(w.claims()) != n {
			t.Errorf("%d each: %+v", each, o.Recovered)
		}
		t.Logf("%d identities of each boot: %v", each, n)
		parts := 0
		for _, b := range w.buckets {
			for l, err := range folds.List(t.Context(), b) {
				h, err2 := folds.Read(t.Context(), b, l.Boot)
				if err != nil || err2 != nil {
					t.Fatal(err, err2)
				}
				parts = max(parts, len(h.Parts))
			}
		}
		if max := boots * parts; n["get folds"] > 2*boots+max {
			t.Errorf("%d GETs of heads and parts, of %d boots with at most %d parts", n["get folds"], boots, parts)
		}
	}
	short, far := counts[2500], counts[10_000]
	// Behind each run, and what comes before and between them: pages that end within one are all the same.
	if far["list accepted"] > short["list accepted"]+boots || far["list affirmed"] != short["list affirmed"] || far["get accepted"] != short["get accepted"] || far["list folds"] != short["list folds"] {
		t.Errorf("%v, and %v for four times the history", short, far)
	}
	if lists := far["list accepted"]; lists > 4*boots {
		t.Errorf("%d pages of manifests for %d boots, of which some have a gap", lists, boots)
	}
}

// told is a manifest as a bucket has it.
type told struct {
	id    identity.Batch
	home  claims.Region
	frame string
	stamp accepted.Stamp
}

// chosen are the claims that a recovery makes of manifests, worked out one by one.
func chosen(all []told, folded []folds.Entry, retired claims.Region) (out []string) {
	all = slices.DeleteFunc(all, func(m told) bool {
		e, exact := folds.Exact(folded, m.id)
		return folds.Meet(folded, m.id) && (!exact || e.Home != retired || e.Digest != folds.DigestOf(identity.Sum([]byte(m.frame))))
	})
	slices.SortFunc(all, func(a, b told) int {
		return cmp.Or(b.stamp.Compare(a.stamp), cmp.Compare(a.home, b.home), a.id.Compare(b.id))
	})
	var taken []told
	for _, m := range all {
		if !slices.ContainsFunc(taken, func(t told) bool { return t.id.Intersects(m.id) }) {
			taken = append(taken, m)
		}
	}
	slices.SortFunc(taken, func(a, b told) int { return a.id.Compare(b.id) })
	for _, m := range taken {
		out = append(out, line(m.id, m.home, m.frame))
	}
	return out
}

// What is passed over is what would be left out: whatever lies in and around runs of what is folded, a recovery finds what counts, by pages
// that end anywhere.
func TestRunsArePassedOverExactly(t *testing.T) {
	for seed := range uint64(300) {
		for _, limit := range []int{1, 2, 0} {
			rnd := rand.New(rand.NewPCG(seed, 84))
			w := &world{t: t, kv: kv.New(), buckets: map[claims.Region]*mem.Store{"eu": mem.New(nil), "us": mem.New(nil)}, rand: rand.NewChaCha8([32]byte{1})}
			retired := claims.Region("asia")
			// Runs with gaps, homes that are retired, and the last numbers of all.
			var add []folds.Entry
			base := uint64(0)
			if rnd.IntN(4) == 0 {
				base = math.MaxUint64 - 40
			}
			for seq := base + uint64(rnd.IntN(3)); seq-base < 36; {
				e := folds.Entry{Start: seq, End: seq + uint64(rnd.IntN(3)), Home: []claims.Region{"eu", "us", retired}[rnd.IntN(3)], Digest: folds.DigestOf(identity.Sum([]byte("a")))}
				if seq-base > 30 && base > 0 {
					e.End = math.MaxUint64
				}
				if rnd.IntN(5) > 0 {
					add = append(add, e)
				}
				if e.End == math.MaxUint64 {
					break
				}
				if seq = e.End + 1; rnd.IntN(5) == 0 && seq < math.MaxUint64-3 {
					seq++
				}
			}
			w.head("us", add...)
			var all []told
			put := func(r claims.Region, id identity.Batch, frame string, s accepted.Stamp) {
				w.manifest(r, id, frame, s)
				for n := range rnd.IntN(3) {
					a := accepted.Stamp{Epoch: 2, Fence: uint64(3*rnd.IntN(30) + n)}
					if w.affirm(r, id, a); a.Compare(s) > 0 {
						s = a
					}
				}
				all = append(all, told{id, r, frame, s})
			}
			fences := rnd.Perm(100)
			for i := range 30 {
				from := base + uint64(rnd.IntN(38))
				id := batch("boot", from, from+uint64(rnd.IntN(4)))
				r := []claims.Region{"eu", "us"}[rnd.IntN(2)]
				if len(add) > 0 && rnd.IntN(2) == 0 {
					e := add[rnd.IntN(len(add))]
					id.SeqStart, id.SeqEnd = e.Start, e.End
				}
				if _, _, err := w.buckets[r].Get(t.Context(), layout.Accepted(id), objstore.GetOptions{}); err == nil || id.SeqEnd < id.SeqStart {
					continue
				}
				put(r, id, []string{"a", "b"}[rnd.IntN(2)], accepted.Stamp{Epoch: 1, Fence: uint64(fences[i])})
			}
			// Boots without folds, before it and behind it.
			put("eu", batch("after", 1, 2), "c", accepted.Stamp{Epoch: 1, Fence: 1})
			want := chosen(slices.Clone(all[len(all)-1:]), nil, "")
			want = append(want, chosen(slices.Clone(all[:len(all)-1]), add, retired)...)
			put("us", batch("boot0", 1, 2), "c", accepted.Stamp{Epoch: 1, Fence: 1})
			want = append(want, chosen(slices.Clone(all[len(all)-1:]), nil, "")...)
			w.recoverCounting(nil, limit)
			if got := w.claims(); !slices.Equal(got, want) {
				t.Fatalf("seed %d, pages of %d: %q, want %q", seed, limit, got, want)
			}
		}
	}
}
