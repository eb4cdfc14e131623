package frame

import (
	"math"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// diffBatch compares bit-exactly; nil and empty slices are equal.
func diffBatch(want, got *Batch) string {
	return cmp.Diff(want, got,
		cmpopts.IgnoreUnexported(Batch{}),
		cmpopts.EquateEmpty(),
		cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }))
}
