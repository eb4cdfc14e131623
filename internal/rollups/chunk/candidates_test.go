package chunk

import (
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// A candidate encodes the series of a chunk, without an index, and decodes them again.
type candidate struct {
	name   string
	encode func([]*Series) [][]byte
	decode func(blocks [][]byte, rows int) // nil: size only
}

// xorChunks are Prometheus' chunks of 120 samples.
func xorChunks(series []*Series) (out [][]byte) {
	for _, s := range series {
		for from := 0; from < len(s.T); from += 120 {
			c := chunkenc.NewXORChunk()
			a, err := c.Appender()
			if err != nil {
				panic(err)
			}
			for i := from; i < min(from+120, len(s.T)); i++ {
				a.Append(0, s.T[i]/1e6, s.V[i])
			}
			out = append(out, slices.Clone(c.Bytes()))
		}
	}
	return out
}

func readXOR(blocks [][]byte, _ int) {
	var it chunkenc.Iterator
	sum := 0.0
	for _, b := range blocks {
		c, err := chunkenc.FromData(chunkenc.EncXOR, b)
		if err != nil {
			panic(err)
		}
		it = c.Iterator(it)
		for it.Next() != chunkenc.ValNone {
			_, v := it.At()
			sum += v
		}
	}
}

// varints are what the design measured first: series of one agent in groups, exact decimals
// with delta varints or plain bits, then zstd.
func varints(group int, level zstd.EncoderLevel) candidate {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		panic(err)
	}
	u, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	var f floatCoder
	var buf []byte
	return candidate{name: "delta varints, zstd " + level.String() + ", agent groups of " + strconv.Itoa(group), encode: func(series []*Series) (out [][]byte) {
		sorted := slices.Clone(series)
		slices.SortStableFunc(sorted, func(a, b *Series) int { return slices.Compare([]byte(a.Agent), []byte(b.Agent)) })
		for len(sorted) > 0 {
			n := 1
			for n < min(group, len(sorted)) && sameTimes(sorted[n].T, sorted[0].T) && sorted[n].Agent == sorted[0].Agent {
				n++
			}
			buf = buf[:0]
			for _, t := range sorted[0].T {
				buf = binary.AppendVarint(buf, t)
			}
			for _, s := range sorted[:n] {
				f.grow(len(s.V))
				e, ok := f.decimal(s.V)
				if !ok || len(f.patches) > 0 {
					buf = append(buf, 0xff)
					for _, x := range s.V {
						buf = appendFloat(buf, x)
					}
					continue
				}
				buf = append(buf, byte(e))
				last := int64(0)
				for _, x := range f.ints {
					buf = binary.AppendVarint(buf, x-last)
					last = x
				}
			}
			out = append(out, z.EncodeAll(buf, nil))
			sorted = sorted[n:]
		}
		return out
	}, decode: func(blocks [][]byte, rows int) {
		raw := make([]byte, 0, 1<<20)
		col := make([]float64, rows)
		for _, b := range blocks {
			var err error
			if raw, err = u.DecodeAll(b, raw[:0]); err != nil {
				panic(err)
			}
			r := raw
			for range rows {
				_, n := binary.Varint(r)
				r = r[n:]
			}
			for len(r) > 0 {
				mode := r[0]
				r = r[1:]
				if mode == 0xff {
					for i := range col {
						col[i] = math.Float64frombits(binary.LittleEndian.Uint64(r[8*i:]))
					}
					r = r[8*rows:]
					continue
				}
				last, p := int64(0), pow10[mode]
				for i := range col {
					d, n := binary.Varint(r)
					last += d
					r = r[n:]
					col[i] = float64(last) / p
				}
			}
		}
	}}
}

// wrapped is the size of chunks with zstd around them.
func wrapped(series []*Series) [][]byte {
	w := NewWriter(Options{})
	for _, s := range series {
		if err := w.Add(s); err != nil {
			panic(err)
		}
	}
	f, err := w.Finish()
	if err != nil {
		panic(err)
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	return [][]byte{z.EncodeAll(f.Chunk, nil)}
}

// alp is the size of ALP: per 1,024 values the best exponent, the frame of reference bit-packed,
// exceptions of 10 bytes; vectors with over a fifth of them are 8 bytes a value (ALP-RD saves some of it).
func alp(series []*Series) (out [][]byte) {
	size := 0
	for _, s := range series {
		for from := 0; from < len(s.V); from += 1024 {
			v := s.V[from:min(from+1024, len(s.V))]
			best := 8*len(v) + 2
			for e := range maxExponent + 1 {
				var lo, hi int64 = math.MaxInt64, math.MinInt64
				exceptions := 0
				for _, x := range v {
					y := math.RoundToEven(x * pow10[e])
					if !(math.Abs(y) < maxExact) || math.Float64bits(y/pow10[e]) != math.Float64bits(x) {
						exceptions++
						continue
					}
					lo, hi = min(lo, int64(y)), max(hi, int64(y))
				}
				if exceptions > len(v)/5 {
					continue
				}
				best = min(best, (bits.Len64(uint64(hi-lo))*len(v)+7)/8+13+10*exceptions)
			}
			size += best
		}
		size += 16 // times, shared
	}
	return [][]byte{make([]byte, size)}
}

// walks are random walks of floats with all digits.
func walks(n, rows int) []*Series {
	rng := rand.New(rand.NewPCG(7, 7))
	var out []*Series
	var t []int64
	for i := range rows {
		t = append(t, 1_800_000_000_000_000_000+int64(i)*1e10)
	}
	for k := range n {
		x := 100 * rng.Float64()
		s := &Series{ID: series.ID{Agent: "a", Labels: []series.Label{{Name: nameLabel, Value: "walk"}, {Name: "k", Value: strconv.Itoa(k)}}}, Columns: Columns{T: t}}
		for range rows {
			x += rng.NormFloat64()
			s.V = append(s.V, x)
		}
		out = append(out, s)
	}
	return out
}

// TestMeasureCandidates prints figures for the decision record: CHUNK_MEASURE=rounds.
func TestMeasureCandidates(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("CHUNK_MEASURE"))
	if err != nil {
		t.Skip("prints figures only: set CHUNK_MEASURE to the number of rounds, 2 or more")
	}
	all := []candidate{{"Prometheus XOR", xorChunks, readXOR}, varints(256, zstd.SpeedFastest), varints(256, zstd.SpeedDefault), varints(256, zstd.SpeedBestCompression),
		varints(2048, zstd.SpeedDefault), {"ALP", alp, nil}, {"this format, zstd best around it", wrapped, nil}}
	for name, ps := range map[string]map[string][]*Series{
		"devops":        pieces(load(t, devops), 32),
		"node_exporter": pieces(load(t, nodeExporter), 32),
		"random walks":  {"": walks(300, 360)},
		"generated":     pieces(tsbs.Generate(1, 20, 360), 4),
	} {
		samples := 0
		for _, ss := range ps {
			for _, s := range ss {
				samples += len(s.V)
			}
		}
		t.Logf("%s: this format: %v", name, measure(t, ps, Options{}, rounds))
		t.Logf("%s: without references: %v", name, measure(t, ps, Options{codec: integerCodec{noReferences: true}}, rounds))
		for _, c := range all {
			enc, dec, size := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64), 0
			for range rounds {
				var e, d time.Duration
				size = 0
				for _, ss := range ps {
					start := cpu(t)
					blocks := c.encode(ss)
					mid := cpu(t)
					for _, b := range blocks {
						size += len(b)
					}
					if c.decode != nil {
						c.decode(blocks, len(ss[0].T))
					}
					e, d = e+mid-start, d+cpu(t)-mid
				}
				enc, dec = min(enc, e), min(dec, d)
			}
			n := float64(samples)
			if c.decode == nil {
				t.Logf("%s: %s: %.4f B/sample", name, c.name, float64(size)/n)
				continue
			}
			t.Logf("%s: %s: %.4f B/sample, encode %.0f M/s, decode %.0f M/s", name, c.name, float64(size)/n, n/enc.Seconds()/1e6, n/dec.Seconds()/1e6)
		}
	}
}
