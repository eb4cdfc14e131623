package backlog

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what decides that a segment of the intake may be
// deleted, and of what makes room.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "a segment with evicted batches is spent", File: "backlog.go", Old: "case s.evicted > 0:", New: "case s.evicted > 1<<30:"},
		{Name: "a batch is covered in its first hour", File: "backlog.go", Old: "len(p.Open) > 0 {", New: "len(p.Open) > 1<<30 {", By: "TestSchedules"},
		{Name: "only the first segment of a batch waits for it", File: "backlog.go", Old: "if !slices.Contains(p.segments, key) {", New: "if len(p.segments) == 0 {", By: "TestSchedules|TestEvicted"},
		{Name: "overlaps are joined once", File: "backlog.go", Old: "b.changed = true", New: "_ = b", By: "TestOverlapsFollowIntoLaterHours"},
		{Name: "a group ends at its first batch's end", File: "backlog.go", Old: "end = max(end, all[j].SeqEnd)", New: "_ = end", By: "TestOverlaps"},
		{Name: "one hour that fails evicts its batches", File: "backlog.go", Old: "return !slices.ContainsFunc(p.Open, func(h timegrid.Hour) bool {", New: "return slices.ContainsFunc(p.Open, func(h timegrid.Hour) bool { return b.hours[h].Permanent >= permanentAfter }) || !slices.ContainsFunc(p.Open, func(h timegrid.Hour) bool {", By: "TestABatchStays"},
		{Name: "hours that fail are expedited", File: "backlog.go", Old: "if !w.Expedited && w.Failures == 0 {", New: "if !w.Expedited {", By: "TestTheFullestHours"},
		{Name: "the emptiest hours are expedited", File: "backlog.go", Old: "return len(y.ids) - len(x.ids)", New: "return len(x.ids) - len(y.ids)", By: "TestTheFullestHours"},
		{Name: "the earliest hour always has the first turn", File: "backlog.go", Old: "if c := x.Next.Compare(y.Next); c != 0 {", New: "if c := 0; c != 0 {", By: "TestHoursTakeTurns"},
		{Name: "failures that may pass count as permanent", File: "backlog.go", Old: "h.Permanent = 0\n	}", New: "h.Permanent++\n	}", By: "TestHoursTakeTurns"},
		{Name: "lost frames are tried ever as often", File: "unreadable.go", Old: "Wait(l.tries, u.Jitter())", New: "Wait(1, u.Jitter())", By: "TestUnreadable"},
	}})
}
