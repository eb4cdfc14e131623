package follow

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestNeverSilentlyPartial: whatever order batches, hints, polls, folds, faults, damages and restarts come in, what was
// answered before complete_through is shown whole and once, or told; when all is well again, everything is.
func TestNeverSilentlyPartial(t *testing.T) {
	polls, failed, told, lost := 0, 0, 0, 0
	for seed := range uint64(60) {
		w := newWorld(t, seed, time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC))
		for step := range 120 {
			what := w.step(&polls, &failed, &lost)
			w.check(what)
			if n := w.follow.Status().Unread; n > 0 {
				told++
			}
			if t.Failed() {
				t.Fatalf("seed %d, step %d: %s", seed, step, what)
			}
		}
		w.fail("")
		for _, b := range w.batches {
			w.put(b.manifest.RawBlobKey, b.frame)
		}
		w.tick(time.Millisecond)
		w.must(w.follow.CatchUp(t.Context()))
		w.follow.RetryUnread(t.Context())
		shown := w.shown()
		for _, b := range w.batches {
			if !b.old && !w.visible(b, shown) {
				t.Errorf("seed %d: %s is not shown in the end", seed, b.manifest.Identity)
			}
		}
		if n := w.follow.Status().Unread; n != 0 {
			t.Errorf("seed %d: %d unreadable batches in the end", seed, n)
		}
	}
	t.Logf("seeds 0-59: %d polls, %d of them failed; %d steps with unreadable batches; %d hints lost", polls, failed, told, lost)
	if polls < 100 || failed < 30 || told < 100 || lost < 100 {
		t.Error("too little went wrong")
	}
}

// step does one thing at random, and says what.
func (w *world) step(polls, failed, lost *int) string {
	ctx := w.t.Context()
	some := func() *batch { return w.batches[w.rnd.IntN(len(w.batches))] }
	if len(w.batches) == 0 {
		w.accept(false)
	}
	hint := func(at journal.Position) {
		_, _, _ = w.follow.has(ctx, at) // an error is what polls are for
		_ = w.follow.takeQueued(ctx, false)
	}
	switch w.rnd.IntN(14) {
	case 0, 1, 2:
		b := w.accept(w.rnd.IntN(8) == 0)
		if w.rnd.IntN(2) == 0 {
			*lost++
			return "accept, the hint is lost"
		}
		hint(b.token)
		return "accept and hint"
	case 3:
		hint(some().token) // late, again, or out of order
		return "a hint repeats"
	case 4:
		w.journal(some(), journal.Duplicate)
		return "a duplicate"
	case 5, 6:
		w.tick(time.Duration(w.rnd.IntN(100)) * time.Second)
		w.fold()
		return "fold"
	case 7:
		i := w.rnd.IntN(len(w.writers))
		w.must(w.writers[i].Close(ctx))
		return "a collector stops"
	case 8, 9:
		w.tick(time.Duration(1+w.rnd.IntN(20_000)) * time.Millisecond)
		before := w.follow.Status().CompleteThrough
		if w.rnd.IntN(3) == 0 {
			w.mu.Lock()
			w.onList = func() { w.accept(false); w.tick(time.Millisecond) }
			w.mu.Unlock()
		}
		*polls++
		err := w.follow.CatchUp(ctx)
		st := w.follow.Status()
		if err != nil {
			*failed++
			return "poll that failed"
		}
		if st.CompleteThrough.Before(before) || st.CompleteThrough.IsZero() || st.PollError != nil {
			w.t.Errorf("a poll that succeeded: %+v, before it %s", st, before)
		}
		return "poll"
	case 10:
		w.fail([]string{"list", "raw-blobs/", layout.JournalOpenPrefix, layout.JournalPrefix}[w.rnd.IntN(4)])
		return "the store fails"
	case 11, 12:
		w.fail("")
		return "the store is well"
	default:
		b := some()
		switch w.rnd.IntN(8) {
		case 0:
			w.restart()
			return "restart"
		case 1, 2:
			w.must(w.store.Delete(ctx, b.manifest.RawBlobKey))
			return "a blob is gone"
		case 3, 4:
			w.put(b.manifest.RawBlobKey, []byte("damaged"))
			return "a blob is damaged"
		case 5:
			w.follow.RetryUnread(ctx)
			return "unreadable batches are tried again"
		default:
			w.put(b.manifest.RawBlobKey, b.frame)
			return "a blob is back"
		}
	}
}

// TestOldBatchesAreCountedOnly: what lies before the window is in the ledger, and no frame
// is read for it.
func TestOldBatchesAreCountedOnly(t *testing.T) {
	w := newWorld(t, 2, someTime)
	b := w.accept(true)
	w.fail("raw-blobs/") // a frame that is read fails the poll
	w.tick(time.Second)
	w.must(w.follow.CatchUp(t.Context()))
	if agents := w.follow.Agents("", b.manifest.Identity.BootOf(), 0); len(agents) != 0 {
		t.Errorf("boots after the only one: %v", agents)
	}
	if st := w.follow.Status(); st.Boots != 1 || st.Unread != 0 {
		t.Errorf("%+v", st)
	}
	if len(w.shown()) != 0 {
		t.Error("it is shown")
	}
	if a := w.follow.Agents("", identity.Boot{}, 0); len(a) != 1 || a[0].Batches != 1 {
		t.Errorf("ledgers %+v", a)
	}
}
