package erasure

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/reedsolomon"
)

// benchBody is larger than the processor's caches, as bodies that come from a drive or the network are.
const benchBody = 192 << 20

// BenchmarkEncode compares, on the parts of one body in turns: the arithmetic alone; the same with the
// checksums of all blocks of all shards; and Encode, which also reads the body into memory of its own,
// and writes headers and footers to nobody. It reports the best of the rounds, GB/s of body, and the
// processor time that the arithmetic takes as a share of that of each.
func BenchmarkEncode(b *testing.B) {
	body := content(1, benchBody)
	for _, c := range []struct{ k, m, part int }{{4, 2, 1 << 20}, {6, 3, 1 << 20}, {4, 2, 16 << 20}, {6, 3, 24 << 20}, {10, 4, 40 << 20}} {
		b.Run(fmt.Sprintf("%d+%d/%dMiB", c.k, c.m, c.part>>20), func(b *testing.B) {
			p := Params{c.k, c.m, 1, 4 << 20}
			ways := []func(part []byte){alone(b, c.k, c.m, c.part), summed(b, p, c.part), encoded(b, p)}
			best, used := [3]time.Duration{}, [3]time.Duration{}
			for b.Loop() {
				for w, way := range ways {
					began, cpu := time.Now(), processorTime(b)
					for off := 0; off+c.part <= benchBody; off += c.part {
						way(body[off : off+c.part])
					}
					if took := time.Since(began); best[w] == 0 || took < best[w] {
						best[w] = took
					}
					used[w] += processorTime(b) - cpu
				}
			}
			bytes := float64(benchBody / c.part * c.part)
			for w, name := range []string{"alone", "sums", "encode"} {
				b.ReportMetric(bytes/best[w].Seconds()/1e9, name+"-GB/s")
				if w > 0 {
					b.ReportMetric(float64(used[0])/float64(used[w]), name+"-cpu-ratio")
					b.ReportMetric(float64(best[0])/float64(best[w]), name+"-best-ratio")
				}
			}
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// alone is the arithmetic.
func alone(b *testing.B, k, m, size int) func([]byte) {
	rs, err := reedsolomon.New(k, m)
	if err != nil {
		b.Fatal(err)
	}
	shard := (size + k - 1) / k
	shards, parity, last := make([][]byte, k+m), make([]byte, m*shard), make([]byte, shard)
	return func(part []byte) {
		for i := range k - 1 {
			shards[i] = part[i*shard:][:shard]
		}
		shards[k-1] = last // zero-extended, which needs memory of its own
		copy(last, part[(k-1)*shard:])
		for i := range m {
			shards[k+i] = parity[i*shard:][:shard]
		}
		if err := rs.Encode(shards); err != nil {
			b.Fatal(err)
		}
	}
}

// summed is the arithmetic with the checksums, on bytes that are in memory.
func summed(b *testing.B, p Params, size int) func([]byte) {
	l := p.Layout(int64(size))
	e, err := newEncoder(l, make([]io.Writer, l.K+l.M))
	if err != nil {
		b.Fatal(err)
	}
	w := newWindow(l, windowBytes(l))
	return func(part []byte) {
		for at := range places(l) {
			w.cut(l, at.stripe, at.off, at.n)
			for i := range l.K {
				from := l.start(at.stripe, i) + at.off
				if w.real[i] == at.n {
					w.shards[i] = part[from:][:at.n:at.n]
				} else {
					clear(w.shards[i][copy(w.shards[i], part[min(from, int64(len(part))):][:w.real[i]]):])
				}
			}
			if err := e.code(w, at.stripe, at.off); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func encoded(b *testing.B, p Params) func([]byte) {
	out := make([]io.Writer, p.K+p.M)
	return func(part []byte) {
		if _, _, err := Encode(Source{anID, bytes.NewReader(part), int64(len(part)), Hash{}}, 1, p, out); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead compares reading a body of 64 MiB from files in the page cache, from its beginning to
// its end, with all shards and without one or two data shards, in turns.
func BenchmarkRead(b *testing.B) {
	const n = 64 << 20
	body := content(1, n)
	files := encode(b, anID, 1, Params{4, 2, 1, 4 << 20}, body)
	dir := b.TempDir()
	opened := make([]*File, len(files))
	for i, content := range files {
		name := filepath.Join(dir, strconv.Itoa(i))
		if err := os.WriteFile(name, content, 0o600); err != nil {
			b.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = f.Close() })
		if opened[i], err = OpenFile(f, int64(len(content))); err != nil {
			b.Fatal(err)
		}
	}
	var best, used [3]time.Duration
	buf, budget := make([]byte, 1<<20), NewBudget(64<<20)
	for b.Loop() {
		for lost := range best {
			have := slices.Clone(opened)
			clear(have[1 : 1+lost])
			s, err := NewSet(have)
			if err != nil {
				b.Fatal(err)
			}
			r := NewReader(s, budget)
			r.Piece = LocalPiece
			began, cpu := time.Now(), processorTime(b)
			for off := int64(0); off < n; off += int64(len(buf)) {
				if _, err := r.ReadAt(buf, off); err != nil {
					b.Fatal(err)
				}
			}
			if took := time.Since(began); best[lost] == 0 || took < best[lost] {
				best[lost] = took
			}
			used[lost] += processorTime(b) - cpu
			r.Close()
		}
	}
	for lost, d := range best {
		b.ReportMetric(n/d.Seconds()/1e9, fmt.Sprintf("without%d-GB/s", lost))
		if lost > 0 {
			b.ReportMetric(float64(best[0])/float64(d), fmt.Sprintf("without%d-best-ratio", lost))
			b.ReportMetric(float64(used[0])/float64(used[lost]), fmt.Sprintf("without%d-cpu-ratio", lost))
		}
	}
}

// BenchmarkSmallReads reads 8 KiB here and there of a body of 16 MiB in memory, as small objects are read from a segment of the log:
// from the shard that has them, and without it. Nothing is kept from one read to the next.
func BenchmarkSmallReads(b *testing.B) {
	const n, small = 16 << 20, 8 << 10
	files := encode(b, anID, 1, Params{4, 2, 1, 4 << 20}, content(1, n))
	opened := make([]*File, len(files))
	for i, content := range files {
		var err error
		if opened[i], err = OpenFile(bytes.NewReader(content), int64(len(content))); err != nil {
			b.Fatal(err)
		}
	}
	for lost := range 2 {
		b.Run(fmt.Sprintf("without%d", lost), func(b *testing.B) {
			have := slices.Clone(opened)
			clear(have[1 : 1+lost])
			s, err := NewSet(have)
			if err != nil {
				b.Fatal(err)
			}
			r := NewReader(s, nil)
			defer r.Close()
			buf := make([]byte, small)
			at := int64(0)
			for b.Loop() {
				// Within the second of four shards.
				at = (at + 7919*small + 1) % (n/4 - small)
				if _, err := r.ReadAt(buf, n/4+at); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
