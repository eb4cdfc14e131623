package rollup

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
)

// TestExtendEqualsRecomputation: the former generation and the new inputs give what all
// inputs give, or say that they can't.
func TestExtendEqualsRecomputation(t *testing.T) {
	extended, losing := 0, 0
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 6))
		bs := randomBatches(rnd, 2+rnd.IntN(12), seed%4 == 0)
		cut := 1 + rnd.IntN(len(bs)-1)
		make := func(bs []batchOf, lost [][]ledger.Range) ([]chunk.Series, Counts) {
			b := NewBuilder(testHour, inputsOf(bs), Part{})
			for i, l := range lost {
				b.Lose(i, l)
			}
			for i := range bs {
				if err := b.Add(i, &bs[i].f); err != nil {
					t.Fatal(err)
				}
			}
			ss, c, err := b.Finish()
			if err != nil {
				t.Fatal(err)
			}
			return ss, c
		}
		old, counts := make(bs[:cut], nil)
		want, wantCounts := make(bs, nil)
		oldIn, freshIn := inputsOf(bs[:cut]), inputsOf(bs[cut:])
		lost, ok := Losses(oldIn, freshIn)
		if ok != (len(Winners(oldIn, freshIn)) == 0) {
			t.Fatalf("seed %d: extendable %v, and %v win", seed, ok, Winners(oldIn, freshIn))
		}
		if !ok {
			continue
		}
		fresh, more := make(bs[cut:], lost)
		got, both := Extend(old, fresh)
		counts.Add(more)
		if both != nil {
			if wantCounts == counts {
				t.Fatalf("seed %d: not extended for a duplicate that is not there", seed)
			}
			continue
		}
		extended++
		if apart := Lost(freshIn); !reflect.DeepEqual(apart, lost) {
			losing++
		}
		if counts != wantCounts || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %+v, want %+v\n%+v\nwant\n%+v", seed, counts, wantCounts, got, want)
		}
	}
	if extended < 50 || losing < 5 {
		t.Errorf("%d of 400 were extended, %d by inputs that lose numbers to old ones", extended, losing)
	}
}

// An old batch that loses a number forces a new reading; a fresh one that does leaves the number out.
func TestOverlapThatIsExtendable(t *testing.T) {
	in := func(a, b uint64, at int64) accepted.Claim {
		return accepted.Claim{Identity: batchID(a, b), AcceptedAt: at}
	}
	for _, c := range []struct {
		old, fresh []accepted.Claim
		wins       []int
		lost       [][]ledger.Range
	}{
		{old: []accepted.Claim{in(0, 9, 5)}, fresh: []accepted.Claim{in(9, 12, 1)}, wins: []int{0}},
		{old: []accepted.Claim{in(0, 9, 5)}, fresh: []accepted.Claim{in(9, 12, 9)}, lost: [][]ledger.Range{{{Start: 9, End: 9}}}},
		{old: []accepted.Claim{in(0, 9, 5)}, fresh: []accepted.Claim{in(9, 12, 9), in(20, 21, 9), in(9, 9, 4)}, wins: []int{2}},
		// Overlaps among the old and among the fresh are decided apart.
		{old: []accepted.Claim{in(0, 9, 5), in(5, 9, 6)}, fresh: []accepted.Claim{in(10, 12, 1), in(12, 13, 2)}, lost: [][]ledger.Range{nil, {{Start: 12, End: 12}}}},
		// A number that another old one had won already is no loss, nor is it one that the losses come in other ranges.
		{old: []accepted.Claim{in(0, 9, 5), in(5, 12, 7)}, fresh: []accepted.Claim{in(8, 9, 6)}, lost: [][]ledger.Range{{{Start: 8, End: 9}}}},
		{old: []accepted.Claim{in(0, 4, 1), in(5, 9, 2), in(2, 7, 9)}, fresh: []accepted.Claim{in(4, 5, 3)}, lost: [][]ledger.Range{{{Start: 4, End: 4}, {Start: 5, End: 5}}}},
	} {
		lost, ok := Losses(c.old, c.fresh)
		if wins := Winners(c.old, c.fresh); ok != (c.wins == nil) || !reflect.DeepEqual(wins, c.wins) || ok && !reflect.DeepEqual(lost, c.lost) {
			t.Errorf("%v and %v: %v, %v, and %v win; want %v, %v", c.old, c.fresh, lost, ok, wins, c.lost, c.wins)
		}
	}
}
