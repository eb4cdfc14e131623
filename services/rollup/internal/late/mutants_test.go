package late

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what goes into deltas, what is folded and what is deleted.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "a delta goes when one of its batches is covered", File: "book.go", Old: "if o.open--; o.open == 0 {", New: "if o.open--; o.open >= 0 {", By: "TestSchedules"},
		{Name: "a batch is covered when one of its hours is", File: "book.go", Old: "return o == h }); len(p.open) > 0 {", New: "return o == h }); len(p.open) > 9 {", By: "TestSchedules"},
		{Name: "a delta goes without grace", File: "book.go", Old: "!now.Before(o.spent.Add(grace)) {", New: "!now.Before(o.spent) {", By: "TestSchedules"},
		{Name: "a delta that was replaced is needed for ever", File: "book.go", Old: "		o.open, o.spent = 0, now\n", New: "", By: "TestSchedules"},
		{Name: "what covers a batch counts for a delta that was replaced", File: "book.go", Old: "return k == key })\n			}\n		}\n		o.open", New: "return false })\n			}\n		}\n		o.open", By: "TestSchedules"},
		{Name: "a batch of two deltas counts twice", File: "book.go", Old: "		if p == nil {\n			p = &batch{", New: "		if true {\n			p = &batch{", By: "TestSchedules"},
		{Name: "all batches of an agent overlap", File: "book.go", Old: "p.Identity != id && p.Identity.Intersects(id) {", New: "p.Identity != id {", By: "TestSchedules"},
		{Name: "hours wait from when they were seen", File: "book.go", Old: "at.Before(w.Since) {", New: "at.Before(w.Next) {", By: "TestDue"},
		{Name: "a collector's clock makes hours wait", File: "book.go", Old: "at.Before(w.Since) {", New: "true {", By: "TestDue"},
		{Name: "an hour that failed is tried at once", File: "book.go", Old: "if now.Before(w.Next) || !w.Full", New: "if !w.Full", By: "TestDue"},
		{Name: "only what is old is folded", File: "book.go", Old: "!w.Full && now.Before(", New: "now.Before(", By: "TestDue"},
		{Name: "deltas are written again however large they are", File: "book.go", Old: "	for ; size > smallest; size /= maxDeltas {\n		n++", New: "	for ; size > smallest; size /= maxDeltas {\n		n += 0", By: "TestTogether"},
		{Name: "deltas are never written together", File: "book.go", Old: "len(bySize[at]) >= maxDeltas-1; at++ {", New: "len(bySize[at]) < 0; at++ {", By: "TestTogether"},
		{Name: "deltas that nothing needs are written again", File: "book.go", Old: "		if o.spent.IsZero() {\n			out", New: "		if true {\n			out", By: "TestTogether|TestSchedules"},
		{Name: "the largest deltas are folded", File: "book.go", Old: "if n := x.Size() - y.Size(); n != 0 {", New: "if n := y.Size() - x.Size(); n != 0 {", By: "TestCrowd"},
		{Name: "an hour without blocks is deferred", File: "policy.go", Old: "len(in) == 0 || !Published(st) {", New: "len(in) == 0 || st.Blocks[timegrid.Raw] == nil {", By: "TestDefers"},
		{Name: "a block made early is the whole hour", File: "policy.go", Old: "Before(h.End().Add(p.FirstAfter)) {", New: "Before(h.Start()) {", By: "TestDefers"},
		{Name: "samples may expire before the fold", File: "policy.go", Old: "if p.RawKept > 0 &&", New: "if p.RawKept < 0 &&", By: "TestDefers"},
		{Name: "what deltas have of the hour does not count", File: "policy.go", Old: "		bytes += w.bytes\n", New: "", By: "TestDefers"},
		{Name: "what deltas have of all hours does not count", File: "policy.go", Old: "b.bytes+frames <= maxHeld", New: "frames <= maxHeld", By: "TestDefers"},
		{Name: "overlaps among themselves are no matter", File: "policy.go", Old: "if i > 0 && in[i-1].Intersects(id) ||", New: "if", By: "TestDefers"},
		{Name: "overlaps with deltas are no matter", File: "policy.go", Old: "len(b.Overlapping(id)) > 0 ||", New: "", By: "TestDefers"},
		{Name: "overlaps with the block are no matter", File: "policy.go", Old: "|| len(overlaps.InBlock(published, id)) > 0 {", New: "{", By: "TestDefers"},
		{Name: "what was accepted long ago waits once more", File: "policy.go", Old: "|| !now.Before(time.Unix(0, e.AcceptedAt).Add(p.FoldAfter)) {", New: "{", By: "TestDefers"},
		{Name: "a rolled block of another plan is as good", File: "policy.go", Old: "|| b.PlanSHA256 != raw.PlanSHA256 {", New: "{", By: "TestDefers"},
	}})
}
