package overlaps

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of the search for overlapping batches.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "the first batch of a boot continues it", File: "overlaps.go", Old: "		a.irregular = batches\n		return a", New: "		return a", By: "TestSchedules"},
		{Name: "a number that is there already is ordinary", File: "overlaps.go", Old: "e.SeqStart <= a.high && !expected", New: "e.SeqStart < a.high && !expected", By: "TestSchedules"},
		{Name: "whatever was listed is expected", File: "overlaps.go", Old: "l.SeqStart > last && alone && len", New: "l.SeqStart > last && (alone || true) && len", By: "TestSchedules"},
		{Name: "nothing is expected", File: "overlaps.go", Old: "l.SeqStart > last && alone && len", New: "l.SeqStart > last+1<<40 && alone && len", By: "TestOrdinary"},
		{Name: "the first listing ends with the batches", File: "overlaps.go", Old: "got.SeqStart > end && !all", New: "got.SeqStart > end", By: "TestSchedules|TestOrdinary"},
		{Name: "the listing begins at the first number", File: "overlaps.go", Old: "min(batches[0].SeqStart, uint64(frame.DefaultLimits().Records))", New: "min(0, uint64(frame.DefaultLimits().Records))", By: "TestSchedules|TestDamaged"},
		{Name: "only the batch before overlaps", File: "overlaps.go", Old: "ends[i] = max(ends[i], ends[i-1])", New: "_ = ends", By: "TestSchedules"},
		{Name: "a batch overlaps itself", File: "overlaps.go", Old: "l == e.Identity || !l.Intersects", New: "!l.Intersects", By: "TestSchedules"},
		{Name: "what is listed does not raise the highest number", File: "overlaps.go", Old: "	for _, l := range a.listed {\n		a.high = max(a.high, l.SeqEnd)\n	}", New: "", By: "TestSchedules"},
		{Name: "boots of the older generation are forgotten", File: "overlaps.go", Old: "	return f.older[id]", New: "	return &boot{}", By: "TestSchedules"},
		{Name: "a damaged manifest holds the shard up", File: "overlaps.go", Old: "case errors.Is(err, record.ErrCorrupt):", New: "case false:", By: "TestDamaged"},
		{Name: "every manifest without a stamp counts", File: "overlaps.go", Old: "return m.Batch(), counts, err", New: "return m.Batch(), counts || true, err", By: "TestManifestsWithout"},
		{Name: "other boots overlap, too", File: "overlaps.go", Old: "if b.Agent != id.Agent || b.Boot != id.Boot {", New: "if b.Agent != id.Agent {", By: "TestInBlock"},
		{Name: "a run is entered one batch late", File: "overlaps.go", Old: "first = (id.SeqStart - r.Start) / r.Records", New: "first = (id.SeqStart-r.Start)/r.Records + 1", By: "TestInBlock"},
		{Name: "a batch of a block overlaps itself", File: "overlaps.go", Old: "if o != id && o.Intersects(id) {", New: "if o.Intersects(id) {", By: "TestInBlock"},
		{Name: "the last batch of a run is passed over", File: "overlaps.go", Old: "k < r.Batches; k++ {", New: "k+1 < r.Batches; k++ {", By: "TestInBlock"},
	}})
}
