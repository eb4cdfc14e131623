package send

import (
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// waits decides when batches may be sent again after RETRY answers. One gate holds back all batches:
// while the store behind a collector is down, one batch at a time is sent to find out whether it
// is back. Each batch that was answered RETRY also has a wait of its own, so that one which cannot
// be accepted does not hold up the others. Owned by the sender's loop.
type waits struct {
	cfg     Config
	gate    time.Time
	backoff *backoff.ExponentialBackOff
	// streak of RETRY answers without an accepted batch.
	streak int
	// window is how many batches may be in flight; it opens again step by step.
	window int
	byNo   map[uint64]*wait
}

type wait struct {
	until   time.Time
	backoff *backoff.ExponentialBackOff
}

func newWaits(cfg Config) *waits {
	return &waits{cfg: cfg, backoff: cfg.newBackoff(), window: cfg.MaxInFlightBatches, byNo: map[uint64]*wait{}}
}

// due reports whether a batch's own wait is over.
func (w *waits) due(no uint64, now time.Time) bool {
	e := w.byNo[no]
	return e == nil || !now.Before(e.until)
}

// retry notes a RETRY answer; hint is the collector's delay. longest bounds what the wait grows to beyond that; 0 is BackoffMax.
func (w *waits) retry(no uint64, hint, longest time.Duration, now time.Time) {
	w.streak++
	w.window = 1
	hint = min(max(hint, 0), w.cfg.BackoffMax)
	if until := now.Add(max(hint, bounded(w.backoff, longest))); until.After(w.gate) {
		w.gate = until
	}
	e := w.byNo[no]
	if e == nil {
		w.sweep(now)
		e = &wait{backoff: w.cfg.newBackoff()}
		w.byNo[no] = e
	}
	e.until = now.Add(max(hint, bounded(e.backoff, longest)))
}

// bounded gives the next wait of b, at most longest where that is above 0: then some of it is left to chance, so that the senders of a
// fleet that have waited for long do not come together.
func bounded(b *backoff.ExponentialBackOff, longest time.Duration) time.Duration {
	d := b.NextBackOff()
	if longest > 0 && d > longest {
		return longest/2 + rand.N(longest/2+1)
	}
	return d
}

// accepted notes that the collector accepts batches: those that waited only for that are due now, in
// order.
func (w *waits) accepted(no uint64, max int) {
	delete(w.byNo, no)
	// Several RETRY answers in a row mean that the path was down, so no batch was at fault. A single
	// one may have been the batch's own, whose wait stays.
	if w.streak > 1 {
		clear(w.byNo)
	}
	w.streak = 0
	w.gate = time.Time{}
	w.backoff.Reset()
	w.window = min(w.window*2, max)
}

// moved notes that another collector is used: what the one before said about when to try again says nothing of it. It gets one batch,
// and if it answers RETRY as well, the waits go on where they were.
func (w *waits) moved() {
	clear(w.byNo)
	w.gate = time.Time{}
}

// sweep bounds the map: batches that drop_oldest has dropped are never answered again.
func (w *waits) sweep(now time.Time) {
	if len(w.byNo) < 1024 {
		return
	}
	for no, e := range w.byNo {
		if now.Sub(e.until) > w.cfg.BackoffMax {
			delete(w.byNo, no)
		}
	}
}

// forget drops the wait of a batch that is done.
func (w *waits) forget(no uint64) { delete(w.byNo, no) }

// next is the earliest time after now at which something that waits is due; zero when nothing waits.
func (w *waits) next(now time.Time) time.Time {
	var t time.Time
	consider := func(c time.Time) {
		if c.After(now) && (t.IsZero() || c.Before(t)) {
			t = c
		}
	}
	consider(w.gate)
	for _, e := range w.byNo {
		consider(e.until)
	}
	return t
}
