package resolution_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

// BenchmarkStartOverALog is what the log costs a collector or reconciler that starts: requests, memory that stays, and CPU. The
// first log is full by its decisions, each about two frames; the second one by its frames, 500 a decision.
func BenchmarkStartOverALog(b *testing.B) {
	for _, of := range []struct{ decisions, frames int }{{1_000, 2}, {resolution.MaxDecisions, 2}, {resolution.MaxFrames / resolution.MaxConflicts, resolution.MaxConflicts}} {
		b.Run(fmt.Sprintf("%d decisions of %d frames", of.decisions, of.frames), func(b *testing.B) {
			store := &countGets{Store: mem.New(time.Now)}
			n := uint64(0)
			for i := range of.decisions {
				r := decision("ann", resolution.KeepBoth)
				r.Number = uint64(i + 1)
				for range of.frames {
					n++
					r.Conflicts = append(r.Conflicts, conflict(n))
				}
				if _, err := store.Create(b.Context(), layout.Resolution(r.Number), r.Marshal(), objstore.PutOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				l := resolution.NewLog(store, nil)
				if err := l.Read(b.Context(), authority); err != nil || l.Through() != uint64(of.decisions) {
					b.Fatal(l.Through(), err)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(l)
			}
			b.ReportMetric(float64(store.n)/float64(b.N), "GETs/op")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB-kept")
		})
	}
}

// countGets counts requests without keeping their keys.
type countGets struct {
	objstore.Store
	n int
}

func (c *countGets) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	c.n++
	return c.Store.Get(ctx, key, o)
}
