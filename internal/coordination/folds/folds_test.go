package folds

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var update = flag.Bool("update", false, "write the golden files anew")

var boot = identity.Boot{Agent: "host/1", Boot: "b1"}

func entry(start, end uint64, home claims.Region) Entry {
	return Entry{start, end, home, DigestOf(hash(start, end))}
}

func hash(start, end uint64) identity.Digest {
	return identity.Sum(fmt.Appendf(nil, "%d-%d", start, end))
}

func batch(start, end uint64) identity.Batch {
	return identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: start, SeqEnd: end}
}

// run is n batches of ten numbers, from one on.
func run(from, n uint64, home claims.Region) []Entry {
	var out []Entry
	for i := from; i < from+n; i++ {
		out = append(out, entry(10*i+1, 10*i+10, home))
	}
	return out
}

func living(claims.Region) (retired, known bool) { return false, true }

func gone(names ...claims.Region) Homes {
	return func(r claims.Region) (retired, known bool) { return slices.Contains(names, r), true }
}

// kinds are the golden files.
func kinds() map[string][]byte {
	tail := []Entry{entry(0, 0, "eu"), entry(1, 10, "asia"), entry(12, 300, "eu"), entry(301, math.MaxUint64, "asia")}
	p, part := sealed(boot, run(50, 3, "eu"))
	return map[string][]byte{
		"head_tail":  Head{Boot: boot, Generation: 3, Tail: tail}.Marshal(),
		"head_parts": Head{Boot: boot, Generation: 900, Parts: []Part{p}, Tail: tail[:2]}.Marshal(),
		"head_empty": Head{Boot: boot, Generation: 1}.Marshal(),
		"part":       part,
	}
}

func TestGolden(t *testing.T) {
	for name, b := range kinds() {
		path := filepath.Join("testdata", name+".hex")
		if *update {
			if err := os.WriteFile(path, []byte(hex.EncodeToString(b)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil || !bytes.Equal(b, want) {
			t.Errorf("%s: %x, want %x (%v)", name, b, want, err)
		}
	}
}

// Every byte that is changed, every end that is cut off and every byte behind the end is refused.
func TestDamageIsRefused(t *testing.T) {
	p, _ := sealed(boot, run(50, 3, "eu"))
	for name, b := range kinds() {
		parse := func(b []byte) error {
			if name == "part" {
				_, err := ParsePart(boot, p, b)
				return err
			}
			_, err := ParseHead(boot, b)
			return err
		}
		if err := parse(b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range b {
			bad := slices.Clone(b)
			bad[i] ^= 0x41
			if err := parse(bad); !errors.Is(err, ErrCorrupt) && !(i == 0 && errors.Is(err, ErrNewer)) {
				t.Errorf("%s with byte %d changed: %v", name, i, err)
			}
			if err := parse(b[:i]); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s, %d bytes of it: %v", name, i, err)
			}
		}
		if err := parse(append(slices.Clone(b), 0)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s with a byte more: %v", name, err)
		}
	}
	other := identity.Boot{Agent: boot.Agent, Boot: "b2"}
	if _, err := ParseHead(other, kinds()["head_tail"]); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the head of another boot: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, b := range kinds() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum is mended, so that what precedes it is judged.
		if h, err := ParseHead(boot, b); err == nil && !bytes.Equal(h.Marshal(), b) {
			t.Errorf("%x became %x", b, h.Marshal())
		}
		if n := len(b) - 32; n > 0 {
			sum := identity.Sum(b[:n])
			mended := append(slices.Clone(b[:n]), sum[:]...)
			if h, err := ParseHead(boot, mended); err == nil && !bytes.Equal(h.Marshal(), mended) {
				t.Errorf("%x became %x", mended, h.Marshal())
			}
		}
		d := decoder{b: b}
		d.begin(kindPart, boot)
		if es := d.entries(); d.end() == nil && len(es) > 0 {
			p, again := sealed(boot, es)
			if got, err := ParsePart(boot, p, b); !bytes.Equal(again, b) || err != nil || !slices.Equal(got, es) {
				t.Errorf("%x became %x: %v", b, again, err)
			}
		}
	})
}

// The union has everything, whichever comes first; what contradicts is refused.
func TestUnion(t *testing.T) {
	a := Head{Boot: boot, Generation: 4, Tail: []Entry{entry(1, 10, "eu"), entry(21, 30, "us")}}
	b := Head{Boot: boot, Generation: 7, Tail: []Entry{entry(11, 20, "eu"), entry(21, 30, "us"), entry(31, 40, "asia")}}
	want := Head{Boot: boot, Tail: []Entry{entry(1, 10, "eu"), entry(11, 20, "eu"), entry(21, 30, "us"), entry(31, 40, "asia")}}
	for _, pair := range [][2]Head{{a, b}, {b, a}, {want, a}, {b, want}} {
		if got, err := Unite(pair[0], pair[1], living); err != nil || !got.equal(want) || got.Generation != 0 {
			t.Errorf("%+v: %v", got, err)
		}
	}
	for name, e := range map[string]Entry{
		"another hash": {Start: 21, End: 30, Home: "us"}, "a range that meets": entry(25, 35, "us"), "one that holds it": entry(20, 31, "us"),
		"another home that lives": entry(21, 30, "eu"),
	} {
		o := Head{Boot: boot, Generation: 1, Tail: []Entry{e}}
		if _, err := Unite(a, o, living); !errors.Is(err, ErrContradiction) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Unite(o, a, living); !errors.Is(err, ErrContradiction) {
			t.Errorf("%s, the other way round: %v", name, err)
		}
	}
	// A home changes only where it was retired.
	moved := Head{Boot: boot, Generation: 9, Tail: []Entry{entry(21, 30, "asia")}}
	for _, pair := range [][2]Head{{a, moved}, {moved, a}} {
		if got, err := Unite(pair[0], pair[1], gone("us")); err != nil || got.Tail[1].Home != "asia" {
			t.Errorf("%+v: %v", got, err)
		}
		if got, err := Unite(pair[0], pair[1], gone("us", "asia")); err != nil || got.Tail[1].Home != "asia" {
			t.Errorf("both retired: %+v: %v", got, err)
		}
	}
}

// A home that is none of the epoch's regions, and was not retired in it, may have been added since: whoever goes by the epoch changes nothing.
func TestAHomeOfAnotherEpoch(t *testing.T) {
	known := func(r claims.Region) (retired, known bool) { return r != "asia" && r != "eu", r != "mars" }
	for _, other := range []claims.Region{"asia", "us"} {
		a, b := mem.New(nil), mem.New(nil)
		f := Folder{Regions: regionsOf(a, b), Homes: known}
		later := Folder{Regions: regionsOf(a, b), Homes: func(r claims.Region) (retired, known bool) { return r == other, true }}
		for _, r := range []claims.Region{other, "mars"} {
			if _, err := later.Fold(t.Context(), boot, claims.Folds{}, run(1, 1, r)); err != nil {
				t.Fatal(err)
			}
		}
		before, err := Read(t.Context(), a, boot)
		if err != nil {
			t.Fatal(err)
		}
		for _, lenient := range []bool{false, true} {
			f.Lenient = lenient
			for _, add := range [][]Entry{run(1, 1, other), run(1, 1, "eu")} {
				if _, err := f.Fold(t.Context(), boot, claims.Folds{}, add); !errors.Is(err, ErrUnknownHome) {
					t.Errorf("%s, lenient %v: %v", other, lenient, err)
				}
			}
		}
		if now, err := Read(t.Context(), a, boot); err != nil || !now.equal(before) || now.Generation != before.Generation {
			t.Errorf("%+v, %v, want %+v", now, err, before)
		}
		// What does not concern it is folded, and stays as it is.
		f.Lenient = false
		if _, err := f.Fold(t.Context(), boot, claims.Folds{}, run(2, 1, "eu")); err != nil {
			t.Error(err)
		}
	}
}

func regionsOf(stores ...Store) []Region {
	names := []claims.Region{"asia", "eu", "us"}
	var out []Region
	for i, s := range stores {
		out = append(out, Region{names[i], s})
	}
	return out
}

// knows is what etcd knows after a fold.
func knows(m Moved) claims.Folds { return claims.Folds{Heads: m.Heads, Modified: 1} }

// A long history: parts are sealed, heads stay small, all regions have the same, and every identity is found.
func TestALongHistory(t *testing.T) {
	ctx := context.Background()
	stores := []*counted{{Store: mem.New(nil)}, {Store: mem.New(nil)}}
	f := Folder{Regions: regionsOf(stores[0], stores[1]), Homes: living}
	const rounds, each = 40, 256
	var known claims.Folds
	for i := range uint64(rounds) {
		m, err := f.Fold(ctx, boot, known, run(i*each, each, "eu"))
		if want := (claims.Heads{{Region: "asia", Generation: i + 1}, {Region: "eu", Generation: i + 1}}); err != nil || !slices.Equal(m.Heads, want) {
			t.Fatalf("%+v: %v", m, err)
		}
		known = knows(m)
	}
	h, err := Read(ctx, stores[0], boot)
	if err != nil || len(h.Parts) != rounds*each/SealAt || len(h.Tail) != rounds*each%SealAt {
		t.Fatalf("%d parts, %d in the tail: %v", len(h.Parts), len(h.Tail), err)
	}
	if o, err := Read(ctx, stores[1], boot); err != nil || !o.equal(h) {
		t.Fatalf("the other region has %d parts and %d in the tail: %v", len(o.Parts), len(o.Tail), err)
	}
	l := NewLooker(f, 1<<20)
	for i := range uint64(rounds * each) {
		got, err := l.Look(ctx, batch(10*i+1, 10*i+10), hash(10*i+1, 10*i+10), known)
		if err != nil || got.Verdict != Same || got.Entry.Home != "eu" || !got.Looked.Suffices(known) {
			t.Fatalf("%d: %+v, %v", i, got, err)
		}
	}
	for _, c := range []struct {
		id   identity.Batch
		hash identity.Digest
		want Verdict
	}{
		{batch(11, 20), hash(1, 10), OtherHash}, {batch(11, 19), hash(11, 19), OtherRange}, {batch(0, 1), hash(0, 1), OtherRange},
		{batch(0, 0), hash(0, 0), Free}, {batch(10*rounds*each+1, math.MaxUint64), hash(0, 0), Free}, {batch(0, 1<<40), hash(0, 0), OtherRange},
	} {
		if got, err := l.Look(ctx, c.id, c.hash, known); err != nil || got.Verdict != c.want {
			t.Errorf("%s: %+v, %v, want %s", c.id, got, err, c.want)
		}
	}
	size := 0
	for info, err := range objstore.List(ctx, stores[0], objstore.ListOptions{Prefix: layout.FoldsPrefix}) {
		if err != nil {
			t.Fatal(err)
		}
		size += int(info.Size)
	}
	per := float64(size) / (rounds * each)
	t.Logf("%.1f bytes stored, %.1f bytes written and %.4f requests of both regions an identity", per, float64(stores[0].bytes)/(rounds*each), float64(stores[0].requests+stores[1].requests)/(rounds*each))
	if per > 20 {
		t.Errorf("%.1f bytes an identity", per)
	}
	n := 0
	for l, err := range List(ctx, stores[1]) {
		if n++; err != nil || l.Boot != boot || !l.Head {
			t.Errorf("%v, %v", l, err)
		}
	}
	if n != 1 {
		t.Errorf("%d boots", n)
	}
}

// counted counts what is written, and requests.
type counted struct {
	Store
	bytes, requests int
}

func (c *counted) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	c.requests++
	return c.Store.Get(ctx, key, o)
}

func (c *counted) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	c.bytes, c.requests = c.bytes+len(b), c.requests+1
	return c.Store.Create(ctx, key, b, o)
}

func (c *counted) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	c.bytes, c.requests = c.bytes+len(b), c.requests+1
	return c.Store.Replace(ctx, key, b, etag, o)
}

// Entries of parts are not added again, contradictions to them are refused, and a later home goes in front of theirs.
func TestPartsAreMinded(t *testing.T) {
	ctx := context.Background()
	f := Folder{Regions: regionsOf(mem.New(nil), mem.New(nil)), Homes: living}
	var known claims.Folds
	for i := range uint64(SealAt / 512) {
		m, err := f.Fold(ctx, boot, known, run(512*i, 512, "us"))
		if err != nil {
			t.Fatal(err)
		}
		known = knows(m)
	}
	if m, err := f.Fold(ctx, boot, known, run(7, 3, "us")); err != nil || !slices.Equal(m.Heads, known.Heads) {
		t.Fatalf("what is folded: %+v, %v", m, err)
	}
	for _, e := range []Entry{{Start: 11, End: 20, Home: "us"}, entry(15, 16, "us"), entry(11, 20, "eu")} {
		if _, err := f.Fold(ctx, boot, known, []Entry{e}); !errors.Is(err, ErrContradiction) {
			t.Errorf("%+v: %v", e, err)
		}
	}
	if h, err := Read(ctx, f.Regions[0].Store, boot); err != nil || h.Generation != known.Heads[0].Generation || len(h.Tail) != 0 {
		t.Fatalf("a refused fold wrote: %d, %d in the tail, %v", h.Generation, len(h.Tail), err)
	}
	f.Homes = gone("us")
	m, err := f.Fold(ctx, boot, known, []Entry{entry(11, 20, "eu")})
	if err != nil || m.Heads[0].Generation != known.Heads[0].Generation+1 {
		t.Fatalf("%+v, %v", m, err)
	}
	for _, id := range []uint64{1, 11} {
		got, err := NewLooker(f, 1<<20).Look(ctx, batch(id, id+9), hash(id, id+9), knows(m))
		if want := map[uint64]claims.Region{1: "us", 11: "eu"}[id]; err != nil || got.Verdict != Same || got.Entry.Home != want {
			t.Errorf("%d: %+v, %v", id, got, err)
		}
	}
}

// A region that was away has everything after the next fold, parts too; one that is lost is not needed.
func TestRegionsComeAndGo(t *testing.T) {
	ctx := context.Background()
	a, b, c := mem.New(nil), mem.New(nil), mem.New(nil)
	f := Folder{Regions: regionsOf(a, b, refusing{c}), Homes: living}
	var known claims.Folds
	for i := range uint64(9) {
		m, err := f.Fold(ctx, boot, known, run(256*i, 256, "eu"))
		if err != nil || len(m.Heads) != 2 || len(m.Failed) != 1 {
			t.Fatalf("%+v: %v", m, err)
		}
		known = knows(m)
	}
	// The one that was away is not taken for one that has everything.
	f.Regions = regionsOf(refusing{a}, refusing{b}, c)
	l := NewLooker(f, 0)
	if _, err := l.Look(ctx, batch(1, 10), hash(1, 10), known); !errors.Is(err, ErrBehind) {
		t.Fatalf("a region that has nothing: %v", err)
	}
	if _, err := f.Fold(ctx, boot, known, run(5000, 1, "eu")); !errors.Is(err, ErrBehind) {
		t.Fatalf("a fold over a region that has nothing: %v", err)
	}
	// Nor is a bucket that was put back to an older copy.
	f.Regions = regionsOf(a, b, c)
	older := claims.Folds{Heads: claims.Heads{{Region: "asia", Generation: 10}, {Region: "eu", Generation: 10}}, Modified: 1}
	if _, err := NewLooker(f, 0).Look(ctx, batch(1, 10), hash(1, 10), older); !errors.Is(err, ErrBehind) {
		t.Fatalf("generations that nobody has: %v", err)
	}
	if _, err := f.Fold(ctx, boot, older, run(5000, 1, "eu")); !errors.Is(err, ErrBehind) {
		t.Fatalf("a fold on generations that nobody has: %v", err)
	}
	// Now another one is lost.
	f.Regions = regionsOf(refusing{a}, b, c)
	m, err := f.Fold(ctx, boot, known, run(5000, 1, "eu"))
	if err != nil || !slices.Equal(m.Heads, claims.Heads{{Region: "eu", Generation: 10}, {Region: "us", Generation: 1}}) {
		t.Fatalf("%+v, %v", m, err)
	}
	for i, s := range []Store{b, c} {
		one := Folder{Regions: []Region{{[]claims.Region{"eu", "us"}[i], s}}, Homes: living}
		got, err := NewLooker(one, 0).Look(ctx, batch(1, 10), hash(1, 10), knows(m))
		if err != nil || got.Verdict != Same {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// Of a boot that etcd knows nothing of, all regions but one tell; where they differ they are made the same first.
func TestABootThatEtcdDoesNotKnow(t *testing.T) {
	ctx := context.Background()
	a, b, c := mem.New(nil), mem.New(nil), mem.New(nil)
	if _, err := (Folder{Regions: regionsOf(refusing{a}, b, c), Homes: living}).Fold(ctx, boot, claims.Folds{}, run(1, 1, "eu")); err != nil {
		t.Fatal(err)
	}
	f := Folder{Regions: regionsOf(a, b, refusing{c}), Homes: living}
	unknown := claims.Folds{Forgotten: 7, At: 9, Epoch: 1}
	got, err := NewLooker(f, 0).Look(ctx, batch(11, 20), hash(11, 20), unknown)
	if err != nil || got.Verdict != Same || got.Looked.Since != 9 || !slices.Equal(got.Looked.Heads, claims.Heads{{Region: "asia", Generation: 1}, {Region: "eu", Generation: 1}}) {
		t.Fatalf("%+v, %v", got, err)
	}
	f.Regions = regionsOf(a, refusing{b}, refusing{c})
	if got, err := NewLooker(f, 0).Look(ctx, batch(11, 20), hash(11, 20), unknown); !errors.Is(err, ErrBehind) {
		t.Fatalf("one of three: %+v, %v", got, err)
	}
	// What was remembered is enough until something was forgotten since.
	f.Regions = regionsOf(a, b, c)
	l := NewLooker(f, 1<<16)
	for _, k := range []struct {
		known claims.Folds
		since int64
	}{{claims.Folds{Forgotten: 7, At: 9, Epoch: 1}, 9}, {claims.Folds{Forgotten: 8, At: 12, Epoch: 1}, 9}, {claims.Folds{Forgotten: 13, At: 14, Epoch: 1}, 14}, {claims.Folds{Forgotten: 2, At: 3, Epoch: 2}, 3}} {
		if got, err := l.Look(ctx, batch(21, 30), hash(21, 30), k.known); err != nil || got.Verdict != Free || got.Looked.Since != k.since {
			t.Errorf("%+v: %+v, %v", k, got, err)
		}
	}
	if looked, ok := l.Guess(batch(21, 30)); !ok || looked.Since != 3 {
		t.Errorf("%+v, %v", looked, ok)
	}
	if looked, ok := l.Guess(batch(20, 30)); ok {
		t.Errorf("what is folded is free: %+v", looked)
	}
}

// refusing is a region that does not answer.
type refusing struct{ Store }

func (refusing) Get(context.Context, string, objstore.GetOptions) ([]byte, objstore.Info, error) {
	return nil, objstore.Info{}, fmt.Errorf("away: %w", objstore.ErrUnavailable)
}

// A head in one region of several is not enough for etcd to forget.
func TestCopiesAreNeeded(t *testing.T) {
	ctx := context.Background()
	a, b, c := mem.New(nil), mem.New(nil), mem.New(nil)
	f := Folder{Regions: regionsOf(a, refusing{b}, refusing{c}), Homes: living}
	known := claims.Folds{Heads: claims.Heads{{Region: "asia"}}, Modified: 1}
	if _, err := f.Fold(ctx, boot, known, run(1, 1, "eu")); !errors.Is(err, ErrCopies) {
		t.Errorf("two are away: %v", err)
	}
	f.Regions = regionsOf(a, refusing{b}, c)
	if m, err := f.Fold(ctx, boot, known, run(1, 1, "eu")); err != nil || len(m.Heads) != 2 || len(m.Failed) != 1 {
		t.Errorf("one is away: %+v, %v", m, err)
	}
	f.Regions = regionsOf(mem.New(nil))
	if m, err := f.Fold(ctx, boot, claims.Folds{}, run(2, 1, "eu")); err != nil || len(m.Heads) != 1 {
		t.Errorf("there is one: %+v, %v", m, err)
	}
}

// What only one region has stays there, and comes to the others.
func TestARegionKeepsWhatItHas(t *testing.T) {
	ctx := context.Background()
	a, b := mem.New(nil), mem.New(nil)
	own := Head{Boot: boot, Generation: 7, Tail: run(100, 1, "eu")}
	if _, err := b.Create(ctx, layout.FoldHead(boot), own.Marshal(), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	m, err := (Folder{Regions: regionsOf(a, b), Homes: living}).Fold(ctx, boot, claims.Folds{}, run(1, 1, "eu"))
	if err != nil || !slices.Equal(m.Heads, claims.Heads{{Region: "asia", Generation: 1}, {Region: "eu", Generation: 8}}) {
		t.Fatalf("%+v, %v", m, err)
	}
	for _, s := range []Store{a, b} {
		if h, err := Read(ctx, s, boot); err != nil || len(h.Tail) != 2 {
			t.Errorf("%+v, %v", h, err)
		}
	}
}

// Heads and parts that are damaged or of a later release are typed errors, never an answer.
func TestUnreadableFolds(t *testing.T) {
	ctx := context.Background()
	s := mem.New(nil)
	f := Folder{Regions: regionsOf(s), Homes: living, SealAt: 2}
	m, err := f.Fold(ctx, boot, claims.Folds{}, run(0, 2, "eu"))
	if err != nil {
		t.Fatal(err)
	}
	look := func() error {
		_, err := NewLooker(f, 1<<16).Look(ctx, batch(1, 10), hash(1, 10), knows(m))
		return err
	}
	if err := look(); err != nil {
		t.Fatal(err)
	}
	h, err := Read(ctx, s, boot)
	if err != nil || len(h.Parts) != 1 {
		t.Fatal(h, err)
	}
	for _, key := range []string{layout.FoldPart(boot, h.Parts[0].Name), layout.FoldHead(boot)} {
		good, _, err := s.Get(ctx, key, objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for want, change := range map[error]func([]byte){ErrCorrupt: func(b []byte) { b[len(b)-1] ^= 1 }, ErrNewer: func(b []byte) { b[0] = 2 }} {
			bad := slices.Clone(good)
			change(bad)
			if _, err := s.Put(ctx, key, bad, objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := look(); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", key, err, want)
			}
		}
		if err := s.Delete(ctx, key); err != nil {
			t.Fatal(err)
		}
		if err := look(); err == nil {
			t.Errorf("%s is not there, and something was answered", key)
		}
		if _, err := s.Put(ctx, key, good, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
