package live_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// A window can have more rows than a block of packed values: a series with thousands of samples a second, or one shape of
// very many agents. It is read as any other.
func TestWindowsWithMoreRowsThanABlock(t *testing.T) {
	s := newStore(t, live.Config{PackAt: 1})
	boot := identity.Boot{Agent: "a", Boot: "b"}
	const rows, batches = 10_000, 8
	seq := uint64(1)
	at := start.Truncate(time.Hour).Add(time.Second)
	for range batches {
		times := make([]int64, rows)
		for i := range times {
			at = at.Add(500 * time.Microsecond)
			times[i] = at.UnixNano()
		}
		a := build(t, boot, seq, 0, "x", 1, times, func(k int) float64 { return float64(k) })
		insert(t, s, a, at, live.Inserted)
		seq = a.Identity.SeqEnd + 1
	}
	// Later batches close the window and pack it.
	for range 20 {
		at = at.Add(time.Minute)
		a := build(t, boot, seq, 0, "x", 1, []int64{at.UnixNano()}, func(int) float64 { return 1 })
		insert(t, s, a, at, live.Inserted)
		seq = a.Identity.SeqEnd + 1
	}
	snap := s.Snapshot(at)
	defer snap.Close()
	for name, samples := range read(t, snap, before, after) {
		// Two samples in each millisecond, of which one counts.
		if len(samples) < rows*batches/2 {
			t.Errorf("%s has %d samples", name, len(samples))
		}
	}
}

// A batch with a row in each of very many windows, as of a sensor that sends a year at once, is inserted as any other: the
// work does not grow with the square of their number. With that square this test takes minutes.
func TestBatchOfManyWindows(t *testing.T) {
	for _, packAt := range []int64{0, 1} {
		insertManyWindows(t, live.Config{PackAt: packAt})
	}
}

func insertManyWindows(t *testing.T, c live.Config) {
	t.Helper()
	s := newStore(t, c)
	boot := identity.Boot{Agent: "a", Boot: "b"}
	const rows = 20_000
	seq := uint64(1)
	for i := range 12 {
		times := make([]int64, rows)
		for k := range times {
			times[k] = start.Add(-time.Duration(rows-k)*time.Hour + time.Duration(i)*time.Minute).UnixNano()
		}
		a := build(t, boot, seq, 0, "x", 1, times, func(k int) float64 { return float64(k) })
		insert(t, s, a, start, live.Inserted)
		seq = a.Identity.SeqEnd + 1
	}
	snap := s.Snapshot(start)
	defer snap.Close()
	for name, samples := range read(t, snap, before, after) {
		if len(samples) != 12*rows {
			t.Errorf("%s has %d samples", name, len(samples))
		}
	}
}
