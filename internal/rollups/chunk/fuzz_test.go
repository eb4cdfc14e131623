package chunk

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// resealed gives b a checksum that fits, so that fuzzing gets past it.
func resealed(b []byte) []byte {
	if len(b) < checksumBytes {
		return b
	}
	n := len(b) - checksumBytes
	out := append([]byte(nil), b...)
	binary.LittleEndian.PutUint32(out[n:], crc32.Checksum(out[:n], castagnoli))
	return out
}

func golden(t testing.TB, ext string) [][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", "*"+ext))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	var out [][]byte
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// fuzzLimits are small, so that what is taken beyond them shows.
var fuzzLimits = Limits{BlockBytes: 1 << 16, IndexBytes: 1 << 18, IndexMemory: 1 << 20, Rows: 1 << 10, BlockSeries: 64, HistogramValues: 1 << 12}

// fuzzMemory bounds what reading one input may take: its own tables and rows, the parts of a
// decoder, and of zstd.
const fuzzMemory = 32 << 20

// FuzzBlock: any bytes are a block or are refused with a reason, in bounded memory.
func FuzzBlock(f *testing.F) {
	for k, chunk := range golden(f, ".lmrollup.zst") {
		x, err := ReadIndex(golden(f, ".lmindex.zst")[k], Limits{})
		if err != nil {
			f.Fatal(err)
		}
		for _, rs := range [...][]Range{x.blocks, x.timeBlocks} {
			for _, r := range rs {
				f.Add(chunk[r.Offset:r.End()])
			}
		}
	}
	for _, k := range []codec{plainCodec{}, integerCodec{}} {
		files := write(f, Options{codec: k}, minimal())
		x := readIndex(f, files.Index)
		raw := slices.Clone(files.Chunk[x.blocks[0].Offset:x.blocks[0].End()])
		f.Add(slices.Clone(raw))
		for _, e := range []Encoding{DefaultEncoding, 2, 255} { // which there is no codec for
			raw[1] = byte(e)
			f.Add(slices.Clone(raw))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		raw = resealed(raw)
		lim := fuzzLimits.orDefault()
		var b block
		taken := allocated(func() {
			if err := b.parse(raw, testCodecs, &lim); err != nil {
				typed(t, err)
				return
			}
			var c Columns
			for i := range b.slots {
				var err error
				if b.kind == kindTimes {
					err = b.readTimes(i, &c)
				} else {
					err = b.readValues(i, AllColumns, &c)
				}
				if err != nil {
					typed(t, err)
				}
			}
		})
		if taken > fuzzMemory {
			t.Fatalf("%d bytes took %d bytes of memory", len(raw), taken)
		}
	})
}

// FuzzIndex: any payload is an index, with plans that lie within its chunk, or is refused.
func FuzzIndex(f *testing.F) {
	for _, b := range golden(f, ".lmindex.zst") {
		f.Add(b, false)
		lim := Limits{}.orDefault()
		payload, err := openIndex(b, &lim)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload, true)
	}
	var w indexFile
	f.Fuzz(func(t *testing.T, b []byte, payload bool) {
		if payload {
			b = w.wrap(b)
		} else {
			b = resealed(b)
		}
		var x *Index
		var err error
		taken := allocated(func() { x, err = ReadIndex(b, fuzzLimits) })
		if taken > fuzzMemory {
			t.Fatalf("%d bytes took %d bytes of memory", len(b), taken)
		}
		if err != nil {
			typed(t, err)
			return
		}
		all := x.Select(Matcher{Name: nameLabel, Values: []string{}, Not: true})
		if len(all) != x.Len() {
			t.Fatalf("%d of %d series", len(all), x.Len())
		}
		for _, r := range x.Plan(all, math.MinInt64, math.MaxInt64, 0) {
			if r.Offset < int64(len(chunkMagic)) || r.Length <= 0 || r.End() > x.FooterOffset {
				t.Fatalf("range %+v of a chunk with a footer at %d", r, x.FooterOffset)
			}
		}
		for _, i := range all {
			if ref := x.Series(i); ref.MinT > ref.MaxT || len(ref.Labels) == 0 {
				t.Fatalf("series %+v", ref)
			}
		}
		d := NewDecoder(x, fuzzLimits)
		var c Columns
		for _, i := range all[:min(len(all), 3)] {
			if _, err := d.Series(i, math.MinInt64, math.MaxInt64, AllColumns, &c); !errors.Is(err, MissingRange) {
				t.Fatalf("no bytes of the chunk: %v", err)
			}
		}
		for _, name := range x.LabelNames() {
			if len(x.LabelValues(name)) == 0 && x.Len() > 0 {
				t.Fatalf("label %q has no values", name)
			}
		}
	})
}

// FuzzFooter: any bytes are a footer or are refused.
func FuzzFooter(f *testing.F) {
	for k, chunk := range golden(f, ".lmrollup.zst") {
		x, err := ReadIndex(golden(f, ".lmindex.zst")[k], Limits{})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(chunk[x.FooterOffset:], x.FooterOffset)
	}
	f.Fuzz(func(t *testing.T, b []byte, offset int64) {
		ft, err := readFooter(resealed(b), offset, Limits{FooterBytes: 1 << 16})
		if err != nil {
			typed(t, err)
			return
		}
		at := int64(len(chunkMagic))
		for _, r := range append(ft.values, ft.times...) {
			if r.Offset != at || r.Length <= 0 {
				t.Fatalf("range %+v at %d", r, at)
			}
			at = r.End()
		}
		if at != offset {
			t.Fatalf("blocks end at %d, footer at %d", at, offset)
		}
	})
}
