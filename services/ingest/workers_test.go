package ingest

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestWorkersAreReused: a batch goes to a goroutine that waits; of those that are done, a bounded number
// waits, until the service ends.
func TestWorkersAreReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end, open := make(chan struct{}), make(chan struct{})
		var running atomic.Int64
		w := newWorkers(end)
		w.decide = func(streamBatch) {
			running.Add(1)
			<-open
			running.Add(-1)
		}
		for range 3 * mostIdleWorkers {
			w.start(nil, nil)
		}
		synctest.Wait()
		if n := running.Load(); n != 3*mostIdleWorkers {
			t.Errorf("%d batches are decided at the same time, not all", n)
		}
		close(open)
		synctest.Wait()
		if n := w.idle.Load(); n != mostIdleWorkers {
			t.Errorf("%d goroutines wait, want %d", n, mostIdleWorkers)
		}
		for range 1000 {
			w.start(nil, nil)
			synctest.Wait()
		}
		if n := w.idle.Load(); n != mostIdleWorkers {
			t.Errorf("%d goroutines wait after further batches, want %d", n, mostIdleWorkers)
		}
		close(end) // synctest fails if a goroutine is left
	})
}
