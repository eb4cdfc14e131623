package ingest

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
)

// A watcher that does not read is ended, so that it knows that it missed something; others go on.
func TestASlowWatcherIsEnded(t *testing.T) {
	n := 0
	h := newHub(func() string { return "c" }, func() int { return n })
	slow, err := h.watch()
	if err != nil {
		t.Fatal(err)
	}
	quick, err := h.watch()
	if err != nil {
		t.Fatal(err)
	}
	<-quick.ch
	for i := range uint64(watcherBuffer + 1) {
		h.durable(journal.Position{Segment: i})
		if m := <-quick.ch; m.GetPosition() != (journal.Position{Segment: i}).String() {
			t.Fatalf("%d: %v", i, m)
		}
	}
	got := 0
	for range slow.ch { // what was buffered, then the end
		got++
	}
	if got != watcherBuffer {
		t.Errorf("%d messages, then the end", got)
	}
	// The count is sent when it becomes, or ceases to be, zero.
	for _, n = range []int{0, 1, 2, 1, 0} {
		h.spooled()
	}
	for _, want := range []uint64{1, 0} {
		if m := <-quick.ch; m.GetUnlanded() != want || m.GetPosition() != "" {
			t.Errorf("%v, want %d", m, want)
		}
	}
	if len(quick.ch) != 0 {
		t.Errorf("%d messages too many", len(quick.ch))
	}
	for range maxWatchers - 1 {
		if _, err := h.watch(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.watch(); err == nil {
		t.Error("too many watchers were let in")
	}
}
