package foreign_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/internal/queries/foreign"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// one is a series with its runs.
type one struct {
	labels labels.Labels
	agents agentlabel.Seen
	runs   []samples.Run
}

// draw makes series of all kinds, sorted.
func draw(rnd *rand.Rand, n int) (out []one) {
	for i := range n {
		s := one{labels: labels.FromStrings("__name__", fmt.Sprintf("m%03d", i), "job", fmt.Sprint(i%3), "text", string([]byte{0xff, 'x'}))}
		if i%4 == 0 {
			s.agents = agentlabel.Seen{One: "a", Other: "b"}
		}
		t := rnd.Int64N(1e12) - 5e11
		hist := func() *histogram.FloatHistogram {
			switch rnd.IntN(5) {
			case 0:
				return &histogram.FloatHistogram{Sum: math.Float64frombits(value.StaleNaN)}
			case 1:
				return &histogram.FloatHistogram{Schema: histogram.CustomBucketsSchema, Count: 5, Sum: rnd.NormFloat64(), CustomValues: []float64{-1, 0.5, 9},
					PositiveSpans: []histogram.Span{{Offset: 1, Length: 2}}, PositiveBuckets: []float64{2, 3}, CounterResetHint: histogram.GaugeType}
			}
			return &histogram.FloatHistogram{Schema: int32(rnd.IntN(3)), ZeroThreshold: 1e-3, ZeroCount: 1, Count: rnd.Float64() * 100, Sum: rnd.NormFloat64(),
				PositiveSpans: []histogram.Span{{Offset: -2, Length: 1}, {Offset: 3, Length: 2}}, PositiveBuckets: []float64{1, rnd.Float64(), 3},
				NegativeSpans: []histogram.Span{{Offset: 0, Length: 1}}, NegativeBuckets: []float64{4}}
		}
		v := 0.0
		for range 1 + rnd.IntN(3) {
			run := samples.Run{}
			kind := rnd.IntN(3)
			if kind > 0 {
				run.H = []*histogram.FloatHistogram{}
			}
			starts := rnd.IntN(3)
			if run.ST = 0; starts == 1 {
				run.ST = -7
			}
			for range 1 + rnd.IntN(1500) {
				t += 1 + rnd.Int64N(20_000)
				switch rnd.IntN(20) {
				case 0:
					v = rnd.NormFloat64()
				case 1:
					v = math.Float64frombits(value.StaleNaN)
				case 2:
					v = math.Float64frombits(0x7ff8000000000abc) // a NaN of its own
				case 3:
					v = math.Copysign(0, -1)
				case 4:
					v = math.Inf(1)
				default:
					v += float64(rnd.IntN(10))
				}
				run.T = append(run.T, t)
				if kind == 1 || kind == 2 && rnd.IntN(2) == 0 {
					run.V, run.H = append(run.V, 0), append(run.H, hist())
				} else {
					run.V = append(run.V, v)
					if kind > 0 {
						run.H = append(run.H, nil)
					}
				}
				if starts == 2 {
					run.STs = append(run.STs, rnd.Int64()-rnd.Int64())
				}
			}
			s.runs = append(s.runs, run)
		}
		out = append(out, s)
	}
	return out
}

// write gives the blocks of series.
func write(t testing.TB, list []one) (blocks [][]byte) {
	w := foreign.Writer{Emit: func(b []byte) error { blocks = append(blocks, b); return nil }}
	for _, s := range list {
		if err := w.Series(s.labels, s.agents); err != nil {
			t.Fatal(err)
		}
		for i := range s.runs {
			if err := w.Run(&s.runs[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return blocks
}

func noLimits() *foreign.Limits {
	return &foreign.Limits{Series: math.MaxInt64, Samples: math.MaxInt64, Bytes: math.MaxInt64}
}

func read(blocks [][]byte, left *foreign.Limits) ([]foreign.Series, error) {
	r := foreign.Reader{Mint: math.MinInt64, Maxt: math.MaxInt64}
	for _, b := range blocks {
		if err := r.Block(b, left); err != nil {
			return nil, err
		}
	}
	return r.Series(), nil
}

// sample is one of a series with everything that a query sees of it.
type sample struct {
	t, st int64
	bits  uint64
	hist  string
}

func flat(run *samples.Run, into []sample) []sample {
	for i, t := range run.T {
		s := sample{t: t, st: run.ST}
		if run.STs != nil {
			s.st = run.STs[i]
		}
		if run.H != nil && run.H[i] != nil {
			h := run.H[i]
			s.hist = fmt.Sprint(h.Schema, h.CounterResetHint == histogram.GaugeType, math.Float64bits(h.Sum), h.Count, h.ZeroCount, h.ZeroThreshold, h.PositiveSpans, h.PositiveBuckets, h.NegativeSpans, h.NegativeBuckets, h.CustomValues)
		} else {
			s.bits = math.Float64bits(run.V[i])
		}
		into = append(into, s)
	}
	return into
}

// TestSeriesComeBack: what is written is read, to the last bit, whole and in ranges, by blocks however they are cut.
func TestSeriesComeBack(t *testing.T) {
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		list := draw(rnd, 40)
		blocks := write(t, list)
		got, err := read(blocks, noLimits())
		if err != nil || len(got) != len(list) {
			t.Fatalf("seed %d: %d series, %v", seed, len(got), err)
		}
		var runs foreign.Runs
		for i := range got {
			var want []sample
			for k := range list[i].runs {
				want = flat(&list[i].runs[k], want)
			}
			if !labels.Equal(got[i].Labels, list[i].labels) || got[i].Agents != list[i].agents || got[i].Samples() != len(want) {
				t.Fatalf("seed %d: %v of %v, %d samples, want %d", seed, got[i].Labels, got[i].Agents, got[i].Samples(), len(want))
			}
			first, last := got[i].Times()
			if first != want[0].t || last != want[len(want)-1].t {
				t.Errorf("times %d to %d", first, last)
			}
			for range 4 {
				mint, maxt, skip := first-1, last+1, int64(math.MinInt64)
				if rnd.IntN(4) > 0 {
					mint = first + rnd.Int64N(last-first+1)
					maxt = mint + rnd.Int64N(last-mint+1)
				}
				if rnd.IntN(3) == 0 {
					skip = mint + rnd.Int64N(maxt-mint+1)
				}
				runs.Reset(&got[i], mint, maxt)
				runs.SkipTo(skip)
				var have []sample
				for run, ok := runs.Next(); ok; run, ok = runs.Next() {
					have = flat(&run, have)
				}
				in := slices.DeleteFunc(slices.Clone(want), func(s sample) bool { return s.t < max(mint, skip) || s.t > maxt })
				if runs.Err() != nil || !slices.Equal(have, in) {
					t.Fatalf("seed %d, series %d, %d to %d from %d: %d samples, want %d; %v", seed, i, mint, maxt, skip, len(have), len(in), runs.Err())
				}
			}
		}
	}
}

// TestCountersAreSmall: a counter that is scraped every so often takes a few bytes a sample.
func TestCountersAreSmall(t *testing.T) {
	run, v := samples.Run{}, 0.0
	for i := range 10_000 {
		v += float64(i % 7)
		run.T, run.V = append(run.T, 1e12+int64(i)*15_000), append(run.V, v)
	}
	n := 0
	for _, b := range write(t, []one{{labels: labels.FromStrings("a", "b"), runs: []samples.Run{run}}}) {
		n += len(b)
	}
	if each := float64(n) / 10_000; each > 4.5 {
		t.Errorf("%.1f bytes a sample", each)
	}
}

// TestBadBytesAreRefused: no bytes are taken for series that are none, in whatever place they are damaged: they are refused as
// such, or say what a writer might have said.
func TestBadBytesAreRefused(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	block := slices.Concat(write(t, draw(rnd, 6))...)
	refused := 0
	for range 1500 {
		b := slices.Clone(block)
		switch rnd.IntN(3) {
		case 0:
			b[rnd.IntN(len(b))] ^= byte(1 << rnd.IntN(8))
		case 1:
			b = b[:rnd.IntN(len(b))]
		default:
			i := rnd.IntN(len(b))
			b = slices.Insert(b, i, b[rnd.IntN(len(b))])
		}
		got, err := read([][]byte{b}, noLimits())
		var bad *foreign.BadError
		if errors.As(err, &bad) {
			refused++
			continue
		}
		if err != nil {
			t.Fatalf("%v is not typed", err)
		}
		readable(t, got)
	}
	if refused < 800 {
		t.Errorf("%d of 1,500 were refused", refused)
	}
}

// readable wants what was taken to be read without an error, in order.
func readable(t testing.TB, got []foreign.Series) {
	var runs foreign.Runs
	for i := range got {
		if got[i].Samples() == 0 {
			continue
		}
		n, before := 0, int64(math.MinInt64)
		runs.Reset(&got[i], math.MinInt64, math.MaxInt64)
		for run, ok := runs.Next(); ok; run, ok = runs.Next() {
			for k, at := range run.T {
				if at <= before && n > 0 {
					t.Fatal("times do not ascend")
				}
				before = at
				n++
				if run.H != nil && run.H[k] != nil {
					for it := run.H[k].AllBucketIterator(); it.Next(); {
						_ = it.At()
					}
				}
			}
		}
		if runs.Err() != nil || n != got[i].Samples() {
			t.Fatalf("%d of %d samples, %v", n, got[i].Samples(), runs.Err())
		}
	}
}

// TestReadersAreBounded: each limit ends the reading.
func TestReadersAreBounded(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 4))
	blocks := write(t, draw(rnd, 10))
	for what, l := range map[string]foreign.Limits{
		"series": {Series: 9, Samples: 1e9, Bytes: 1e9}, "samples": {Series: 1e9, Samples: 100, Bytes: 1e9}, "bytes": {Series: 1e9, Samples: 1e9, Bytes: 100},
	} {
		var over *foreign.ExceededError
		if _, err := read(blocks, &l); !errors.As(err, &over) || over.What != what {
			t.Errorf("%s: %v", what, err)
		}
	}
	full := errors.New("full")
	r := foreign.Reader{Mint: math.MinInt64, Maxt: math.MaxInt64, Reserve: func(n int64) error {
		if n < int64(len(blocks[0])) {
			t.Errorf("%d bytes are reserved for %d", n, len(blocks[0]))
		}
		return full
	}}
	if err := r.Block(blocks[0], noLimits()); !errors.Is(err, full) {
		t.Error(err)
	}
	r = foreign.Reader{Mint: 0, Maxt: 1}
	var bad *foreign.BadError
	if err := r.Block(blocks[0], noLimits()); !errors.As(err, &bad) {
		t.Errorf("other times: %v", err)
	}
}

func FuzzReader(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, b := range write(f, draw(rnd, 3)) {
		f.Add(b[:min(len(b), 2000)])
	}
	f.Add([]byte{1, 0, 0, 2, 1, 2, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := read([][]byte{b}, noLimits())
		var bad *foreign.BadError
		if err != nil && !errors.As(err, &bad) {
			t.Fatalf("%v is not typed", err)
		}
		readable(t, got)
	})
}

func BenchmarkSeries(b *testing.B) {
	var list []one
	for i := range 100 {
		s := one{labels: labels.FromStrings("__name__", "c_total", "i", fmt.Sprintf("%03d", i)), runs: make([]samples.Run, 1)}
		for k := range 1000 {
			s.runs[0].T, s.runs[0].V = append(s.runs[0].T, int64(k)*15_000), append(s.runs[0].V, float64(k*i))
		}
		list = append(list, s)
	}
	blocks := write(b, list)
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			write(b, list)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/sample")
	})
	b.Run("check", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := read(blocks, noLimits()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/sample")
	})
}
