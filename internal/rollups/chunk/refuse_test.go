package chunk

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// readAll decodes everything that the index names.
func readAll(index, chunk []byte, lim Limits) error {
	x, err := ReadIndex(index, lim)
	if err != nil {
		return err
	}
	d := NewDecoder(x, lim)
	d.Put(0, chunk)
	var c Columns
	for i := range x.Len() {
		if _, err := d.Series(i, math.MinInt64, math.MaxInt64, AllColumns, &c); err != nil {
			return err
		}
	}
	return nil
}

func typed(t testing.TB, err error) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("not an *Error: %v", err)
	}
	return e
}

// TestEveryFlippedBitIsFound, in the blocks, the footer, the header and the index.
func TestEveryFlippedBitIsFound(t *testing.T) {
	f := write(t, Options{BlockSeries: 5}, goldenRaw())
	chunk, index := slices.Clone(f.Chunk), slices.Clone(f.Index)
	if err := readAll(index, chunk, Limits{}); err != nil {
		t.Fatal(err)
	}
	step := 1
	if raceEnabled { // slow there
		step = 13
	}
	for i := 0; i < 8*len(chunk); i += step {
		chunk[i/8] ^= 1 << (i % 8)
		at := int64(i / 8)
		var err error
		switch {
		case at < int64(len(chunkMagic)):
			err = checkHeader(chunk)
		case at >= f.FooterOffset:
			_, err = readFooter(chunk[f.FooterOffset:], f.FooterOffset, Limits{})
		default:
			err = readAll(index, chunk, Limits{})
		}
		if err == nil {
			t.Fatalf("bit %d of the chunk: not noticed", i)
		}
		typed(t, err)
		if _, err := Verify(chunk, index, Limits{}); err == nil {
			t.Fatalf("bit %d of the chunk: not noticed by Verify", i)
		}
		chunk[i/8] ^= 1 << (i % 8)
	}
	for i := 0; i < 8*len(index); i += step {
		index[i/8] ^= 1 << (i % 8)
		_, err := ReadIndex(index, Limits{})
		if err == nil {
			t.Fatalf("bit %d of the index: not noticed", i)
		}
		typed(t, err)
		index[i/8] ^= 1 << (i % 8)
	}
}

// TestEveryCutIsFound: bytes that end early.
func TestEveryCutIsFound(t *testing.T) {
	f := write(t, Options{}, minimal())
	for n := range f.Index {
		if _, err := ReadIndex(f.Index[:n], Limits{}); err == nil {
			t.Fatalf("index cut to %d of %d bytes: not noticed", n, len(f.Index))
		}
	}
	for n := f.FooterOffset; n < int64(len(f.Chunk)); n++ {
		_, err := readFooter(f.Chunk[f.FooterOffset:n], f.FooterOffset, Limits{})
		typed(t, err)
	}
	for n := range f.FooterOffset {
		if e := typed(t, readAll(f.Index, f.Chunk[:n], Limits{})); e.Reason != MissingRange {
			t.Fatalf("chunk cut to %d: %v", n, e)
		}
	}
}

func TestFooter(t *testing.T) {
	f := write(t, Options{BlockSeries: 3}, goldenRaw())
	if err := checkHeader(f.Chunk); err != nil {
		t.Fatal(err)
	}
	ft, err := readFooter(f.Chunk[f.FooterOffset:], f.FooterOffset, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	x := readIndex(t, f.Index)
	if !slices.Equal(ft.values, x.blocks) || !slices.Equal(ft.times, x.timeBlocks) {
		t.Errorf("footer %+v, index %v %v", ft, x.blocks, x.timeBlocks)
	}
	_, err = readFooter(f.Chunk[f.FooterOffset:], f.FooterOffset-1, Limits{})
	if !errors.Is(err, BadFooter) {
		t.Errorf("footer elsewhere: %v", err)
	}
}

// TestVerify: a chunk and its index are checked against each other, whatever the checksums say.
func TestVerify(t *testing.T) {
	f := write(t, Options{BlockSeries: 3, Rows: 7}, goldenRaw())
	x, err := Verify(f.Chunk, f.Index, Limits{})
	if err != nil || x.Len() != f.Series || x.Samples() != f.Samples {
		t.Fatalf("%d series, %d samples, %v", x.Len(), x.Samples(), err)
	}
	// spoil changes a chunk, and an index that is then of that chunk.
	spoil := func(chunk func(b []byte), index func(x *Index)) ([]byte, []byte) {
		b, x := slices.Clone(f.Chunk), readIndex(t, f.Index)
		chunk(b)
		x.Chunk = identity.Sum(b)
		index(x)
		var file indexFile
		return b, file.append(x)
	}
	same := func([]byte) {}
	reseal := func(b []byte, r Range) { copy(b[r.Offset:], resealed(b[r.Offset:r.End()])) }
	for name, c := range map[string]struct {
		chunk func(b []byte)
		index func(x *Index)
		want  Reason
	}{
		"another chunk":     {same, func(x *Index) { x.Chunk[0]++ }, BadIndex},
		"another size":      {same, func(x *Index) { x.Size++ }, BadIndex},
		"header":            {func(b []byte) { b[0]++ }, func(*Index) {}, BadMagic},
		"header's version":  {func(b []byte) { b[4]++ }, func(*Index) {}, UnsupportedVersion},
		"footer's checksum": {func(b []byte) { b[len(b)-1]++ }, func(*Index) {}, ChecksumMismatch},
		"block's checksum":  {func(b []byte) { b[x.blocks[1].End()-1]++ }, func(*Index) {}, ChecksumMismatch},
		"block's kind":      {func(b []byte) { b[x.blocks[1].Offset] = kindTimes; reseal(b, x.blocks[1]) }, func(*Index) {}, BadBlock},
		"block's encoding":  {func(b []byte) { b[x.blocks[1].Offset+1] = 9; reseal(b, x.blocks[1]) }, func(*Index) {}, UnknownEncoding},
		"blocks elsewhere":  {same, func(x *Index) { x.blocks[0].Length--; x.blocks[1].Length++ }, BadFooter},
		"rows":              {same, func(x *Index) { x.times[0].rows-- }, BadBlock},
		"first time":        {same, func(x *Index) { x.times[0].minT++ }, BadIndex},
		"last time":         {same, func(x *Index) { x.times[len(x.times)-1].maxT++ }, BadIndex},
	} {
		chunk, index := spoil(c.chunk, c.index)
		if _, err := Verify(chunk, index, Limits{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if _, err := Verify(f.Chunk[:5], f.Index, Limits{}); !errors.Is(err, Truncated) {
		t.Errorf("five bytes: %v", err)
	}
	if _, err := Verify(f.Chunk, f.Index[:20], Limits{}); err == nil {
		t.Error("half an index: not noticed")
	}
}

// TestLimits: what is over one is refused with its reason.
func TestLimits(t *testing.T) {
	f := write(t, Options{}, goldenRaw())
	for name, c := range map[string]struct {
		lim  Limits
		want Reason
	}{
		"block bytes":      {Limits{BlockBytes: 100}, TooLarge},
		"index bytes":      {Limits{IndexBytes: 100}, TooLarge},
		"index memory":     {Limits{IndexMemory: 500}, TooLarge},
		"block series":     {Limits{BlockSeries: 5}, BadBlock},
		"rows":             {Limits{Rows: 10}, BadIndex},
		"rows of a series": {Limits{SeriesRows: 30}, TooLarge},
		"series":           {Limits{Series: 5}, BadIndex},
		"labels":           {Limits{SeriesLabels: 1}, BadIndex},
		"strings":          {Limits{StringBytes: 5}, BadIndex},
		"histogram values": {Limits{HistogramValues: 20}, BadHistogram},
	} {
		if err := readAll(f.Index, f.Chunk, c.lim); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if _, err := readFooter(f.Chunk[f.FooterOffset:], f.FooterOffset, Limits{FooterBytes: 5}); !errors.Is(err, TooLarge) {
		t.Errorf("footer: %v", err)
	}
}

// TestBadSeriesAreRefused by the writer, before anything is encoded.
func TestBadSeriesAreRefused(t *testing.T) {
	ok := func() *Series {
		return &Series{ID: series.ID{Labels: labels(nameLabel, "up", "job", "a")}, Columns: Columns{T: []int64{1, 2}, V: []float64{1, 2}}}
	}
	for name, spoil := range map[string]func(s *Series){
		"no name":             func(s *Series) { s.Labels = s.Labels[1:] },
		"empty value":         func(s *Series) { s.Labels[1].Value = "" },
		"empty label":         func(s *Series) { s.Labels[0].Name = "" },
		"unsorted labels":     func(s *Series) { slices.Reverse(s.Labels) },
		"label twice":         func(s *Series) { s.Labels[1] = s.Labels[0] },
		"long value":          func(s *Series) { s.Labels[1].Value = string(make([]byte, 1<<17)) },
		"no rows":             func(s *Series) { s.Columns = Columns{} },
		"no columns":          func(s *Series) { s.V = nil },
		"short column":        func(s *Series) { s.V = s.V[:1] },
		"short start":         func(s *Series) { s.Start = []int64{1} },
		"short first time":    func(s *Series) { s.FirstT = []int64{1} },
		"times in no order":   func(s *Series) { s.T[1] = 1 },
		"spans and buckets":   func(s *Series) { s.H = []series.Histogram{{PositiveSpans: []int32{0, 2}}, {}} },
		"span without length": func(s *Series) { s.H = []series.Histogram{{}, {NegativeSpans: []int32{0}}} },
		"negative span": func(s *Series) {
			s.H = []series.Histogram{{}, {PositiveSpans: []int32{0, 2, -1, 0}, PositiveBuckets: []float64{1, 2}}}
		},
	} {
		s := ok()
		spoil(s)
		if err := NewWriter(Options{}).Add(s); !errors.Is(err, BadSeries) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w := NewWriter(Options{})
	if _, err := w.Finish(); !errors.Is(err, BadSeries) {
		t.Errorf("nothing: %v", err)
	}
	for range 2 {
		if err := w.Add(ok()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Finish(); !errors.Is(err, BadSeries) {
		t.Errorf("one series twice: %v", err)
	}
}

// TestNoAllocationPerSample: coders that are warm take memory for series and blocks only.
func TestNoAllocationPerSample(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	series := func(rows int) []*Series {
		var out []*Series
		for k := range 50 {
			s := &Series{ID: series.ID{Agent: "a", Labels: labels(nameLabel, "m", "k", string(rune('a'+k)))}}
			for i := range rows {
				s.T, s.V = append(s.T, int64(i)*1e10), append(s.V, float64(i*i%(k+3))/float64(1+k%2*9))
			}
			out = append(out, s)
		}
		return out
	}
	w := NewWriter(Options{})
	encode := func(ss []*Series) (f *Files) {
		w.Reset()
		for _, s := range ss {
			if err := w.Add(s); err != nil {
				t.Fatal(err)
			}
		}
		f, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	few, many := series(20), series(2000)
	encode(many)
	a, b := testing.AllocsPerRun(5, func() { encode(few) }), testing.AllocsPerRun(5, func() { encode(many) })
	if b > a+60 {
		t.Errorf("encoding 1,000 rows a series takes %v allocations, 20 rows %v", b, a)
	}
	f := encode(many)
	x := readIndex(t, slices.Clone(f.Index))
	d := NewDecoder(x, Limits{})
	chunk := slices.Clone(f.Chunk)
	var c Columns
	decode := func() {
		d.Reset(x)
		d.Put(0, chunk)
		for i := range x.Len() {
			if _, err := d.Series(i, math.MinInt64, math.MaxInt64, AllColumns, &c); err != nil {
				t.Fatal(err)
			}
		}
	}
	decode()
	if n := testing.AllocsPerRun(5, decode); n > 20 {
		t.Errorf("decoding 50 series of 2,000 rows takes %v allocations", n)
	}
}

// allocated is the memory that fn takes.
func allocated(fn func()) uint64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	fn()
	runtime.ReadMemStats(&b)
	return b.TotalAlloc - a.TotalAlloc
}
