package send

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

// waits holds back after RETRY answers. One gate stands before all batches: while a
// store is down, one batch at a time asks whether it is back. Each batch that was answered
// RETRY also waits by itself, so that one that can't be accepted does not hold up the rest.
// Owned by the sender's loop.
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

// retry notes a RETRY answer; hint is the collector's delay.
func (w *waits) retry(no uint64, hint time.Duration, now time.Time) {
	w.streak++
	w.window = 1
	hint = min(max(hint, 0), w.cfg.BackoffMax)
	if until := now.Add(max(hint, w.backoff.NextBackOff())); until.After(w.gate) {
		w.gate = until
	}
	e := w.byNo[no]
	if e == nil {
		w.sweep(now)
		e = &wait{backoff: w.cfg.newBackoff()}
		w.byNo[no] = e
	}
	e.until = now.Add(max(hint, e.backoff.NextBackOff()))
}

// accepted notes that the path works: what waited for the path alone may go, in order.
func (w *waits) accepted(no uint64, max int) {
	delete(w.byNo, no)
	if w.streak > 1 {
		clear(w.byNo)
	}
	w.streak = 0
	w.gate = time.Time{}
	w.backoff.Reset()
	w.window = min(w.window*2, max)
}

// sweep bounds the map: batches that the queue gave up are never heard of again.
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
