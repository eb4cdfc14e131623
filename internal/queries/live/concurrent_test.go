package live_test

import (
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/queries/live"
)

// TestQueriesWhileInserting: every snapshot has whole batches, in order of insertion,
// and stays as it is while the store inserts, merges and evicts. Run it with -race.
func TestQueriesWhileInserting(t *testing.T) {
	s := newStore(t, live.Config{History: 200 * time.Second})
	const n = 600
	batches := make([]*modelBatch, n)
	for i := range batches {
		at := start.Add(time.Duration(i) * time.Second)
		batches[i] = build(t, boot, uint64(1+2*i), at.UnixNano(), "x", 2, []int64{at.UnixNano()}, func(int) float64 { return float64(i) })
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				snap := s.Snapshot(start)
				got := read(t, snap, before, after)
				again := read(t, snap, before, after)
				snap.Close()
				same(t, "the same snapshot", again, got)
				a, b := got[`{__name__="m0", set="x"}`], got[`{__name__="m1", set="x"}`]
				if len(a) != len(b) {
					t.Errorf("half a batch: %d and %d samples", len(a), len(b))
					return
				}
				lo, hi := int64(after), int64(before)
				for ms := range a {
					lo, hi = min(lo, ms), max(hi, ms)
				}
				if len(a) > 0 && int64(len(a)) != (hi-lo)/1000+1 {
					t.Errorf("%d samples between %d and %d", len(a), lo, hi)
					return
				}
			}
		})
	}
	for _, b := range batches {
		insert(t, s, b, time.Unix(0, b.AcceptedAt), live.Inserted)
	}
	close(done)
	wg.Wait()
}
