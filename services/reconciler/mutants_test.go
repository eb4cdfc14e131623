package reconciler

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what is said to be complete: the times of
// audits and scans, failed listings, rounds that fail, gaps, snapshots of ledgers, the intake.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		// Without what runs whole services and waits.
		Run: "TestCompleteThrough|TestFailedListings|TestWhatWasNot|TestFrontierAudit|TestTimeScanLooks|TestQueueHolds|TestRoundsJoin|TestSeenForgets|TestLostSnapshot|TestUnchanged|TestSnapshotThat|TestFailedRead|TestLedgersArePutAway|TestIntakeBufferIs",
		Mutants: []mutants.Mutant{
			{Name: "complete through the frontier audit's end", File: "frontier.go", Old: "s.completed(began)", New: "began, _ = s.storeTime(ctx)\n	s.completed(began)", By: "TestCompleteThroughIsWhenTheAuditBegan"},
			{Name: "complete through the full audit's end", File: "fullaudit.go", Old: "s.completed(began)", New: "began, _ = s.storeTime(ctx)\n	s.completed(began)", By: "TestCompleteThroughIsWhenTheAuditBegan"},
			{Name: "the store's time is this machine's", File: "frontier.go", Old: "return info.LastModified.Truncate(time.Second), nil", New: "return s.now().Truncate(time.Second), nil", By: "TestCompleteThroughIsWhenTheAuditBegan"},
			{Name: "the store's time is rounded up", File: "frontier.go", Old: "info.LastModified.Truncate(time.Second)", New: "info.LastModified.Round(time.Second)", By: "TestCompleteThroughIsWhenTheAuditBegan"},
			{Name: "complete through goes back", File: "frontier.go", Old: "if t.UnixNano() <= old {", New: "if false {", By: "TestCompleteThroughIsWhenTheAuditBegan"},
			{Name: "a failed page is the last", File: "frontier.go", Old: "		if err == nil {\n			err = fn(o)\n		}\n		if err != nil {\n			return err", New: "		if err != nil {\n			return nil\n		}\n		if err = fn(o); err != nil {\n			return err", By: "TestFailedListings"},
			{Name: "the first object is the last", File: "frontier.go", Old: "		if err == nil {\n			err = fn(o)\n		}\n		if err != nil {\n			return err\n		}\n", New: "		if err == nil {\n			err = fn(o)\n		}\n		return err\n", By: "TestFrontierAuditFinds"},
			{Name: "an audit whose boot failed is complete", File: "frontier.go", Old: "firstError(g.Wait(), err)", New: "firstError(nil, err)", By: "TestFailedListings"},
			{Name: "an audit is complete before its manifests are reconciled", File: "frontier.go", Old: "	if err := r.wait(ctx); err != nil {\n		return err\n	}\n	s.completed", New: "	_ = r.wait(ctx)\n	s.completed", By: "TestFailedListings"},
			{Name: "a full audit is complete before its manifests are reconciled", File: "fullaudit.go", Old: "	if err := r.wait(ctx); err != nil {\n		return err\n	}\n	return s.ledgers", New: "	_ = r.wait(ctx)\n	return s.ledgers", By: "TestWhatWasNotReconciled"},
			{Name: "a full audit without its conflicts is complete", File: "fullaudit.go", Old: "	if err != nil {\n		return err\n	}\n	if err := q.wait(ctx)", New: "	_ = err\n	if err := q.wait(ctx)", By: "TestFailedListings"},
			{Name: "boots are listed though their listing failed", File: "frontier.go", Old: "	r := newRound()\n	g, gctx", New: "	r := newRound()\n	s.listed.Store(true)\n	g, gctx", By: "TestFailedListings"},
			{Name: "the frontier is one too far", File: "frontier.go", Old: "layout.SeqName(from, from)", New: "layout.SeqName(from+1, from+1)", By: "TestFrontierAuditFinds"},
			{Name: "gaps do not hold the frontier back", File: "frontier.go", Old: "s.now().Add(-s.cfg.Frontier.GapGrace).UnixNano()", New: "s.now().Add(48 * time.Hour).UnixNano()", By: "TestFrontierAuditFinds"},
			{Name: "a gap is accepted through", File: "grpc.go", Old: "through, _ := l.AcceptedThrough()", New: "through, _ := l.LastSeq()", By: "TestFrontierAuditFinds"},
			{Name: "gaps are not told", File: "grpc.go", Old: "Gaps: ranges(l.Gaps(maxRanges))", New: "Gaps: ranges(l.Gaps(maxRanges)[:0])", By: "TestFrontierAuditFinds"},
			{Name: "the checkpoint is the scan's end", File: "timescan.go", Old: "s.core.AdvanceCheckpoint(ctx, began.UnixNano())", New: "s.core.AdvanceCheckpoint(ctx, s.now().UnixNano())", By: "TestCompleteThroughIsWhenTheAuditBegan"},
			{Name: "the checkpoint passes what was given up", File: "timescan.go", Old: "if err := r.wait(ctx); err != nil {", New: "if err := r.wait(ctx); ctx.Err() != nil {", By: "TestWhatWasNotReconciled"},
			{Name: "a failed hour of a scan is empty", File: "timescan.go", Old: "if err := s.scanHour(ctx, hour, from, r); err != nil {", New: "if err := s.scanHour(ctx, hour, from, r); ctx.Err() != nil {", By: "TestFailedListings"},
			{Name: "a scan does not look back", File: "timescan.go", Old: "from.Add(-s.cfg.TimeScan.Lookback).UTC()", New: "from.UTC()", By: "TestTimeScanLooksBack"},
			{Name: "a scan begins with the hour behind", File: "timescan.go", Old: "hour := from.Truncate(time.Hour);", New: "hour := from.Truncate(time.Hour).Add(time.Hour);", By: "TestTimeScanLooksBack"},
			{Name: "a scan does not look ahead", File: "timescan.go", Old: "began.Add(s.cfg.TimeScan.Ahead)", New: "began", By: "TestTimeScanLooksBack"},
			{Name: "what was given up is well", File: "round.go", Old: "	if !ok {\n		r.failed++\n	}", New: "	_ = ok", By: "TestRoundsJoinWhatIsKnown"},
			{Name: "a scan does not wait for what waits already", File: "queue.go", Old: "			r.join()\n			old.rounds = append(old.rounds, r)", New: "			_ = r", By: "TestRoundsJoinWhatIsKnown"},
			{Name: "a round ends before its last manifest", File: "round.go", Old: "r.sealed && r.pending == 0 && !r.ended", New: "r.sealed && r.pending <= 1 && !r.ended", By: "TestRoundsJoinWhatIsKnown"},
			{Name: "a retry is taken before its time", File: "queue.go", Old: "!q.delayed[0].due.After(now)", New: "len(q.delayed) > 0", By: "TestQueueHoldsEachKeyOnce"},
			{Name: "a key in work is queued again", File: "queue.go", Old: "			q.head++\n			return it, nil", New: "			q.head++\n			delete(q.items, it.key)\n			return it, nil", By: "TestQueueHoldsEachKeyOnce"},
			{Name: "a failed read is an empty ledger", File: "ledgers.go", Old: "if errors.Is(err, objstore.ErrNotFound) {", New: "if err != nil {", By: "TestFailedReadIsNotAnEmptyLedger"},
			{Name: "a ledger of another boot is believed", File: "ledgers.go", Old: "if err == nil && l.Boot() != boot {", New: "if false {", By: "TestSnapshotThatCannotBeRead"},
			{Name: "a lost race overwrites", File: "ledgers.go", Old: "	a.l.Merge(theirs)\n", New: "", By: "TestLostSnapshotRaceMerges"},
			{Name: "a snapshot that was not written is clean", File: "ledgers.go", Old: "			a.dirty = true // an unknown outcome", New: "			_ = 0 // an unknown outcome", By: "TestSnapshotsThatFailAreWrittenAgain"},
			{Name: "a snapshot does not wait for the intake", File: "ledgers.go", Old: "err := b.flushIntake(ctx)", New: "err := ctx.Err()", By: "TestSnapshotsThatFailAreWrittenAgain"},
			{Name: "a known batch makes its ledger dirty", File: "ledgers.go", Old: "a.dirty = a.dirty || c.Kind == ledger.Added", New: "a.dirty = true", By: "TestUnchangedLedgersAreNotWritten"},
			{Name: "a failed segment is written", File: "intakebuffer.go", Old: "	if err := st.write(ctx, ids); err != nil {\n		return err\n	}\n	st.through = all", New: "	st.through = all\n	if err := st.write(ctx, ids); err != nil {\n		return err\n	}", By: "TestIntakeBufferIsBounded"},
			{Name: "the intake buffer is unbounded", File: "intakebuffer.go", Old: "for st.count >= st.room {", New: "for st.room < 0 {", By: "TestIntakeBufferIsBounded"},
		},
	})
}
