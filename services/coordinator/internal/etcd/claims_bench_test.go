package etcd

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// BenchmarkClaims compares one client that makes one claim per transaction with many whose claims share transactions,
// over one embedded member that fsyncs. The unit is a claim.
func BenchmarkClaims(b *testing.B) {
	const keys = claims.Keys("/bench/")
	cfg := DefaultConfig()
	cfg.Embedded.DataDir, cfg.Embedded.Quota = b.TempDir(), 4<<30
	m, err := StartEmbedded(b.Context(), cfg.Embedded, discard)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.Close)
	c, err := Dial(cfg, m.Endpoint(), discard)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	c.Timeout = time.Minute
	kv := NewClaimStore(c)
	if _, err := kv.Commit(b.Context(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Epoch(), Value: firstEpoch.Marshal()}}}}}); err != nil {
		b.Fatal(err)
	}
	var next atomic.Uint64
	// Each claim is the next batch of one of 10,000 boots.
	op := func() claims.Op {
		const boots = 10_000
		n := next.Add(1)
		o := claims.Op{Kind: claims.DoClaim, Hash: identity.Sum([]byte("frame")), Region: "east",
			Identity: identity.Batch{Agent: fmt.Sprintf("host-%d", n%boots), Boot: "b", SeqStart: n / boots * 100, SeqEnd: n/boots*100 + 99}}
		binary.BigEndian.PutUint64(o.ID[:], n)
		return o
	}
	for _, v := range []struct {
		name           string
		ops, flights   int
		clients, batch int
	}{{"one", 1, 1, 1, 1}, {"grouped", 128, 8, 64, 32}} {
		b.Run(v.name, func(b *testing.B) {
			cfg := claims.DefaultConfig()
			cfg.MaxOps, cfg.MaxFlights, cfg.MaxClaims = v.ops, v.flights, 1<<20
			l, err := linearizer.New(kv, linearizer.Options{Config: cfg, Keys: keys, Epoch: firstEpoch})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			var left atomic.Int64
			left.Store(int64(b.N))
			done := make(chan error, v.clients)
			for range v.clients {
				go func() {
					for left.Add(-int64(v.batch)) > -int64(v.batch) {
						ops := make([]claims.Op, v.batch)
						for i := range ops {
							ops[i] = op()
						}
						for _, r := range l.Do(b.Context(), ops) {
							if r.Err != nil || r.Answer.Outcome != claims.Held {
								done <- fmt.Errorf("%s: %w", r.Answer.Outcome, r.Err)
								return
							}
						}
					}
					done <- nil
				}()
			}
			for range v.clients {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
		})
	}
}
