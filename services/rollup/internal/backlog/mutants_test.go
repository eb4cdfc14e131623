package backlog

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what decides what is pending before a mark, and of what makes room.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "evicted batches are not named", File: "backlog.go", Old: "out = slices.Collect(maps.Values(b.kept))", New: "out = nil"},
		{Name: "too many evicted ones do not count", File: "backlog.go", Old: "if b.unnamed || ", New: "if ", By: "TestEvictedBatchesAreNamed"},
		{Name: "what is evicted twice is named twice", File: "backlog.go", Old: "named || p.mark", New: "named && false || p.mark", By: "TestABatchIsEvictedTwice"},
		{Name: "what is evicted twice is named in the place of another", File: "backlog.go", Old: "	if len(b.kept) < maxKept {", New: "	if len(b.kept) < 1 {", By: "TestABatchIsEvictedTwice"},
		{Name: "a batch is covered in its first hour", File: "backlog.go", Old: "return o == h })\n		b.leave(p)", New: "return true })\n		b.leave(p)", By: "TestSchedules"},
		{Name: "a mark leaves out the batch before it", File: "backlog.go", Old: "p.mark >= mark {", New: "p.mark+1 >= mark {", By: "TestSchedules|TestEvicted"},
		{Name: "a batch leaves before all of its hours are known", File: "backlog.go", Old: "	case p.unread:\n", New: "	case false:\n", By: "TestBatchesWithout"},
		{Name: "a batch that another one overlaps is taken to have come", File: "backlog.go", Old: "p.whole = p.whole || know == All", New: "p.whole = true", By: "TestBatchesWithout"},
		{Name: "a batch that another one overlaps stands behind the marks", File: "backlog.go", Old: "if know != Shared {", New: "if true {", By: "TestBatchesWithout"},
		{Name: "evicted batches are asked for", File: "backlog.go", Old: "		delete(b.unread, id)\n		for _, h", New: "		for _, h", By: "TestBatchesWithout"},
		{Name: "evicted batches are taken again at once", File: "backlog.go", Old: "b.evicted[hash(e.Identity)] = struct{}{}", New: "b.evicted[uint64(len(b.evicted))] = struct{}{}", By: "TestEvictedBatchesAreNamed"},
		{Name: "one hour that fails evicts its batches", File: "backlog.go", Old: "return !slices.ContainsFunc(p.Open, func(h timegrid.Hour) bool {", New: "return slices.ContainsFunc(p.Open, func(h timegrid.Hour) bool { return b.hours[h].Permanent >= permanentAfter }) || !slices.ContainsFunc(p.Open, func(h timegrid.Hour) bool {", By: "TestABatchStays"},
		{Name: "hours that fail are expedited", File: "backlog.go", Old: "if !w.Expedited && w.Failures == 0 {", New: "if !w.Expedited {", By: "TestTheFullestHours"},
		{Name: "the emptiest hours are expedited", File: "backlog.go", Old: "return len(y.ids) - len(x.ids)", New: "return len(x.ids) - len(y.ids)", By: "TestTheFullestHours"},
		{Name: "the earliest hour always has the first turn", File: "backlog.go", Old: "if c := x.Next.Compare(y.Next); c != 0 {", New: "if c := 0; c != 0 {", By: "TestHoursTakeTurns"},
		{Name: "failures that may pass count as permanent", File: "backlog.go", Old: "h.Permanent = 0\n	}", New: "h.Permanent++\n	}", By: "TestHoursTakeTurns"},
		{Name: "lost frames are tried ever as often", File: "unreadable.go", Old: "Wait(l.tries, u.Jitter())", New: "Wait(1, u.Jitter())", By: "TestUnreadable"},
	}})
}
