package follow

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what a node says that it has: complete_through,
// failed listings, the frontier, the window's edge, batches that can't be read, hints.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		// Without what waits for a watch.
		Run: "TestCompleteThrough|TestFailedListing|TestFrontierAudit|TestBatchesAtTheWindows|TestUnread|TestNeverSilently|TestPollReads|TestHintsOf|TestOldBatches",
		Mutants: []mutants.Mutant{
			{Name: "complete through the audit's end", File: "audit.go", Old: "f.complete = started", New: "f.complete = f.d.Now()", By: "TestCompleteThroughIsWhenTheAuditBegan"},
			{Name: "complete through the audit's end, by the model", File: "audit.go", Old: "f.complete = started", New: "f.complete = f.d.Now()", By: "TestNeverSilentlyPartial"},
			{Name: "the full audit was at its end", File: "audit.go", Old: "f.fullAt = started", New: "f.fullAt = f.d.Now()", By: "TestCompleteThroughIsWhenTheAuditBegan"},
			{Name: "a failed audit proves as much", File: "audit.go", Old: "	f.lastErr = err\n	if err != nil {\n		return err\n	}\n", New: "	f.lastErr = err\n", By: "TestFailedListingIsNotAnEmptyOne"},
			{Name: "a failed listing of boots is an empty one", File: "audit.go", Old: "the listing only reports that it was canceled\n	}\n	return failed", New: "it was canceled\n	}\n	_ = failed\n	return nil", By: "TestFailedListingIsNotAnEmptyOne"},
			{Name: "a failed listing of a boot is an empty one", File: "audit.go", Old: "		return werr\n	}\n	return failed", New: "		return werr\n	}\n	_ = failed\n	return nil", By: "TestFailedListingIsNotAnEmptyOne"},
			{Name: "batches that an audit can't fetch are passed over", File: "audit.go", Old: "	if werr := g.Wait(); werr != nil {\n		return werr\n	}\n	return failed", New: "	_ = g.Wait()\n	return failed", By: "TestNeverSilentlyPartial"},
			{Name: "the frontier is one too far", File: "audit.go", Old: "layout.SeqName(from, 0)", New: "layout.SeqName(from+1, 0)", By: "TestFrontierAuditFindsTheNext"},
			{Name: "gaps do not hold the frontier back", File: "audit.go", Old: "f.d.Now().Add(-f.cfg.GapGrace).UnixNano()", New: "f.d.Now().UnixNano()", By: "TestFrontierAuditFindsTheNext"},
			{Name: "a manifest's age is that of its samples", File: "audit.go", Old: "f.d.Now().Add(-f.d.History-skew)", New: "f.d.Now().Add(-f.d.History)", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "old manifests are not counted", File: "audit.go", Old: "	if old {\n		f.addLocked(id, modified.UnixNano())\n	}\n	return old", New: "	return old", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "a batch with a sample before the window is counted only", File: "take.go", Old: "if m.MaxTime < f.d.Now()", New: "if m.MinTime < f.d.Now()", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "a sample on the window's edge is before it", File: "take.go", Old: "if m.MaxTime < f.d.Now()", New: "if m.MaxTime <= f.d.Now()", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "late batches that are needed are counted only", File: "take.go", Old: "(f.d.Needed == nil || !f.d.Needed(id, m.MinTime, m.MaxTime))", New: "(f.d.Needed == nil || true)", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "late batches that are not needed are read", File: "take.go", Old: "(f.d.Needed == nil || !f.d.Needed(id, m.MinTime, m.MaxTime))", New: "f.d.Needed(id, m.MinTime, m.MaxTime)", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "a hint's bytes are believed", File: "take.go", Old: "err == nil && m.Identity == id {", New: "err == nil {", By: "TestNeverSilentlyPartial"},
			{Name: "a manifest of another batch is believed", File: "take.go", Old: "	if m.Identity != id {", New: "	if false {", By: "TestUnreadableManifestsAreToldEverywhere"},
			{Name: "an unreadable manifest is of no time", File: "take.go", Old: "MinTime: minInt64, MaxTime: maxInt64", New: "MinTime: 0, MaxTime: 0", By: "TestUnreadableManifestsAreToldEverywhere"},
			{Name: "an unreadable manifest has the first samples of nobody", File: "take.go", Old: "		f.firsts.note(id, minInt64)\n", New: "", By: "TestUnreadableManifestsAreToldEverywhere"},
			{Name: "a store that does not answer is an unreadable manifest", File: "take.go", Old: "	case objstore.Unreadable(err):", New: "	case err != nil:", By: "TestHintsOfNothing"},
			{Name: "an unreadable frame is not told", File: "take.go", Old: "		f.noteUnread(key, Unread{Identity: id, Cause: CauseFrame, Err: err.Error(), MinTime: m.MinTime, MaxTime: m.MaxTime})\n", New: "", By: "TestUnreadableAtItsEdges"},
			{Name: "an unreadable frame is told of its first sample", File: "take.go", Old: "Err: err.Error(), MinTime: m.MinTime, MaxTime: m.MaxTime}", New: "Err: err.Error(), MinTime: m.MinTime, MaxTime: m.MinTime}", By: "TestUnreadableAtItsEdges"},
			{Name: "an unreadable batch does not matter at its first sample", File: "unread.go", Old: "floorMS(u.MinTime) <= maxt", New: "floorMS(u.MinTime) < maxt", By: "TestUnreadableAtItsEdges"},
			{Name: "an unreadable batch does not matter at its last sample", File: "unread.go", Old: "floorMS(u.MaxTime) >= mint", New: "floorMS(u.MaxTime) > mint", By: "TestUnreadableAtItsEdges"},
			{Name: "unreadable batches are not tried again", File: "audit.go", Old: "if err := f.retryUnread(ctx); err != nil {", New: "if err := ctx.Err(); err != nil {", By: "TestUnreadableAtItsEdges"},
			{Name: "unreadable batches beyond the bound are forgotten", File: "unread.go", Old: "		f.overflow++\n", New: "", By: "TestUnreadBatchesAreBounded"},
			{Name: "a poll believes what is derived", File: "poll.go", Old: "f.take(ctx, layout.Accepted(m.Identity), nil); err != nil {", New: "f.take(ctx, layout.Accepted(m.Identity), nil); err != nil && false {", By: "TestPollReadsManifests"},
			{Name: "samples begin with the batch that was read last", File: "first.go", Old: "f.earliest = min(f.earliest, minNS)", New: "f.earliest = minNS", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "the first manifest of an old boot is not read", File: "audit.go", Old: "} else if begins {", New: "} else if !begins {", By: "TestBatchesAtTheWindowsEdge"},
		},
	})
}
