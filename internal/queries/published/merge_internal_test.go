package published

import (
	"cmp"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// sorted is the run of all rows by its definition: sorted by nanoseconds and then by source, the last of each
// millisecond.
func sorted(sources []source) samples.Run {
	type row struct {
		ns, st int64
		source int
		v      float64
		h      *histogram.FloatHistogram
	}
	var rows []row
	var run samples.Run
	floats, hists, starts := false, false, false
	for k := range sources {
		a := &sources[k]
		for i := range a.t {
			x := row{ns: a.nanoseconds(i), source: k}
			if a.h != nil {
				x.h, hists = a.h[i], true
			} else {
				x.v, floats = a.v[i], true
			}
			if a.st != nil {
				x.st, starts = a.st[i], true
			}
			rows = append(rows, x)
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.ns, b.ns), cmp.Compare(a.source, b.source)) })
	for i, x := range rows {
		if i+1 < len(rows) && timegrid.Millisecond(rows[i+1].ns) == timegrid.Millisecond(x.ns) {
			continue
		}
		run.T = append(run.T, timegrid.Millisecond(x.ns))
		if floats {
			run.V = append(run.V, x.v)
		}
		if hists {
			run.H = append(run.H, x.h)
		}
		if starts {
			run.STs = append(run.STs, x.st)
		}
	}
	return run
}

// draw makes sources whose rows are apart, overlap or are equal, as samples of some agents are.
func draw(rng *rand.Rand) []source {
	sources := make([]source, rng.IntN(6))
	for k := range sources {
		a := &sources[k]
		ns := rng.Int64N(40) * 500_000
		exact := rng.IntN(2) == 0
		float, start := rng.IntN(4) > 0, rng.IntN(3) == 0
		for range rng.IntN(12) {
			ns += 1 + rng.Int64N(1<<rng.IntN(24))
			if exact {
				ns = (ns + nsPerMS - 1) / nsPerMS * nsPerMS
			}
			t := timegrid.Millisecond(ns)
			a.doubles = a.doubles || len(a.t) > 0 && a.t[len(a.t)-1] == t
			a.t = append(a.t, t)
			if !exact {
				a.ns = append(a.ns, ns)
			}
			if float {
				a.v = append(a.v, rng.Float64())
			} else {
				a.h = append(a.h, &histogram.FloatHistogram{Count: rng.Float64()})
			}
			if start {
				a.st = append(a.st, rng.Int64())
			}
		}
	}
	return sources
}

// TestMergeIsByTimeAndSource: the run of sources is what sorting all of their rows gives, also where the memory of an
// earlier run is used again.
func TestMergeIsByTimeAndSource(t *testing.T) {
	var m merge
	for seed := range uint64(5000) {
		sources := draw(rand.New(rand.NewPCG(seed, 0)))
		got, want := m.run(sources), sorted(sources)
		if !slices.Equal(got.T, want.T) || !slices.Equal(got.V, want.V) || !slices.Equal(got.H, want.H) || !slices.Equal(got.STs, want.STs) {
			t.Fatalf("seed %d: %v\nwant %v\nof %v", seed, got, want, sources)
		}
		if (got.V == nil) != (want.V == nil) || (got.H == nil) != (want.H == nil) || (got.STs == nil) != (want.STs == nil) {
			t.Fatalf("seed %d: columns of %v, want those of %v", seed, reflect.ValueOf(got), reflect.ValueOf(want))
		}
	}
}

// BenchmarkMerge: an hour of two sources, one after the other and row by row in turns.
func BenchmarkMerge(b *testing.B) {
	for name, at := range map[string]func(k, i int) int64{
		"apart":    func(k, i int) int64 { return int64(k*180+i) * 10_000 },
		"in-turns": func(k, i int) int64 { return int64(2*i+k) * 10_000 },
	} {
		sources := make([]source, 2)
		for k := range sources {
			for i := range 180 {
				sources[k].t, sources[k].v = append(sources[k].t, at(k, i)), append(sources[k].v, float64(i))
			}
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var m merge
			for b.Loop() {
				m.run(sources)
			}
		})
		b.Run(name+"/by-sorting", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sorted(sources)
			}
		})
	}
}
