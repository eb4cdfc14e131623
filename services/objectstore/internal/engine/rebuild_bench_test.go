package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// BenchmarkIndexRebuild: an open without the index. LIGHTMETRICS_REBUILD_OBJECTS sets how many objects there are.
func BenchmarkIndexRebuild(b *testing.B) {
	objects := 20_000
	if n, err := strconv.Atoi(os.Getenv("LIGHTMETRICS_REBUILD_OBJECTS")); err == nil {
		objects = n
	}
	dir := b.TempDir()
	opt := Options{Dir: dir, SegmentBytes: 32 << 20}
	e := openTest(b, opt)
	var wg sync.WaitGroup
	const clients = 512
	for c := range clients {
		wg.Go(func() {
			for i := c; i < objects; i += clients {
				body := pattern(100, byte(i))
				if _, err := e.Engine.Put(context.Background(), sized(fmt.Sprintf("metrics/%08d", i*7919%objects), body), body, Cond{}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	sealAll(b, e.Engine)
	e.done()
	for b.Loop() {
		if err := os.RemoveAll(filepath.Join(dir, "index")); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		o, err := Open(opt)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(objects)/time.Since(began).Seconds(), "objects/s")
		if n := o.Stats().Objects; n != int64(objects) {
			b.Fatalf("%d objects", n)
		}
		if err := o.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func sealAll(b *testing.B, e *Engine) {
	for {
		if more, err := e.Seal(); err != nil {
			b.Fatal(err)
		} else if !more {
			return
		}
	}
}
