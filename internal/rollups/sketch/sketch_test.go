package sketch

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestSketchEstimates holds estimates to four standard errors, over the whole range and
// both changes of regime of the older estimators.
func TestSketchEstimates(t *testing.T) {
	const standardError = 0.023
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 10, 100, 1000, 3000, 5000, 8000, 20_000, 200_000, 2_000_000} {
		var s Sketch
		for range n {
			s.Add(r.Uint64())
		}
		if got := s.Estimate(); math.Abs(got-float64(n)) > max(0.6, 4*standardError*float64(n)) {
			t.Errorf("%d different hashes are estimated as %.1f", n, got)
		}
	}
}

func TestSketchMergeIsTheUnion(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var a, b, both Sketch
	for i := range 10_000 {
		h := r.Uint64()
		both.Add(h)
		if i%3 != 0 {
			a.Add(h)
		}
		if i%3 != 1 {
			b.Add(h)
		}
	}
	a.Merge(&b)
	if a != both {
		t.Error("the merge of two sketches is not the sketch of both")
	}
}
