package send_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// planted are known bugs of the sender.
var planted = []mutants.Mutant{
	// Answers.
	{Name: "an unknown status is an acceptance", File: "answer.go", Old: `return fmt.Errorf("answer with status %s", r.GetStatus())`,
		New: `return x.handleAccepted(f.entry, statusAccepted, "")`, By: "TestUnknownStatus"},
	{Name: "an unknown status is a reject", File: "answer.go", Old: `return fmt.Errorf("answer with status %s", r.GetStatus())`,
		New: `return x.deadLetter(f.entry, queue.HoldReason{})`, By: "TestUnknownStatus"},
	{Name: "RETRY is an acceptance", File: "answer.go", Old: `return x.handleRetry(f.entry, r)`, New: `return x.handleAccepted(f.entry, statusRetry, "")`, By: "TestStoreDown"},
	{Name: "RETRY is a reject", File: "answer.go", Old: `return x.handleRetry(f.entry, r)`, New: `return x.deadLetter(f.entry, queue.HoldReason{})`, By: "TestStoreDown"},
	{Name: "a rejected batch is deleted", File: "answer.go", Old: `return x.deadLetter(f.entry, queue.HoldReason{Reason: r.GetReason(),`,
		New: `return x.handleAccepted(f.entry, statusRejected, ""); return x.deadLetter(f.entry, queue.HoldReason{Reason: r.GetReason(),`, By: "TestAllStatuses"},
	{Name: "a conflict is an acceptance", File: "answer.go", Old: `return x.handleConflict(f.entry, r)`, New: `return x.handleAccepted(f.entry, statusConflict, "")`, By: "TestAllStatuses"},
	{Name: "a conflict is sent for ever", File: "answer.go", Old: `return x.handleConflict(f.entry, r)`, New: `return x.handleRetry(f.entry, r)`, By: "TestAllStatuses"},
	{Name: "a conflict is dead-lettered", File: "answer.go", Old: `if err := x.park(e, v); err != nil {
		return err
	}
	x.s.logProgress(1)`, New: `if err := x.deadLetter(e, v); err != nil {
		return err
	}
	x.s.logProgress(1)`, By: "TestAllStatuses"},
	{Name: "a parked batch forgets who was accepted", File: "answer.go", Old: `v.AcceptedSHA256 = d.String()`, New: `_ = d`, By: "TestAllStatuses"},
	{Name: "answers are matched by their range", File: "answer.go", Old: `	if err != nil || f == nil {`,
		New: `	for k, o := range x.flights {
		if o.entry.Identity.SeqStart == r.GetSeqStart() && f == nil {
			d, f, err = k, o, nil
		}
	}
	if err != nil || f == nil {`, By: "TestAnswersAreMatched"},
	{Name: "an answer to nothing ends the agent", File: "answer.go", Old: `if err != nil || f == nil {`, New: `if err != nil {`, By: "TestAnswersAreMatched"},
	{Name: "a batch that can't be set aside is dropped", File: "answer.go", Old: `x.s.waits.retry(e.No, 0, 0, x.s.now())`,
		New: `_ = x.s.queue.Drop(e.No)`, By: "TestAsideThatCannot"},
	{Name: "a clash parks other boots too", File: "answer.go", Old: `if e.Identity.BootOf() != x.boot || e.Spool != x.spool {`, New: `if false {`, By: "TestClashSpares"},
	{Name: "any clash starts a new boot", File: "answer.go", Old: `boot == x.boot {
		if err := x.s.queue.NewBoot`, New: `boot.Agent != "" {
		if err := x.s.queue.NewBoot`, By: "TestClashSpares"},
	{Name: "a clash keeps the boot", File: "answer.go", Old: `x.s.queue.NewBoot("BOOT_ID_CLASH")`, New: `error(nil)`, By: "TestBootClash/hello"},
	{Name: "a clash in an answer is a reject", File: "answer.go", Old: `r.GetReason() == reasonBootClash`, New: `false`, By: "TestBootClash/answer"},
	{Name: "a collector that only says RETRY is kept", File: "answer.go", Old: `x.retries >= retriesBeforeMove`, New: `false`, By: "TestRetryMovesOn"},

	// What operators decide.
	{Name: "records are kept before the new ones are queued", File: "settle.go", Old: `err := s.queue.QueueAs(id, resolution.KeptSpool(b.FrameSHA256), b.QueuedAt, renumbered); err != nil`, New: `_ = renumbered; err != nil`, By: "TestKeepBoth"},
	{Name: "the stream is left before the collector is told", File: "session.go", Old: ` || x.s.telling.Load()`, New: ``, By: "TestKeepBothIsTold"},
	{Name: "kept records are queued each time", File: "settle.go", Old: `		return id, nil
	}
	raw, err`, New: `		_ = id
	}
	raw, err`, By: "TestKeepBoth"},
	{Name: "a frame is dropped before that is recorded", File: "settle.go", Old: `if !a.GetSettled() {`, New: `if false {`, By: "TestACollectorThatRecordsNothing"},
	{Name: "an undecided frame is dropped", File: "settle.go", Old: `default: // nothing is decided, or something that this release does not know
			continue`, New: `default:`, By: "TestAcceptExisting"},
	{Name: "an answer about another frame counts", File: "settle.go", Old: `string(d[:]) != string(parked[i].GetFrameSha256())`, New: `i < 0 && d[0] == 0`, By: "TestAnswersAboutOthers"},
	{Name: "a quarantined agent learns nothing", File: "settle.go", Old: `		x.s.settleAtHello(ctx, conn)
`, New: ``, By: "TestQuarantined"},
	{Name: "a failure ends the settling", File: "settle.go", Old: `			if err == nil || ctx.Err() != nil {
				continue`, New: `			if err != nil {
				return
			}
			if err == nil {
				continue`, By: "TestAFailureLeaves"},
	{Name: "a collector of a former release is asked for all", File: "settle.go", Old: `status.Code(err) == codes.Unimplemented`, New: `false`, By: "TestAFailureLeaves"},
	{Name: "the frame is dropped as soon as its records are queued", File: "settle.go", Old: `	s.kept[b.FrameSHA256] = id
	return id, nil`, New: `	s.kept[b.FrameSHA256] = id
	_ = s.queue.RemoveHeld(queue.Parked, b.ID)
	return id, nil`, By: "TestCrashAtEveryStep"},
	{Name: "a quarantined sender asks ever more seldom", File: "sender.go", Old: `rpc.Reason(err) == reasonQuarantined`, New: `false`, By: "TestAQuarantinedSenderAsks"},
	{Name: "a session sleeps through the end of a quarantine", File: "sender.go", Old: `until.After(now) && (at.IsZero()`, New: `false && (at.IsZero()`, By: "TestAQuarantinedSenderAsks"},
	{Name: "a quarantined boot holds up the others", File: "sender.go", Old: `!now.Before(s.holding[e.Identity.BootOf()]) && `, New: ``, By: "TestQuarantined"},

	// Streams.
	{Name: "a stream has the frames of every boot", File: "session.go", Old: `return e.Identity.BootOf() == x.boot && e.Spool == x.spool`, New: `return true`, By: "TestStreamsHaveOneBoot"},
	{Name: "the hello has the current boot", File: "session.go", Old: `Boot: x.boot,`,
		New: `Boot: func() identity.Boot { b, _, _ := x.s.queue.Boot(); return b }(),`, By: "TestStreamsHaveOneBoot"},
	{Name: "the hello has no spool", File: "session.go", Old: `Spool: x.spool`, New: `Spool: ""`, By: "TestHelloAndOrder"},
	{Name: "the hello says that no number was given out", File: "session.go", Old: `NextSeq: x.nextSeq()`, New: `NextSeq: 1`, By: "TestHelloAndOrder"},
	{Name: "a cut connection is an orderly end", File: "session.go", Old: `return fmt.Errorf("receive: %w", err)`, New: `return nil`, By: "TestCutAnywhere"},
	{Name: "an orderly end answers what is open", File: "session.go", Old: `return errors.New("the collector ended the stream")`,
		New: `for _, f := range x.flights { _ = x.s.queue.Ack(f.entry.No) }; return errors.New("the collector ended the stream")`, By: "TestStreamsThatEnd"},
	{Name: "an orderly end is not noticed", File: "session.go", Old: `return errors.New("the collector ended the stream")`, New: `return nil`, By: "TestStreamsThatEnd"},
	{Name: "a batch in flight is sent again", File: "sender.go", Old: `!inFlight[e.No] && `, New: ``, By: "TestAllStatuses"},
	{Name: "the window of batches is not kept", File: "session.go", Old: `min(x.maxBatches, w.window)`, New: `w.window`, By: "TestWindows"},
	{Name: "the window of bytes is not kept", File: "session.go", Old: `x.bytes > 0 && x.bytes+int64(e.Bytes) > x.maxBytes`, New: `false`, By: "TestWindows"},
	{Name: "a batch above the window of bytes is never sent", File: "session.go", Old: `x.bytes > 0 && x.bytes+int64(e.Bytes) > x.maxBytes`,
		New: `x.bytes+int64(e.Bytes) > x.maxBytes`, By: "TestWindows"},
	{Name: "flights that landed keep their bytes", File: "session.go", Old: `x.bytes -= int64(f.entry.Bytes)`, New: ``, By: "TestWindows"},
	{Name: "a frame above the collector's limit is sent", File: "session.go", Old: `x.maxFrame > 0 && uint64(len(b)) > x.maxFrame`, New: `false`, By: "TestTooLarge"},
	{Name: "damage on disk ends the stream", File: "session.go", Old: `case errors.Is(err, record.ErrCorrupt):`, New: `case false:`, By: "TestDamagedOnDisk"},
	{Name: "foreign numbers are not noticed", File: "session.go", Old: `!w.GetNumbersTaken() || `, New: `true || `, By: "TestForeignRecords"},
	{Name: "numbers are foreign without a reason", File: "session.go", Old: `!w.GetNumbersTaken() || `, New: ``, By: "TestForeignRecords"},
	{Name: "a collector that never answers is kept", File: "session.go", Old: `return errStalled`, New: ``, By: "TestStalledStream"},
	{Name: "a collector that never welcomes is kept", File: "session.go", Old: `time.AfterFunc(x.s.cfg.ConnectTimeout, cancel)`, New: `time.AfterFunc(time.Hour, cancel)`, By: "TestSilentCollector"},

	{Name: "nobody hears of batches that are taken out", File: "sender.go", Old: `a.AgentID != "" && s.onRefused != nil`, New: `false`, By: "TestRefusalsAreReported"},
	{Name: "a damaged batch is parked", File: "session.go", Old: `x.s.removeRefused(queue.Dropped,`, New: `x.s.removeRefused(queue.Parked,`, By: "TestRefusalsAreReported"},
	{Name: "a flush does not wait for reports", File: "sender.go", Old: `			s.reporting.Lock()
			defer s.reporting.Unlock()
			return nil`, New: `			return nil`, By: "TestRefusalsAreReported"},
	{Name: "a flush waits for what was queued after it began", File: "sender.go", Old: `oldest.No > through`, New: `oldest.No < 1`, By: "TestFlushIsBounded"},
	{Name: "a flush waits for nothing", File: "sender.go", Old: `oldest.No > through`, New: `through > 0`, By: "TestFlushIsBounded"},

	// Waits, and the end.
	{Name: "the collector's delay is not kept", File: "waits.go", Old: `now.Add(max(hint, bounded(w.backoff, longest)))`, New: `now.Add(bounded(w.backoff, longest))`, By: "TestWaits$"},
	{Name: "the collector's delay is unbounded", File: "waits.go", Old: `min(max(hint, 0), w.cfg.BackoffMax)`, New: `max(hint, 0)`, By: "TestWaits$"},
	{Name: "a shorter wait opens the gate", File: "waits.go", Old: `until.After(w.gate)`, New: `!until.IsZero()`, By: "TestWaits$"},
	{Name: "a batch has no wait of its own", File: "waits.go", Old: `e.until = now.Add(max(hint, bounded(e.backoff, longest)))`, New: `e.until = now`, By: "TestWaits$"},
	{Name: "the window opens at once", File: "waits.go", Old: `w.window = min(w.window*2, max)`, New: `w.window = max`, By: "TestWaits$"},
	{Name: "the window stays shut", File: "waits.go", Old: `w.window = min(w.window*2, max)`, New: ``, By: "TestWaits$"},
	{Name: "the gate stays shut", File: "waits.go", Old: `w.streak = 0
	w.gate = time.Time{}`, New: `w.streak = 0`, By: "TestWaits$"},
	{Name: "waits are remembered for ever", File: "waits.go", Old: `delete(w.byNo, no)
		}`, New: `_ = no
		}`, By: "TestWaitsAreBounded"},
	{Name: "a drain waits for back-offs", File: "sender.go", Old: `t.notBefore = time.Time{}`, New: `_ = t`, By: "TestDrainTriesAtOnce"},
	{Name: "a drain is lost with the first collector", File: "drain.go", Old: `if d.failed++; d.failed == targets {`, New: `if d.failed++; d.failed == 1 {`, By: "TestDrainTriesAtOnce"},

	{Name: "a sender of a linearizer that is back waits for its longest back-off", File: "answer.go", Old: `r.GetReason() != reasonLinearizer`, New: `true`, By: "TestTheLinearizerIsBack"},
	{Name: "an overloaded store is asked as often as a lost linearizer", File: "answer.go", Old: `r.GetReason() != reasonLinearizer`, New: `false`, By: "TestLongestWait"},
	{Name: "a collector that lost the linearizer is left alone for long", File: "sender.go", Old: `longest = e.longest`, New: `_ = e.longest`, By: "TestLongestWait"},
	{Name: "what has waited for long comes together", File: "waits.go", Old: `longest/2 + rand.N(longest/2+1)`, New: `longest/8 + rand.N(longest/8+1)`, By: "TestWaits$"},
	{Name: "what a collector said holds for the next one", File: "waits.go", Old: `clear(w.byNo)
	w.gate = time.Time{}`, New: ``, By: "TestWaits$"},

	// Two lists of collectors.
	{Name: "the fallback is used at once", File: "prefer.go", Old: `now.Add(p.cfg.FallbackAfter+time.Duration(`, New: `now.Add(time.Duration(`, By: "TestPreference"},
	{Name: "all agents leave a region at the same moment", File: "prefer.go", Old: `p.random()*float64(p.cfg.FallbackAfter)/2`, New: `0*float64(p.cfg.FallbackAfter)/2`, By: "TestAFleet"},
	{Name: "all agents return at the same moment", File: "prefer.go", Old: `p.random()*float64(p.wait)`, New: `0*float64(p.wait)`, By: "TestAFleet"},
	{Name: "a failed probe is forgotten", File: "prefer.go", Old: `	case !ok:
		p.restart()`, New: `	case !ok:`, By: "TestPreference"},
	{Name: "a region that flaps is returned to ever again", File: "prefer.go", Old: `p.wait = min(2*p.wait, p.cfg.ReturnMax)`, New: ``, By: "TestARegionThatFlaps"},
	{Name: "the wait for a return grows without bound", File: "prefer.go", Old: `p.wait = min(2*p.wait, p.cfg.ReturnMax)`, New: `p.wait *= 2`, By: "TestPreference"},
	{Name: "a long stay does not count", File: "prefer.go", Old: `p.back.IsZero() || now.Sub(p.back) >= p.cfg.ReturnMax`, New: `p.back.IsZero()`, By: "TestPreference"},
	{Name: "a wait that is shortened lasts as long as before", File: "prefer.go", Old: `p.wait = cfg.ReturnAfter // it was not doubled`, New: ``, By: "TestPreference"},
	{Name: "a probe is waited for by the settings of before", File: "prefer.go", Old: `if at := now.Add(p.interval()); at.Before(p.next) {`, New: `if at := now.Add(p.interval()); at.Before(now) {`, By: "TestReloadOfTimes"},
	{Name: "an answer does not end the failing", File: "prefer.go", Old: `p.failing, p.leaving = time.Time{}, time.Time{}`, New: `p.failing = time.Time{}`, By: "TestPreference"},
	{Name: "a back-off ends behind the time of the fallback", File: "prefer.go", Old: `if latest.Before(at) {`, New: `if false {`, By: "TestPreference"},
	{Name: "a preferred collector in back-off is not tried before the fallback", File: "targets.go", Old: `o.notBefore = s.prefer.tryBefore(o, now, o.notBefore)`, New: `_ = o`, By: "TestOrderOf"},
	{Name: "one preferred collector that fails is enough to leave", File: "targets.go", Old: `return !s.prefer.exhausted(t)`, New: `return false`, By: "TestOrderOf"},
	{Name: "a silent collector is tried ever again before the fallback is", File: "prefer.go", Old: ` || t.silent >= p.cfg.FallbackAfter`, New: ``, By: "TestPreference"},
	{Name: "collectors whose back-off is over keep the fallback waiting", File: "targets.go", Old: `fallback == 0 && !s.prefer.isSteady()`, New: `fallback == 0 && s.prefer.list() == Fallback && !s.prefer.isSteady()`, By: "TestSlowFailures"},
	{Name: "silent preferred collectors are tried while the fallback connects again", File: "targets.go", Old: `return !t.vain`, New: `return false`, By: "TestSlowFailures"},
	{Name: "a welcome that came too late is used", File: "session.go", Old: `if !timer.Stop() {`, New: `if !timer.Stop() && err != nil {`, By: "TestAWelcomeAtTheEnd"},
	{Name: "a silent region is waited for while the fallback breaks off", File: "targets.go", Old: `fallback == 0 && !s.prefer.isSteady()`, New: `false && !s.prefer.isSteady()`, By: "TestOrderOf"},
	{Name: "a region that is back is not tried first", File: "targets.go", Old: ` && !s.prefer.isSteady() && !s.prefer.fallbackAt().IsZero()`, New: ` && !s.prefer.fallbackAt().IsZero()`, By: "TestOrderOf"},
	{Name: "a stop waits for the fallback's time", File: "targets.go", Old: `case s.stopping.seen:`, New: `case false:`, By: "TestDrainUsesTheFallback"},
	{Name: "a quarantined agent goes to another region", File: "targets.go", Old: `if quarantined {`, New: `if false {`, By: "TestAQuarantineIs"},
	{Name: "a collector in two lists is taken", File: "config.go", Old: `slices.Contains(c.Collectors, a)`, New: `false`, By: "TestReloadOf"},
	{Name: "a fallback that the settings have no more is gone on with", File: "targets.go", Old: `in == nil || !slices.Contains(fallback.all, in)`, New: `in == nil`, By: "TestReloadOf"},
	{Name: "a reload waits for a back-off", File: "sender.go", Old: `		case <-s.reloaded:
			timer.Stop()`, New: ``, By: "TestReloadWhile"},
	{Name: "a reload waits for a collector that does not answer", File: "session.go", Old: `reloaded = true
			cancel()`, New: ``, By: "TestReloadWhile"},
	{Name: "a reload breaks off what is in flight", File: "session.go", Old: `x.reloading = true`, New: `return errReloaded`, By: "TestReloadOf"},
	{Name: "RETRY is a return", File: "goback.go", Old: `	}
	return false`, New: `	}
	return true`, By: "TestTheFallbackStream"},
	{Name: "a refused trial is forgotten", File: "goback.go", Old: `s.prefer.tried()`, New: ``, By: "TestTheFallbackStream"},
	{Name: "the batch of a refused trial is not sent again", File: "goback.go", Old: `delete(x.inFlight, f.entry.No)`, New: ``, By: "TestTheFallbackStream"},
	{Name: "the batch of a trial is sent to the fallback as well", File: "goback.go", Old: `x.inFlight[e.No] = true`, New: ``, By: "TestGoingBack"},
	{Name: "the batch of an accepted trial is sent again", File: "goback.go", Old: `return x.handleAccepted(f.entry, status, r.answer.GetAcceptance().GetJournalPosition())`, New: `_ = status; return nil`, By: "TestGoingBack"},
	{Name: "a region that accepts nothing is left after three more answers", File: "answer.go", Old: ` || x.mayLeave())`, New: `)`, By: "TestOneMoreRetry"},
	{Name: "what is in flight is broken off by the return", File: "goback.go", Old: `!x.ending() || len(x.flights) > 0 || x.tried != nil`, New: `!x.ending() || x.tried != nil`, By: "TestGoingBack"},
	{Name: "new batches go to the fallback for ever", File: "session.go", Old: `	if x.ending() {
		return nil, nil
	}`, New: ``, By: "TestGoingBack"},
	{Name: "a trial has no end", File: "goback.go", Old: `case <-timer.C:
			result.err = errStalled
			return x.refused(errStalled)`, New: `case <-timer.C:`, By: "TestReturns/no_answers"},
	{Name: "a welcome is a return", File: "status.go", Old: `t.list == Fallback || s.returning`, New: `true`, By: "TestAWelcomeIs"},
	{Name: "an answer is no return", File: "answer.go", Old: `x.target.list == Preferred && x.s.prefer.list() == Fallback`, New: `false`, By: "TestBothAway"},

	// What people are told.
	{Name: "plaintext to a TLS port has no name", File: "fault.go", Old: `return FaultServerIsTLS`, New: `return ""`, By: "TestFaults"},
	{Name: "an alert behind the handshake is not read", File: "fault.go", Old: `_, err = c.Read(make([]byte, 1))`, New: ``, By: "TestFaults"},
	{Name: "a wrong name counts as a wrong CA", File: "fault.go", Old: `return FaultServerName`, New: `return FaultServerUntrusted`, By: "TestFaults"},
	{Name: "a collector that is not ready has a fault", File: "fault.go", Old: `if rpc.Reason(err) != "" {
		return ""`, New: `if rpc.Reason(err) != "" {
		return FaultForbidden`, By: "TestFaults"},
	{Name: "what failed is on standby", File: "status.go", Old: `c.State, c.Fault, c.LastError, c.LastErrorAt = Failing, fault`, New: `c.State, c.Fault, c.LastError, c.LastErrorAt = Standby, fault`, By: "TestFaults"},
	{Name: "a fault outlives a stream", File: "status.go", Old: `t.status = CollectorStatus{Address: t.address, List: t.list, Connected: true, State: Connected, CollectorID: collectorID, Since: &now}`,
		New: `t.status.Connected, t.status.CollectorID, t.status.Since = true, collectorID, &now`, By: "TestNobodyListens"},
	{Name: "the clock's offset has the wrong sign", File: "clock.go", Old: `offset = at.Sub(now)`, New: `offset = now.Sub(at)`, By: "TestClockOffset"},
	{Name: "the way of an answer counts as an offset", File: "clock.go", Old: `case at.Before(sent):`, New: `case at.Before(now):`, By: "TestClockOffset"},
}

func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: planted, Timeout: 20 * time.Second})
}
