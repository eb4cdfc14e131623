package follow

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/missing"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var (
	someTime = time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)
	someBoot = identity.Boot{Agent: "a0", Boot: "b"}
)

// TestCompleteThroughIsBeforeThePoll: a batch that is answered while a poll reads may be missed by it, so the poll
// vouches for nothing that came after its begin.
func TestCompleteThroughIsBeforeThePoll(t *testing.T) {
	w := newWorld(t, 1, someTime)
	w.onList = func() { w.tick(time.Minute) }
	w.must(w.follow.CatchUp(t.Context()))
	if st := w.follow.Status(); st.CompleteThrough.After(someTime) || st.CompleteThrough.IsZero() || !st.Since.Equal(someTime) {
		t.Errorf("%+v, want %s", st, someTime)
	}
	select {
	case <-w.follow.First():
	default:
		t.Error("the first poll has succeeded, and First waits")
	}
}

// TestFailedReadsProveNothing: a poll whose requests fail proves nothing, whichever of them it is.
func TestFailedReadsProveNothing(t *testing.T) {
	w := newWorld(t, 2, someTime)
	b := w.accept(false)
	for _, what := range []string{"list", layout.AuthorityKey, layout.JournalBeginKey, layout.JournalOpenPrefix, layout.JournalHeadKey, layout.LedgersKey, "raw-blobs/"} {
		w.restart()
		w.fail(what)
		if err := w.follow.CatchUp(t.Context()); err == nil {
			t.Errorf("%s fails: the poll has succeeded", what)
		}
		if st := w.follow.Status(); !st.CompleteThrough.IsZero() || !st.Since.IsZero() || st.PollError == nil && what != "raw-blobs/" {
			t.Errorf("%s fails: %+v", what, st)
		}
		select {
		case <-w.follow.First():
			t.Errorf("%s fails: First is closed", what)
		default:
		}
	}
	w.fail("")
	w.tick(time.Second)
	w.must(w.follow.CatchUp(t.Context()))
	if !w.shows(b)() {
		t.Error("the batch is not shown when the store works again")
	}
	w.check("after failed reads")
}

func (w *world) shows(batches ...*batch) func() bool {
	return func() bool {
		shown := w.shown()
		return !slices.ContainsFunc(batches, func(b *batch) bool { return shown[b.ms[0]] == 0 })
	}
}

// TestSlowFrameHoldsBackOnlyWhatIsComplete: while a frame can't be fetched, later batches are shown and polls go on.
// What they prove counts when the frame was taken.
func TestSlowFrameHoldsBackOnlyWhatIsComplete(t *testing.T) {
	w := newWorld(t, 3, someTime)
	w.must(w.follow.CatchUp(t.Context()))
	through := w.follow.Status().CompleteThrough
	slow := w.accept(false)
	w.fail(slow.manifest.RawBlobKey)
	w.tick(time.Second)
	for range 3 { // with nothing behind it
		if err := w.follow.CatchUp(t.Context()); err == nil {
			t.Fatal("a frame that can't be fetched was taken")
		}
		w.tick(time.Second)
		w.check("a slow frame alone")
	}
	var later []*batch
	for range 3 * maxMarks { // more polls than are remembered
		w.tick(time.Second)
		if len(later) < 5 {
			later = append(later, w.accept(false))
		}
		if err := w.follow.CatchUp(t.Context()); err == nil {
			t.Fatal("a frame that can't be fetched was taken")
		}
		w.check("a slow frame")
	}
	if !w.shows(later...)() || w.shows(slow)() {
		t.Error("not the later batches are shown")
	}
	if st := w.follow.Status(); !st.CompleteThrough.Before(slow.at) || st.CompleteThrough.Before(through) || st.PollError != nil {
		t.Errorf("complete through %s, before the slow batch %s: %v", st.CompleteThrough, slow.at, st.PollError)
	}
	w.fail("")
	w.must(w.follow.CatchUp(t.Context()))
	w.tick(2 * time.Second)
	w.must(w.follow.CatchUp(t.Context()))
	w.must(w.follow.CatchUp(t.Context()))
	if st := w.follow.Status(); st.CompleteThrough.Before(w.now().Add(-3*time.Second)) || !w.shows(slow)() {
		t.Errorf("complete through %s at %s", st.CompleteThrough, w.now())
	}
}

// TestBatchesAtTheWindowsEdge: a batch with one sample in the window is shown, and so is one before it that blocks
// lack; one wholly before it is counted.
func TestBatchesAtTheWindowsEdge(t *testing.T) {
	w := newWorld(t, 4, someTime)
	edge := someTime.Add(-history).UnixMilli()
	across := w.acceptAt(someBoot, 0, edge-60_000, edge)
	before := w.acceptAt(someBoot, 2, edge-120_000, edge-1)
	before.old = true
	needed := w.acceptAt(someBoot, 4, edge-50_000, edge-40_000)
	ahead := w.acceptAt(someBoot, 6, someTime.Add(12*time.Minute).UnixMilli()) // by an agent whose clock is ahead
	w.blocks.missing = func(id identity.Batch) (bool, error) { return id == needed.manifest.Identity, nil }
	cover := func() {
		w.live.SetCover(func(id identity.Batch, _ []timegrid.Hour) live.Held {
			if id == needed.manifest.Identity {
				return live.OnlyHere
			}
			return live.Published
		})
	}
	cover()
	w.must(w.follow.CatchUp(t.Context()))
	shown := w.shown()
	for name, c := range map[string]struct {
		b    *batch
		want bool
	}{"across": {across, true}, "before": {before, false}, "needed": {needed, true}, "ahead": {ahead, true}} {
		if got := w.visible(c.b, shown); got != c.want {
			t.Errorf("%s the edge: shown %v", name, got)
		}
	}
	if a := w.follow.Agents("", identity.Boot{}, 0); len(a) != 1 || a[0].Records != 7 || a[0].AcceptedThrough != 6 {
		t.Errorf("ledger %+v", a)
	}
	if got := w.follow.Status().First; got != before.manifest.MinTime {
		t.Errorf("samples begin at %d, want %d", got, before.manifest.MinTime)
	}
	// A batch of which it is not known whether blocks have it stops what is complete.
	w.restart()
	cover()
	w.blocks.missing = func(identity.Batch) (bool, error) { return false, errors.New("the blocks can't be listed") }
	if err := w.follow.CatchUp(t.Context()); err == nil || !w.follow.Status().Since.IsZero() {
		t.Errorf("blocks that can't be listed: %v, %+v", err, w.follow.Status())
	}
}

// TestUnreadableAtItsEdges: an unreadable batch matters to ranges that meet its samples, at
// its first and its last millisecond too.
func TestUnreadableAtItsEdges(t *testing.T) {
	w := newWorld(t, 6, someTime)
	ms := someTime.Add(-time.Minute).UnixMilli()
	b := w.acceptAt(someBoot, 0, ms, ms+10)
	w.put(b.manifest.RawBlobKey, []byte("damaged"))
	w.must(w.follow.CatchUp(t.Context()))
	for _, c := range []struct {
		mint, maxt int64
		want       int
	}{{ms - 5, ms - 1, 0}, {ms - 5, ms, 1}, {ms + 3, ms + 4, 1}, {ms + 10, ms + 20, 1}, {ms + 11, ms + 20, 0}} {
		if u := w.follow.Status().Unreadable(c.mint, c.maxt, 3); u.Batches != c.want || len(u.Named) != c.want || len(u.Hours) != c.want {
			t.Errorf("[%d, %d]: %+v", c.mint-ms, c.maxt-ms, u)
		}
	}
	w.put(b.manifest.RawBlobKey, b.frame)
	w.follow.RetryUnread(t.Context())
	if u := w.follow.Status().Unreadable(ms, ms, 3); u.Batches != 0 || !w.shows(b)() {
		t.Errorf("readable again: %+v", u)
	}
}

// TestUnreadableUntilABlockHasIt: a frame that is gone for good no longer matters when the window has passed and a block
// has its samples.
func TestUnreadableUntilABlockHasIt(t *testing.T) {
	w := newWorld(t, 8, someTime)
	b := w.accept(false)
	w.must(w.store.Delete(t.Context(), b.manifest.RawBlobKey))
	held := false
	w.blocks.missing = func(identity.Batch) (bool, error) { return !held, nil }
	w.must(w.follow.CatchUp(t.Context()))
	w.tick(history + time.Hour)
	w.follow.RetryUnread(t.Context())
	if !w.told(b) {
		t.Error("no block has it, and it is not told any more")
	}
	held = true
	w.follow.RetryUnread(t.Context())
	if w.told(b) || w.follow.Status().Unread != 0 {
		t.Error("a block has it, and the answer is still marked")
	}
}

// TestUnreadBatchesAreBounded: beyond the bound unreadable batches are only counted, and
// every range is reported of them.
func TestUnreadBatchesAreBounded(t *testing.T) {
	w := newWorld(t, 7, someTime)
	for i := range uint64(maxUnread + 3) {
		id := identity.Batch{Agent: "a", Boot: "b", SeqStart: i, SeqEnd: i}
		w.follow.noteUnread(accepted.Batch{Identity: id, MinTime: 5e6, MaxTime: 5e6}, errors.New("gone"))
	}
	if u := w.follow.Status().Unreadable(6, 7, 3); u.Batches != 0 || u.More != 3 {
		t.Errorf("in another range %+v, want 3 more", u)
	}
	st := w.follow.Status()
	if u := st.Unreadable(5, 5, 3); u.Batches != maxUnread || u.More != 3 || len(u.Named) != 3 {
		t.Errorf("%+v, want %d and 3 more", u, maxUnread)
	}
	if n := testing.AllocsPerRun(10, func() { w.follow.Status().Unreadable(5, 5, 3) }); n > 60 {
		t.Errorf("%v allocations for one answer", n)
	}
	if n := w.follow.Status().Unread; n != maxUnread+3 {
		t.Errorf("%d unreadable batches", n)
	}
}

// TestTheJournalIsReadFromWhatIsRolledUp: with progress of all shards and the ledgers' root only what comes after them is
// read, and what is pending; the ledgers count the rest all the same.
func TestTheJournalIsReadFromWhatIsRolledUp(t *testing.T) {
	w := newWorld(t, 9, someTime)
	w.blocks.shards = 2
	ms := someTime.Add(-time.Minute).UnixMilli()
	rolled, pending := w.acceptAt(someBoot, 0, ms), w.acceptAt(someBoot, 1, ms+1)
	w.progressed(pending)
	w.must(w.store.Delete(t.Context(), rolled.manifest.RawBlobKey)) // nobody needs it
	after := w.acceptAt(someBoot, 2, ms+2)
	w.restart()
	// Blocks that were seen before the records were read may lack what these say to be in blocks.
	w.blocks.renewing = errors.New("the blocks can't be listed")
	if err := w.follow.CatchUp(t.Context()); err == nil || !w.follow.Status().Since.IsZero() {
		t.Errorf("blocks are not read again: %v, %+v", err, w.follow.Status())
	}
	w.blocks.renewing = nil
	w.must(w.follow.CatchUp(t.Context()))
	if shown := w.shown(); !w.visible(pending, shown) || !w.visible(after, shown) || w.visible(rolled, shown) {
		t.Errorf("%d records are shown", len(shown))
	}
	st := w.follow.Status()
	if a := w.follow.Agents("", identity.Boot{}, 0); len(a) != 1 || a[0].Records != 3 || a[0].Batches != 3 || st.First != rolled.manifest.MinTime || st.Unread != 0 {
		t.Errorf("%+v, %+v", a, st)
	}
	if !w.blocks.served {
		t.Error("blocks are not served")
	}
	// One shard without a record: everything is read.
	w.must(w.store.Delete(t.Context(), layout.RollupProgress(1)))
	w.restart()
	w.must(w.follow.CatchUp(t.Context()))
	if n := w.follow.Status().Unread; n != 1 {
		t.Errorf("%d unreadable batches, want the one whose blob is gone", n)
	}
	// A damaged one as well.
	w.put(layout.RollupProgress(0), []byte("{"))
	w.put(layout.LedgersKey, []byte("{"))
	w.restart()
	w.must(w.follow.CatchUp(t.Context()))
	if st, a := w.follow.Status(), w.follow.Agents("", identity.Boot{}, 0); st.Unread != 1 || len(a) != 1 || a[0].Records != 3 {
		t.Errorf("damaged records: %+v, %+v", st, a)
	}
}

// TestMarksOfManyEvictedBatchesGo: of evicted batches that are too many to be known one by one, spans of time are
// marked; and only those that blocks lack when the journal was read again.
func TestMarksOfManyEvictedBatchesGo(t *testing.T) {
	w := newWorld(t, 13, someTime)
	w.blocks.shards = 2
	held := map[identity.Batch]bool{}
	w.blocks.missing = func(id identity.Batch) (bool, error) { return !held[id], nil }
	var err error
	w.live, err = live.New(live.Config{History: history, MaxBytes: 12_000, MaxSeries: 1000, LossBytes: 600})
	w.must(err)
	w.live.SetCover(func(id identity.Batch, _ []timegrid.Hour) live.Held {
		if held[id] {
			return live.Published
		}
		return live.OnlyHere
	})
	w.restartOver()
	for i := range 80 { // each of a boot of its own
		w.acceptAt(identity.Boot{Agent: fmt.Sprint("x", i), Boot: "b"}, 0, someTime.Add(time.Duration(i-100)*time.Minute).UnixMilli())
	}
	// One that stays in memory has samples at both ends.
	w.acceptAt(identity.Boot{Agent: "y", Boot: "b"}, 0, someTime.Add(-95*time.Minute+30*time.Second).UnixMilli(), someTime.Add(-time.Minute).UnixMilli())
	w.must(w.follow.CatchUp(t.Context()))
	lost := func() (n int) {
		snap := w.live.Snapshot(w.now())
		defer snap.Close()
		for _, b := range w.batches {
			if _, ok := snap.Lost(b.ms[0], b.ms[0]); ok {
				n++
			} else if !w.live.Shows(b.manifest.Identity) && !held[b.manifest.Identity] {
				t.Errorf("%s is neither here nor marked", b.manifest.Identity)
			}
		}
		return n
	}
	if spans, _ := w.live.Coarse(); len(spans) == 0 || lost() < 20 {
		t.Fatalf("spans %v, %d lost", spans, lost())
	}
	recheck := func(want bool) {
		t.Helper()
		changed, err := w.follow.Recheck(t.Context())
		if w.must(err); changed != want {
			t.Errorf("changed %v", changed)
		}
		w.live.Expire(w.now())
	}
	recheck(true) // blocks have nothing
	evicted := lost()
	for _, b := range w.batches[:len(w.batches)-1] {
		if !w.live.Shows(b.manifest.Identity) && b != w.batches[3] {
			held[b.manifest.Identity] = true
		}
	}
	w.fail(layout.JournalOpenPrefix)
	if _, err := w.follow.Recheck(t.Context()); err == nil || lost() < evicted-10 {
		t.Errorf("a journal that can't be read: %v, %d of %d lost", err, lost(), evicted)
	}
	w.fail("")
	recheck(true)
	if n := lost(); n != 1 {
		t.Errorf("%d are marked, want the one that no block has", n)
	}
	held[w.batches[3].manifest.Identity] = true
	recheck(true)
	if n := lost(); n != 0 {
		t.Errorf("%d are marked after their rollup", n)
	}
	if spans, _ := w.live.Coarse(); len(spans) != 0 {
		t.Errorf("spans %v", spans)
	}
	recheck(false)
}

// TestBlocksThatComeLaterHaveEverythingReadAgain: batches that were passed over while there were no blocks are in memory
// before queries read the first block.
func TestBlocksThatComeLaterHaveEverythingReadAgain(t *testing.T) {
	w := newWorld(t, 10, someTime)
	old := w.accept(true)
	w.must(w.follow.CatchUp(t.Context()))
	if w.shows(old)() || w.blocks.served {
		t.Error("shown without blocks")
	}
	w.blocks.shards, w.blocks.missing = 2, func(identity.Batch) (bool, error) { return true, nil }
	w.live.SetCover(func(identity.Batch, []timegrid.Hour) live.Held { return live.OnlyHere })
	w.fail("raw-blobs/")
	if err := w.follow.CatchUp(t.Context()); err == nil || w.blocks.served {
		t.Errorf("%v; blocks are served before memory has what they lack: %v", err, w.blocks.served)
	}
	w.fail("")
	w.must(w.follow.CatchUp(t.Context()))
	if !w.shows(old)() || !w.blocks.served {
		t.Errorf("shown %v, served %v", w.shows(old)(), w.blocks.served)
	}
}

// TestAnAuditCompletesTheJournal: a poll counts as complete only if the journal was complete before it began.
func TestAnAuditCompletesTheJournal(t *testing.T) {
	w := newWorld(t, 11, someTime)
	w.must(w.store.Delete(t.Context(), layout.JournalBeginKey))
	w.onList = func() { w.must(journaltest.Complete(context.Background(), w.store, "test")) } // after this poll has begun
	w.must(w.follow.CatchUp(t.Context()))
	if st := w.follow.Status(); !st.Incomplete || !st.CompleteThrough.IsZero() || st.Since.IsZero() {
		t.Errorf("%+v", st)
	}
	w.must(w.follow.CatchUp(t.Context()))
	if st := w.follow.Status(); st.Incomplete || st.CompleteThrough.IsZero() {
		t.Errorf("%+v", st)
	}
}

// TestALostFileOfTheJournal: a node that has not read a file stops where it is lost. When the file is dropped every node goes on,
// and none says that it is complete until an audit that began later has ended.
func TestALostFileOfTheJournal(t *testing.T) {
	w := newWorld(t, 15, someTime)
	b := w.accept(false)
	head, err := journaltest.Fold(t.Context(), w.store, "test")
	w.must(err)
	w.must(w.follow.CatchUp(t.Context())) // it is ahead of what comes
	key := head.Files[0].Key
	w.must(w.store.Delete(t.Context(), key))
	d, err := journal.Drop(t.Context(), w.store, crand.Reader, []string{key})
	w.must(err)
	w.must(w.follow.CatchUp(t.Context()))
	if st := w.follow.Status(); !st.Incomplete || !st.CompleteThrough.IsZero() || !w.shows(b)() {
		t.Errorf("dropped: %+v, shown %v", st, w.shows(b)())
	}
	w.must(journal.Begin{AuthorityID: "test", By: journal.ByAudit, Head: d.Head - 1}.Write(t.Context(), w.store))
	w.must(w.follow.CatchUp(t.Context()))
	if st := w.follow.Status(); !st.Incomplete {
		t.Errorf("an audit from before: %+v", st)
	}
	w.must(journal.Begin{AuthorityID: "test", By: journal.ByAudit, Head: d.Head}.Write(t.Context(), w.store))
	w.must(w.follow.CatchUp(t.Context()))
	if st := w.follow.Status(); st.Incomplete || st.CompleteThrough.IsZero() {
		t.Errorf("audited: %+v", st)
	}
}

// TestOtherAuthority: the journal of another authority is not followed.
func TestOtherAuthority(t *testing.T) {
	w := newWorld(t, 12, someTime)
	w.put(layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "other"}.Marshal())
	w.accept(false)
	if err := w.follow.CatchUp(t.Context()); err == nil || len(w.shown()) != 0 {
		t.Errorf("%v, %d records are shown", err, len(w.shown()))
	}
}

// progressed says that all blocks have what the journal has now, but for pending.
func (w *world) progressed(pending ...*batch) {
	ctx := context.Background()
	w.must(w.follow.CatchUp(ctx))
	at := w.follow.journal.Positions()
	_, err := ledgers.NewSaver(w.store, rand.NewChaCha8([32]byte{5}), 1, ledgers.Loaded{Set: w.follow.book.ledgers()}).Save(ctx, at, 0)
	w.must(err)
	for s := range shard.ID(w.blocks.shards) {
		p := progress.Progress{AuthorityID: "test", Shard: s, Shards: w.blocks.shards, Positions: at}
		for _, b := range pending {
			if shard.Of(b.manifest.Identity.Agent, w.blocks.shards) == s {
				p.Pending = append(p.Pending, b.manifest.Batch())
			}
		}
		_, err := p.Write(ctx, w.store, "")
		w.must(err)
	}
}

// TestUnreadableIsACount: what a set of unreadable batches says of a range is what a look at each of them says.
func TestUnreadableIsACount(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		all := map[identity.Batch]*Unread{}
		for i := range rnd.Uint64N(40) {
			from := rnd.Int64N(100)
			u := &Unread{Batch: accepted.Batch{Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: i, SeqEnd: i}}}
			u.MinTime, u.MaxTime = from*1e6, (from+rnd.Int64N(20))*1e6
			all[u.Identity] = u
		}
		x := newUnreadSet(all)
		for range 50 {
			mint := rnd.Int64N(120)
			maxt, n := mint+rnd.Int64N(30), 0
			for _, u := range all {
				if u.MinTime/1e6 <= maxt && u.MaxTime/1e6 >= mint {
					n++
				}
			}
			some := x.some(mint, maxt, 3)
			if got := x.count(mint, maxt); got != n || len(some) != min(n, 3) {
				t.Fatalf("seed %d: %d, of which %d are named, in [%d, %d], want %d", seed, got, len(some), mint, maxt, n)
			}
			for i, u := range some {
				if u.MinTime/1e6 > maxt || u.MaxTime/1e6 < mint || i > 0 && u.Identity == some[i-1].Identity {
					t.Fatalf("seed %d: %+v is named in [%d, %d]", seed, u, mint, maxt)
				}
			}
		}
	}
}

// TestWaitingBatchesAreCountedByHours: what an answer says of batches that are still fetched costs the same for 1,000 and
// for 100,000 of them.
func TestWaitingBatchesAreCountedByHours(t *testing.T) {
	cost := func(n int) (float64, missing.Summary, *queue) {
		q := newQueue(n)
		q.shardOf = func(agent string) uint32 { return uint32(len(agent)) }
		for i := range n {
			at := int64(i%24)*int64(time.Hour) + 1
			b := accepted.Batch{Identity: identity.Batch{Agent: "agent"[:1+i%4], Boot: "b", SeqStart: uint64(i), SeqEnd: uint64(i)}, MinTime: at, MaxTime: at}
			if err := q.add(t.Context(), journal.RunID{}, []accepted.Batch{b}); err != nil {
				t.Fatal(err)
			}
		}
		h := missing.Hours{From: 0, To: 11}
		return testing.AllocsPerRun(10, func() { q.in(h) }), q.in(h), q
	}
	few, _, _ := cost(960)
	many, s, q := cost(96_000)
	if few != many || s.Batches != 48_000 || len(s.Hours) != 1 || len(s.Shards) != 4 {
		t.Errorf("%v and %v allocations, %+v", few, many, s)
	}
	for w, _ := q.next(time.Now()); w != nil; w, _ = q.next(time.Now()) {
		q.finish(w)
	}
	if s := q.in(missing.Hours{From: 0, To: 23}); !s.IsZero() || q.waiting() != 0 {
		t.Errorf("nothing waits, and %+v", s)
	}
}
