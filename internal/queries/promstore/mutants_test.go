package promstore_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs at the edges of resolutions: ranges that are open at
// their begin and closed at their end, buckets that end on the stroke, hours of rolled blocks.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Run: "TestRolledDifferential|TestRolledAtTheEdges|TestRowsOfAnOlderGeneration",
		Mutants: []mutants.Mutant{
			{Name: "a range is closed at its begin", File: "evaluation.go", Old: "e.stretches[from].keys[row] <= start {", New: "e.stretches[from].keys[row] < start {", By: "TestRolledDifferential"},
			{Name: "a range is open at its end", File: "evaluation.go", Old: "if s.keys[row] > end {\n				return\n			}\n			switch {", New: "if s.keys[row] >= end {\n				return\n			}\n			switch {", By: "TestRolledAtTheEdges"},
			{Name: "the offset is taken the other way", File: "evaluation.go", Old: "end := t - e.c.Offset", New: "end := t + e.c.Offset", By: "TestRolledDifferential"},
			{Name: "memory is not read at the range's end", File: "rolled.go", Old: "c.End-c.Offset\n	// Samples in memory", New: "c.End-c.Offset-1\n	// Samples in memory", By: "TestRolledDifferential"},
			{Name: "ranges begin anywhere in a bucket", File: "rolled.go", Old: "(c.Start-c.Offset)%w == 0", New: "c.Start%w == 0", By: "TestRolledAtTheEdges"},
			{Name: "steps are no buckets", File: "rolled.go", Old: "c.Step >= w && c.Step%w == 0", New: "c.Step >= w", By: "TestRolledAtTheEdges"},
			{Name: "ranges are no buckets", File: "rolled.go", Old: "c.Range >= w && c.Range%w == 0", New: "c.Range >= w", By: "TestRolledAtTheEdges"},
			{Name: "the last step is left out", File: "rolled.go", Old: "steps = (c.End-c.Start)/c.Step + 1", New: "steps = max((c.End-c.Start)/c.Step, 1)", By: "TestRolledDifferential"},
			{Name: "the last row of a range is not read", File: "../published/rolled.go", Old: "slices.BinarySearch(cols.T, maxt+1)", New: "slices.BinarySearch(cols.T, maxt-nsPerMS+1)", By: "TestRolledDifferential"},
			{Name: "rows of a single resolution are overlooked", File: "../published/rolled.go", Old: "	return len(instead.blocks) > 0", New: "	return len(instead.blocks) > 1", By: "TestRolledAtTheEdges"},
			{Name: "blocks without rows are read", File: "../../rollups/catalog/view.go", Old: "of == nil || of.Unrolled ||", New: "of == nil ||", By: "TestRolledDifferential"},
			{Name: "rows stand in for a newer generation", File: "../../rollups/catalog/view.go", Old: " || of.Name.Generation != raw.Name.Generation || of.PlanSHA256 != raw.PlanSHA256", New: "", By: "TestRowsOfAnOlderGeneration"},
			{Name: "rows stand in where memory has samples", File: "../published/rolled.go", Old: "rolled[i] == nil || raw(h)", New: "rolled[i] == nil", By: "TestRolledDifferential"},
			{Name: "objects that begin with the range are left out", File: "../published/select.go", Old: "o.MinTime <= lastNS(maxt)", New: "o.MinTime < firstNS(maxt)", By: "TestRolledAtTheEdges"},
			{Name: "series of two regions are two", File: "others.go", Old: "if i < len(found) && labels.Equal(found[i].labels, s.Labels) {", New: "if false && labels.Equal(found[i].labels, s.Labels) {", By: "TestSamplesOfRegionsAreMergedByTime"},
			{Name: "what is behind the last series of another region is dropped", File: "others.go", Old: "found = append(out, found[i:]...)", New: "found = out", By: "TestSamplesOfRegionsAreMergedByTime"},
			{Name: "samples of a region come before all others", File: "others.go", Old: "case t < r.heads[first].run.T[0]:", New: "case false:", By: "TestSamplesOfRegionsAreMergedByTime"},
			{Name: "a run is taken whole though another region has samples between", File: "others.go", Old: "	if !others {", New: "	if true {", By: "TestSamplesOfRegionsAreMergedByTime"},
			{Name: "of two samples of one time both are shown", File: "others.go", Old: "if o := &r.heads[i]; i != first && len(o.run.T) > 0 && o.run.T[0] == next {", New: "if o := &r.heads[i]; i == first && len(o.run.T) > 0 && o.run.T[0] == next {", By: "TestSamplesOfRegionsAreMergedByTime"},
			{Name: "the greater name wins", File: "others.go", Old: "r.heads[i].region < r.heads[i-1].region; i-- {", New: "r.heads[i].region > r.heads[i-1].region; i-- {", By: "TestSamplesOfRegionsAreMergedByTime"},
			{Name: "values of series that meet are put together", File: "everywhere.go", Old: "case order == 0:\n			return nil, false", New: "case order == 0:\n			out, a = append(out, a[0]), a[1:]", By: "TestValuesOfRegionsAreApart"},
			{Name: "objects that end with the range are left out", File: "../published/select.go", Old: "o.MaxTime >= firstNS(mint)", New: "o.MaxTime > lastNS(mint)", By: "TestRolledAtTheEdges"},
		},
	})
}
