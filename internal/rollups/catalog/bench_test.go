package catalog

import (
	"fmt"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// benchSet has 100 agents with 360 batches each; irregular sizes are the worst case.
func benchSet(regular bool) *Block {
	var ids []identity.Batch
	for a := range 100 {
		at := uint64(0)
		for i := range uint64(360) {
			n := uint64(100)
			if !regular {
				n += i % 3
			}
			ids = append(ids, batch(fmt.Sprintf("host-%d", a), at, at+n-1))
			at += n
		}
	}
	return testSet(1, timegrid.Raw, 1, 0, ids...)
}

func BenchmarkParseRecord(b *testing.B) {
	for name, regular := range map[string]bool{"regular": true, "irregular": false} {
		b.Run(name, func(b *testing.B) {
			s := benchSet(regular)
			body := s.Marshal()
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseRecord(s.Name.Key(), body); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(body)), "B/record")
		})
	}
}
