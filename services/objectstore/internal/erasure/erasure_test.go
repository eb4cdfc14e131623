package erasure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const anID = "ab000000000000000000000000000001"

func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	var s [32]byte
	s[0], s[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(s).Read(b)
	return b
}

// encode gives the files of all shards.
func encode(t testing.TB, id string, policy uint32, p Params, body []byte) [][]byte {
	t.Helper()
	out := make([]io.Writer, p.K+p.M)
	bufs := make([]bytes.Buffer, len(out))
	for i := range out {
		out[i] = &bufs[i]
	}
	h, err := HashBody(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		t.Fatal(err)
	}
	infos, failed, err := Encode(Source{id, bytes.NewReader(body), int64(len(body)), h}, policy, p, out)
	if err := errors.Join(append(failed, err)...); err != nil {
		t.Fatal(err)
	}
	files := make([][]byte, len(out))
	for i := range out {
		if files[i] = bufs[i].Bytes(); infos[i].FileSize() != int64(len(files[i])) {
			t.Fatalf("shard %d has %d bytes, and its description says %d", i, len(files[i]), infos[i].FileSize())
		}
	}
	return files
}

func copyFile(t testing.TB, id string, body []byte, pieces int) []byte {
	t.Helper()
	c, err := NewCopy(id)
	if err != nil {
		t.Fatal(err)
	}
	b := slices.Clone(c.Header())
	for p := range slices.Chunk(body, pieces) {
		c.Add(p)
		b = append(b, p...)
	}
	foot, _ := c.Footer()
	return append(b, foot...)
}

func open(b []byte) (*File, error) { return OpenFile(bytes.NewReader(b), int64(len(b))) }

// openAll opens files; those that are nil or damaged in header or footer are nil.
func openAll(files [][]byte) []*File {
	out := make([]*File, len(files))
	for i, b := range files {
		if f, err := open(b); b != nil && err == nil {
			out[i] = f
		}
	}
	return out
}

func set(t testing.TB, files [][]byte) *Set {
	t.Helper()
	s, err := NewSet(openAll(files))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func readAll(s *Set, budget *Budget) ([]byte, error) {
	r := NewReader(s, budget)
	defer r.Close()
	return io.ReadAll(io.NewSectionReader(r, 0, r.Size()+1))
}

// sizes are around every edge of a layout with small chunks.
func sizes(p Params) []int {
	full := p.K * int(p.MaxChunk)
	return []int{0, 1, p.K - 1, p.K, p.K + 1, int(p.MinChunk) - 1, int(p.MinChunk), p.K*int(p.MinChunk) + 1, full - 1, full, full + 1, 2*full + 17, 3*full - 1}
}

// TestAnyLossOfUpToM: for every set of lost shards the body comes back, or an error names what is lost.
func TestAnyLossOfUpToM(t *testing.T) {
	for k := 1; k <= 4; k++ {
		for m := range 4 {
			p := Params{k, m, 100, 1000}
			for _, n := range sizes(p) {
				lossPatterns(t, p, n)
			}
		}
	}
}

func lossPatterns(t *testing.T, p Params, n int) {
	body := content(uint64(n), n)
	files := encode(t, anID, 1, p, body)
	for lost := range 1 << (p.K + p.M) {
		have := slices.Clone(files)
		for i := range have {
			if lost>>i&1 == 1 {
				have[i] = nil
			}
		}
		s, err := NewSet(openAll(have))
		if err == nil {
			var got []byte
			if got, err = readAll(s, nil); err == nil && !bytes.Equal(got, body) {
				t.Fatalf("%+v, %d bytes without %b: other bytes", p, n, lost)
			}
		}
		switch few := bits.OnesCount(uint(lost)) > p.M; {
		case !few && err != nil:
			t.Fatalf("%+v, %d bytes without %b: %v", p, n, lost, err)
		case !few:
			rebuild(t, s, files, lost)
			for i := range files { // also those that are there
				rebuild(t, s, files, 1<<i)
			}
		case n > 0 && !errors.Is(err, ErrTooFew) && missesData(p, n, lost):
			t.Fatalf("%+v, %d bytes without %b: %v", p, n, lost, err)
		case err != nil && s != nil:
			for i := range have {
				if lost>>i&1 == 1 && !strings.Contains(err.Error(), fmt.Sprintf("%d (missing)", i)) {
					t.Fatalf("the error does not name shard %d: %v", i, err)
				}
			}
		}
	}
}

// missesData: a data shard with bytes in it is lost.
func missesData(p Params, n, lost int) bool {
	l := p.Layout(int64(n))
	for i := range p.K {
		if lost>>i&1 == 1 && l.ShardSize(i) > 0 {
			return true
		}
	}
	return false
}

// rebuild makes shards again and compares all bytes.
func rebuild(t *testing.T, s *Set, files [][]byte, wanted int) {
	out, bufs := make([]io.Writer, len(files)), make([]bytes.Buffer, len(files))
	for i := range out {
		if wanted>>i&1 == 1 {
			out[i] = &bufs[i]
		}
	}
	failed, err := s.Rebuild(out)
	if err := errors.Join(append(failed, err)...); err != nil {
		t.Fatal(err)
	}
	for i := range out {
		if out[i] != nil && !bytes.Equal(bufs[i].Bytes(), files[i]) {
			t.Fatalf("%v: shard %d, rebuilt without %b, has other bytes", s.info.Layout, i, wanted)
		}
	}
}

// TestAnyDamageOfUpToM: flipped bits anywhere in up to m shards are found, and never reach a reader.
func TestAnyDamageOfUpToM(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 600 {
		p := Params{1 + rng.IntN(6), rng.IntN(4), 50, int64(500 + rng.IntN(200_000))}
		n := rng.IntN(400_000)
		body := content(rng.Uint64(), n)
		files := encode(t, anID, 7, p, body)
		damaged := rng.Perm(p.K + p.M)[:rng.IntN(p.M+2)]
		for _, i := range damaged {
			files[i][rng.IntN(len(files[i]))] ^= 1 << rng.IntN(8)
		}
		s, err := NewSet(openAll(files))
		var got []byte
		if err == nil {
			var budget *Budget
			if rng.IntN(2) == 0 {
				budget = NewBudget(int64(rng.IntN(4 << 20)))
			}
			got, err = readAll(s, budget)
		}
		if err == nil && !bytes.Equal(got, body) || len(damaged) <= p.M && err != nil {
			t.Fatalf("%+v, %d bytes, damaged %v: %d bytes, %v", p, n, damaged, len(got), err)
		}
		if err != nil && !errors.Is(err, ErrTooFew) {
			t.Fatalf("%+v, damaged %v: %v", p, damaged, err)
		}
	}
}

// TestRanges: any range reads the same from whole and from degraded sets, with and without a budget.
func TestRanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	p := Params{3, 2, 1000, 300_000}
	body := content(5, 2_000_003)
	files := encode(t, anID, 1, p, body)
	for _, lost := range [][]int{nil, {0}, {2, 1}, {0, 4}, {3, 4}} {
		have := slices.Clone(files)
		for _, i := range lost {
			have[i] = nil
		}
		for _, budget := range []*Budget{nil, NewBudget(8 << 20), NewBudget(10)} {
			r := NewReader(set(t, have), budget)
			r.Piece = int64(len(lost)) * BlockSize
			for range 60 {
				off := rng.IntN(len(body))
				b := make([]byte, 1+rng.IntN(700_000))
				n, err := r.ReadAt(b, int64(off))
				if want := body[off:min(off+len(b), len(body))]; !bytes.Equal(b[:n], want) || (err == io.EOF) != (n < len(b)) || err != nil && err != io.EOF {
					t.Fatalf("without %v, %d bytes from %d: %d, %v", lost, len(b), off, n, err)
				}
			}
			r.Close()
			if budget != nil && budget.left.Load() != 8<<20 && budget.left.Load() != 10 {
				t.Errorf("memory was not given back: %d", budget.left.Load())
			}
		}
	}
}

// TestGenerationsNeverMix: shards of another body, of another policy, or of another layout are refused.
func TestGenerationsNeverMix(t *testing.T) {
	p := Params{2, 1, 100, 1000}
	body := content(1, 1500)
	files := encode(t, anID, 1, p, body)
	other := slices.Clone(body)
	other[700] ^= 1
	for name, others := range map[string][][]byte{
		"body":   encode(t, anID, 1, p, other),
		"id":     encode(t, "cd"+anID[2:], 1, p, body),
		"policy": encode(t, anID, 2, p, body),
		"layout": encode(t, anID, 1, Params{2, 1, 100, 400}, body),
		"size":   encode(t, anID, 1, p, body[:1499]),
	} {
		for i := range files {
			mixed := slices.Clone(files)
			mixed[i] = others[i]
			if s, err := NewSet(openAll(mixed)); err == nil {
				t.Errorf("another %s, shard %d: taken as %v", name, i, s.info.Fragment)
			}
		}
	}
	if again := encode(t, anID, 1, p, body); !slices.EqualFunc(files, again, bytes.Equal) {
		t.Error("coding again gives other bytes")
	}
}

// TestCopies: a copy is read and verified like shards, whatever pieces it was written in.
func TestCopies(t *testing.T) {
	for _, n := range []int{0, 1, BlockSize - 1, BlockSize, BlockSize + 1, 1<<20 + 5, 3 << 20} {
		body := content(uint64(n), n)
		b := copyFile(t, anID, body, 1<<20)
		for _, piece := range []int{777, BlockSize, BlockSize + 1} {
			if !bytes.Equal(b, copyFile(t, anID, body, piece)) {
				t.Errorf("%d bytes in pieces of %d: another file", n, piece)
			}
		}
		f, err := open(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Verify(context.Background()); err != nil {
			t.Error(err)
		}
		s, err := NewSet([]*File{f})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readAll(s, nil); err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes: %d, %v", n, len(got), err)
		}
		if err := s.VerifyBody(); err != nil {
			t.Error(err)
		}
		if n > 0 {
			b[headerSize+n/2] ^= 4
			if err := f.Verify(context.Background()); !errors.Is(err, ErrCorrupt) {
				t.Errorf("a changed byte: %v", err)
			}
			if _, err := readAll(s, nil); !errors.Is(err, ErrTooFew) {
				t.Errorf("a changed byte: %v", err)
			}
		}
	}
}

// TestEveryByteIsCovered: no byte of a file can change unnoticed.
func TestEveryByteIsCovered(t *testing.T) {
	files := append(encode(t, anID, 3, Params{2, 1, 10, 100}, content(9, 150)), copyFile(t, anID, content(9, 150), 150))
	for n, b := range files {
		for i := range b {
			b[i] ^= 0x10
			f, err := open(b)
			if err == nil {
				err = f.Verify(context.Background())
			}
			if err == nil {
				t.Errorf("file %d of %d bytes: byte %d", n, len(b), i)
			}
			b[i] ^= 0x10
		}
		for i := range b {
			if _, err := open(b[:i]); !errors.Is(err, ErrCorrupt) {
				t.Errorf("file %d cut at %d: %v", n, i, err)
			}
		}
	}
}

// TestWritersFail: a writer that fails does not stop the others; a body that fails stops all.
func TestWritersFail(t *testing.T) {
	p := Params{2, 1, 10, 100}
	body := content(2, 1000)
	h, _ := HashBody(bytes.NewReader(body), 1000)
	want := encode(t, anID, 1, p, body)
	var a, c bytes.Buffer
	broken := errors.New("broken")
	_, failed, err := Encode(Source{anID, bytes.NewReader(body), 1000, h}, 1, p, []io.Writer{&a, failing{broken}, &c})
	if err != nil || !errors.Is(failed[1], broken) || failed[0] != nil || !bytes.Equal(a.Bytes(), want[0]) || !bytes.Equal(c.Bytes(), want[2]) {
		t.Errorf("%v, %v", failed, err)
	}
	if _, _, err := Encode(Source{anID, bytes.NewReader(body[:900]), 1000, h}, 1, p, make([]io.Writer, 3)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a body that is cut off: %v", err)
	}
	if _, _, err := Encode(Source{anID, bytes.NewReader(body), 1000, h}, 0, p, make([]io.Writer, 3)); err == nil {
		t.Error("policy 0 is for copies")
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestRebuildComparesDigests: shards that are whole by themselves and computed from another body's
// bytes are found when what is rebuilt has another digest than the others say.
func TestRebuildComparesDigests(t *testing.T) {
	p := Params{2, 2, 10, 1000}
	files := encode(t, anID, 1, p, content(1, 1500))
	s := set(t, files)
	s.info.Digests = slices.Clone(s.info.Digests)
	s.info.Digests[3][0] ^= 1
	var out bytes.Buffer
	failed, err := s.Rebuild([]io.Writer{nil, nil, nil, &out})
	if err != nil || !errors.Is(failed[3], ErrCorrupt) {
		t.Errorf("%v, %v", failed, err)
	}
	if _, err := open(out.Bytes()); err == nil {
		t.Error("the file is complete all the same")
	}
}

// TestBad: damage is told once, by index.
func TestBad(t *testing.T) {
	p := Params{2, 1, 10, 1000}
	body := content(1, 1500)
	files := encode(t, anID, 1, p, body)
	files[1][headerSize+5] ^= 1
	s := set(t, files)
	var bad []int
	s.Bad = func(i int, err error) { bad = append(bad, i) }
	for range 3 {
		if got, err := readAll(s, nil); err != nil || !bytes.Equal(got, body) {
			t.Fatal(err)
		}
	}
	if !slices.Equal(bad, []int{1}) || !slices.Equal(s.Missing(), []int{1}) || !s.Readable() {
		t.Errorf("told %v, missing %v", bad, s.Missing())
	}
}

// TestDamageAtDifferentPlaces: more than m shards are damaged, and no stripe in more than m of them.
func TestDamageAtDifferentPlaces(t *testing.T) {
	p := Params{2, 1, 10, 2 * BlockSize}
	body := content(1, 6*BlockSize)
	files := encode(t, anID, 1, p, body)
	files[0][headerSize] ^= 1
	files[1][headerSize+BlockSize] ^= 1
	files[2][headerSize+2*BlockSize] ^= 1
	for _, budget := range []*Budget{nil, NewBudget(1 << 20)} {
		r := NewReader(set(t, files), budget)
		got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	want := encode(t, anID, 1, p, body)
	var again bytes.Buffer
	failed, err := set(t, files).Rebuild([]io.Writer{nil, &again, nil})
	if err := errors.Join(append(failed, err)...); err != nil || !bytes.Equal(again.Bytes(), want[1]) {
		t.Errorf("rebuilt %d bytes, %v", again.Len(), err)
	}
}

// TestPiecesSideBySide: a stripe that is decoded in pieces at the same time, with damage at different places of most shards, is the
// body byte for byte; and where a piece has too few whole shards, the read is an error.
func TestPiecesSideBySide(t *testing.T) {
	p := Params{3, 2, 1000, 16 * BlockSize}
	body := content(6, 3*16*BlockSize-5000)
	files := encode(t, anID, 1, p, body)
	damage := func(shard, block int) { files[shard][headerSize+block*BlockSize+17] ^= 4 }
	files[0] = nil
	damage(1, 2)
	damage(2, 7)
	damage(3, 9)
	damage(4, 12)
	read := func() ([]byte, error) {
		r := NewReader(set(t, files), NewBudget(64<<20))
		defer r.Close()
		r.Piece = LocalPiece
		got := make([]byte, len(body))
		_, err := r.ReadAt(got, 0)
		return got, err
	}
	if got, err := read(); err != nil || !bytes.Equal(got, body) {
		t.Errorf("another body, %v", err)
	}
	damage(1, 12)
	if _, err := read(); !errors.Is(err, ErrTooFew) {
		t.Errorf("three of five shards are not whole at a place: %v", err)
	}
}
