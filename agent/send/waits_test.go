package send

import (
	"testing"
	"time"
)

// fixedWaits has no jitter: the first wait is a second, the longest ten.
func fixedWaits() *waits {
	cfg := DefaultConfig()
	cfg.BackoffInitial, cfg.BackoffMax = time.Second, 10*time.Second
	w := newWaits(cfg)
	w.backoff.RandomizationFactor = 0
	w.backoff.Reset()
	return w
}

func TestWaits(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	w := fixedWaits()
	if w.window != 16 || !w.due(1, now) || !w.next(now).IsZero() {
		t.Fatalf("at the start: %+v", w)
	}
	w.retry(1, 3*time.Second, 0, now)
	if w.window != 1 || !w.gate.Equal(now.Add(3*time.Second)) {
		t.Errorf("the collector's delay: window %d, gate in %s", w.window, w.gate.Sub(now))
	}
	if w.due(1, now.Add(3*time.Second-1)) || !w.due(1, now.Add(3*time.Second)) || !w.due(2, now) {
		t.Error("the batch's own wait is not the collector's delay")
	}
	w.retry(2, 0, 0, now)
	if !w.gate.Equal(now.Add(3 * time.Second)) {
		t.Errorf("a shorter wait moved the gate back to %s", w.gate.Sub(now))
	}
	if next := w.next(now); next.Sub(now) > 3*time.Second || !next.After(now) {
		t.Errorf("next in %s", next.Sub(now))
	}
	w.retry(3, time.Hour, 0, now)
	if w.gate.Sub(now) > 10*time.Second {
		t.Errorf("a delay of an hour holds everything for %s", w.gate.Sub(now))
	}
	w.retry(4, -time.Hour, 0, now)
	if w.due(4, now) {
		t.Error("a negative delay is none")
	}

	// One acceptance shows that the path works: nothing waits for it, but the window opens in steps.
	w.accepted(5, 16)
	if !w.gate.IsZero() || !w.due(1, now) || w.window != 2 || w.streak != 0 {
		t.Errorf("after an acceptance: %+v", w)
	}
	for _, want := range []int{4, 8, 16, 16} {
		if w.accepted(5, 16); w.window != want {
			t.Errorf("window %d, want %d", w.window, want)
		}
	}
	// A batch alone among accepted ones keeps its own wait.
	w.retry(6, 5*time.Second, 0, now)
	w.accepted(7, 16)
	if w.due(6, now) || !w.gate.IsZero() {
		t.Error("a batch that alone is retried does not wait by itself")
	}
	// Another collector gets one batch at once; if it says RETRY as well, the waits are as long as they had become.
	long := w.backoff.NextBackOff()
	w.retry(8, 5*time.Second, 0, now)
	if w.moved(); !w.gate.IsZero() || !w.due(6, now) || !w.due(8, now) || w.window != 1 {
		t.Errorf("after a move: %+v", w)
	}
	if w.retry(8, 0, 0, now); w.gate.Sub(now) < long {
		t.Errorf("after a move the next wait is %s, after %s", w.gate.Sub(now), long)
	}
	w.retry(6, 0, 0, now)
	// What a collector bounds is bounded, with some chance; what it does not is not.
	for range 100 {
		w.gate = time.Time{}
		w.retry(9, time.Second, 4*time.Second, now)
		if d := w.gate.Sub(now); d < 2*time.Second || d > 4*time.Second || w.due(9, now.Add(time.Second-1)) {
			t.Fatalf("the wait is %s", d)
		}
	}
	if w.retry(9, time.Second, 0, now); w.gate.Sub(now) < 5*time.Second {
		t.Errorf("the wait is %s", w.gate.Sub(now))
	}
	w.forget(6)
	if !w.due(6, now) {
		t.Error("a batch that is done waits")
	}
}

// What the queue gave up is never heard of again: the map stays bounded.
func TestWaitsAreBounded(t *testing.T) {
	w, now := fixedWaits(), time.Unix(1_800_000_000, 0)
	for no := range uint64(5000) {
		w.retry(no, 0, 0, now.Add(time.Duration(no)*time.Second))
	}
	if n := len(w.byNo); n > 1024 {
		t.Errorf("%d batches are remembered", n)
	}
}
