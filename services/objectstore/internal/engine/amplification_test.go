package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// TestReclaimAmplification counts the bytes that reclaiming writes and frees, over a long history of overwrites and
// deletes of keys of which few are hot. A segment is rewritten when less than a share of it is in use, so each copied byte
// frees (1-share)/share bytes at least: clients' bytes are written again at most share/(1-share) times, and the log is no
// longer than what is in use, divided by the share, and the segment that is written.
func TestReclaimAmplification(t *testing.T) {
	const share, segment = 0.4, 256 << 10
	for _, c := range []struct {
		name    string
		deletes int // of 100 operations
		hot     int // of 100 operations go to a tenth of the keys
	}{{"uniform", 0, 10}, {"hot", 0, 90}, {"deletes", 20, 50}, {"mostly deletes", 49, 10}} {
		t.Run(c.name, func(t *testing.T) {
			ctx := context.Background()
			var written atomic.Int64
			e := openTest(t, Options{
				Dir: t.TempDir(), SegmentBytes: segment, ReclaimBelow: share, Keys: testKeys(t, "k"),
				Observe: func(s BatchStats) { written.Add(s.Bytes) },
			})
			rng := rand.New(rand.NewPCG(1, 7))
			var clients, copied, freed int64
			const keys, rounds, perRound = 600, 40, 250
			for range rounds {
				before := written.Load()
				var together sync.WaitGroup // they share fsyncs
				for i := range perRound {
					if i%50 == 0 {
						together.Wait()
					}
					n := rng.IntN(keys)
					if rng.IntN(100) < c.hot {
						n = rng.IntN(keys / 10)
					}
					key := fmt.Sprintf("k/%04d", n)
					if rng.IntN(100) < c.deletes {
						together.Go(func() {
							if _, err := e.Delete(ctx, "bkt", Deletion{Key: key}); err != nil {
								t.Error(err)
							}
						})
						continue
					}
					body := pattern(200+rng.IntN(4000), byte(n))
					together.Go(func() {
						if _, err := e.Put(ctx, sized(key, body), body, Cond{}); err != nil {
							t.Error(err)
						}
					})
				}
				together.Wait()
				clients += written.Load() - before
				before = written.Load()
				for {
					n, err := e.Reclaim(ctx)
					if err != nil {
						t.Fatal(err)
					}
					if n == 0 {
						break
					}
					freed += n
				}
				copied += written.Load() - before
			}
			s := e.Stats()
			amplification := float64(clients+copied) / float64(clients)
			t.Logf("clients wrote %d bytes, reclaiming %d, and freed %d: amplification %.2f; the log has %d bytes, %d in use", clients, copied, freed, amplification, s.LogBytes, s.LiveBytes)
			if freed == 0 {
				t.Error("nothing was reclaimed")
			}
			if float64(copied) > share*float64(freed) {
				t.Errorf("reclaiming wrote %d bytes to free %d", copied, freed)
			}
			if most := 1 / (1 - share); amplification > most {
				t.Errorf("amplification %.2f, want at most %.2f", amplification, most)
			}
			if most := float64(s.LiveBytes)/share + 2*segment; float64(s.LogBytes) > most {
				t.Errorf("the log has %d bytes with %d in use, want at most %.0f", s.LogBytes, s.LiveBytes, most)
			}
			if err := checkUsage(e.Engine); err != nil {
				t.Error(err)
			}
		})
	}
}
