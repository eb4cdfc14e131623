package trace

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants bugs in what a trace finds, in its order and in its bounds.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Mutants: []mutants.Mutant{
			{Name: "an entry precedes what it is about", File: "trace.go", Old: "r.Stamp.Fence = math.MaxUint64", New: "r.Stamp.Fence = 0", By: "TestEvery"},
			{Name: "what has no time is first", File: "trace.go", Old: "if r.At == 0 {", New: "if r.At != 0 {", By: "TestEvery"},
			{Name: "folds do not say where identities begin", File: "trace.go", Old: "begins = append(begins, r.Identity.SeqStart)", New: "_ = r", By: "TestWhatBegins"},
			{Name: "claims do not say where identities begin", File: "trace.go", Old: "begins = append(begins, c.Identity.SeqStart)", New: "_ = c", By: "TestWhatBegins"},
			{Name: "what begins near the range is missed", File: "list.go", Old: "l.reaching(ctx, back(usualRecords), from)", New: "l.reaching(ctx, from, from)", By: "TestWhatBegins"},
			{Name: "what begins far before the range is missed", File: "list.go", Old: "l.reaching(ctx, back(longestRecords), back(usualRecords))", New: "nil", By: "TestWhatBegins"},
			{Name: "what is known and near is shown twice", File: "list.go", Old: " || l.seen[info.Key]", New: "", By: "TestWhatBegins"},
			{Name: "what ends before the range is shown", File: "list.go", Old: " || !r.Identity.Intersects(l.q.Identity)", New: "", By: "TestWhatBegins"},
			{Name: "keys before the range have no bound", File: "list.go", Old: "l.before > maxKeysBefore", New: "false", By: "TestBounds"},
			{Name: "manifests of other keys are shown", File: "list.go", Old: "err != nil || m.Identity == r.Identity", New: "true", By: "TestRecordsOf"},
			{Name: "affirmations of other keys are shown", File: "list.go", Old: "a.Identity == r.Identity && ", New: "", By: "TestRecordsOf"},
			{Name: "affirmations of other stamps are shown", File: "list.go", Old: " && a.Stamp == r.Stamp", New: "", By: "TestRecordsOf"},
			{Name: "quarantine records of other keys are shown", File: "list.go", Old: "c.Identity == r.Identity && ", New: "", By: "TestRecordsOf"},
			{Name: "quarantine records of other frames are shown", File: "list.go", Old: " && c.SubmittedSHA256 == identity.Digest(r.Hash)", New: "", By: "TestRecordsOf"},
			{Name: "claims do not say when", File: "trace.go", Old: "times = append(times, c.ClaimedAt, c.DurableAt)", New: "_ = c", By: "TestJournals"},
			{Name: "records have no bound", File: "trace.go", Old: "len(f.records) >= MaxRecords", New: "false", By: "TestBounds"},
			{Name: "a fold that can't be read is not said", File: "trace.go", Old: "return err\n\t}\n\tadd := func", New: "return nil\n\t}\n\tadd := func", By: "TestWhat"},
			{Name: "all folded files are read", File: "journal.go", Old: "if x.MaxAt >= t-int64(before) && x.MinAt <= t+after {", New: "if t > 0 || x.MinAt > 0 {", By: "TestJournals"},
			{Name: "clocks are the same everywhere", File: "journal.go", Old: "x.MaxAt >= t-int64(before)", New: "x.MaxAt >= t", By: "TestJournals"},
			{Name: "senders come at once", File: "journal.go", Old: "x.MinAt <= t+after", New: "x.MinAt <= t", By: "TestJournals"},
			{Name: "entries of batches that are elsewhere are left out", File: "journal.go", Old: "Raw: true, ", New: "", By: "TestEvery"},
			{Name: "a journal that is not complete is not searched", File: "journal.go", Old: "Partial: true, ", New: "", By: "TestEvery"},
			{Name: "equal entries are shown again", File: "journal.go", Old: "seen[*e] = true", New: "_ = seen", By: "TestSide"},
			{Name: "entries of other boots are found", File: "journal.go", Old: "e.ID.BootOf() != f.q.Identity.BootOf() || !e.ID.Intersects(f.q.Identity) || ", New: "", By: "TestOnly"},
			{Name: "folded files have no bound", File: "journal.go", Old: "f.searched.Files > maxFiles", New: "false", By: "TestBounds"},
			{Name: "a bucket without an authority is a failure", File: "journal.go", Old: "errors.Is(err, accept.ErrNoAuthority)", New: "false", By: "TestWhat"},
		},
	})
}
