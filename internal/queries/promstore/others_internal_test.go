package promstore

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/foreign"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// sent is what a region sends of series, each with some samples.
func sent(t *testing.T, series map[string]samples.Run) []foreign.Series {
	t.Helper()
	r := foreign.Reader{Mint: math.MinInt64, Maxt: math.MaxInt64}
	left := foreign.Limits{Series: 1e9, Samples: 1e9, Bytes: 1e9}
	w := foreign.Writer{Emit: func(b []byte) error { return r.Block(b, &left) }}
	names := make([]string, 0, len(series))
	for name := range series {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		run := series[name]
		if err := w.Series(labels.FromStrings("__name__", name), agentlabel.Seen{}); err != nil {
			t.Fatal(err)
		}
		if len(run.T) == 0 {
			continue
		}
		// In pieces, as runs come.
		for len(run.T) > 0 {
			piece := run.Take(min(len(run.T), 37))
			if err := w.Run(&piece); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return r.Series()
}

// TestSamplesOfRegionsAreMergedByTime: a series that several regions have is one, in time order; of two samples of one
// millisecond that of the region with the lesser name is there, whichever region asks.
func TestSamplesOfRegionsAreMergedByTime(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		names := []string{"ap", "eu", "us"}[:1+rnd.IntN(3)]
		want := map[string]map[int64]float64{}
		var parts []Part
		for i, region := range names {
			of := map[string]samples.Run{}
			for s := range 5 {
				if rnd.IntN(4) == 0 {
					continue
				}
				name, run := fmt.Sprint("m", s), samples.Run{}
				if want[name] == nil {
					want[name] = map[int64]float64{}
				}
				// Stretches by turns, as agents move; now and then the same times as elsewhere.
				for at := rnd.Int64N(50); at < 3000; at += 1 + rnd.Int64N(20) {
					if rnd.IntN(30) == 0 {
						at += rnd.Int64N(500)
					}
					run.T, run.V = append(run.T, at), append(run.V, float64(i)*1e6+float64(at))
					if _, ok := want[name][at]; !ok { // regions come by name
						want[name][at] = run.V[len(run.V)-1]
					}
				}
				of[name] = run
			}
			parts = append(parts, Part{Region: region, Series: sent(t, of)})
		}
		// The order in which regions answer must not matter.
		rnd.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		found := joinParts("zz", nil, parts)
		if len(found) != len(want) || !slices.IsSortedFunc(found, func(a, b merged) int { return labels.Compare(a.labels, b.labels) }) {
			t.Fatalf("seed %d: %d series, want %d", seed, len(found), len(want))
		}
		var in runs
		for i := range found {
			name := found[i].labels.Get("__name__")
			mint, maxt, skip := int64(0), int64(3600), int64(0)
			if rnd.IntN(2) == 0 {
				mint, maxt = rnd.Int64N(1000), 1000+rnd.Int64N(1000)
				skip = mint + rnd.Int64N(900)
			}
			in.reset(&found[i], mint, maxt)
			in.SkipTo(skip)
			before, n := int64(-1), 0
			for run, ok := in.Next(); ok; run, ok = in.Next() {
				for k, at := range run.T {
					if at <= before || at < mint || at > maxt || run.V[k] != want[name][at] {
						t.Fatalf("seed %d, %s at %d after %d: %v, want %v", seed, name, at, before, run.V[k], want[name][at])
					}
					before = at
					n++
				}
			}
			all := 0
			for at := range want[name] {
				if at >= max(mint, skip) && at <= maxt {
					all++
				}
			}
			if in.Err() != nil || n != all {
				t.Fatalf("seed %d, %s: %d samples, want %d; %v", seed, name, n, all, in.Err())
			}
		}
	}
}

// TestValuesOfRegionsAreApart: values are put together only where no two regions have a series, with a value or without.
func TestValuesOfRegionsAreApart(t *testing.T) {
	one := func(name string, values bool) RolledSeries {
		s := RolledSeries{full: labels.FromStrings("__name__", "m", "a", name)}
		if values {
			s.t, s.v = []int64{1}, []float64{1}
		}
		return s
	}
	a := []RolledSeries{one("1", true), one("3", false)}
	if got, ok := disjoint(a, []RolledSeries{one("2", true), one("4", true)}, true); !ok || len(got) != 4 || got[1].full.Get("a") != "2" {
		t.Errorf("%v %v", got, ok)
	}
	for _, b := range [][]RolledSeries{{one("1", true)}, {one("3", true)}, {one("1", false)}, {one("2", true), one("3", false)}} {
		if _, ok := disjoint(a, b, true); ok {
			t.Errorf("%v and %v are apart", a, b)
		}
	}
	if _, ok := disjoint(a, nil, false); ok {
		t.Error("what is not known is apart")
	}
}

// TestThinnedSamplesAreEnough: at each of the times the last sample of what is left is that of all, whatever the runs are; and
// hardly any other is left.
func TestThinnedSamplesAreEnough(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 13))
		in := Instants{Start: 500 + rnd.Int64N(1000), Step: 1 + rnd.Int64N(100)}
		if in.End = in.Start + in.Step*rnd.Int64N(20); rnd.IntN(4) == 0 {
			in.Step, in.End = 0, in.Start
		}
		var all, left []int64
		runs := 0
		for at := rnd.Int64N(600); at < 3000; runs++ {
			run := samples.Run{}
			for n := 1 + rnd.IntN(30); n > 0 && at < 3000; n-- {
				run.T, run.V = append(run.T, at), append(run.V, float64(at))
				if rnd.IntN(3) == 0 {
					at = max(at+1, in.Start+in.Step*rnd.Int64N(3)) // on a time
				} else {
					at += 1 + rnd.Int64N(40)
				}
			}
			all = append(all, run.T...)
			thin := in.Thin(&run)
			for i, at := range thin.T {
				if thin.V[i] != float64(at) {
					t.Fatalf("seed %d: the value of %d is %v", seed, at, thin.V[i])
				}
			}
			left = append(left, thin.T...)
		}
		last := func(of []int64, at int64) int64 {
			i, found := slices.BinarySearch(of, at)
			if found {
				return of[i]
			}
			if i == 0 {
				return -1
			}
			return of[i-1]
		}
		times := 0
		for at := in.Start; at <= in.End; at += max(in.Step, 1) {
			if last(left, at) != last(all, at) {
				t.Fatalf("seed %d: at %d of %+v the last is %d, want %d", seed, at, in, last(left, at), last(all, at))
			}
			times++
		}
		if len(left) > times+runs {
			t.Errorf("seed %d: %d samples are left for %d times of %d runs", seed, len(left), times, runs)
		}
	}
}
