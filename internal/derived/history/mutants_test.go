package history

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of readings beside folders, and of what they leave out.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Mutants: []mutants.Mutant{
			{Name: "what is not folded is left out", File: "history.go", Old: "polled, err := w.rest(ctx, head)", New: "polled, err := journal.Polled{}, error(nil)", By: "TestNothing"},
			{Name: "a file that was merged is missed", File: "history.go", Old: "if w.ended != nil || !errors.Is(err, objstore.ErrNotFound) || failed == attempts {", New: "if err != nil {", By: "TestNothing"},
			{Name: "a page counts for all that follow", File: "history.go", Old: "through = files[i+1].First - 1", New: "through = head.Number", By: "TestAReading"},
			{Name: "the rest begins at the beginning", File: "history.go", Old: "From: head.Positions(), ", New: "", By: "TestOnly"},
			{Name: "every list is read", File: "history.go", Old: "return s.skips(l.Span)", New: "return false", By: "TestOnly"},
			{Name: "a range has its end", File: "history.go", Old: "lo < r.To", New: "lo <= r.To", By: "TestNothing"},
			{Name: "conflicts come unasked", File: "history.go", Old: "s.Conflicts && e.Outcome.Conflict()", New: "e.Outcome.Conflict()", By: "TestNothing"},
			{Name: "an incomplete journal answers", File: "history.go", Old: "if err == nil && !w.Partial && !w.begin.Covers(head.Lost) {", New: "if false {", By: "TestAnIncomplete|TestALostFile"},
			{Name: "a file that is lost meanwhile is not told", File: "history.go", Old: "if err == nil && !r.Partial && !begin.Covers(polled.Lost) {", New: "if false {", By: "TestALostFile"},
			{Name: "what was given is forgotten", File: "once.go", Old: "len(o.new) >= o.limit", New: "len(o.new) >= 3", By: "TestNothing"},
			{Name: "another frame of the identity counts", File: "counted.go", Old: "ok && d == e.SHA256", New: "ok && !d.IsZero()", By: "TestCounted"},
			{Name: "the last batch's time is left out", File: "counted.go", Old: "Range{first, last + 1}", New: "Range{first, last}", By: "TestCounted"},
			{Name: "the reading goes on when all are found", File: "counted.go", Old: "len(counted) == len(wanted)", New: "false", By: "TestCountedEnds"},
			{Name: "everything is remembered", File: "once.go", Old: "len(o.new) >= o.limit", New: "false", By: "TestMemory"},
		},
	})
}
