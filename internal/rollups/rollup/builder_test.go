package rollup

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

var testHour = timegrid.HourStarting(time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC))

// batchOf is a decoded frame and its input.
type batchOf struct {
	in accepted.Claim
	f  frame.Batch
}

// randomBatches makes batches of a few agents and boots with overlapping ranges, repeated
// times, several hours and shapes.
func randomBatches(rnd *rand.Rand, n int, overlaps bool) []batchOf {
	base := testHour.StartMS() * 1e6
	var out []batchOf
	next := map[string]uint64{}
	for len(out) < n {
		agent, boot := fmt.Sprintf("a%d", rnd.IntN(3)), fmt.Sprintf("b%d", rnd.IntN(2))
		b := frame.NewBuilder()
		if err := b.SetResource(series.Label{Name: "host", Value: agent}); err != nil {
			panic(err)
		}
		for range 1 + rnd.IntN(4) {
			typ := []series.Type{series.Gauge, series.Counter, series.Unknown, series.HistogramCumulative}[rnd.IntN(4)]
			histograms := typ.Histogram() || typ == series.Unknown && rnd.IntN(3) == 0
			id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: fmt.Sprintf("m%d", rnd.IntN(3))}, {Name: "l", Value: fmt.Sprint(rnd.IntN(2))}},
				typ, "", int64(rnd.IntN(2)))
			if err != nil {
				panic(err)
			}
			t := base + rnd.Int64N(70*60)*1e9
			for range 1 + rnd.IntN(4) {
				if histograms {
					err = b.AppendHistogram(id, t, series.Histogram{Count: float64(rnd.IntN(9)), Sum: 1})
				} else {
					err = b.Append(id, t, float64(rnd.IntN(1000)))
				}
				if err != nil {
					break // a repeated series whose times go back
				}
				t += 1 + rnd.Int64N(3)*30e9
			}
		}
		start := next[agent+boot]
		if overlaps && start > 3 && rnd.IntN(3) == 0 {
			start -= 1 + rnd.Uint64N(3)
		}
		f, err := b.Build(identity.Boot{Agent: agent, Boot: boot}, start)
		if err != nil {
			panic(err)
		}
		id := f.Identity
		if slices.ContainsFunc(out, func(o batchOf) bool { return o.in.Identity == id }) {
			continue
		}
		next[agent+boot] = max(next[agent+boot], id.SeqEnd+1)
		enc, err := frame.Encode(nil, f)
		if err != nil {
			panic(err)
		}
		var own batchOf
		if err := frame.Decode(enc, &own.f, frame.Limits{}); err != nil {
			panic(err)
		}
		own.in = accepted.Claim{Identity: id, AcceptedAt: int64(rnd.IntN(5))}
		out = append(out, own)
	}
	return out
}

type modelRecord struct {
	t, start int64
	in       accepted.Claim
	seq      uint64
	v        float64
	h        series.Histogram
}

// model computes record by record what the builder must give.
func model(bs []batchOf) (map[string][]modelRecord, Counts) {
	var c Counts
	winner := map[string]accepted.Claim{}
	at := func(id identity.Batch, seq uint64) string { return fmt.Sprint(id.BootOf(), seq) }
	for _, b := range bs {
		for seq := b.in.Identity.SeqStart; seq <= b.in.Identity.SeqEnd; seq++ {
			k := at(b.in.Identity, seq)
			if w, ok := winner[k]; !ok || b.in.Wins(w) {
				winner[k] = b.in
			}
		}
	}
	out := map[string][]modelRecord{}
	for i := range bs {
		b := &bs[i]
		seq := b.in.Identity.SeqStart
		for _, g := range b.f.Groups {
			for s := range g.Series {
				for row, t := range g.Timestamps {
					c.Inputs++
					r := modelRecord{t: t, start: g.Series[s].StartTime, in: b.in, seq: seq}
					if g.Histograms != nil {
						r.h = g.Histograms[s*len(g.Timestamps)+row].Clone()
					} else {
						r.v = g.Values[s*len(g.Timestamps)+row]
					}
					seq++
					switch {
					case winner[at(b.in.Identity, r.seq)] != b.in:
						c.Overlapped++
					case !testHour.Holds(timegrid.Millisecond(t)):
						c.OtherHours++
					default:
						typ := g.Series[s].Type
						if typ == series.Unknown && g.Histograms != nil {
							typ = series.HistogramCumulative
						}
						k := fmt.Sprint(b.in.Identity.Agent, b.f.AppendLabels(nil, &g.Series[s]), typ)
						out[k] = append(out[k], r)
					}
				}
			}
		}
	}
	for k, rs := range out {
		slices.SortFunc(rs, func(x, y modelRecord) int {
			return cmp.Or(cmp.Compare(x.t, y.t), x.in.Compare(y.in), cmp.Compare(x.seq, y.seq))
		})
		kept := slices.CompactFunc(rs, func(x, y modelRecord) bool { return x.t == y.t })
		c.Duplicates += uint64(len(rs) - len(kept))
		c.Published += uint64(len(kept))
		out[k] = kept
	}
	return out, c
}

func inputsOf(bs []batchOf) []accepted.Claim {
	inputs := make([]accepted.Claim, len(bs))
	for i := range bs {
		inputs[i] = bs[i].in
	}
	return inputs
}

func batchID(a, b uint64) identity.Batch {
	return identity.Batch{Agent: "a", Boot: "b", SeqStart: a, SeqEnd: b}
}

// elsewhere reports whether a frame has no record in the test's hour.
func elsewhere(f *frame.Batch) bool {
	return !slices.ContainsFunc(f.Groups, func(g frame.Group) bool {
		return slices.ContainsFunc(g.Timestamps, func(t int64) bool { return timegrid.HourOfNS(t) == testHour })
	})
}

// build adds all frames, but for those of other hours where there are several parts.
func build(t *testing.T, bs []batchOf, order []int, parts uint32) ([]chunk.Series, Counts) {
	t.Helper()
	inputs := inputsOf(bs)
	var all []chunk.Series
	var sum Counts
	for p := range parts {
		b := NewBuilder(testHour, inputs, Part{p, parts})
		for _, i := range order {
			err := error(nil)
			if parts > 1 && elsewhere(&bs[i].f) {
				err = b.AddElsewhere(i)
			} else {
				err = b.Add(i, &bs[i].f)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		series, c, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, series...)
		sum.Add(c)
	}
	return all, sum
}

// TestBuilderAgainstModel: overlaps, duplicates, hours and shapes at random, in any order
// of arrival and any number of parts.
func TestBuilderAgainstModel(t *testing.T) {
	for seed := range uint64(150) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		bs := randomBatches(rnd, 2+rnd.IntN(25), seed%3 != 0)
		want, wantCounts := model(bs)
		order := rnd.Perm(len(bs))
		got, counts := build(t, bs, order, 1)
		if counts != wantCounts {
			t.Fatalf("seed %d: counts %+v, want %+v", seed, counts, wantCounts)
		}
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d series, want %d", seed, len(got), len(want))
		}
		for _, s := range got {
			k := fmt.Sprint(s.Agent, s.Labels, s.Type)
			rs := want[k]
			if len(rs) != s.Rows() {
				t.Fatalf("seed %d: %s has %d rows, want %d", seed, k, s.Rows(), len(rs))
			}
			for i, r := range rs {
				start := int64(0)
				if s.Start != nil {
					start = s.Start[i]
				}
				if s.T[i] != r.t || start != r.start {
					t.Fatalf("seed %d: %s row %d at %d from %d, want %d from %d", seed, k, i, s.T[i], start, r.t, r.start)
				}
				if s.H != nil && fmt.Sprint(s.H[i]) != fmt.Sprint(r.h) || s.H == nil && s.V[i] != r.v {
					t.Fatalf("seed %d: %s row %d differs", seed, k, i)
				}
			}
		}
		again, counts2 := build(t, bs, rnd.Perm(len(bs)), 3)
		SortSeries(again)
		if counts2 != counts || !reflect.DeepEqual(again, got) {
			t.Fatalf("seed %d: three parts in another order, without frames of other hours, give something else", seed)
		}
	}
}

// 10-20 and then 15-25 of the design: 15-20 are the first one's.
func TestLostOfTheDesign(t *testing.T) {
	id := batchID
	claim := func(id identity.Batch, at int64) accepted.Claim { return accepted.Claim{Identity: id, AcceptedAt: at} }
	lost := Lost([]accepted.Claim{claim(id(15, 25), 101), claim(id(10, 20), 100), claim(id(30, 40), 5), claim(id(26, 29), 1)})
	if fmt.Sprint(lost) != "[[{15 20}] [] [] []]" {
		t.Errorf("lost %v", lost)
	}
}

func TestBuilderRefuses(t *testing.T) {
	bs := randomBatches(rand.New(rand.NewPCG(1, 1)), 2, false)
	b := NewBuilder(testHour, []accepted.Claim{bs[0].in, bs[1].in}, Part{})
	if err := b.Add(1, &bs[0].f); !errors.Is(err, ErrInput) {
		t.Errorf("another input's frame: %v", err)
	}
	if err := b.Add(0, &bs[0].f); err != nil {
		t.Fatal(err)
	}
	if err := b.Add(0, &bs[0].f); !errors.Is(err, ErrInput) {
		t.Errorf("a second time: %v", err)
	}
	if err := b.AddElsewhere(0); !errors.Is(err, ErrInput) {
		t.Errorf("a second time, without its frame: %v", err)
	}
	if _, _, err := b.Finish(); !errors.Is(err, ErrInput) {
		t.Errorf("one input was not read: %v", err)
	}
	var ce *ConservationError
	if err := (Counts{Inputs: 3, Published: 1, Overlapped: 1}).Conserved(); !errors.As(err, &ce) {
		t.Errorf("a lost record: %v", err)
	}
}
