package promeval_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs: at the edges of windows, where runs of samples meet, in what is left to the engine.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Run: "Test[^M]",
		Mutants: []mutants.Mutant{
			{Name: "a range is closed at its begin", File: "read.go", Old: "low = after(t, low, end-span)", New: "low = after(t, low, end-span-1)", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "a range is open at its end", File: "read.go", Old: "high = after(t, high, end)", New: "high = after(t, high, end-1)", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "a sample as old as the lookback counts", File: "read.go", Old: "t[high-1] > end-span", New: "t[high-1] >= end-span", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "a stale marker is a sample of a range", File: "read.go", Old: "stale := r.fn != nil &&", New: "stale := false &&", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "a stale marker does not end an instant", File: "read.go", Old: "stale := r.fn != nil &&", New: "stale :=", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "a window ends with its run of samples", File: "read.go", Old: "if !last && end > t[len(t)-1] {", New: "if !last && end > t[len(t)-1]+60_000 {", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "the next window lacks what came before its run", File: "read.go", Old: "rest := after(t, 0, r.at.Start+int64(step)*r.at.Step-r.offset-span)", New: "rest := after(t, 0, r.at.Start+int64(step)*r.at.Step-r.offset)", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "the offset is taken the other way", File: "read.go", Old: "end := r.at.Start + int64(step)*r.at.Step - r.offset", New: "end := r.at.Start + int64(step)*r.at.Step + r.offset", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "equal label sets are not looked for", File: "evaluate.go", Old: "	if !named {", New: "	if false {", By: "TestLeftToTheEngine"},
			{Name: "label sets that become equal at the end are not looked for", File: "evaluate.go", Old: "dropped && e.groups.meet()", New: "dropped && false", By: "TestLeftToTheEngine"},
			{Name: "one sample too many", File: "evaluate.go", Old: "e.held += len(e.points); e.held > e.at.MaxSamples", New: "e.held += len(e.points); e.held > e.at.MaxSamples+1", By: "TestSamplesAreLimited"},
			{Name: "samples of a window do not count", File: "read.go", Old: "			size = high - low\n", New: "			size = 0\n", By: "TestSamplesAreLimited"},
			{Name: "a window is not interrupted", File: "read.go", Old: "		if r.work > checkWork {", New: "		if r.work < 0 {", By: "TestTheGuardIsAsked"},
			{Name: "no memory is taken for what is left of slabs", File: "group.go", Old: "		return len(slab{})\n", New: "		return steps\n", By: "TestSlabsAreReserved"},
			{Name: "no memory is taken for groups", File: "evaluate.go", Old: "e.q.Reserve(cellBytes * int64(e.groups.needs(e.steps)))", New: "e.q.Reserve(0)", By: "TestTheGuardIsAsked"},
			{Name: "a series has the points of those before it", File: "evaluate.go", Old: "e.points, begin = res.points[begin:s.end:s.end], s.end", New: "e.points = res.points[begin:s.end:s.end]", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "the samples that a series took do not count", File: "evaluate.go", Old: "if e.held+s.most > e.at.MaxSamples {", New: "if false {", By: "TestSamplesAreLimited"},
			{Name: "groups have the values of another query", File: "group.go", Old: "	clear(cells)\n", New: "", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "groups share values", File: "group.go", Old: "	g.rest = g.rest[steps:]\n", New: "", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "a series has the samples of another query", File: "read.go", Old: "	r.t, r.v = r.t[:0], r.v[:0]\n", New: "", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "a mean overflows with its sum", File: "window.go", Old: "			if !math.IsInf(newSum, 0) {", New: "			if true {", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "an average overflows with its sum", File: "group.go", Old: "		if !math.IsInf(sum, 0) {", New: "		if true {", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "an equal value is a reset", File: "window.go", Old: "v < before {", New: "v <= before {", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "a counter is continued below 0", File: "window.go", Old: "		if toZero < toStart {", New: "		if false {", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "series are grouped by a name that they have lost", File: "shape.go", Old: "	if !dropped {\n", New: "	if true {\n", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "a number on the left stands on the right", File: "shape.go", Old: "	if o.left {", New: "	if false {", By: "TestShapesAreEvaluatedAsByTheEngine"},
			{Name: "@ is overlooked", File: "shape.go", Old: "return v.Timestamp == nil && ", New: "return ", By: "TestOtherShapes"},
		},
	})
}
