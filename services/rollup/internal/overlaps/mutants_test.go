package overlaps

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of the search for overlapping batches.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "other boots overlap, too", File: "overlaps.go", Old: "if b.Agent != id.Agent || b.Boot != id.Boot {", New: "if b.Agent != id.Agent {", By: "TestInBlock"},
		{Name: "a run is entered one batch late", File: "overlaps.go", Old: "first = (id.SeqStart - r.Start) / r.Records", New: "first = (id.SeqStart-r.Start)/r.Records + 1", By: "TestInBlock"},
		{Name: "a batch overlaps itself", File: "overlaps.go", Old: "if o != id && o.Intersects(id) {", New: "if o.Intersects(id) {", By: "TestInBlock"},
		{Name: "the last batch of a run is passed over", File: "overlaps.go", Old: "k < r.Batches; k++ {", New: "k+1 < r.Batches; k++ {", By: "TestInBlock"},
		{Name: "the neighbour does not learn of it", File: "overlaps.go", Old: "f.Backlog.AddHour(e.Identity, beside, now)", New: "_ = now", By: "TestFind"},
		{Name: "the neighbour does not learn of it from manifests", File: "overlaps.go", Old: "f.Backlog.AddHour(one, beside, now)", New: "_ = one", By: "TestFind"},
		{Name: "the hours of a delta do not learn of it", File: "overlaps.go", Old: "f.Backlog.AddHour(e.Identity, other, now)", New: "_ = other", By: "TestFindInDeltas"},
		{Name: "what a delta has is no input", File: "overlaps.go", Old: "f.Backlog.AddInput(with.Batch, h, now)", New: "_ = h", By: "TestFindInDeltas"},
		{Name: "only the hour after is a neighbour", File: "overlaps.go", Old: "[]timegrid.Hour{h - 1, h + 1}", New: "[]timegrid.Hour{h + 1}", By: "TestFind"},
		{Name: "a damaged neighbour holds the hour up", File: "overlaps.go", Old: "	if record.Unreadable(err) {\n		// The neighbour waits", New: "	if false {\n		// The neighbour waits", By: "TestFind"},
		{Name: "the listing begins at the first number", File: "overlaps.go", Old: "from := pending[0].SeqStart - min(pending[0].SeqStart, uint64(frame.DefaultLimits().Records))", New: "from := pending[0].SeqStart - min(0, uint64(frame.DefaultLimits().Records))", By: "TestFind"},
	}})
}
