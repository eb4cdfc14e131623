package ingest_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of the collector's own part: who may send what,
// what a manifest says, what a sender is told, and that what was read is finished. The
// acceptance protocol below it has the simulation's mutants.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		// The tests that find them, so that the run without a bug is short too.
		Run: "TestManifestDescribes|TestUnary|TestHTTP|TestStreamAnswers|TestTokens|TestPanic|TestSheds|TestWhatWasRead|TestDrainFinishes|TestWindow|TestWelcome|TestHello|TestBytesOf|TestReconcilers|TestAcceptedBatches|TestActiveSeries|TestHalfSent|TestAnswersSay|TestAnswersWait|TestNoEntry|TestASpoolIs|TestARunStays|TestARunEnds|TestTheJournalIs|TestAPolicy|TestAReplicated|TestFramesAreSent|TestFramesWait|TestSpooledFrames|TestQuarantine|TestAReleaseIs|TestSettleConflicts$|TestClashes|TestWhereabouts|TestRecentFrames|TestOnlyAcceptedFrames",
		Mutants: []mutants.Mutant{
			{Name: "max time is min time", File: "submission.go", Old: "MinTime: sum.MinTime, MaxTime: sum.MaxTime,", New: "MinTime: sum.MinTime, MaxTime: sum.MinTime,", By: "TestManifestDescribesTheFrame"},
			{Name: "record count is of the range before", File: "submission.go", Old: "Records: sum.Records,", New: "Records: sum.Records - 1,", By: "TestUnaryOutcomes"},
			{Name: "a stream takes frames of another boot", File: "submission.go", Old: "only != nil && id.BootOf() != *only", New: "only != nil && id.Agent != only.Agent", By: "TestStreamAnswers"},
			{Name: "a stream takes frames of another agent", File: "submission.go", Old: "only != nil && id.BootOf() != *only", New: "false", By: "TestStreamAnswers"},
			{Name: "any principal may write any agent", File: "submission.go", Old: "if !p.MayWrite(id.Agent) {", New: "if false {", By: "TestTokensDecide"},
			{Name: "a hello of any agent is welcome", File: "welcome.go", Old: "if !ok || !p.MayWrite(boot.Agent) {", New: "if !ok {", By: "TestTokensDecide"},
			{Name: "an unknown failure is a reject", File: "submission.go", Old: "f.Code == grpccodes.Internal || f.Code == grpccodes.Canceled", New: "false", By: "TestPanicIsRetry"},
			{Name: "overload is a reject", File: "submission.go", Old: "f.Code == grpccodes.Unavailable || f.Code == grpccodes.ResourceExhausted", New: "f.Code == grpccodes.Unavailable", By: "TestShedsWhenFull"},
			{Name: "a conflict is a duplicate", File: "stream.go", Old: "r.Status = ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT", New: "r.Status = ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE", By: "TestStreamAnswers"},
			{Name: "a duplicate is accepted over HTTP", File: "submit.go", Old: "Duplicate: v.result.Outcome == accept.Duplicate,", New: "Duplicate: false,", By: "TestHTTPOutcomes"},
			{Name: "a conflict is a success over HTTP", File: "submit.go", Old: "if v.result.Outcome == accept.Conflict {", New: "if false {", By: "TestHTTPOutcomes"},
			{Name: "a retry has no delay", File: "stream.go", Old: "			r.RetryDelay = durationpb.New(f.RetryAfter)\n", New: "", By: "TestShedsWhenFull"},
			{Name: "what was read ends with the call", File: "stream.go", Old: "context.WithCancel(context.WithoutCancel(ctx))", New: "context.WithCancel(ctx)", By: "TestWhatWasReadIsFinished"},
			{Name: "drain does not wait for what was read", File: "stream.go", Old: "for st.batches > 0 {", New: "for false {", By: "TestDrainFinishes"},
			{Name: "the window is unbounded", File: "stream.go", Old: "return st.batches >= l.StreamBatches || st.bytes >= int64(l.StreamBytes)", New: "return l == nil", By: "TestWindowPausesReading/batches"},
			{Name: "the window forgets bytes", File: "stream.go", Old: "st.bytes >= int64(l.StreamBytes)", New: "false", By: "TestWindowPausesReading/bytes"},
			{Name: "a sender's own numbers are taken", File: "welcome.go", Old: "if next > 0 {", New: "if false {", By: "TestWelcomeTells"},
			{Name: "taken numbers are not told", File: "welcome.go", Old: "return len(page.Objects) > 0, nil", New: "_ = page; return false, nil", By: "TestWelcomeTells"},
			{Name: "a failed listing is an empty one", File: "welcome.go", Old: "return false, &accept.RetryError{Reason: accept.ReasonStoreUnavailable, Err: err}", New: "return false, nil", By: "TestHelloOverAFailedListing"},
			{Name: "a compressed body is taken", File: "http.go", Old: `if e != "" && e != "identity" {`, New: "if false {", By: "TestHTTPRefuses"},
			{Name: "a buffer is used again while the store may read it", File: "admission.go", Old: "if v.err == nil && !v.kept {", New: "if !v.kept {", By: "TestBytesOfAFailedFrameStay"},
			{Name: "a hint names no segment", File: "notify.go", Old: "Position: at.String()", New: "Position: at.Run.String()", By: "TestReconcilersAreTold"},
			{Name: "bounds come before duplicates", File: "bounds.go", Old: "	case accepted:\n		return nil\n", New: "	case accepted:\n", By: "TestAcceptedBatchesStay"},
			{Name: "an unknown acceptance is a refusal", File: "bounds.go", Old: "	case err != nil: // nothing is known: the sender comes back\n		return err\n", New: "	case err != nil:\n", By: "TestAcceptedBatchesStay"},
			{Name: "a refused batch counts its series", File: "series.go", Old: "			s.refused = now\n", New: "			s.refused = now\n			w.cur.Merge(seen)\n", By: "TestActiveSeriesWindow"},
			{Name: "require serves without a policy", File: "policy.go", Old: "if s.cfg.Store.BucketPolicy == policyRequire {", New: "if false {", By: "TestAPolicyIsRequired"},
			{Name: "a store that does not answer has no policy", File: "policy.go", Old: "	case qualify.Unanswered(err):\n", New: "	case false:\n", By: "TestAPolicyIsNotForgotten"},
			{Name: "records are believed wherever they come from", File: "engine.go", Old: "bound = time.Unix(0, found.BoundAt)", New: "bound = time.Time{}", By: "TestAReplicatedManifestIsNotBelieved"},
			{Name: "an answer comes before its segment", File: "../../internal/acceptance/accept/protocol.go", Old: "if res.Position, err = p.awaitEntry(ctx, entry); err != nil {", New: "if _ = entry; err != nil {", By: "TestAnswersWaitForTheJournal"},
			{Name: "an entry comes before its manifest", File: "../../internal/acceptance/accept/protocol.go", Old: "	res, err := b.decide(ctx, m)\n", New: "	_, _ = p.enter(Result{Outcome: Accepted, Manifest: m}, m)\n	res, err := b.decide(ctx, m)\n", By: "TestNoEntryBeforeTheManifest"},
			{Name: "a duplicate has no entry", File: "../../internal/acceptance/accept/entry.go", Old: "		e = res.Manifest.Entry(journal.Duplicate)\n", New: "		return nil, nil\n", By: "TestAnswersSay"},
			{Name: "a conflict has no entry", File: "../../internal/acceptance/accept/entry.go", Old: "		e = submitted.Entry(journal.Conflict)\n", New: "		return nil, nil\n", By: "TestAnswersSay"},
			{Name: "a journal that is down is no reason to wait", File: "../../internal/acceptance/accept/entry.go", Old: "	return journal.Position{}, p.retry(ReasonJournalUnavailable, err)\n", New: "	return journal.Position{}, nil\n", By: "TestTheJournalIsDown"},
			{Name: "a spool file goes before its entry is durable", File: "../../internal/acceptance/spool/lander.go", Old: "	case err == nil:\n		return landing{outcome: res.Outcome}, nil\n", New: "	case err == nil || ctx.Err() != nil:\n		_ = res\n		return landing{outcome: accept.Accepted}, nil\n", By: "TestASpoolIsVisible"},
			{Name: "a spooler opens no run", File: "localspool.go", Old: "if _, err := j.Begin(ctx); err != nil {", New: "if err := ctx.Err(); err != nil {", By: "TestASpoolIsVisible"},
			{Name: "a spooler closes its run over a spool with batches", File: "journal.go", Old: "return s.unlanded() > 0", New: "return false", By: "TestARunStaysOpenOverASpool"},
			{Name: "a dead spooler's run stays open for ever", File: "localspool.go", Old: "if err := journal.End(ctx, s.store, r); err != nil {", New: "if err := ctx.Err(); err != nil && r != (journal.RunID{}) {", By: "TestASpoolIsVisible"},
			{Name: "a dead spooler's run ends before its batches have landed", File: "../../internal/acceptance/spool/runs.go", Old: "if e.order <= s.recovered {", New: "if e == nil {", By: "TestARunEndsAfterItsBatches"},
			{Name: "watchers do not hear of a spooled batch", File: "localspool.go", Old: "decided: s.hub.spooled,", New: "decided: func() {},", By: "TestASpoolIsVisible"},
			{Name: "a frame is given away before its segment", File: "recent.go", Old: "	r.held[sum] = h\n", New: "	r.held[sum], r.kept[sum] = h, h\n", By: "TestFramesWaitForTheJournal"},
			{Name: "a spooled frame is given away before its landing", File: "recent.go", Old: "	r.held[sum] = h\n", New: "	r.held[sum], r.kept[sum] = h, h\n", By: "TestSpooledFramesWait"},
			{Name: "the frame that lost is given away", File: "recent.go", Old: "h == nil || !e.Outcome.Counts()", New: "h == nil", By: "TestOnlyAcceptedFrames"},
			{Name: "a kept frame's buffer is used again", File: "admission.go", Old: "if v.err == nil && !v.kept {", New: "if v.err == nil {", By: "TestFramesAreSentFromMemory"},
			{Name: "a buffer is used again while it is sent", File: "recent.go", Old: "		h.users++\n", New: "", By: "TestRecentFramesAreBounded"},
			{Name: "bytes of a failed call are used again", File: "recent.go", Old: "h.users == 0 && !h.failed", New: "h.users == 0", By: "TestBytesOfAFailedCall"},
			{Name: "frames are kept for ever", File: "recent.go", Old: "for r.bytes > r.most {", New: "for false {", By: "TestRecentFramesAreBounded"},
			{Name: "watchers hear of a segment before its frames are there", File: "journal.go", Old: "			s.recent.durable(entries)\n			s.hub.durable(at)\n", New: "			s.hub.durable(at)\n			time.Sleep(time.Second)\n			s.recent.durable(entries)\n", By: "TestFramesWaitForTheJournal"},
			{Name: "a quarantined sender is taken", File: "resolutions.go", Old: "	r := s.resolutions.Quarantined(b)\n	if r == nil {", New: "	r := s.resolutions.Quarantined(b)\n	if r != nil || r == nil {", By: "TestQuarantine"},
			{Name: "an open stream is not in quarantine", File: "submission.go", Old: "	if err := s.released(ctx, acceptor.authorityID, h.Identity.BootOf()); err != nil {\n", New: "	if err := error(nil); err != nil {\n", By: "TestQuarantine$"},
			{Name: "a hello is not in quarantine", File: "welcome.go", Old: "	if err := s.released(ctx, acceptor.authorityID, boot); err != nil {\n", New: "	if err := error(nil); err != nil {\n", By: "TestQuarantineOutlives"},
			{Name: "a collector begins before it knows the decisions", File: "engine.go", Old: "	if err := s.readResolutions(ctx, id); err != nil {\n", New: "	if err := error(nil); err != nil {\n", By: "TestQuarantineOutlives"},
			{Name: "a release is learned of at the next look", File: "resolutions.go", Old: "now-last >= int64(quarantineReread)", New: "last == 0", By: "TestAReleaseIs"},
			{Name: "each hello of a quarantined sender is a request", File: "resolutions.go", Old: "now-last >= int64(quarantineReread)", New: "true", By: "TestAReleaseIs"},
			{Name: "keep-both is told as accept-existing", File: "resolutions.go", Old: "	if d.Action == resolution.KeepBoth {\n		out.Action", New: "	if d == nil {\n		out.Action", By: "TestSettleConflicts$"},
			{Name: "what was not decided is settled", File: "resolutions.go", Old: "	if b.GetResolution() != d.Number {\n", New: "	if false {\n", By: "TestSettleConflicts$"},
			{Name: "records go to a boot of the sender's choice", File: "resolutions.go", Old: "	if _, err := resolution.ParseSettled(done.Key(), body); err != nil {\n", New: "	if err := error(nil); err != nil {\n", By: "TestSettleConflicts$"},
			{Name: "every refusal is a boot clash", File: "noted.go", Old: "refused.Reason != accept.ReasonBootIDClash", New: "refused.Reason == accept.ReasonBootIDClash", By: "TestClashes"},
			{Name: "a clash that was not recorded is forgotten", File: "noted.go", Old: "	default:\n		s.tel.Log.Warn(\"a boot clash could", New: "	default:\n		n.put(c.Key())\n		s.tel.Log.Warn(\"a boot clash could", By: "TestClashesAre"},
			{Name: "one sender has all slots", File: "slots.go", Old: "s.taken < s.n && s.by[sender] < s.most", New: "s.taken < s.n", By: "TestHalfSentMessagesLeave"},
		},
	})
}
