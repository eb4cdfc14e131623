package chunk

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func labels(pairs ...string) []series.Label {
	var out []series.Label
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, series.Label{Name: pairs[i], Value: pairs[i+1]})
	}
	return out
}

// goldenRaw has every mode of floats, both kinds of references, starts and histograms.
func goldenRaw() []*Series {
	const rows = 40
	t := make([]int64, rows)
	late := make([]int64, rows)
	start := make([]int64, rows)
	for i := range t {
		t[i] = 1_800_000_000_000_000_000 + int64(i)*10e9
		late[i] = t[i] + int64(i*i%7)*1e6
		start[i] = 1_799_999_000_000_000_000
	}
	column := func(f func(i float64) float64) []float64 {
		v := make([]float64, rows)
		for i := range v {
			v[i] = f(float64(i))
		}
		return v
	}
	noise := column(func(i float64) float64 { return math.Trunc(1e9 * (1 + math.Mod(i*0.6180339887498949, 1))) })
	from := func(f func(x float64) float64) []float64 {
		return column(func(i float64) float64 { return f(noise[int(i)]) })
	}
	odds := column(func(i float64) float64 { return odd[int(i)%len(odd)] })
	patched := column(func(i float64) float64 {
		switch i {
		case 3:
			return staleNaN
		case 4:
			return math.Copysign(0, -1)
		}
		return 5 * i
	})
	h := make([]series.Histogram, rows)
	for i := range h {
		h[i] = series.Histogram{Schema: 3, ZeroThreshold: 1e-128, ZeroCount: float64(i), Count: float64(6 * i), Sum: float64(i) / 8,
			PositiveSpans: []int32{-2, 2, 5, 1}, PositiveBuckets: []float64{float64(i), float64(2 * i), float64(i)}, NegativeSpans: []int32{0, 1}, NegativeBuckets: []float64{float64(i)}}
		if i >= 30 {
			h[i] = series.Histogram{Schema: series.CustomBounds, Count: float64(i), Sum: 1, PositiveSpans: []int32{1, 1}, PositiveBuckets: []float64{float64(i)}, CustomValues: []float64{0.5, 1}}
		}
	}
	one := func(agent, unit string, typ series.Type, c Columns, l ...string) *Series {
		return &Series{ID: series.ID{Agent: agent, Unit: unit, Type: typ, Labels: labels(l...)}, Columns: c}
	}
	return []*Series{
		one("host-1", "", series.Gauge, Columns{T: t, V: column(func(float64) float64 { return 1 })}, nameLabel, "up", "instance", "host-1:9100", "job", "node"),
		one("host-2", "", series.Gauge, Columns{T: late, V: patched}, nameLabel, "up", "instance", "host-2:9100", "job", "node"),
		one("host-1", "s", series.Counter, Columns{T: t, V: column(func(i float64) float64 { return i * 0.25 }), Start: start}, nameLabel, "cpu_seconds_total", "cpu", "0"),
		one("host-1", "s", series.Counter, Columns{T: t, V: column(func(i float64) float64 { return i * 0.1 })}, nameLabel, "cpu_seconds_total", "cpu", "1"),
		one("host-1", "By", series.Gauge, Columns{T: t, V: noise}, nameLabel, "mem_free"),
		one("host-1", "By", series.Gauge, Columns{T: t, V: from(func(x float64) float64 { return 8589934592 - x })}, nameLabel, "mem_used"),
		one("host-1", "", series.Gauge, Columns{T: t, V: from(func(x float64) float64 { return x * 100 / 8589934592 })}, nameLabel, "mem_free_percent"),
		one("host-1", "By", series.Gauge, Columns{T: t, V: noise}, nameLabel, "mem_free_again"),
		one("host-1", "By", series.Gauge, Columns{T: t, V: column(func(i float64) float64 { return 4096 * math.Trunc(i*i) })}, nameLabel, "pages"),
		one("host-1", "", series.Unknown, Columns{T: t, V: odds}, nameLabel, "odd"),
		one("host-1", "", series.Unknown, Columns{T: t, V: column(math.Sqrt)}, nameLabel, "root"),
		one("host-1", "", series.Gauge, Columns{T: t, V: column(func(i float64) float64 { return math.Trunc(i / 13) })}, nameLabel, "rare"),
		one("host-1", "s", series.HistogramCumulative, Columns{T: t, H: h}, nameLabel, "latency"),
	}
}

func goldenRolled() []*Series {
	const rows = 12
	c := Columns{}
	floats := func(f func(i float64) float64) []float64 {
		v := make([]float64, rows)
		for i := range v {
			v[i] = f(float64(i))
		}
		return v
	}
	for i := range rows {
		c.T = append(c.T, 1_800_000_000_000_000_000+int64(i)*300e9)
		c.Count, c.Stale = append(c.Count, 30), append(c.Stale, uint32(i/11))
		c.FirstT, c.LastT = append(c.FirstT, c.T[i]-290e9), append(c.LastT, c.T[i])
	}
	counter, gauge, grows, hist := c, c, c, c
	counter.First, counter.Last = floats(func(i float64) float64 { return 30 * i }), floats(func(i float64) float64 { return 30*i + 29 })
	counter.Increase = floats(func(i float64) float64 { return 29 })
	gauge.First, gauge.Last = floats(math.Sin), floats(math.Cos)
	gauge.Sum, gauge.SumC = floats(func(i float64) float64 { return 30 * math.Sin(i) }), floats(func(float64) float64 { return 0 })
	gauge.Min, gauge.Max = floats(func(float64) float64 { return -1 }), floats(func(float64) float64 { return 1 })
	grows.First, grows.Last = counter.First, counter.Last
	grows.Sum, grows.SumC = floats(func(i float64) float64 { return 30*30*i + 435 }), gauge.SumC
	grows.Min, grows.Max = grows.First, grows.Last
	hs := func(k float64) []series.Histogram {
		out := make([]series.Histogram, rows)
		for i := range out {
			out[i] = series.Histogram{Schema: 0, Count: k * float64(i), Sum: k, PositiveSpans: []int32{0, 1}, PositiveBuckets: []float64{k * float64(i)}}
		}
		return out
	}
	hist.FirstH, hist.LastH, hist.IncreaseH, hist.SumH = hs(1), hs(2), hs(3), hs(4)
	return []*Series{
		{ID: series.ID{Agent: "host-1", Labels: labels(nameLabel, "requests_total"), Type: series.Counter}, Columns: counter},
		{ID: series.ID{Agent: "host-1", Labels: labels(nameLabel, "load"), Type: series.Gauge}, Columns: gauge},
		{ID: series.ID{Agent: "host-1", Labels: labels(nameLabel, "grows"), Type: series.Gauge}, Columns: grows},
		{ID: series.ID{Agent: "host-1", Labels: labels(nameLabel, "latency"), Type: series.HistogramCumulative, Unit: "s"}, Columns: hist},
	}
}

// minimal is the example of docs/format/chunk.md.
func minimal() []*Series {
	return []*Series{{ID: series.ID{Agent: "h", Labels: labels(nameLabel, "up"), Type: series.Gauge},
		Columns: Columns{T: []int64{1_800_000_000_000_000_000, 1_800_000_010_000_000_000, 1_800_000_020_000_000_000}, V: []float64{1, 1, 3}}}}
}

// goldenFile is what the golden files of a name are written from.
type goldenFile struct {
	series []*Series
	opt    Options
}

// goldenFiles gives them by name. Every encoding after the first has one of raw series.
func goldenFiles() map[string]goldenFile {
	files := map[string]goldenFile{
		"raw":     {goldenRaw(), Options{}},
		"parts":   {goldenRaw(), Options{Rows: 16, BlockSeries: 5}},
		"rolled":  {goldenRolled(), Options{}},
		"minimal": {minimal(), Options{}},
	}
	for e := int(Integers) + 1; e <= math.MaxUint8; e++ {
		if codecOf(Encoding(e)) != nil {
			files[fmt.Sprintf("encoding-%d", e)] = goldenFile{goldenRaw(), Options{Encoding: Encoding(e)}}
		}
	}
	return files
}

// TestGoldenFiles: what is published stays readable, and equal series stay equal bytes.
func TestGoldenFiles(t *testing.T) {
	for name, g := range goldenFiles() {
		t.Run(name, func(t *testing.T) {
			f := write(t, g.opt, g.series)
			for ext, got := range map[string][]byte{".lmrollup.zst": f.Chunk, ".lmindex.zst": f.Index} {
				path := filepath.Join("testdata", name+ext)
				if *update {
					if err := os.WriteFile(path, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatalf("%v; -update writes it", err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%s: %d bytes, the golden file has %d others", path, len(got), len(want))
				}
			}
			golden := map[string][]byte{}
			for _, ext := range []string{".lmrollup.zst", ".lmindex.zst"} {
				b, err := os.ReadFile(filepath.Join("testdata", name+ext))
				if err != nil {
					t.Fatal(err)
				}
				golden[ext] = b
			}
			x := readIndex(t, golden[".lmindex.zst"])
			d := NewDecoder(x, Limits{})
			d.Put(0, golden[".lmrollup.zst"])
			if x.Len() != len(g.series) {
				t.Fatalf("%d series, want %d", x.Len(), len(g.series))
			}
			var c Columns
			for _, s := range g.series {
				if _, err := d.Series(find(t, x, s), math.MinInt64, math.MaxInt64, AllColumns, &c); err != nil {
					t.Fatal(err)
				}
				sameColumns(t, s.Name(), &c, &s.Columns)
			}
		})
	}
}

// TestGoldenFilesHaveEveryMode, so that they guard all of the format.
func TestGoldenFilesHaveEveryMode(t *testing.T) {
	seen := map[byte]bool{}
	for _, series := range [][]*Series{goldenRaw(), goldenRolled()} {
		f := write(t, Options{}, series)
		x := readIndex(t, f.Index)
		d := NewDecoder(x, Limits{})
		d.Put(0, f.Chunk)
		for _, p := range x.parts {
			b, err := d.open(d.values, x.blocks, p.block, kindValues)
			if err != nil {
				t.Fatal(err)
			}
			for col := range columns {
				bit := Mask(1) << col
				if b.slots[p.slot].mask&bit == 0 || bit&(histColumns|countColumns|ColStart) != 0 {
					continue
				}
				mode := b.dec.(*integerDecoder).cell(int(p.slot), col)[0]
				if seen[mode&(flagPatches|flagUlps)] = true; mode&0x3f <= maxExponent {
					mode = 0
				}
				seen[mode&0x3f] = true
			}
		}
	}
	for _, mode := range []byte{modeDecimal, modeDyadic, modeBits, modeCopy, modeSum, modeScale, modeDiff, modeSame, flagPatches, flagUlps} {
		if !seen[mode] {
			t.Errorf("no column in mode 0x%02x", mode)
		}
	}
}
