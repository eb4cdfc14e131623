package erasure

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/reedsolomon"
	"github.com/zeebo/xxh3"
)

// runBytes is how much of bodies each run of BenchmarkEncodeFiles codes at least.
const runBytes = 32 << 20

// BenchmarkEncodeFiles compares Encode, with the hash of the body, with klauspost/reedsolomon on the same bodies: with the same
// hashes, and without any; each to files in the page cache, and to nobody. One iteration is a round of all, forwards and
// backwards by turns. It reports medians: MB/s of body, and ratios within rounds.
func BenchmarkEncodeFiles(b *testing.B) {
	var cases []*fileBench
	for _, k := range [][2]int{{4, 2}, {8, 3}} {
		for _, size := range []int{1 << 20, 8 << 20, 64 << 20} {
			cases = append(cases, newFileBench(b, k[0], k[1], size))
		}
	}
	for round := 0; b.Loop(); round++ {
		for _, c := range cases {
			c.round(b, round%2 == 1)
		}
	}
	for _, c := range cases {
		c.report(b)
	}
}

// fileWays are what is compared: each in files, then in memory.
var fileWays = []string{"encode", "hashed", "alone"}

// fileBench is one shape and size of bodies.
type fileBench struct {
	name  string
	p     Params
	body  []byte
	rs    reedsolomon.Encoder
	dir   string
	rates [6][]float64 // MB/s of each round: of fileWays to files, then to nobody
}

func newFileBench(b *testing.B, k, m, size int) *fileBench {
	rs, err := reedsolomon.New(k, m)
	if err != nil {
		b.Fatal(err)
	}
	return &fileBench{name: fmt.Sprintf("%d+%d/%dMiB", k, m, size>>20), p: Params{k, m, 1, 16 << 20}, body: content(1, size), rs: rs, dir: b.TempDir()}
}

func (c *fileBench) round(b *testing.B, backwards bool) {
	order := []int{0, 1, 2, 3, 4, 5}
	if backwards {
		slices.Reverse(order)
	}
	for _, w := range order {
		n := max(1, runBytes/len(c.body))
		began := time.Now()
		for i := range n {
			if err := c.one(w%len(fileWays), w < len(fileWays), i); err != nil {
				b.Fatal(err)
			}
		}
		c.rates[w] = append(c.rates[w], float64(n*len(c.body))/1e6/time.Since(began).Seconds())
		c.clear(b)
	}
}

// clear removes the files of a run, which is not measured.
func (c *fileBench) clear(b *testing.B) {
	names, err := filepath.Glob(filepath.Join(c.dir, "*"))
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range names {
		if err := os.Remove(name); err != nil {
			b.Fatal(err)
		}
	}
}

// one codes the body once.
func (c *fileBench) one(way int, toFiles bool, i int) (err error) {
	out := make([]io.Writer, c.p.K+c.p.M)
	if toFiles {
		for s := range out {
			f, err := os.Create(filepath.Join(c.dir, strconv.Itoa(i)+"-"+strconv.Itoa(s)))
			if err != nil {
				return err
			}
			defer f.Close()
			out[s] = f
		}
	}
	if way > 0 {
		return c.peer(fileWays[way] == "hashed", out)
	}
	_, failed, err := Encode(Source{anID, bytes.NewReader(c.body), int64(len(c.body)), xxh3.Hash128(c.body).Bytes()}, 1, c.p, out)
	return errors.Join(err, errors.Join(failed...))
}

// peer is what one writes with klauspost/reedsolomon: split, encode, hash and write all shards at the same time.
func (c *fileBench) peer(hashed bool, out []io.Writer) error {
	shards, err := c.rs.Split(slices.Clip(c.body))
	if err != nil {
		return err
	}
	if err := c.rs.Encode(shards); err != nil {
		return err
	}
	errs, sums := make([]error, len(shards)), make([]uint64, len(shards))
	var wg sync.WaitGroup
	for i, s := range shards {
		wg.Go(func() {
			if hashed {
				for block := range slices.Chunk(s, BlockSize) {
					sums[i] += xxh3.Hash(block)
				}
			}
			if out[i] != nil {
				_, errs[i] = out[i].Write(s)
			}
		})
	}
	if hashed {
		sum := xxh3.Hash128(c.body)
		defer runtime.KeepAlive(sum)
	}
	wg.Wait()
	runtime.KeepAlive(sums)
	return errors.Join(errs...)
}

func (c *fileBench) report(b *testing.B) {
	for at, where := range []string{"files", "memory"} {
		rates := c.rates[at*len(fileWays):][:len(fileWays)]
		name := c.name + "/" + where + "/"
		for w, way := range fileWays {
			b.ReportMetric(middle(rates[w]), name+way+"-MB/s")
			if w == 0 {
				continue
			}
			ratios := make([]float64, len(rates[0]))
			for i := range ratios {
				ratios[i] = rates[0][i] / rates[w][i]
			}
			b.ReportMetric(middle(ratios), name+"of-"+way)
			b.ReportMetric(slices.Min(ratios), name+"of-"+way+"-least")
			b.ReportMetric(slices.Max(ratios), name+"of-"+way+"-most")
		}
	}
}

// middle is the median.
func middle(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
