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

// TestUnions: several sketches together are what one would be that had seen everything.
func TestUnions(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var a, b, c, all Sketch
	for i := range 3000 {
		h := r.Uint64()
		all.Add(h)
		[]*Sketch{&a, &b, &c}[i%3].Add(h)
	}
	if got, want := EstimateUnion(&a, &b, &c), all.Estimate(); got != want {
		t.Errorf("the union is estimated as %.1f, one sketch of all as %.1f", got, want)
	}
	if !c.Adds(&a, &b) {
		t.Error("1,000 hashes of its own, and nothing new")
	}
	a.Merge(&c)
	if c.Adds(&a, &b) || c.Adds(&b, &a) || (&Sketch{}).Adds(&Sketch{}, &Sketch{}) {
		t.Error("something new, although another sketch has seen everything")
	}
}
