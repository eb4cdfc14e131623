package answer

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what an answer is read from and says of itself:
// the order of status, snapshot and blocks, the edges of every reason, bounds, expired hours.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		// Without the comparisons with upstream, which take seconds.
		Run: "TestStatusIs|TestWhatIsLearned|TestReasonsAt|TestLossesMark|TestManyUnreadable|TestRangesAt|TestQueueIs|TestReservations|TestNearlyRight",
		Mutants: []mutants.Mutant{
			{Name: "the snapshot is opened before the status is read", File: "evaluator.go", Old: "	st := e.d.Follower.Status()\n	snap := e.d.Live.Snapshot(e.d.Now())", New: "	snap := e.d.Live.Snapshot(e.d.Now())\n	st := e.d.Follower.Status()", By: "TestStatusIsReadBeforeTheSnapshot"},
			{Name: "a batch may heal after the snapshot", File: "completeness.go", Old: "st.Unreadable(mint, maxt, maxNamed)", New: "e.d.Follower.Status().Unreadable(mint, maxt, maxNamed)", By: "TestWhatIsLearnedLater"},
			{Name: "an answer without anything proven is whole", File: "completeness.go", Old: "	case st.CompleteThrough.IsZero():", New: "	case false:", By: "TestReasonsAtTheirEdges"},
			{Name: "a poll is stale on the edge", File: "completeness.go", Old: "case age > e.cfg.StaleAfter:", New: "case age >= e.cfg.StaleAfter:", By: "TestReasonsAtTheirEdges"},
			{Name: "no poll is ever stale", File: "completeness.go", Old: "case age > e.cfg.StaleAfter:", New: "case age < 0:", By: "TestReasonsAtTheirEdges"},
			{Name: "the history's first time is before it", File: "completeness.go", Old: "max(mint, first) < snap.From && pub == nil", New: "max(mint, first) <= snap.From && pub == nil", By: "TestReasonsAtTheirEdges"},
			{Name: "what was written before the history is not missed", File: "completeness.go", Old: "max(mint, first) < snap.From && pub == nil", New: "max(mint, first) < snap.From && pub != nil", By: "TestReasonsAtTheirEdges"},
			{Name: "what was never written is missed", File: "completeness.go", Old: "max(mint, first) < snap.From && pub == nil", New: "mint < snap.From && pub == nil", By: "TestReasonsAtTheirEdges"},
			{Name: "the age of a poll is compared with the store's clock", File: "completeness.go", Old: "age := e.d.Now().Sub(st.Since)", New: "age := e.d.Now().Sub(st.CompleteThrough)", By: "TestReasonsAtTheirEdges"},
			{Name: "a journal that is incomplete is not told", File: "completeness.go", Old: "	case st.Incomplete:", New: "	case st.Incomplete && st.CompleteThrough.IsZero() && !touched:", By: "TestReasonsAtTheirEdges"},
			{Name: "spooling collectors are not told", File: "completeness.go", Old: "	if len(st.Spoolers) > 0 {", New: "	if len(st.Spoolers) > 1 {", By: "TestReasonsAtTheirEdges"},
			{Name: "what no samples were asked of is judged by its range", File: "completeness.go", Old: "	if touched {\n		// Before", New: "	if snap != nil {\n		// Before", By: "TestReasonsAtTheirEdges"},
			{Name: "reasons are no reason to be partial", File: "completeness.go", Old: "c.Partial = len(c.Reasons) > 0", New: "c.Partial = len(c.Reasons) > 1", By: "TestReasonsAtTheirEdges"},
			{Name: "a loss at the range's end is not told", File: "completeness.go", Old: "snap.Lost(mint, maxt)", New: "snap.Lost(mint, maxt-1)", By: "TestLossesMarkTheirTimes"},
			{Name: "a loss at the range's begin is not told", File: "completeness.go", Old: "snap.Lost(mint, maxt)", New: "snap.Lost(mint+1, maxt)", By: "TestLossesMarkTheirTimes"},
			{Name: "batches beyond those that are named are not told", File: "completeness.go", Old: "	if u.More > 0 {", New: "	if u.More > 0 && u.Batches > 0 {", By: "TestManyUnreadable"},
			{Name: "the batches that are not named are not counted", File: "completeness.go", Old: "u.Batches - len(named); more > 0 {", New: "u.Batches - len(named); more > 1<<20 {", By: "TestManyUnreadable"},
			{Name: "late batches of expired hours that rows lack are not told", File: "completeness.go", Old: "if !pub.RowsHold(id, h) {", New: "if pub.RowsHold(id, h) {", By: "TestExpiredSamplesAreToldOrNotMissed"},
			{Name: "one point too many", File: "evaluator.go", Old: "> int64(e.cfg.Limits.Points)", New: "> int64(e.cfg.Limits.Points)+1", By: "TestRangesAtTheirBounds"},
			{Name: "a range of one time is refused", File: "evaluator.go", Old: "case end.Before(start):", New: "case !end.After(start):", By: "TestRangesAtTheirBounds"},
			{Name: "who waited is counted for ever", File: "evaluator.go", Old: "	defer e.queued.Add(-1)\n", New: "", By: "TestQueueIsBounded"},
			{Name: "a session that is closed twice gives back two slots", File: "evaluator.go", Old: "	s.closed = true\n", New: "", By: "TestQueueIsBounded"},
			{Name: "what deltas have of expired hours is not told", File: "completeness.go", Old: "pub.LateRows(); ok {", New: "pub.LateRows(); ok && h < 0 {", By: "TestExpiredSamplesAreToldOrNotMissed"},
			{Name: "what stands in for expired samples is not told", File: "completeness.go", Old: "	expired(add, snap, pub)\n", New: "", By: "TestNearlyRightAnswers"},
			{Name: "expired samples have left nothing", File: "completeness.go", Old: "if r.Resolution == timegrid.Raw {", New: "if r.Resolution != timegrid.Raw {", By: "TestNearlyRightAnswers"},
		},
	})
}
