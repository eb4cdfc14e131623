package published_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs in the merge of sources.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Run: "TestMergeIsByTimeAndSource",
		Mutants: []mutants.Mutant{
			{Name: "of rows of one time the first source counts", File: "merge.go", Old: "a == b && x.source < y.source", New: "a == b && x.source > y.source", By: "TestMergeIsByTimeAndSource"},
			{Name: "rows are compared by milliseconds", File: "merge.go", Old: "	if r.ns != nil {\n		return r.ns[row]\n	}\n", New: "", By: "TestMergeIsByTimeAndSource"},
			{Name: "the third source is not asked", File: "merge.go", Old: "second = m.heap[2]", New: "second = m.heap[1]", By: "TestMergeIsByTimeAndSource"},
			{Name: "two rows of one millisecond stay", File: "merge.go", Old: "last >= 0 && m.t[last] == a.t[from]", New: "last >= 0 && m.t[last] > a.t[from]", By: "TestMergeIsByTimeAndSource"},
			{Name: "doubles of one source stay", File: "merge.go", Old: "		if a.doubles {", New: "		if false {", By: "TestMergeIsByTimeAndSource"},
			{Name: "a column that a source lacks has old values", File: "merge.go", Old: "	clear(dst[at:])\n", New: "", By: "TestMergeIsByTimeAndSource"},
		},
	})
}
