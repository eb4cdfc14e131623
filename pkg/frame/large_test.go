package frame

import (
	"math/rand/v2"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// A payload beyond the largest zstd window, whose frame is small: what the encoder
// writes, the decoder takes.
func TestLargePayloadCompresses(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var few [64]float64
	for i := range few {
		few[i] = rnd.NormFloat64()
	}
	b := NewBuilder()
	id, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: "x"}}, series.Gauge, "", 0)
	must(t, err)
	for i := range 1_000_000 {
		must(t, b.Append(id, int64(i+1)*1e9, few[rnd.IntN(len(few))]))
	}
	batch, err := b.Build(boot, 1)
	must(t, err)
	f, err := Encode(nil, batch)
	must(t, err)
	h, err := ParseHeader(f)
	must(t, err)
	if h.Compression != Zstd || h.DecodedLen <= maxWindow {
		t.Fatalf("compression %d, %d bytes decoded: this is not the case that is meant", h.Compression, h.DecodedLen)
	}
	var got Batch
	must(t, Decode(f, &got, Limits{}))
	if got.Records() != batch.Records() {
		t.Errorf("%d records, want %d", got.Records(), batch.Records())
	}
}
