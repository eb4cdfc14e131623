package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// copied are copies of the golden records, one of each kind, and of a compaction with a source.
func copied(t testing.TB) *Copies {
	c := &Copies{AuthorityID: "a", Day: layout.DayOf(day0)}
	add := func(n Name, r Record) {
		etag := fmt.Sprintf("%q", "etag of "+n.Key())
		if n.Span > 0 {
			etag = ""
		}
		c.Records = append(c.Records, Copy{n, etag, CopyOf(r)})
	}
	at := func(gen uint64) Name {
		return Name{Hour: day0 + 1, Shard: 1, Resolution: timegrid.OneMinute, Generation: gen}
	}
	_, compacted := source()
	compacted.Inputs = inputs(t, batch("host/1", 0, 9), batch("host/1", 10, 19), batch("é", 5, 5))
	add(compacted.Name, Record{Block: compacted})
	add(compaction().Name, Record{Block: compaction()})
	block := compaction()
	block.Name, block.Sources, block.Objects = at(3), nil, slices.Clone(block.Objects)
	block.Inputs = compacted.Inputs
	o := &block.Objects[0]
	o.ChunkKey, o.IndexKey = layout.RollupChunk(timegrid.OneMinute, day0+1, "up", o.ChunkSHA256, 2), layout.RollupIndex(day0+1, o.IndexSHA256, 7)
	add(block.Name, Record{Block: block})
	add(at(1), Record{Removed: &Removed{AuthorityID: "a", Name: at(1), SupersededBy: 3}})
	add(at(4), Record{Aborted: &Aborted{AuthorityID: "a", Name: at(4)}})
	c.Sort()
	return c
}

// TestCopiesGolden: the object of a former release is still read, and equal copies have equal bytes.
func TestCopiesGolden(t *testing.T) {
	c := copied(t)
	b, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/copies.lmcopies"
	if *update {
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseCopies(want)
	if err != nil || !reflect.DeepEqual(got, c) {
		t.Fatalf("%v\ngot  %+v\nwant %+v", err, got, c)
	}
	if again, err := got.Marshal(); err != nil || !bytes.Equal(again, b) {
		t.Errorf("written again it has other bytes: %v", err)
	}
	for _, x := range c.Records {
		if got.Find(x.Name) == nil {
			t.Errorf("%s is not found", x.Name.Key())
		}
	}
}

// TestDamagedCopiesAreRefused: whichever byte is another one, and wherever the object ends.
func TestDamagedCopiesAreRefused(t *testing.T) {
	b, err := copied(t).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		d := bytes.Clone(b)
		d[i] ^= 1 << (i % 8)
		if _, err := ParseCopies(d); !record.Opaque(err) {
			t.Fatalf("byte %d: %v", i, err)
		}
		if _, err := ParseCopies(b[:i]); !record.Opaque(err) {
			t.Fatalf("%d bytes: %v", i, err)
		}
	}
	newer := bytes.Clone(b)
	newer[5]++
	if _, err := ParseCopies(newer); !errors.Is(err, record.ErrNewerVersion) {
		t.Errorf("a newer version: %v", err)
	}
}

// seal gives a payload the header that belongs to it.
func seal(payload []byte) []byte {
	out := make([]byte, copiesHeader)
	copy(out, copiesMagic[:])
	for i := range 4 {
		out[8+i] = byte(len(payload) >> (8 * i))
	}
	out = copiesEncoder().EncodeAll(payload, out)
	sum := copiesSum(out)
	copy(out[16:], sum[:])
	return out
}

// TestPayloadsOfCopies: a payload that no writer writes is refused, or means what its own bytes say; it never panics.
func TestPayloadsOfCopies(t *testing.T) {
	b, err := copied(t).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	z := copiesDecoders.Get().(interface {
		DecodeAll(input, dst []byte) ([]byte, error)
	})
	payload, err := z.DecodeAll(b[copiesHeader:], nil)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 0))
	for range 3_000 {
		p := bytes.Clone(payload)
		for range 1 + rng.IntN(3) {
			p[rng.IntN(len(p))] = byte(rng.IntN(256))
		}
		if rng.IntN(4) == 0 {
			p = p[:rng.IntN(len(p))]
		}
		c, err := ParseCopies(seal(p))
		if err != nil {
			if !record.Opaque(err) {
				t.Fatal(err)
			}
			continue
		}
		if _, err := c.Marshal(); err != nil {
			t.Fatalf("read, but not to be written: %v", err)
		}
	}
	for name, c := range map[string]*Copies{
		"order":  func() *Copies { c := copied(t); slices.Reverse(c.Records); return c }(),
		"twice":  func() *Copies { c := copied(t); c.Records = append(c.Records, c.Records[len(c.Records)-1]); return c }(),
		"day":    func() *Copies { c := copied(t); c.Day++; return c }(),
		"etag":   func() *Copies { c := copied(t); c.Records[len(c.Records)-1].ETag = ""; return c }(),
		"key":    func() *Copies { c := copied(t); c.Records[0].Record.Block.Objects = compaction().Objects; return c }(),
		"no one": {Day: 1},
	} {
		if _, err := c.Marshal(); err == nil {
			t.Errorf("%s: written", name)
		}
	}
}

// gets counts the reads of records and copies.
type gets struct {
	objstore.Reader
	mu      sync.Mutex
	records map[string]int
	copies  int
}

func (g *gets) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	g.mu.Lock()
	if strings.HasPrefix(key, layout.ManifestsPrefix) {
		g.records[key]++
	}
	if strings.HasSuffix(key, ".lmcopies") {
		g.copies++
	}
	g.mu.Unlock()
	return g.Reader.Get(ctx, key, o)
}

// told is all that a view says of some hours.
func told(v *View, from, to timegrid.Hour) string {
	var b strings.Builder
	for h := from; h <= to; h++ {
		for _, res := range timegrid.Resolutions() {
			fmt.Fprintln(&b, h, res, v.Expired(h, res))
			for sh := range shard.ID(4) {
				fmt.Fprint(&b, v.Top(h, sh, res), " ")
			}
			for _, s := range v.Blocks(h, res) {
				c := *s
				c.Redirect = nil
				fmt.Fprintf(&b, "%+v", c)
				if s.Redirect != nil {
					fmt.Fprintf(&b, " in %s: %+v", s.Redirect.Name.Key(), s.Redirect.Block.Objects)
				}
				fmt.Fprintln(&b)
			}
		}
		for _, p := range v.Problems(h) {
			fmt.Fprintln(&b, p.Key, p.Err)
		}
	}
	return b.String()
}

// history is a store whose blocks change as workers, compactions and retention change them.
type history struct {
	t   *testing.T
	rng *rand.Rand
	s   *mem.Store
	top map[Name]uint64 // by slot
	n   int
}

func (w *history) write(r Record) { put(w.t, w.s, r) }

func (w *history) read(n Name) (Record, bool) {
	r, _, err := Read(w.t.Context(), w.s, "authority-1", n.Key())
	return r, err == nil
}

// step changes one slot.
func (w *history) step() {
	of := Name{Hour: day0 + timegrid.Hour(w.rng.IntN(30)), Shard: shard.ID(w.rng.IntN(3)), Resolution: timegrid.Resolution(w.rng.IntN(2))}
	n := of
	n.Generation = w.top[of]
	r, readable := w.read(n)
	switch k := w.rng.IntN(10); {
	case k < 5 || n.Generation == 0: // a generation is committed
		n.Generation++
		w.top[of]++
		w.n++
		b := testSet(of.Shard, of.Resolution, n.Generation, n.Generation-1, batch(fmt.Sprint("agent", w.rng.IntN(5)), uint64(w.n)*100, uint64(w.n)*100+9))
		b.Name, b.PlanKey, b.PlanSHA256 = n, layout.RollupPlan(n.Hour, n.Shard, n.Generation), identity.Sum(fmt.Append(nil, w.n))
		o := &b.Objects[0]
		o.ChunkKey, o.IndexKey = layout.RollupChunk(n.Resolution, n.Hour, o.Metric, o.ChunkSHA256, 0), layout.RollupIndex(n.Hour, o.IndexSHA256, 0)
		if of.Resolution != timegrid.Raw && w.rng.IntN(3) == 0 {
			b.Unrolled, b.Objects, b.Counts.Series, b.Counts.Samples = true, nil, 0, 0
		}
		w.write(Record{Block: b})
	case k == 5: // one is aborted
		n.Generation++
		w.top[of]++
		w.write(Record{Aborted: &Aborted{AuthorityID: "authority-1", Name: n, Reason: "r", WorkerID: "w"}})
	case k == 6 && readable && r.Block != nil: // it expires
		w.write(Record{Removed: r.Block.Remove(0, 1, "w")})
	case k == 7 && n.Generation > 1: // one that was replaced is removed
		low := of
		low.Generation = n.Generation - 1
		if r, ok := w.read(low); ok && r.Block != nil {
			w.write(Record{Removed: r.Block.Remove(n.Generation, 1, "w")})
		}
	case k == 8 && readable && r.Block != nil && r.Block.Redirect == nil && !r.Block.Unrolled: // its rows are in a compaction
		c := compaction()
		c.AuthorityID, c.Shards = "authority-1", 4
		c.Name = Name{Hour: of.Hour - timegrid.Hour(w.rng.IntN(4)), Shard: 0, Resolution: of.Resolution, Span: 8, Generation: uint64(w.n + 1)}
		c.Sources, c.PlanKey = []Name{n}, layout.BlockPlan(c.Name)
		o := &c.Objects[0]
		o.ChunkKey, o.IndexKey = layout.RollupChunk(of.Resolution, c.Name.Hour, o.Metric, o.ChunkSHA256, 0), layout.RollupIndex(c.Name.Hour, o.IndexSHA256, 0)
		w.n++
		w.write(Record{Block: c})
		w.write(Record{Block: r.Block.Compacted(c.Name, 1, "w")})
	case k == 9 && n.Generation > 0: // it is damaged
		if w.rng.IntN(3) == 0 {
			if _, err := w.s.Put(w.t.Context(), n.Key(), fmt.Append(nil, "damaged ", w.n), objstore.PutOptions{}); err != nil {
				w.t.Fatal(err)
			}
			w.n++
		}
	}
}

// copy makes copies of every record of the day, as an eager writer of another release might.
func (w *history) copy(day layout.Day) *Copies {
	c := &Copies{AuthorityID: "authority-1", Day: day}
	seen := map[Name]bool{}
	for info, err := range objstore.List(w.t.Context(), w.s, objstore.ListOptions{Prefix: layout.ManifestsPrefix}) {
		if err != nil {
			w.t.Fatal(err)
		}
		n, err := layout.ParseBlockManifest(info.Key)
		if err != nil || n.Span > 0 || layout.DayOf(n.Hour) != day || w.rng.IntN(8) == 0 {
			continue
		}
		r, ok := w.read(n)
		if !ok {
			continue
		}
		c.Records = append(c.Records, Copy{n, info.ETag, CopyOf(r)})
		if r.Block != nil && r.Block.Redirect != nil && !seen[r.Block.Redirect.Name] {
			to := r.Block.Redirect.Name
			seen[to] = true
			if r, ok := w.read(to); ok {
				c.Records = append(c.Records, Copy{to, "", CopyOf(r)})
			}
		}
	}
	c.Sort()
	return c
}

// TestCopiesChangeNoView: whatever the copies are - old, of a part of the records, damaged, of another authority or
// day, missing - a view is what the records alone say. No generation is hidden by a copy, and none comes back.
func TestCopiesChangeNoView(t *testing.T) {
	saved := 0
	for seed := range uint64(25) {
		w := &history{t: t, rng: rand.New(rand.NewPCG(seed, 0)), s: mem.New(nil), top: map[Name]uint64{}}
		store := &gets{Reader: w.s, records: map[string]int{}}
		days := []layout.Day{layout.DayOf(day0), layout.DayOf(day0) + 1}
		long, err := New(Config{Reader: store, AuthorityID: "authority-1", Copies: true, Each: atOnce})
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			for range 60 {
				w.step()
			}
			for _, day := range days {
				c := w.copy(day)
				b, err := c.Marshal()
				if err != nil {
					t.Fatal(err)
				}
				switch w.rng.IntN(8) {
				case 0:
					b[w.rng.IntN(len(b))] ^= 4
				case 1:
					c.AuthorityID = "another"
					if b, err = c.Marshal(); err != nil {
						t.Fatal(err)
					}
				case 2:
					continue // those of before stay
				}
				if _, err := w.s.Put(t.Context(), layout.RollupCopies(day), b, objstore.PutOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			for range w.rng.IntN(40) {
				w.step()
			}
			plain, err := New(Config{Reader: w.s, AuthorityID: "authority-1"})
			if err != nil {
				t.Fatal(err)
			}
			want, err := plain.Refresh(t.Context(), day0-5, day0+40)
			if err != nil {
				t.Fatal(err)
			}
			fresh, err := New(Config{Reader: store, AuthorityID: "authority-1", Copies: true, Each: atOnce})
			if err != nil {
				t.Fatal(err)
			}
			for name, c := range map[string]*Catalog{"a new node": fresh, "a node that runs": long} {
				got, err := c.Refresh(t.Context(), day0-5, day0+40)
				if err != nil {
					t.Fatal(err)
				}
				if a, b := told(got, day0-5, day0+40), trimmed(want); a != b {
					t.Fatalf("seed %d, %s:\n%s\nwant\n%s", seed, name, a, b)
				}
			}
			saved += store.copies
		}
	}
	if saved == 0 {
		t.Error("no copies were read")
	}
}

// trimmed is what a view says with blocks as copies have them.
func trimmed(v *View) string {
	c := &View{hours: map[timegrid.Hour]*hour{}, expiry: v.expiry, unreadable: v.unreadable}
	for h, hr := range v.hours {
		next := *hr
		next.blocks = map[slot]*Block{}
		for at, s := range hr.blocks {
			b := CopyOf(Record{Block: s}).Block
			b.Redirect = s.Redirect
			next.blocks[at] = b
		}
		next.sortByShard()
		c.hours[h] = &next
	}
	return told(c, day0-5, day0+40)
}

// TestCopiesOfAnotherAuthority: copies that were brought from another bucket, or under the key of another day, are
// refused and told, whatever ETags they name.
func TestCopiesOfAnotherAuthority(t *testing.T) {
	s := mem.New(nil)
	b, err := copied(t).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for _, day := range []layout.Day{layout.DayOf(day0), layout.DayOf(day0) + 1} {
		if _, err := s.Put(t.Context(), layout.RollupCopies(day), b, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ReadCopies(t.Context(), s, "a", layout.DayOf(day0)); err != nil {
		t.Error(err)
	}
	if _, err := ReadCopies(t.Context(), s, "b", layout.DayOf(day0)); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("of another authority: %v", err)
	}
	if _, err := ReadCopies(t.Context(), s, "a", layout.DayOf(day0)+1); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("of another day: %v", err)
	}
	if _, err := ReadCopies(t.Context(), s, "a", layout.DayOf(day0)+2); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
}

// TestCopiesSaveRequests: records that are as they were copied are not read, the others are.
func TestCopiesSaveRequests(t *testing.T) {
	w := &history{t: t, rng: rand.New(rand.NewPCG(7, 7)), s: mem.New(nil), top: map[Name]uint64{}}
	of := func(h timegrid.Hour) *Block {
		b := testSet(1, timegrid.Raw, 1, 0, batch("a", 0, 9))
		b.Name.Hour = h
		b.PlanKey = layout.RollupPlan(h, 1, 1)
		o := &b.Objects[0]
		o.ChunkKey, o.IndexKey = layout.RollupChunk(timegrid.Raw, h, o.Metric, o.ChunkSHA256, 0), layout.RollupIndex(h, o.IndexSHA256, 0)
		return b
	}
	for h := range timegrid.Hour(24) {
		w.write(Record{Block: of(day0 + h)})
	}
	w.rng = rand.New(rand.NewPCG(1, 3))
	c := &Copies{AuthorityID: "authority-1", Day: layout.DayOf(day0)}
	for h := range timegrid.Hour(24) {
		n := of(day0 + h).Name
		info, err := w.s.Head(t.Context(), n.Key())
		if err != nil {
			t.Fatal(err)
		}
		c.Records = append(c.Records, Copy{n, info.ETag, CopyOf(Record{Block: of(day0 + h)})})
	}
	b, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.s.Put(t.Context(), layout.RollupCopies(c.Day), b, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	w.write(Record{Removed: of(day0+3).Remove(0, 1, "w")})
	store := &gets{Reader: w.s, records: map[string]int{}}
	cat, err := New(Config{Reader: store, AuthorityID: "authority-1", Copies: true})
	if err != nil {
		t.Fatal(err)
	}
	v, err := cat.Refresh(t.Context(), day0, day0+23)
	if err != nil || len(v.Hours()) != 24 || !v.Expired(day0+3, timegrid.Raw) || v.Expired(day0+4, timegrid.Raw) {
		t.Fatal(v.Hours(), err)
	}
	if want := map[string]int{of(day0 + 3).Name.Key(): 1}; !reflect.DeepEqual(store.records, want) || store.copies != 1 {
		t.Errorf("%d copies, records %v, want %v", store.copies, store.records, want)
	}
}
