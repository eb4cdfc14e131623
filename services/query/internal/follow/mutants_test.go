package follow

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what a node says that it has: complete_through, failed reads, slow
// frames, the window's edge, batches that can't be read, where it begins to read.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		// Without what waits for a watch.
		Run: "TestCompleteThrough|TestFailedReads|TestSlowFrame|TestBatchesAtTheWindows|TestUnread|TestNeverSilently|TestTheJournalIsRead|TestBlocksThat|TestAnAudit|TestOldBatches|TestMarksOfMany|TestUnknownTokens|TestWhatIsStill|TestUnreadableIsACount|TestAnswersDoNot|TestHintsAre|TestANodeThatStartsHas|TestHelpsThat",
		Mutants: []mutants.Mutant{
			{Name: "what a poll proves counts at once", File: "queue.go", Old: "	return len(q.order) == 0 || q.order[0].ticket > upTo", New: "	return len(q.order) == 0 || true", By: "TestSlowFrame"},
			{Name: "a node that starts has no helps of blocks", File: "start.go", Old: "		f.helpsAt = f.d.Now()\n", New: "", By: "TestANodeThatStartsHasTheHelps"},
			{Name: "helps of blocks are not asked for again", File: "helps.go", Old: "		next = f.d.Now().Add(helpsRetry)\n", New: "", By: "TestHelpsThatCantBeRead"},
			{Name: "helps of blocks are read with each poll", File: "helps.go", Old: "	f.helpsAt = next\n", New: "	_ = next\n", By: "TestANodeThatStartsHasTheHelps"},
			{Name: "what a poll proves counts at once, by the model", File: "queue.go", Old: "	return len(q.order) == 0 || q.order[0].ticket > upTo", New: "	return len(q.order) == 0 || true", By: "TestNeverSilentlyPartial"},
			{Name: "the batch that was named last is not waited for", File: "queue.go", Old: "q.order[0].ticket > upTo", New: "q.order[0].ticket >= upTo", By: "TestSlowFrame"},
			{Name: "polls that do not fit push out older ones", File: "queue.go", Old: "	if len(q.marks) < maxMarks {\n		q.marks = append(q.marks, m)\n	}", New: "	q.marks = append(q.marks, m)\n	if len(q.marks) > maxMarks {\n		q.marks = nil\n		q.passed = m\n	}", By: "TestSlowFrame"},
			{Name: "a frame that can't be fetched is passed over", File: "fetch.go", Old: "		f.queue.retry(w, f.d.Now().Add(min(fetchRetry<<min(w.failures, 5), fetchRetryMax)))\n		return err", New: "		f.finish(w)\n		return err", By: "TestFailedReads"},
			{Name: "a failed poll proves as much", File: "journal.go", Old: "	got, err := j.Poll(ctx)\n	if err != nil {", New: "	got, err := j.Poll(ctx)\n	if ctx.Err() != nil {", By: "TestFailedReads"},
			{Name: "a poll is as old as its end", File: "journal.go", Old: "	if since.IsZero() {\n		since = began\n	}", New: "	if since = f.d.Now(); since.IsZero() {\n		since = began\n	}", By: "TestCompleteThrough"},
			{Name: "the journal is complete if it is so after the poll", File: "journal.go", Old: "	failpoint.Hit(\"query.poll.done.before\")", New: "	begin, _ = journal.ReadBegin(ctx, f.d.Store)\n	failpoint.Hit(\"query.poll.done.before\")", By: "TestAnAuditCompletes"},
			{Name: "a journal that was complete stays so", File: "journal.go", Old: "begun: begin.Covers(got.Lost), blocks", New: "begun: begin.Covers(0), blocks", By: "TestALostFile"},
			{Name: "nobody asks again whether the journal is complete", File: "journal.go", Old: "known := begin.Covers(f.lost)", New: "known := begin.Covers(0)", By: "TestALostFile"},
			{Name: "a journal that is incomplete is complete", File: "status.go", Old: "	if p.begun {\n		st.CompleteThrough", New: "	if true {\n		st.CompleteThrough", By: "TestAnAuditCompletes"},
			{Name: "a sample on the window's edge is before it", File: "fetch.go", Old: "if maxNS >= f.d.Now()", New: "if maxNS > f.d.Now()", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "a batch with a sample before the window is counted only", File: "fetch.go", Old: "if maxNS >= f.d.Now()", New: "if minNS >= f.d.Now()", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "late batches that are needed are counted only", File: "fetch.go", Old: "	return f.d.Blocks.Missing(ctx, id, minNS, maxNS)", New: "	return false, nil", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "blocks that can't be listed have everything", File: "journal.go", Old: "		if err != nil {\n			return fmt.Errorf(\"blocks of", New: "		if ctx.Err() != nil {\n			return fmt.Errorf(\"blocks of", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "an unreadable frame is not told", File: "fetch.go", Old: "		f.noteUnread(b, err)\n", New: "", By: "TestUnreadableAtItsEdges"},
			{Name: "an unreadable batch does not matter at its first sample", File: "unread.go", Old: "x.first[i] > maxt })\n	return", New: "x.first[i] >= maxt })\n	return", By: "TestUnreadableAtItsEdges"},
			{Name: "an unreadable batch does not matter at its last sample", File: "unread.go", Old: "x.last[i] >= mint", New: "x.last[i] > mint", By: "TestUnreadableAtItsEdges"},
			{Name: "unreadable batches are not tried again", File: "fetch.go", Old: "	if f.d.Live.Known(id) && !f.isUnread(id) {", New: "	if f.d.Live.Known(id) {", By: "TestUnreadableAtItsEdges"},
			{Name: "an unreadable batch is told for ever", File: "fetch.go", Old: "		f.readable(id) // blocks have it, or nobody can reach it\n", New: "", By: "TestUnreadableUntilABlock"},
			{Name: "unreadable batches beyond the bound are forgotten", File: "unread.go", Old: "		f.overflow++\n", New: "", By: "TestUnreadBatchesAreBounded"},
			{Name: "samples begin with the batch that was read last", File: "book.go", Old: "	k.first = min(k.first, first)\n", New: "	k.first = first\n", By: "TestBatchesAtTheWindowsEdge"},
			{Name: "samples begin after the ledgers' positions", File: "book.go", Old: "			k.first = min(k.first, at)\n", New: "			_ = at\n", By: "TestTheJournalIsRead"},
			{Name: "what is pending is in blocks", File: "start.go", Old: "p.Pending...)", New: "p.Pending[:0]...)", By: "TestTheJournalIsRead"},
			{Name: "one shard's progress is that of all", File: "start.go", Old: "	return progress.Earliest(all), pending, nil", New: "	return all[0].Positions, pending, nil", By: "TestTheJournalIsRead"},
			{Name: "what is not rolled up is not read after a start", File: "start.go", Old: "	return journal.Earliest(from, known), pending, err", New: "	_ = from\n	return known, pending, err", By: "TestTheJournalIsRead"},
			{Name: "evicted batches that blocks lack are marked no more", File: "recheck.go", Old: "	if err != nil || !missing {", New: "	if err != nil || missing || true {", By: "TestMarksOfManyEvicted"},
			{Name: "evicted batches that blocks have are marked for ever", File: "recheck.go", Old: "	if err != nil || !missing {", New: "	if err != nil || !missing && false {", By: "TestMarksOfManyEvicted"},
			{Name: "what is in memory is marked as evicted", File: "recheck.go", Old: " || r.f.d.Live.Shows(b.Identity) {", New: " {", By: "TestMarksOfManyEvicted"},
			{Name: "of many hints only the first is followed", File: "watch.go", Old: "			out = append(out, at)\n			return", New: "			if len(out) == 0 {\n				out = append(out, at)\n			}\n			return", By: "TestHintsAreFollowedSideBySide"},
			{Name: "a token that nobody gave is visible", File: "visible.go", Old: "if j.Forgotten(p.Run) {", New: "if true {", By: "TestUnknownTokens"},
			{Name: "a poll that began before the request decides about a token", File: "visible.go", Old: "need := f.polls.begun + 1 // one", New: "need := f.polls.done // one", By: "TestUnknownTokens"},
			{Name: "what is fetched still waits", File: "queue.go", Old: "	q.tally.Add(w.shard, hoursOf(&w.batch), -1)\n", New: "", By: "TestWhatIsStillFetched"},
			{Name: "unreadable batches that end before a range are counted", File: "unread.go", Old: "return begun - sort.Search(len(x.last), func(i int) bool { return x.last[i] >= mint })", New: "return begun", By: "TestUnreadableIsACount"},
			{Name: "shared ids are listed for each answer", File: "book.go", Old: "k.stale || age < 0 || age >= sharedFor", New: "true || age < 0", By: "TestAnswersDoNotCompareAllBoots"},
			{Name: "blocks that come later change nothing", File: "start.go", Old: "	if j != nil && withBlocks == (shards > 0) {", New: "	if j != nil && (withBlocks || true) {", By: "TestBlocksThatComeLater"},
			{Name: "blocks are served before memory has the rest", File: "journal.go", Old: "	f.advanced()\n	return got, nil", New: "	f.d.Blocks.Serve()\n	f.advanced()\n	return got, nil", By: "TestBlocksThatComeLater"},
		},
	})
}
