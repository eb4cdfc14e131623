package client_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/client"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// BenchmarkWriter appends 606 samples of 101 series and waits for their acknowledgement, with a queue in memory and a
// collector that accepts everything, in this process.
func BenchmarkWriter(b *testing.B) {
	collector := &sendtest.Collector{OnFrame: func(f []byte, reply func(*ingestv1.BatchResult)) error {
		reply(sendtest.Answer(f, ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED, ""))
		return nil
	}}
	addr, err := collector.Start("")
	if err != nil {
		b.Fatal(err)
	}
	defer collector.Stop()
	w, err := client.Open(client.Memory, client.Options{
		Agent: "host", Collectors: []string{addr}, MaxBytes: 64 << 20, Log: slog.New(slog.DiscardHandler), Labels: client.Labels{"host": "host-1", "region": "eu-west-1"},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	var series []*client.Series
	for i := range 101 {
		series = append(series, &client.Series{Name: fmt.Sprintf("cpu_usage_%d", i), Type: client.Gauge, Labels: client.Labels{"team": "sf"}})
	}
	start := time.Unix(1_780_000_000, 0)
	samples := make([]client.Sample, 0, 606)
	k := 0
	b.ReportAllocs()
	for b.Loop() {
		samples = samples[:0]
		for range 6 {
			k++
			at := start.Add(time.Duration(k) * 10 * time.Second)
			for i, s := range series {
				samples = append(samples, s.At(at, float64((i*31+k*7)%100)))
			}
		}
		if err := w.Append(b.Context(), samples...); err != nil {
			b.Fatal(err)
		}
		if err := w.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
