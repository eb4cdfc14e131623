package journal

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants a bug at each guard of the journal: the simulation finds most, and a test of its own each of those
// for which many things must come together.
// docs/protocol/journal.md says which guard of the protocol each of them is.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		// The simulation finds most within some schedules; a run that is cut short would prove nothing.
		Run: "^TestSimulation$", Env: []string{"JOURNAL_SIM_SCHEDULES=1000"}, Timeout: 10 * time.Minute,
		Mutants: []mutants.Mutant{
			// Writer.
			{Name: "an unknown outcome is a success", File: "writer.go", Old: "		case err != nil:\n			return last, w.flushed, fmt", New: "		case errors.Is(err, objstore.ErrUnknown):\n			w.confirm()\n			return last, w.flushed, nil\n		case err != nil:\n			return last, w.flushed, fmt"},
			{Name: "a segment that exists is ours", File: "writer.go", Old: "return bytes.Equal(body, w.sent), nil", New: "return body != nil, nil"},
			{Name: "a segment is sent again with more in it", File: "writer.go", Old: "if w.sent != nil {\n		return nil", New: "if w.sent != nil && len(w.entries) == w.sentEntries {\n		return nil", By: "TestASegmentIsSentAgainAsItWas"},
			{Name: "a fenced writer goes on behind the fence", File: "writer.go", Old: "w.live, w.sent = false, nil\n", New: "w.next, w.sent = w.next+1, nil\n"},
			{Name: "a run id is used again", File: "writer.go", Old: "w.run, w.next, w.live = run, 0, true", New: "if w.run != (RunID{}) {\n			run = w.run\n		}\n		w.run, w.next, w.live = run, 0, true"},
			{Name: "a closed run goes on", File: "writer.go", Old: "if w.sentCloses {\n		w.live = false", New: "if false {\n		w.live = false"},
			{Name: "entries that wait are durable", File: "writer.go", Old: "w.flushed += uint64(w.sentEntries)", New: "w.flushed += uint64(len(w.entries))"},
			{Name: "entries behind a fence are lost", File: "writer.go", Old: "w.live, w.sent = false, nil\n", New: "w.live, w.sent = false, nil\n		w.flushed += uint64(w.sentEntries)\n		w.entries = w.entries[w.sentEntries:]\n"},

			// Epochs of condemned names, and the barrier.
			{Name: "segment 0 names an epoch", File: "epochs.go", Old: "!w.live || w.next == 0 {", New: "!w.live {", By: "TestSegmentsName"},
			{Name: "a run names what was read before it was known to be open", File: "epochs.go", Old: "reading <= w.openedAt || set.Epoch()", New: "reading == 0 || set.Epoch()", By: "TestSegmentsName"},
			{Name: "a run names an earlier epoch again", File: "epochs.go", Old: " || set.Epoch() < w.epoch:", New: ":", By: "TestSegmentsName"},
			{Name: "an entry is not compared with the names", File: "epochs.go", Old: "		out[i] = !names.Has(entries[i].SHA256)\n", New: "		out[i] = true\n", By: "TestSegmentsName"},
			{Name: "a run that can't follow the log goes on", File: "epochs.go", Old: "case (set != nil) != w.names:", New: "case set != nil && !w.names:", By: "TestSegmentsName"},
			{Name: "a run that names none goes on for ever", File: "epochs.go", Old: "case (set != nil) != w.names:", New: "case set == nil && w.names:", By: "TestSegmentsName"},
			{Name: "an idle run does not name a new epoch", File: "epochs.go", Old: "w.epoch > 0 && names.Epoch() > w.epoch\n", New: "false\n", By: "TestSegmentsName"},
			{Name: "a run that has named nothing passes", File: "barrier.go", Old: "!s.Epochs, s.Epoch >= b.epoch:", New: "s.Epoch == 0, s.Epoch >= b.epoch:", By: "TestBarrier"},
			{Name: "the epoch before is enough", File: "barrier.go", Old: "s.Epoch >= b.epoch:", New: "s.Epoch+1 >= b.epoch:", By: "TestBarrier"},
			{Name: "the listing shows all runs", File: "barrier.go", Old: "h.Ended == 0 && b.runs", New: "false && b.runs", By: "TestBarrier"},
			{Name: "a fence is an end wherever it stands", File: "barrier.go", Old: "h.Ended > 0 || h.Folded <= at", New: "at < ^uint64(0)", By: "TestBarrier"},
			{Name: "the first segments say it all", File: "barrier.go", Old: "		if err != nil || last == r.next {", New: "		if last = r.next; err != nil || last == r.next {", By: "TestBarrier"},
			{Name: "a run that is gone is waited for", File: "barrier.go", Old: "ErrNotFound) && h == nil:", New: "ErrNotFound) && false:", By: "TestBarrier"},
			{Name: "a run that was forgotten between two questions is waited for", File: "barrier.go", Old: "ErrNotFound) && h == nil:", New: "ErrNotFound) && h == nil && r.next == 0:", By: "TestBarrierForgets"},
			{Name: "what is sent and not answered is left to the next entry", File: "epochs.go", Old: "return w.epochs != nil && w.sentEntries == 0", New: "return false", By: "TestSegmentsName"},

			// Follower.
			{Name: "a failed read is absence", File: "follower.go", Old: "if errors.Is(err, objstore.ErrNotFound) {\n				return segments", New: "if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, objstore.ErrUnavailable) {\n				return segments"},
			{Name: "a segment that is not there is passed over", File: "follower.go", Old: "if errors.Is(err, objstore.ErrNotFound) {\n				return segments", New: "if errors.Is(err, objstore.ErrNotFound) {\n				f.mu.Lock()\n				r.next++\n				f.mu.Unlock()\n				return segments"},
			{Name: "what was read ahead counts beyond a gap", File: "follower.go", Old: "if errors.Is(err, objstore.ErrNotFound) {\n				return segments, entries, nil\n			}", New: "if errors.Is(err, objstore.ErrNotFound) {\n				if i+1 == len(got) || got[i+1].s == nil {\n					return segments, entries, nil\n				}\n				f.mu.Lock()\n				r.next++\n				f.mu.Unlock()\n				continue\n			}", By: "TestReadingAhead"},
			{Name: "a hint reads beyond its segment", File: "follower.go", Old: "min(through.Segment, toTheEnd-1)", New: "toTheEnd", By: "TestAHint"},
			{Name: "what can't be applied is passed over", File: "follower.go", Old: "err = f.cfg.Segment(ctx, s)", New: "_ = f.cfg.Segment(ctx, s)"},
			{Name: "a folded file that can't be applied is passed over", File: "follower.go", Old: "return f.cfg.Folded(ctx, es)", New: "_ = f.cfg.Folded(ctx, es)\n		return nil"},
			{Name: "the first page lists all runs", File: "follower.go", Old: "if o.StartAfter = page.Next; page.Next == \"\" {", New: "if o.StartAfter = page.Next; true {"},
			{Name: "a run that is listed first is not read", File: "follower.go", Old: "if !r.ended {\n			todo", New: "if !r.ended && r.newsAt < f.polls {\n			todo"},
			{Name: "the time is of the poll's own listing", File: "follower.go", Old: "			out.Positions, out.Lost = f.compared()\n", New: "			out.Through = f.date\n			out.Positions, out.Lost = f.compared()\n"},
			{Name: "the head comes first", File: "follower.go", Old: theRound, New: headFirst},
			{Name: "the head is not compared", File: "follower.go", Old: "if behind = f.isBehind(&head); !behind {", New: "if behind = false; !behind {"},
			{Name: "a poll proves something that found itself behind", File: "follower.go", Old: "	f.head, f.etag, f.known = head, etag, head.Number\n	return true, nil", New: "	f.head, f.etag, f.known = head, etag, head.Number\n	return false, nil"},
			{Name: "only the last move is read", File: "follower.go", Old: "after := f.known", New: "after := head.Number - 1"},
			{Name: "forgotten runs are not missed", File: "follower.go", Old: "if h.Forgotten > f.known {", New: "if false {"},
			{Name: "unknown runs that ended are not missed", File: "follower.go", Old: "case r == nil && (run.Ended == 0 || run.Ended > f.known):", New: "case r == nil && run.Ended == 0:"},
			{Name: "unknown runs are not missed", File: "follower.go", Old: "case r == nil && (run.Ended == 0 || run.Ended > f.known):", New: "case r == nil && run.Ended > f.known:"},
			{Name: "a run that is folded beyond is not missed", File: "follower.go", Old: "case r != nil && !r.ended && run.Folded > r.next:", New: "case false:"},
			{Name: "a fence counts before the head", File: "follower.go", Old: "r.pending = s.Ends()", New: "r.pending, r.ended = s.Ends(), r.ended || s.Ends()", By: "TestALateFenceIsNoEnd|TestSimulation"},
			{Name: "a fence that was read after the head counts", File: "follower.go", Old: "for _, r := range ends {", New: "for _, r := range f.runs {", By: "TestALateFenceIsNoEnd"},
			{Name: "a late fence is still an end", File: "follower.go", Old: "r.next, r.pending = max(r.next, h.Folded), false", New: "r.next = max(r.next, h.Folded)", By: "TestALateFenceIsNoEnd"},
			{Name: "runs that end after the positions were read", File: "follower.go", Old: "if r.Ended > 0 && r.Ended <= f.known && f.runs[r.Run] == nil {", New: "if r.Ended > 0 && f.runs[r.Run] == nil {"},
			{Name: "a run that is not listed is dropped", File: "follower.go", Old: "if !r.listed && (h == nil || h.Ended > 0 && r.ended) {", New: "if !r.listed {"},
			{Name: "a forgotten run is asked for ever", File: "follower.go", Old: "if !r.listed && (h == nil || h.Ended > 0 && r.ended) {", New: "if !r.listed && r.ended && (h == nil || h.Ended > 0) {"},
			{Name: "a run that nobody has begun was forgotten", File: "follower.go", Old: "f.head.Run(run) == nil && f.head.Forgotten > 0", New: "f.head.Run(run) == nil", By: "TestTheHeadForgetsRunsSooner"},
			{Name: "a run that is followed was forgotten", File: "follower.go", Old: "return f.runs[run] == nil && f.head.Run(run) == nil", New: "return f.head.Run(run) == nil", By: "TestTheHeadForgetsRunsSooner"},
			{Name: "the head of earlier positions is the later one", File: "positions.go", Old: "Head: min(a.Head, b.Head)", New: "Head: max(a.Head, b.Head)"},
			{Name: "the next segment of earlier positions is the later one", File: "positions.go", Old: "Next: min(r.Next, o.Next)", New: "Next: max(r.Next, o.Next)"},
			{Name: "a run that ended for one has ended for both", File: "positions.go", Old: "r.Ended && o.Ended", New: "r.Ended || o.Ended"},
			{Name: "a run that one of them names was read by both", File: "positions.go", Old: "		if !ok {\n", New: "		if !ok {\n			out.Runs = append(out.Runs, r)\n"},

			{Name: "files are skipped that are needed", File: "follower.go", Old: "func(x FoldedFile) bool { return f.cfg.Skip(x.Span) }", New: "func(x FoldedFile) bool { x.MaxTime = x.MinTime; return f.cfg.Skip(x.Span) }"},
			{Name: "lists are skipped that are needed", File: "follower.go", Old: "func(l FileList) bool { return f.cfg.Skip(l.Span) }", New: "func(l FileList) bool { l.MaxTime = l.MinTime; return f.cfg.Skip(l.Span) }"},
			{Name: "a list is as old as its oldest file", File: "filewriter.go", Old: "max(l.MaxTime, f.MaxTime)", New: "min(l.MaxTime, f.MaxTime)"},
			{Name: "a file is as old as its oldest entry", File: "filewriter.go", Old: "max(f.MaxTime, e.MaxTime)", New: "min(f.MaxTime, e.MaxTime)"},

			// Head.
			{Name: "a merged file counts from its first move", File: "head.go", Old: "return f.Last <= number", New: "return f.First <= number"},
			{Name: "a list counts from its first move", File: "head.go", Old: "if l.Last <= number {", New: "if l.First <= number {"},
			{Name: "folded positions are one too far", File: "head.go", Old: "Next: r.Folded}", New: "Next: r.Folded + 1}"},

			// Folder.
			{Name: "segments are deleted before the head moves", File: "folder.go", Old: "until := min(old[h.Run], h.Folded)", New: "until := max(old[h.Run], h.Folded)"},
			{Name: "a move of unknown outcome is one", File: "head.go", Old: "	if gerr == nil && bytes.Equal(there, b) {", New: "	if errors.Is(err, objstore.ErrUnknown) || gerr == nil && bytes.Equal(there, b) {"},
			{Name: "the head moves before its files are there", File: "filewriter.go", Old: "if err := w.create(ctx, f.Key, b, segmentContent); err != nil {\n			return nil, err\n		}", New: "_ = w.create(ctx, f.Key, b, segmentContent)"},
			{Name: "the head is moved whatever it is", File: "head.go", Old: "info, err = s.Replace(ctx, layout.JournalHeadKey, b, etag, headContent)", New: "_, there, _ := s.Get(ctx, layout.JournalHeadKey, objstore.GetOptions{})\n		info, err = s.Replace(ctx, layout.JournalHeadKey, b, there.ETag, headContent)"},
			{Name: "heads that another folder moved are not noted", File: "folder.go", Old: "n == 0 || f.folded[n-1].number < f.head.Number", New: "n == 0", By: "TestSegmentsOfAMoveOfUnknownOutcome"},
			{Name: "a fence is deleted", File: "folder.go", Old: "if !h.Fenced || h.Deleted < h.Folded-1 {", New: "if true {"},
			{Name: "a fence does not end a folded run", File: "folder.go", Old: "if s.Ends() {", New: "if s.Closed {"},
			{Name: "one loser of an identity is kept", File: "folder.go", Old: "if k.conflict {\n			k.hash", New: "if false {\n			k.hash"},
			{Name: "a loser is dropped for the batch", File: "folder.go", Old: "k := key{conflict: e.Outcome.Conflict(), counts: e.Outcome.Counts()}", New: "k := key{}"},
			{Name: "a batch elsewhere stands for one of this region", File: "folder.go", Old: "counts: e.Outcome.Counts()}", New: "counts: !e.Outcome.Conflict()}", By: "TestFoldingKeepsWhatIsElsewhere"},
			{Name: "a file with a batch elsewhere is of an earlier version", File: "file.go", Old: "			return versionElsewhere\n", New: "			return versionInline\n", By: "TestGoldenFiles"},
			{Name: "a merged file ends where its first part does", File: "filewriter.go", Old: "group[0].First, group[n-1].Last)", New: "group[0].First, group[0].Last)"},
			{Name: "a list ends where its first file does", File: "filewriter.go", Old: "max(l.Last, f.Last)", New: "min(l.Last, f.Last)"},
			{Name: "files of a move under way are swept", File: "sweep.go", Old: "err == nil && number <= f.head.Number && !named[key]", New: "err == nil && number > 0 && !named[key]", By: "TestASweepLeavesAMoveThatIsUnderWay"},
			{Name: "files that the head names are swept", File: "sweep.go", Old: "err == nil && number <= f.head.Number && !named[key]", New: "err == nil && number <= f.head.Number"},
			{Name: "lists that the head names are swept", File: "sweep.go", Old: "named[l.Key] = true", New: "_ = l"},
			{Name: "nobody knows that a run was forgotten", File: "folder.go", Old: "h.Forgotten = max(h.Forgotten, r.Ended)", New: "_ = r"},
			{Name: "a run is forgotten before its segments are deleted", File: "folder.go", Old: "return r.Ended > 0 && r.Deleted == r.Folded", New: "return r.Ended > 0"},
			{Name: "a run is forgotten before its end", File: "folder.go", Old: "return r.Ended > 0 && r.Deleted == r.Folded", New: "return r.Deleted == r.Folded"},
			{Name: "a folder takes up a run that the head forgot", File: "folder.go", Old: "if head.Run(id) != nil || head.Forgotten <= r.since {", New: "if true {", By: "TestAFolderThatSleptTakesUpNoForgottenRun"},
			// Files that are lost.
			{Name: "a drop is covered by the begin of another journal", File: "drop.go", Old: "max(head.Number, begin.Head) + 1", New: "max(head.Number, begin.Head*0) + 1", By: "TestADropIs"},
			{Name: "a dropped file is no loss", File: "drop.go", Old: "next.Lost = next.Number", New: "next.Lost = head.Lost"},
			{Name: "what can be read is dropped", File: "drop.go", Old: "return fmt.Errorf(\"%q: %w\", x.Key, ErrFileReadable)", New: "return nil"},
			{Name: "what can't be reached is dropped", File: "drop.go", Old: "case errors.Is(err, objstore.ErrNotFound), record.Unreadable(err):", New: "case err != nil:"},
			{Name: "a drop undoes moves beside it", File: "drop.go", Old: "	_, err = moveHead(ctx, s, etag, next)", New: "	_, etag, _ = ReadHead(ctx, s)\n	_, err = moveHead(ctx, s, etag, next)"},
			{Name: "a list is dropped with its file", File: "drop.go", Old: "case len(kept) == 0:", New: "case len(kept) < len(files):", By: "TestADroppedFileLets"},
			{Name: "an audit that began before the loss proves completeness", File: "begin.go", Old: "r.By != \"\" && r.Head >= lost", New: "r.By != \"\""},
			{Name: "an earlier audit takes the place of a later one", File: "begin.go", Old: "case there.Covers(r.Head):", New: "case there.Head == r.Head && there.By != \"\":", By: "TestALaterBeginStays"},
			{Name: "an opening that came back stays", File: "sweep.go", Old: "return f.sweepOpen(ctx)", New: "return nil", By: "TestAnOpeningThatCameBackIsSwept"},
		},
	})
}

// theRound is the body of a poll's round, and headFirst the same with the head before it.
const (
	theRound = `	todo, err := f.list(ctx)
	if err != nil {
		return false, err
	}
	var count sync.Mutex
	err = f.cfg.Fan(ctx, len(todo), func(ctx context.Context, i int) error {
		segments, entries, err := f.read(ctx, todo[i], toTheEnd)
		count.Lock()
		defer count.Unlock()
		out.Segments, out.Entries = out.Segments+segments, out.Entries+entries
		return err
	})
	if err != nil {
		return false, err
	}
	return f.compare(ctx)
`
	headFirst = `	if behind, err = f.compare(ctx); err != nil || behind {
		return behind, err
	}
	todo, err := f.list(ctx)
	if err != nil {
		return false, err
	}
	var count sync.Mutex
	err = f.cfg.Fan(ctx, len(todo), func(ctx context.Context, i int) error {
		segments, entries, err := f.read(ctx, todo[i], toTheEnd)
		count.Lock()
		defer count.Unlock()
		out.Segments, out.Entries = out.Segments+segments, out.Entries+entries
		return err
	})
	if err != nil {
		return false, err
	}
	return false, nil
`
)
