package chunk

import (
	"bytes"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestCodecs is the conformance test of codecs: it asks every codec of the program, and that
// of the tests.
func TestCodecs(t *testing.T) {
	for e := range math.MaxUint8 + 1 {
		k := testCodecs(Encoding(e))
		if k == nil {
			continue
		}
		t.Run(fmt.Sprintf("%d %T", e, k), func(t *testing.T) {
			if k.encoding() != Encoding(e) {
				t.Errorf("the codec of encoding %d writes %d into its blocks", e, k.encoding())
			}
			t.Run("every bit comes back", func(t *testing.T) { codecRoundTrips(t, k) })
			t.Run("equal slots give equal bytes", func(t *testing.T) { codecRepeats(t, k) })
			t.Run("only wanted columns are read", func(t *testing.T) { codecReadsWhatIsWanted(t, k) })
			t.Run("spoilt payloads are refused", func(t *testing.T) { codecRefuses(t, k) })
		})
	}
}

// decoderOf reads chunks of every codec, those of tests included.
func decoderOf(x *Index, chunk []byte) *Decoder {
	d := NewDecoder(x, Limits{})
	d.known = testCodecs
	d.Put(0, chunk)
	return d
}

func codecRoundTrips(t *testing.T, k codec) {
	rapid.Check(t, func(rt *rapid.T) {
		series := drawSeries(rt, 6, 40)
		opt := drawOptions(rt)
		opt.codec = k
		f := write(t, opt, series)
		x := readIndex(t, f.Index)
		for _, r := range append(slices.Clone(x.blocks), x.timeBlocks...) {
			if got := Encoding(f.Chunk[r.Offset+1]); got != k.encoding() {
				t.Fatalf("a block in encoding %d, want %d", got, k.encoding())
			}
		}
		d := decoderOf(x, f.Chunk)
		var c Columns // its memory is used again
		for _, s := range series {
			if _, err := d.Series(find(t, x, s), math.MinInt64, math.MaxInt64, AllColumns, &c); err != nil {
				t.Fatal(err)
			}
			sameColumns(t, s.Name(), &c, &s.Columns)
		}
	})
}

func codecRepeats(t *testing.T, k codec) {
	opt := Options{codec: k, BlockSeries: 3}
	want := write(t, opt, goldenRaw())
	w := NewWriter(opt)
	for _, series := range [][]*Series{goldenRolled(), backwards(goldenRaw())} {
		w.Reset()
		for _, s := range series {
			if err := w.Add(s); err != nil {
				t.Fatal(err)
			}
		}
		f, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if len(series) == len(goldenRaw()) && !bytes.Equal(f.Chunk, want.Chunk) {
			t.Error("an encoder that is used again writes other bytes")
		}
	}
}

func codecReadsWhatIsWanted(t *testing.T, k codec) {
	series := goldenRolled()
	f := write(t, Options{codec: k}, series)
	x := readIndex(t, f.Index)
	d := decoderOf(x, f.Chunk)
	for _, s := range series {
		for i := range columns + 2 {
			want := Mask(1) << i
			var c Columns
			if _, err := d.Series(find(t, x, s), math.MinInt64, math.MaxInt64, want, &c); err != nil {
				t.Fatal(err)
			}
			if got := c.mask(); got != s.mask()&want {
				t.Errorf("%s: columns %#x, wanted %#x of %#x", s.Name(), got, want, s.mask())
			}
		}
	}
}

// codecRefuses spoils blocks and gives them checksums that fit: what then is read is either
// refused with a reason, or columns of as many rows as the directory says, in bounded memory.
func codecRefuses(t *testing.T, k codec) {
	var blocks [][]byte
	for _, series := range [][]*Series{goldenRaw(), goldenRolled()} {
		f := write(t, Options{codec: k, BlockSeries: 4}, series)
		x := readIndex(t, f.Index)
		for _, r := range append(slices.Clone(x.blocks), x.timeBlocks...) {
			blocks = append(blocks, slices.Clone(f.Chunk[r.Offset:r.End()]))
		}
	}
	refused := 0
	rapid.Check(t, func(rt *rapid.T) {
		raw := slices.Clone(rapid.SampledFrom(blocks).Draw(rt, "block"))
		switch rapid.IntRange(0, 2).Draw(rt, "how") {
		case 0:
			raw = raw[:rapid.IntRange(0, len(raw)-1).Draw(rt, "length")]
		case 1:
			raw[rapid.IntRange(2, len(raw)-1).Draw(rt, "at")] ^= byte(rapid.IntRange(1, 255).Draw(rt, "bits"))
		default:
			raw = slices.Insert(raw, rapid.IntRange(2, len(raw)-checksumBytes).Draw(rt, "at"), rapid.Byte().Draw(rt, "byte"))
		}
		var err error
		if taken := allocated(func() { err = readBlock(t, resealed(raw)) }); taken > fuzzMemory {
			t.Fatalf("%d bytes took %d bytes of memory", len(raw), taken)
		}
		if err != nil {
			typed(t, err)
			refused++
		}
	})
	if refused == 0 {
		t.Error("nothing was refused")
	}
}

func readBlock(t *testing.T, raw []byte) error {
	lim := fuzzLimits.orDefault()
	var b block
	if err := b.parse(raw, testCodecs, &lim); err != nil {
		return err
	}
	var c Columns
	for i := range b.slots {
		var err error
		if b.kind == kindTimes {
			err = b.readTimes(i, &c)
		} else {
			c.T = grow(c.T, b.slots[i].rows)
			c.FirstT, c.LastT = nil, nil
			err = b.readValues(i, AllColumns, &c)
		}
		if err != nil {
			return err
		}
		for bits := c.mask(); bits != 0; bits &= bits - 1 {
			if n := c.length(bits & -bits); n != b.slots[i].rows {
				t.Fatalf("a column of %d rows, the directory says %d", n, b.slots[i].rows)
			}
		}
	}
	return nil
}

// TestBlocksOfTwoCodecs: a chunk may have blocks in several encodings.
func TestBlocksOfTwoCodecs(t *testing.T) {
	series := goldenRaw()
	slices.SortFunc(series, func(a, b *Series) int { return a.ID.Compare(&b.ID) })
	s := NewStream(Options{})
	for i, x := range series {
		if i == len(series)/2 {
			s.flush()
			s.block = blockWriter{encoding: plain, enc: plainCodec{}.newEncoder()}
		}
		if err := s.Add(x); err != nil {
			t.Fatal(err)
		}
	}
	f, err := s.Finish()
	if err != nil {
		t.Fatal(err)
	}
	x := readIndex(t, f.Index)
	seen := map[byte]bool{}
	for _, r := range x.blocks {
		seen[f.Chunk[r.Offset+1]] = true
	}
	if !seen[byte(Integers)] || !seen[byte(plain)] {
		t.Fatalf("blocks in encodings %v", seen)
	}
	d := decoderOf(x, f.Chunk)
	var c Columns
	for i, want := range series {
		if _, err := d.Series(i, math.MinInt64, math.MaxInt64, AllColumns, &c); err != nil {
			t.Fatal(err)
		}
		sameColumns(t, want.Name(), &c, &want.Columns)
	}
}

// TestUnknownEncoding: what a newer program wrote is refused with a reason of its own, and an
// encoding without a codec can't be written.
func TestUnknownEncoding(t *testing.T) {
	f := write(t, Options{codec: plainCodec{}}, minimal())
	if err := readAll(f.Index, f.Chunk, Limits{}); !errors.Is(err, UnknownEncoding) {
		t.Errorf("a block in encoding %d: %v", plain, err)
	}
	if _, err := Verify(f.Chunk, f.Index, Limits{}); !errors.Is(err, UnknownEncoding) {
		t.Errorf("verify: %v", err)
	}
	w := NewWriter(Options{Encoding: plain})
	if err := w.Add(minimal()[0]); !errors.Is(err, UnknownEncoding) {
		t.Errorf("writer, series: %v", err)
	}
	if _, err := w.Finish(); !errors.Is(err, UnknownEncoding) {
		t.Errorf("writer: %v", err)
	}
	s := NewStream(Options{Encoding: plain})
	if err := s.Add(minimal()[0]); !errors.Is(err, UnknownEncoding) {
		t.Errorf("stream, series: %v", err)
	}
	if _, err := s.Finish(); !errors.Is(err, UnknownEncoding) {
		t.Errorf("stream: %v", err)
	}
}

// TestTheFormatDoesNotKnowItsCodecs: what a codec declares in its files NAME_*.go is used in
// those only, but for the codec itself, NAMECodec, in codec.go. So the next codec touches no
// file of the format.
func TestTheFormatDoesNotKnowItsCodecs(t *testing.T) {
	paths, err := filepath.Glob("*_codec.go")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no codecs: %v", err)
	}
	owner := map[string]string{} // of a name that a codec declares: the codec
	unresolved := map[string][]string{}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	codecOfFile := func(name string) string {
		prefix, _, _ := strings.Cut(name, "_")
		if slices.Contains(paths, prefix+"_codec.go") {
			return prefix
		}
		return ""
	}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if codec := codecOfFile(name); codec != "" {
			for n := range file.Scope.Objects {
				owner[n] = codec
			}
		}
		for _, id := range file.Unresolved {
			unresolved[name] = append(unresolved[name], id.Name)
		}
	}
	if len(owner) < 20 || len(unresolved) < 5 {
		t.Fatalf("%d names, %d files", len(owner), len(unresolved))
	}
	for name, ids := range unresolved {
		for _, id := range ids {
			if codec := owner[id]; codec != "" && codec != codecOfFile(name) && !(name == "codec.go" && id == codec+"Codec") {
				t.Errorf("%s uses %s of the codec in %s_*.go", name, id, codec)
			}
		}
	}
}
