package rollup

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
)

// TestExtendEqualsRecomputation: the former generation and the new inputs give what all
// inputs give, or say that they can't.
func TestExtendEqualsRecomputation(t *testing.T) {
	extended := 0
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 6))
		bs := randomBatches(rnd, 2+rnd.IntN(12), seed%4 == 0)
		cut := 1 + rnd.IntN(len(bs)-1)
		make := func(bs []batchOf) ([]chunk.Series, Counts, []accepted.Claim) {
			in := inputsOf(bs)
			b := NewBuilder(testHour, in, Part{})
			for i := range bs {
				if err := b.Add(i, &bs[i].f); err != nil {
					t.Fatal(err)
				}
			}
			ss, c, err := b.Finish()
			if err != nil {
				t.Fatal(err)
			}
			return ss, c, in
		}
		old, counts, oldIn := make(bs[:cut])
		fresh, more, freshIn := make(bs[cut:])
		want, wantCounts, _ := make(bs)
		if !Extendable(oldIn, freshIn) {
			continue
		}
		got, ok := Extend(old, fresh)
		counts.Add(more)
		if !ok {
			if wantCounts == counts {
				t.Fatalf("seed %d: not extended for a duplicate that is not there", seed)
			}
			continue
		}
		extended++
		if counts != wantCounts || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %+v, want %+v\n%+v\nwant\n%+v", seed, counts, wantCounts, got, want)
		}
	}
	if extended < 50 {
		t.Errorf("%d of 400 were extended", extended)
	}
}

// An old batch that loses a number, and a fresh one that does, forces a new reading.
func TestOverlapIsNotExtendable(t *testing.T) {
	in := func(a, b uint64, at int64) accepted.Claim {
		return accepted.Claim{Identity: batchID(a, b), AcceptedAt: at}
	}
	for _, at := range []int64{1, 9} {
		if Extendable([]accepted.Claim{in(0, 9, 5)}, []accepted.Claim{in(9, 12, at)}) {
			t.Errorf("accepted at %d", at)
		}
	}
	if !Extendable([]accepted.Claim{in(0, 9, 5), in(5, 9, 6)}, []accepted.Claim{in(10, 12, 1), in(12, 13, 2)}) {
		t.Error("overlaps among the old and among the fresh are decided apart")
	}
}
