package follow

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
)

// TestNeverSilentlyPartial: whatever order batches, hints, derived keys, polls, audits,
// faults, damages and restarts come in, what was accepted before complete_through is shown
// whole and once, or told; when all is well again, everything is.
func TestNeverSilentlyPartial(t *testing.T) {
	audits, failed, told, lost := 0, 0, 0, 0
	for seed := range uint64(60) {
		w := newWorld(t, seed, time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC))
		for step := range 120 {
			what := w.step(&audits, &failed, &lost)
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
		w.must(w.follow.Audit(t.Context(), true))
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
	t.Logf("seeds 0-59: %d audits, %d of them failed; %d steps with unreadable batches; %d hints lost", audits, failed, told, lost)
	if audits < 100 || failed < 30 || told < 100 || lost < 100 {
		t.Error("too little went wrong")
	}
}

// step does one thing at random, and says what.
func (w *world) step(audits, failed, lost *int) string {
	ctx := w.t.Context()
	some := func() *batch { return w.batches[w.rnd.IntN(len(w.batches))] }
	if len(w.batches) == 0 {
		w.accept(false)
	}
	switch w.rnd.IntN(14) {
	case 0, 1, 2:
		b := w.accept(w.rnd.IntN(8) == 0)
		if w.rnd.IntN(2) == 0 {
			*lost++
			return "accept, the hint is lost"
		}
		_ = w.follow.take(ctx, b.key(), b.manifest.Marshal()) // an error is what audits are for
		return "accept and hint"
	case 3, 4:
		b := some() // late, again, or out of order
		_ = w.follow.take(ctx, b.key(), b.manifest.Marshal())
		return "a hint repeats"
	case 5:
		b, other := some(), some()
		body := other.manifest.Marshal() // another's, or cut
		if w.rnd.IntN(2) == 0 {
			body = body[:w.rnd.IntN(len(body))]
		}
		_ = w.follow.take(ctx, b.key(), body)
		return "a hint with other bytes"
	case 6:
		b := some()
		w.put(layout.AcceptedByTime(b.manifest.AcceptedTime(), b.manifest.Identity), b.manifest.Marshal())
		return "a derived key"
	case 7:
		_ = w.follow.Poll(ctx)
		return "poll"
	case 8, 9:
		full := w.rnd.IntN(4) == 0
		w.tick(time.Duration(1+w.rnd.IntN(20_000)) * time.Millisecond)
		before := w.follow.Status().CompleteThrough
		if w.rnd.IntN(3) == 0 {
			w.mu.Lock()
			w.onList = func() { w.accept(false); w.tick(time.Millisecond) }
			w.mu.Unlock()
		}
		*audits++
		err := w.follow.Audit(ctx, full)
		st := w.follow.Status()
		if err != nil {
			*failed++
			if !st.CompleteThrough.Equal(before) || st.AuditError == nil {
				w.t.Errorf("a failed audit moved complete_through: %+v", st)
			}
			return "audit that failed"
		}
		if st.CompleteThrough.Before(before) || st.CompleteThrough.IsZero() || st.AuditError != nil {
			w.t.Errorf("an audit that succeeded: %+v, before it %s", st, before)
		}
		return "audit"
	case 10:
		w.fail([]string{"list", "raw-blobs/", "accepted/", "accepted-by-time/"}[w.rnd.IntN(4)])
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
		default:
			w.put(b.manifest.RawBlobKey, b.frame)
			return "a blob is back"
		}
	}
}

// TestHintsOfNothing: a hint of a key that is none, or that holds no manifest, shows
// nothing and tells nothing.
func TestHintsOfNothing(t *testing.T) {
	w := newWorld(t, 1, time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC))
	b := w.accept(false)
	w.must(w.store.Delete(t.Context(), b.key()))
	if err := w.follow.Take(t.Context(), b.key()); err == nil {
		t.Error("a manifest that is not there was seen through")
	}
	if err := w.follow.Take(t.Context(), "nonsense"); err != nil {
		t.Errorf("a key that is none: %v", err)
	}
	if n := len(w.shown()); n != 0 || w.follow.Status().Unread != 0 || w.follow.Status().Boots != 0 {
		t.Errorf("%d records, %+v", n, w.follow.Status())
	}
}

// TestOldBatchesAreCountedOnly: what lies before the window is in the ledger, and no frame
// is read for it.
func TestOldBatchesAreCountedOnly(t *testing.T) {
	w := newWorld(t, 2, time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC))
	b := w.accept(true)
	w.fail("raw-blobs/") // a frame that is read fails the audit
	w.tick(time.Second)
	if err := w.follow.Audit(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if agents := w.follow.Agents("", b.manifest.Identity.BootOf(), 0); len(agents) != 0 {
		t.Errorf("boots after the only one: %v", agents)
	}
	if st := w.follow.Status(); st.Boots != 1 || st.Unread != 0 {
		t.Errorf("%+v", st)
	}
	if len(w.shown()) != 0 {
		t.Error("it is shown")
	}
}
