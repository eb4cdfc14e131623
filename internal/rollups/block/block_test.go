package block_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

const (
	count = 40
	rows  = 120
)

var hour = timegrid.HourOfNS(time.Date(2026, 11, 21, 13, 30, 0, 0, time.UTC).UnixNano())

// stored puts a chunk of two hours, a row each minute, into a store.
func stored(t *testing.T) (*storetest.Counter, *catalog.Object, *chunk.Files) {
	t.Helper()
	st := chunk.NewStream(chunk.Options{BlockSeries: 4, BlockValues: 512})
	for i := range count {
		s := chunk.Series{ID: series.ID{Agent: fmt.Sprintf("agent-%d", i%2), Type: series.Gauge, Labels: []series.Label{{Name: "__name__", Value: fmt.Sprintf("m%02d", i)}}}}
		for r := range rows {
			s.T = append(s.T, (hour.StartMS()+int64(r)*60_000+1)*1_000_000)
			s.V = append(s.V, float64(i*rows+r))
		}
		if err := st.Add(&s); err != nil {
			t.Fatal(err)
		}
	}
	f, err := st.Finish()
	if err != nil {
		t.Fatal(err)
	}
	o := &catalog.Object{ChunkKey: "c", ChunkBytes: uint64(len(f.Chunk)), ChunkSHA256: identity.Sum(f.Chunk),
		IndexKey: "i", IndexBytes: uint64(len(f.Index)), IndexSHA256: identity.Sum(f.Index)}
	s := storetest.Count(mem.New(nil))
	for key, body := range map[string][]byte{"c": f.Chunk, "i": f.Index} {
		if _, err := s.Put(t.Context(), key, body, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return s, o, f
}

// TestDamageIsRefused: whatever a record says of its objects is held against their bytes.
func TestDamageIsRefused(t *testing.T) {
	s, o, f := stored(t)
	fetch := block.From(s)
	if _, err := fetch.Index(t.Context(), o, chunk.Limits{}); err != nil {
		t.Fatal(err)
	}
	other := *o
	other.ChunkSHA256 = identity.Sum([]byte("another"))
	if _, err := fetch.Index(t.Context(), &other, chunk.Limits{}); !errors.Is(err, chunk.BadIndex) {
		t.Errorf("an index of another chunk: %v", err)
	}
	if _, err := fetch.Chunk(t.Context(), &other); !errors.Is(err, chunk.ChecksumMismatch) {
		t.Errorf("a chunk with another hash: %v", err)
	}
	long := *o
	long.ChunkBytes++
	if _, err := fetch.Chunk(t.Context(), &long); !errors.Is(err, chunk.Truncated) {
		t.Errorf("a chunk that is shorter than its record says: %v", err)
	}
	bad := bytes.Clone(f.Index)
	bad[len(bad)/2] ^= 1
	if _, err := s.Put(t.Context(), "i", bad, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch.Index(t.Context(), o, chunk.Limits{}); !errors.Is(err, chunk.ChecksumMismatch) {
		t.Errorf("an index with a flipped bit: %v", err)
	}
	gone := *o
	gone.IndexKey = "gone"
	if _, err := fetch.Open(t.Context(), catalog.Piece{Block: &catalog.Block{}}, &gone); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("an index that is gone: %v", err)
	}
}

// TestCursorGivesItsHour: of a chunk of two hours a cursor over one gives exactly the rows
// of that one, and what is loaded again and again is fetched once.
func TestCursorGivesItsHour(t *testing.T) {
	s, o, _ := stored(t)
	second := hour + 1
	of := &catalog.Block{Objects: []catalog.Object{*o}}
	c, err := block.From(s).Open(t.Context(), catalog.Piece{Block: of, From: second, To: second}, o)
	if err != nil {
		t.Fatal(err)
	}
	d := chunk.NewDecoder(&chunk.Index{}, chunk.Limits{})
	n := 0
	for ; !c.Done(); c.Next() {
		if err := c.Load(t.Context(), d, []int{c.At()}); err != nil {
			t.Fatal(err)
		}
		r, err := c.Rows(d, c.At())
		if err != nil {
			t.Fatal(err)
		}
		want := make([]float64, 60)
		for i := range want {
			want[i] = float64(c.At()*rows + 60 + i)
		}
		if !slices.Equal(r.V[r.From:r.To], want) {
			t.Fatalf("%v: %v", c.Current().Labels, r.V[r.From:r.To])
		}
		n++
	}
	if n != count {
		t.Errorf("%d series, want %d", n, count)
	}
	// One for the index; each group of four series once, its values and perhaps its times.
	if n, most := s.Of("get", ""), 1+2*count/4; n > most {
		t.Errorf("%d requests, want at most %d", n, most)
	}
}

// TestSpansCoverTheirRanges: random ranges come back byte for byte, no span is larger than
// it may be, and neighbours that fit together are together.
func TestSpansCoverTheirRanges(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		body := make([]byte, 4096)
		for i := range body {
			body[i] = byte(rng.Uint32())
		}
		var ranges []chunk.Range
		for at := int64(rng.IntN(50)); at < 4000; at += int64(rng.IntN(200)) {
			length := int64(1 + rng.IntN(60))
			ranges = append(ranges, chunk.Range{Offset: at, Length: length})
			at += length
		}
		if len(ranges) > 0 && ranges[len(ranges)-1].End() > int64(len(body)) {
			ranges = ranges[:len(ranges)-1]
		}
		gap, size := int64(rng.IntN(100)), int64(1+rng.IntN(400))
		var got []chunk.Range
		spans := block.Coalesce(ranges, gap, size)
		for i, s := range spans {
			s.Cut(body[s.Offset:s.End()], func(r chunk.Range, raw []byte) {
				got = append(got, r)
				if !bytes.Equal(raw, body[r.Offset:r.End()]) {
					t.Fatalf("seed %d: other bytes at %d", seed, r.Offset)
				}
			})
			if s.Length > size && len(s.Ranges) > 1 {
				t.Fatalf("seed %d: a span of %d bytes, at most %d", seed, s.Length, size)
			}
			if i > 0 {
				if first := s.Ranges[0]; first.Offset-spans[i-1].End() <= gap && first.End()-spans[i-1].Offset <= size {
					t.Fatalf("seed %d: two requests where one does", seed)
				}
			}
		}
		if !slices.Equal(got, ranges) {
			t.Fatalf("seed %d: %v, want %v", seed, got, ranges)
		}
	}
}
