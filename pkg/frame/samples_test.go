package frame

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

var boot = identity.Boot{Agent: "host-1", Boot: "b1"}

// sampleBatch has two groups of samples, every column encoding, and a resource.
func sampleBatch(tb testing.TB) *Batch {
	tb.Helper()
	b := NewBuilder()
	must(tb, b.SetResource(series.Label{Name: "host", Value: "h1"}, series.Label{Name: "region", Value: "eu-west-1"}))
	columns := []struct {
		name   string
		typ    series.Type
		unit   string
		start  int64
		values []float64
	}{
		{"up", series.Gauge, "", 0, []float64{1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{"requests_total", series.Counter, "", 1_700_000_000_000_000_000, []float64{10, 1e3, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3, 8e3}},
		{"temperature_celsius", series.Gauge, "celsius", 0, []float64{21.5, 21.25, 21.75, 20, -3.125, 0, 0.1, 0.2, 99.99}},
		{"memory_bytes", series.Gauge, "bytes", 0, []float64{4096 * 256, 4096 * 512, 4096 * 256, 0, 1 << 40, 1 << 20, 1 << 21, 1 << 22, 1 << 23}},
		{"special", series.Unknown, "", 0, []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 0, 1, 1, 1, math.Float64frombits(0x7ff0000000000002)}},
		{"noise", series.Gauge, "", 0, []float64{math.Pi, math.E, math.Sqrt2, 1 / 3., 2 / 3., 1 / 7., math.SmallestNonzeroFloat64, math.MaxFloat64, -1e-300}},
	}
	for _, c := range columns {
		id, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: c.name}, {Name: "zone", Value: "a"}, {Name: "region", Value: "override"}}, c.typ, c.unit, c.start)
		must(tb, err)
		for i, v := range c.values {
			must(tb, b.Append(id, 1_800_000_000_000_000_000+int64(i)*10e9, v))
		}
	}
	id, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: "once"}}, series.DeltaCounter, "", 0)
	must(tb, err)
	must(tb, b.Append(id, -5, 42))
	batch, err := b.Build(boot, 100)
	must(tb, err)
	return batch
}

// histogramBatch has exponential and custom histograms.
func histogramBatch(tb testing.TB) *Batch {
	tb.Helper()
	b := NewBuilder()
	id, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: "latency_seconds"}}, series.HistogramCumulative, "seconds", 77)
	must(tb, err)
	for i := range 3 {
		must(tb, b.AppendHistogram(id, int64(i+1)*1e9, series.Histogram{
			Schema: 3, ZeroThreshold: 1e-128, ZeroCount: 1, Count: float64(10 + i), Sum: 12.5,
			PositiveSpans: []int32{-2, 2, 3, 1}, PositiveBuckets: []float64{1, 2, float64(3 + i)},
			NegativeSpans: []int32{0, 1}, NegativeBuckets: []float64{3},
		}))
	}
	id, err = b.AddSeries([]series.Label{{Name: series.MetricName, Value: "size_bytes"}}, series.HistogramDelta, "", 0)
	must(tb, err)
	must(tb, b.AppendHistogram(id, 5, series.Histogram{
		Schema: series.CustomBounds, Count: 6, Sum: math.NaN(),
		PositiveSpans: []int32{0, 2, 1, 1}, PositiveBuckets: []float64{1, 2, 3}, CustomValues: []float64{1, 10, 100},
	}))
	batch, err := b.Build(boot, 0)
	must(tb, err)
	return batch
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func encode(tb testing.TB, b *Batch, o Options) []byte {
	tb.Helper()
	f, err := NewEncoder(o).Encode(nil, b)
	must(tb, err)
	return f
}

// rawFrame frames any payload as it is, valid or not.
func rawFrame(id identity.Batch, c Compression, payload []byte, decodedLen int) []byte {
	n := headerLen(id)
	f := append(make([]byte, n), payload...)
	putHeader(f[:n], id, c, payload, decodedLen)
	return f
}

// unchecked frames a batch without validating it.
func unchecked(b *Batch) []byte {
	var w payloadWriter
	payload := w.write(b)
	return rawFrame(b.Identity, None, payload, len(payload))
}

// reseal makes both checksums of a frame right again after its bytes were changed.
func reseal(f []byte) []byte {
	n := int(binary.LittleEndian.Uint16(f[8:]))
	binary.LittleEndian.PutUint32(f[n-8:], crc32.Checksum(f[n:], castagnoli))
	binary.LittleEndian.PutUint32(f[n-4:], crc32.Checksum(f[:n-4], castagnoli))
	return f
}
