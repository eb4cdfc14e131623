package reconciler

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// held is a store that keeps reads of manifests waiting until it is let go.
type held struct {
	objstore.Store
	until chan struct{}
}

func (s held) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if objstore.Family(key) == "accepted" {
		select {
		case <-s.until:
		case <-ctx.Done():
			return nil, objstore.Info{}, ctx.Err()
		}
	}
	return s.Store.Get(ctx, key, o)
}

// TestAFullQueueHoldsTheJournalBack: what the queue has no room for waits in the journal.
func TestAFullQueueHoldsTheJournalBack(t *testing.T) {
	const n = 40
	s := held{newStore(), make(chan struct{})}
	must(t, journaltest.Complete(bg, s, testAuthority))
	cfg := quiet()
	cfg.Queue.Capacity, cfg.Workers = 4, 2
	r := start(t, cfg, s)
	for i := range uint64(n) {
		acceptBatch(t, s.Store, batch("a", i*10, i*10+9))
	}
	eventually(t, "the queue is full", func() bool { length, _ := r.queue.length(); return length >= 3 })
	if length, _ := r.queue.length(); length > cfg.Queue.Capacity {
		t.Errorf("%d manifests in a queue of %d", length, cfg.Queue.Capacity)
	}
	close(s.until)
	eventually(t, "all are reconciled", func() bool { return r.reconciled.Load() >= n })
}

// slow answers every request after some time, as a store over a network does.
type slow struct {
	objstore.Store
	wait     time.Duration
	requests atomic.Int64
}

func (s *slow) pause() {
	s.requests.Add(1)
	time.Sleep(s.wait)
}

func (s *slow) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	s.pause()
	return s.Store.Get(ctx, key, o)
}

func (s *slow) Head(ctx context.Context, key string) (objstore.Info, error) {
	s.pause()
	return s.Store.Head(ctx, key)
}

func (s *slow) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	s.pause()
	return s.Store.Create(ctx, key, b, o)
}

// BenchmarkWorkersOverLatency: five requests one after the other make the number of workers,
// and not the processor, the limit over a store that answers in 25 ms.
func BenchmarkWorkersOverLatency(b *testing.B) {
	for _, workers := range []int{16, 64} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) {
			inner, keys := filled(b, b.N)
			cfg := quiet()
			cfg.Workers = workers
			r := start(b, cfg, &slow{Store: inner, wait: 25 * time.Millisecond})
			b.ResetTimer()
			for _, k := range keys {
				must(b, r.enqueue(bg, &item{key: k, src: fromJournal}))
			}
			eventually(b, "reconciled", func() bool { return r.reconciled.Load() >= uint64(b.N) })
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "batches/s")
		})
	}
}
