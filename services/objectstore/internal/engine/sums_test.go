package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// sumsOf gives the checksums of a file as they are read.
func sumsOf(b []byte, size int) (sums []uint32) {
	for block := range slices.Chunk(b, size) {
		sums = append(sums, crc32.Checksum(block, castagnoli))
	}
	return sums
}

// TestWiden: the checksums of wide blocks are those of their bytes, in one step and in several, for all lengths of the
// last block; the list that they were made of stays as it was.
func TestWiden(t *testing.T) {
	b := pattern(8*BlockSize, 1)
	for i := range 8 { // blocks that are alike would hide those that are exchanged
		binary.LittleEndian.PutUint64(b[i*BlockSize:], uint64(i))
	}
	for _, n := range []int{0, 1, BlockSize - 1, BlockSize, BlockSize + 1, 3*BlockSize - 1, 4 * BlockSize, 4*BlockSize + 1, 7*BlockSize + 12345, 8 * BlockSize} {
		for wide := uint8(1); wide <= 4; wide++ {
			x := Extent{File: "f", Size: int64(n), Blocks: sumsOf(b[:n], BlockSize)}
			want := sumsOf(b[:n], BlockSize<<wide)
			list := widen([]Extent{x}, int64(len(want)))
			if got := list[0]; !slices.Equal(got.Blocks, want) || len(want) < len(x.Blocks) && got.Wide > wide {
				t.Errorf("%d bytes in blocks of 1 MiB << %d: %d sums, wide %d", n, wide, len(got.Blocks), got.Wide)
			}
			steps := x
			for w := uint8(1); w <= wide; w++ {
				steps.widen(w)
			}
			if !slices.Equal(steps.Blocks, want) {
				t.Errorf("%d bytes widened %d times: other sums", n, wide)
			}
			if !slices.Equal(x.Blocks, sumsOf(b[:n], BlockSize)) {
				t.Fatal("the sums were changed where they are")
			}
		}
	}
}

// TestWidenAsFarAsNeeded: the bound holds for every list that can have so few checksums, with the narrowest blocks for
// which it does; what is wide already stays so.
func TestWidenAsFarAsNeeded(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	for range 300 {
		var list []Extent
		n, fewest := int64(0), int64(0)
		for range 1 + rng.IntN(20) {
			x := Extent{Size: rng.Int64N(300 * BlockSize)}
			x.Blocks = make([]uint32, blocksOf(x.Size, 0))
			x.widen(uint8(rng.IntN(3)))
			n, fewest = n+int64(len(x.Blocks)), fewest+blocksOf(x.Size, maxWide)
			list = append(list, x)
		}
		bound := 1 + rng.Int64N(n+5)
		out := widen(list, bound)
		count := func(list []Extent) (n int64) {
			for _, x := range list {
				if int64(len(x.Blocks)) != blocksOf(x.Size, x.Wide) {
					t.Fatalf("%d sums for %d bytes in blocks of 1 MiB << %d", len(x.Blocks), x.Size, x.Wide)
				}
				n += int64(len(x.Blocks))
			}
			return n
		}
		if got := count(out); got > max(bound, fewest) {
			t.Fatalf("%d sums; at most %d are asked for, and %d are possible", got, bound, fewest)
		}
		if n <= bound && &out[0] != &list[0] {
			t.Fatal("a list that fits was changed")
		}
		widest := uint8(0)
		for i, x := range out {
			if x.Wide < list[i].Wide {
				t.Fatal("blocks became narrower")
			}
			if x.Wide > list[i].Wide {
				widest = max(widest, x.Wide)
			}
		}
		if widest > 0 {
			narrower := slices.Clone(list)
			for i := range narrower {
				narrower[i].widen(widest - 1)
			}
			if count(narrower) <= bound {
				t.Fatalf("widened %d times, and one time less would do", widest)
			}
		}
	}
}

// TestExtentsStayAsTheyWere: the bytes of the metadata of an object that needs no wide blocks, and of one that does.
func TestExtentsStayAsTheyWere(t *testing.T) {
	s := &Seal{Key: seal.Version{ID: "k", Check: [8]byte{1, 2}}, Salt: seal.Salt{3, 4}}
	salt := "0304" + strings.Repeat("00", 30)
	key := "016b" + "0102000000000000"
	for want, list := range map[string][]Extent{
		"01010002000309" + "8080a8b1e39fe7cb17" + "080e02616181804001000000" + "02000000":                                 {{File: "aa", Size: BlockSize + 1, Blocks: []uint32{1, 2}}},
		"01010002000309" + "8080a8b1e39fe7cb17" + "143402626280804" + "0" + key + salt + "03000000":                       {{File: "bb", Size: BlockSize, Blocks: []uint32{3}, Seal: s}},
		"01010002000309" + "8080a8b1e39fe7cb17" + "170c0261618180800102" + "04000000":                                     {{File: "aa", Size: 2*BlockSize + 1, Blocks: []uint32{4}, Wide: 2}},
		"01010002000309" + "8080a8b1e39fe7cb17" + "183a0262629180800" + "1" + key + salt + "01" + "05000000" + "06000000": {{File: "bb", Size: 2*BlockSize + 17, Blocks: []uint32{5, 6}, Seal: s, Wide: 1}},
	} {
		if got := hex.EncodeToString(encodeMeta(&Object{Modified: epoch, Extents: list})); got != want {
			t.Errorf("encoded as\n%s, want\n%s", got, want)
		}
	}
}

// TestWideExtentsAreChecked: what no release writes is refused, since reads count on it.
func TestWideExtentsAreChecked(t *testing.T) {
	for what, x := range map[string]Extent{
		"too wide":                   {Size: BlockSize, Blocks: []uint32{1}, Wide: maxWide + 1},
		"too few checksums":          {Size: 2*BlockSize + 1, Blocks: []uint32{1}, Wide: 1},
		"too many":                   {Size: 2 * BlockSize, Blocks: []uint32{1, 2}, Wide: 1},
		"no length of a sealed file": {Size: 2*BlockSize + 1, Blocks: []uint32{1, 2}, Wide: 1, Seal: &Seal{Key: seal.Version{ID: "k"}}},
	} {
		if _, err := decodeMeta(encodeMeta(&Object{Modified: epoch, Extents: []Extent{x}})); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	narrow := appendField(encodeMeta(&Object{Modified: epoch}), metaWideExtent, append(append(appendText(nil, "f"), 1, 0), 1, 2, 3, 4))
	if _, err := decodeMeta(narrow); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a field of wide blocks with narrow ones: %v", err)
	}
}

// TestWideBlocks: objects whose records have few checksums, sealed and not, are read whole and in ranges at the borders of
// blocks, over tags, reclaiming, restarts, rebuilds and new keys.
func TestWideBlocks(t *testing.T) {
	ctx := context.Background()
	for name, keys := range map[string]*seal.Keys{"plain": nil, "sealed": testKeys(t, "k1")} {
		t.Run(name, func(t *testing.T) {
			wide := map[string]uint8{"wide": 2, "wide/parts": 3} // the last part has five blocks when it is sealed
			if keys == nil {
				wide["wide/parts"] = 2
			}
			opt := Options{Dir: t.TempDir(), Keys: keys, SegmentBytes: 300 << 10, ReclaimBelow: 0.9, mostSums: 3}
			e := openTest(t, opt)
			want := sealedHistory(e)
			want["wide"] = secretBody(8*BlockSize+77, 5) // blocks of 4 MiB
			e.putFile("wide", want["wide"])
			id := e.begin("wide/parts")
			for i, n := range []int{3 * sealedPerBlock, 70_000, 4*sealedPerBlock + 1} {
				b := secretBody(n, byte(i))
				if err := e.part("wide/parts", id, i+1, b); err != nil {
					t.Fatal(err)
				}
				want["wide/parts"] = append(want["wide/parts"], b...)
			}
			e.complete("wide/parts", id)
			for step := range 4 {
				e.wantAll(want)
				e.wantRanges(want)
				for key, wide := range wide {
					if o, err := e.Stat("bkt", key); err != nil || o.Extents[0].Wide != wide {
						t.Fatalf("%s: %v, wide %d, want %d", key, err, o.Extents[0].Wide, wide)
					}
				}
				if v, err := e.Verify(ctx); err != nil || len(v.Damages)+len(v.Lost) > 0 {
					t.Errorf("verify: %v, %+v", err, v)
				}
				switch step {
				case 0:
					for k := range want {
						if _, err := e.SetTags(ctx, "bkt", k, "", []Pair{{"a", "b"}}); err != nil {
							t.Fatal(err)
						}
					}
					if _, err := e.Reclaim(ctx); err != nil {
						t.Fatal(err)
					}
				case 1:
					e.done()
					opt.IndexFS = pebblevfs.NewMem() // built again
					e = openTest(t, opt)
				case 2:
					e.done()
					wide["wide/parts"] = 3
					if opt.Keys = testKeys(t, "k2", "k1"); keys == nil {
						opt.Keys = testKeys(t, "k2")
					}
					e = openTest(t, opt)
					if out, err := e.Reseal(ctx, unpaced); err != nil || out.Left > 0 || out.Records < int64(len(want)-2) { // of empty ones nothing is sealed
						t.Fatalf("new keys: %+v, %v", out, err)
					}
				}
			}
		})
	}
}

// wantRanges reads ranges that begin and end near the borders of blocks, with one reader for all of an object.
func (e *testEngine) wantRanges(want map[string][]byte) {
	e.t.Helper()
	rng := rand.New(rand.NewPCG(3, 9))
	near := func(n int) int {
		unit := []int{BlockSize, sealedPerBlock}[rng.IntN(2)]
		return max(0, min(n, unit*rng.IntN(n/unit+2)+rng.IntN(3)-1))
	}
	for k, b := range want {
		h, err := e.Get("bkt", k)
		if err != nil {
			e.t.Fatal(err)
		}
		for range 12 {
			from, to := near(len(b)), near(len(b))
			from, to = min(from, to), max(from, to)
			var got bytes.Buffer
			if err := h.Copy(&got, int64(from), int64(to-from)); err != nil || !bytes.Equal(got.Bytes(), b[from:to]) {
				e.t.Fatalf("%s: %d bytes from %d on: %d, %v", k, to-from, from, got.Len(), err)
			}
		}
		h.Close()
	}
}

// rotBodies gives bytes that change: of its copies, and from one read to the next.
type rotBodies struct {
	*memBodies
	flipped [][]int64       // by copy: offsets of changed bytes
	later   map[int64]int64 // offset of a byte that changes at a read of it, and how many reads are left before
}

type rotReader struct {
	body.Reader
	s *rotBodies
}

func (s *rotBodies) Open(id string) (body.Reader, error) {
	r, err := s.memBodies.Open(id)
	return rotReader{r, s}, err
}

func (r rotReader) Copies() int { return len(r.s.flipped) }

func (r rotReader) ReadAt(p []byte, off int64) (int, error) {
	for at := range r.s.later {
		if at < off || at >= off+int64(len(p)) {
			continue
		}
		if r.s.later[at]--; r.s.later[at] < 0 {
			r.s.flipped[0] = append(r.s.flipped[0], at)
			delete(r.s.later, at)
		}
	}
	return r.ReadCopy(0, p, off)
}

func (r rotReader) ReadCopy(i int, p []byte, off int64) (int, error) {
	n, err := r.Reader.ReadAt(p, off)
	for _, at := range r.s.flipped[i] {
		if at >= off && at < off+int64(n) {
			p[at-off] ^= 1
		}
	}
	return n, err
}

func (r rotReader) Mend(p []byte, off int64) {
	for i := range r.s.flipped {
		r.s.flipped[i] = slices.DeleteFunc(r.s.flipped[i], func(at int64) bool { return at >= off && at < off+int64(len(p)) })
	}
}

// TestRotInWideBlocks: a changed byte anywhere is found by reads of every range of its wide block and by verification,
// and nothing of the block is handed out; other blocks are read. Where a copy is right it is read, and the other one
// mended.
func TestRotInWideBlocks(t *testing.T) {
	ctx := context.Background()
	const size, wide = 7*BlockSize + 1000, 4 * BlockSize
	for at := int64(500); at < size; at += BlockSize {
		s := &rotBodies{memBodies: newMemBodies(), flipped: make([][]int64, 1)}
		e := openTest(t, Options{Dir: t.TempDir(), Bodies: s, mostSums: 2})
		want := pattern(size, 1)
		e.putFile("k", want)
		read := func(off, n int64) ([]byte, error) {
			h, err := e.Get("bkt", "k")
			if err != nil {
				return nil, err
			}
			defer h.Close()
			var got bytes.Buffer
			err = h.Copy(&got, off, n)
			return got.Bytes(), err
		}
		s.flipped[0] = []int64{at}
		for off := int64(0); off < size; off += BlockSize / 2 {
			got, err := read(off, 1000)
			if (off/wide == at/wide) != errors.Is(err, ErrCorrupt) || err == nil && !bytes.Equal(got, want[off:off+1000]) || err != nil && len(got) > 0 {
				t.Fatalf("byte %d changed, %d bytes read at %d: %v", at, len(got), off, err)
			}
		}
		if got, err := read(0, size); !errors.Is(err, ErrCorrupt) || !bytes.Equal(got, want[:at/wide*wide]) {
			t.Errorf("byte %d changed, the whole read: %v, %d bytes", at, err, len(got))
		}
		if v, err := e.Verify(ctx); err != nil || len(v.Lost) != 1 {
			t.Errorf("byte %d changed: verify: %v, %+v", at, err, v)
		}
		// A second copy is right, and another wide block of it is not.
		s.flipped = append(s.flipped, []int64{(at + wide) % size / wide * wide})
		check := read
		if at/BlockSize%2 == 0 {
			check = func(int64, int64) ([]byte, error) {
				v, err := e.Verify(ctx)
				if len(v.Lost) > 0 {
					t.Errorf("verify: %+v", v)
				}
				return want, err
			}
		}
		if got, err := check(0, size); err != nil || !bytes.Equal(got, want) {
			t.Errorf("byte %d changed in one copy: %v, %d bytes", at, err, len(got))
		}
		if len(s.flipped[0])+len(s.flipped[1]) > 1 || slices.Contains(s.flipped[0], at) {
			t.Errorf("byte %d: not mended: %v", at, s.flipped)
		}
		e.done()
	}
}

// TestRotInAllCopies: each copy of a wide block is damaged in other parts. All of it is read, verified
// and mended, unless a part is damaged in every copy, or too many differ.
func TestRotInAllCopies(t *testing.T) {
	const size = 15*BlockSize + 1000
	for name, c := range map[string]struct {
		flipped [][]int64
		lost    bool
	}{
		"two copies":              {[][]int64{{5}, {BlockSize}}, false},
		"three copies":            {[][]int64{{5, 3 * BlockSize}, {BlockSize, 3*BlockSize + 1}, {2 * BlockSize, size - 1}}, false},
		"eight parts":             {[][]int64{{0, 2 << 20, 4 << 20, 6 << 20}, {1 << 20, 3 << 20, 5 << 20, 7 << 20}}, false},
		"a part of each":          {[][]int64{{5 * BlockSize}, {5*BlockSize + 1}}, true},
		"nine parts, one of each": {[][]int64{{0, 2 << 20, 4 << 20, 6 << 20, 8 << 20}, {1 << 20, 3 << 20, 5 << 20, 7 << 20}}, true},
	} {
		s := &rotBodies{memBodies: newMemBodies(), flipped: c.flipped}
		e := openTest(t, Options{Dir: t.TempDir(), Bodies: s, mostSums: 1})
		want := pattern(size, 1)
		e.putFile("k", want)
		if got, err := e.body("k"); errors.Is(err, ErrCorrupt) != c.lost || err == nil && !bytes.Equal(got, want) || err != nil && len(got) > 0 {
			t.Errorf("%s: %v, %d bytes", name, err, len(got))
		}
		left := 0
		for _, list := range s.flipped {
			left += len(list)
		}
		// The first copy is mended as it is read; another one where the first was damaged.
		if !c.lost && len(s.flipped[0]) > 0 || c.lost && left == 0 {
			t.Errorf("%s: %v is left damaged", name, s.flipped)
		}
		// A scrub mends all of them, where reads have left something.
		o, err := e.Stat("bkt", "k")
		if err != nil && !c.lost {
			t.Fatal(err)
		}
		var out Scrubbed
		f, err := s.Open(o.Extents[0].File)
		if err == nil {
			err = (&scrubber{e: e.Engine, ctx: context.Background(), pace: func(int64) {}, out: &out}).body(f, o.Extents[0], &record{bucket: "bkt", key: "k"})
		}
		if err != nil || (out.Damaged > 0) != c.lost || !c.lost && slices.ContainsFunc(s.flipped, func(list []int64) bool { return len(list) > 0 }) {
			t.Errorf("%s: scrub: %v, %+v, %v is left damaged", name, err, out, s.flipped)
		}
		e.done()
	}
}

// TestRotBetweenReads: bytes that change after their wide block was found right are not handed out.
func TestRotBetweenReads(t *testing.T) {
	const size = 7*BlockSize + 1000
	for block := range int64(8) {
		s := &rotBodies{memBodies: newMemBodies(), flipped: make([][]int64, 1), later: map[int64]int64{block*BlockSize + 7: 1}}
		e := openTest(t, Options{Dir: t.TempDir(), Bodies: s, mostSums: 2})
		want := pattern(size, 1)
		e.putFile("k", want)
		got, err := e.body("k")
		if !errors.Is(err, ErrCorrupt) || !bytes.Equal(got, want[:block*BlockSize]) || len(s.later) > 0 {
			t.Errorf("block %d: %v, %d bytes", block, err, len(got))
		}
		e.done()
	}
}

// hugeBodies are files of one length that nobody has written: each MiB is one of a few.
type hugeBodies struct {
	*memBodies
	size     int64
	contents [][]byte
	sums     map[*byte]uint32 // of the contents
	flip     map[string]int64 // the offset of a changed byte
}

func newHugeBodies(size int64) *hugeBodies {
	b := &hugeBodies{memBodies: newMemBodies(), size: size, sums: map[*byte]uint32{}, flip: map[string]int64{}}
	for i := range 7 {
		c := pattern(BlockSize, byte(i))
		b.contents, b.sums[&c[0]] = append(b.contents, c), crc32.Checksum(c, castagnoli)
	}
	return b
}

// content says which MiB block i of a file has. It differs between files and within wide blocks.
func (b *hugeBodies) content(id string, i int64) []byte {
	return b.contents[(int64(crc32.ChecksumIEEE([]byte(id))%101)+i*i+i/7)%int64(len(b.contents))]
}

func (b *hugeBodies) extent(id string) Extent {
	x := Extent{File: id, Size: b.size}
	for i := range b.size / BlockSize {
		x.Blocks = append(x.Blocks, b.sums[&b.content(id, i)[0]])
	}
	return x
}

func (b *hugeBodies) read(id string, p []byte, off int64) {
	for n := 0; n < len(p); {
		at := off + int64(n)
		n += copy(p[n:], b.content(id, at/BlockSize)[at%BlockSize:])
	}
	if at, ok := b.flip[id]; ok && at >= off && at < off+int64(len(p)) {
		p[at-off] ^= 0x80
	}
}

func (b *hugeBodies) Open(id string) (body.Reader, error) {
	if !strings.HasPrefix(id, "huge") {
		return nil, fs.ErrNotExist
	}
	return hugeReader{b, id}, nil
}

type hugeReader struct {
	*hugeBodies
	id string
}

func (r hugeReader) Close() error { return nil }

func (r hugeReader) ReadAt(p []byte, off int64) (int, error) {
	p = p[:max(0, min(int64(len(p)), r.size-off))]
	r.read(r.id, p, off)
	return len(p), nil
}

// TestFiveTiB: an object of 10,000 parts of 525 MiB is stored, described, tagged, rebuilt and read at its end and across
// its borders, and a changed byte in it is found.
func TestFiveTiB(t *testing.T) {
	ctx := context.Background()
	const part = 525 << 20
	b := newHugeBodies(part)
	opt := Options{Dir: t.TempDir(), Bodies: b, SegmentBytes: 16 << 20}
	e := openTest(t, opt)
	o := Object{Bucket: "bkt", Key: "huge", Size: MaxParts * part, ETag: strings.Repeat("e", 32) + "-10000", Modified: epoch, Upload: strings.Repeat("5", uploadIDLen),
		Checksum: Checksum{"SHA256", "COMPOSITE", strings.Repeat("A", 43) + "=-10000"}, Lock: Lock{Mode: Compliance, Until: epoch.AddDate(1, 0, 0), Hold: HoldOn},
		User: []Pair{{"k", strings.Repeat("v", 2000)}}}
	for i := range MaxParts {
		o.PartSizes = append(o.PartSizes, part)
		o.Extents = append(o.Extents, b.extent(fmt.Sprintf("huge%028x", i)))
	}
	if _, err := e.Engine.Put(ctx, o, nil, Cond{}); err != nil {
		t.Fatal(err)
	}
	wants := func(h *Handle, off, n int64) error {
		var got bytes.Buffer
		if err := h.Copy(&got, off, n); err != nil {
			if got.Len() > 0 {
				t.Errorf("%d bytes from %d on are handed out of a damaged block", got.Len(), off)
			}
			return err
		}
		want := make([]byte, n)
		for done := int64(0); done < n; {
			at := off + done
			size := min(n-done, part-at%part)
			b.read(fmt.Sprintf("huge%028x", at/part), want[done:done+size], at%part)
			done += size
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%d bytes from %d on are others", n, off)
		}
		return nil
	}
	get := func() *Handle {
		h, err := e.Get("bkt", "huge")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.Close)
		return h
	}
	borders := []int64{BlockSize, 16 * BlockSize, part, (MaxParts-1)*part + 512<<20, MaxParts * part}
	for step := range 3 {
		h := get()
		n := 0
		for _, x := range h.Object.Extents {
			n += len(x.Blocks)
		}
		meta := len(encodeMeta(&h.Object))
		if h.Object.Size != MaxParts*part || n > maxSums || len(h.Object.PartSizes) != MaxParts || meta > maxMetaLen {
			t.Errorf("%d bytes, %d parts, %d checksums, %d bytes of metadata", h.Object.Size, len(h.Object.PartSizes), n, meta)
		}
		t.Logf("%d bytes of metadata, %d checksums, blocks of %d MiB", meta, n, h.Object.Extents[0].blockSize()>>20)
		for _, at := range borders {
			for _, r := range [][2]int64{{-3000, 3000}, {-1, 2}, {-5, BlockSize + 10}} {
				off := at + r[0]
				if err := wants(h, off, min(r[1], MaxParts*part-off)); err != nil {
					t.Errorf("%d bytes from %d on: %v", r[1], off, err)
				}
			}
		}
		h.Close()
		borders = borders[len(borders)-1:]
		switch step {
		case 0:
			if _, err := e.SetTags(ctx, "bkt", "huge", "", []Pair{{"a", "b"}}); err != nil {
				t.Fatal(err)
			}
		case 1:
			e.done()
			opt.IndexFS = pebblevfs.NewMem()
			e = openTest(t, opt)
		}
	}
	last := fmt.Sprintf("huge%028x", MaxParts-1)
	b.flip[last] = part - 1
	h := get()
	for _, off := range []int64{1, 1000, 12 * BlockSize} {
		if err := wants(h, MaxParts*part-off, 1); !errors.Is(err, ErrCorrupt) {
			t.Errorf("the last byte changed, %d before the end read: %v", off, err)
		}
	}
	if err := wants(h, MaxParts*part-14*BlockSize, 100); err != nil { // 525 is 32 * 16 + 13
		t.Errorf("the last byte changed, the block before read: %v", err)
	}
}

// TestLongestMetadata: whatever S3 allows in an object fits in a record: MaxParts parts of 5 GiB, encrypted under keys with
// the longest names, a checksum, a lock, tags and user metadata.
func TestLongestMetadata(t *testing.T) {
	const part = 5<<30 + 5<<30/seal.PlainChunk*seal.Tag + seal.Tag
	x := Extent{File: strings.Repeat("f", 32), Size: seal.Sealed(5 << 30), Seal: &Seal{Key: seal.Version{ID: strings.Repeat("k", seal.MaxID)}}}
	if x.Size > part {
		t.Fatal(x.Size)
	}
	x.Blocks = make([]uint32, blocksOf(x.Size, 0))
	o := Object{Modified: epoch, Size: MaxParts * 5 << 30, ETag: strings.Repeat("e", 38), Upload: strings.Repeat("u", uploadIDLen), Order: 1 << 62,
		Checksum: Checksum{"SHA512", "COMPOSITE", strings.Repeat("A", 94)}, Lock: Lock{Mode: Compliance, Until: epoch, Hold: HoldOn},
		Headers: []Pair{{"content-type", strings.Repeat("h", 8000)}}, User: []Pair{{"k", strings.Repeat("v", 2048)}}}
	for range 50 {
		o.Tags = append(o.Tags, Pair{strings.Repeat("ä", 128), strings.Repeat("ä", 256)})
	}
	for range MaxParts {
		o.PartSizes, o.Extents = append(o.PartSizes, 5<<30), append(o.Extents, x)
	}
	o.Extents = widen(o.Extents, maxSums)
	n := len(encodeMeta(&o))
	t.Logf("%d bytes of metadata, blocks of %d MiB", n, o.Extents[0].blockSize()>>20)
	if n > maxMetaLen-binary.MaxVarintLen64-2 {
		t.Errorf("%d bytes of metadata, more than %d", n, maxMetaLen)
	}
}
