package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// host makes frames like those of one host: 100 series, rows samples each.
type host struct {
	fb  *frame.Builder
	enc *frame.Encoder
}

func newHost(b testing.TB, rows int) host {
	fb := frame.NewBuilder()
	if err := fb.SetResource(series.Label{Name: "host", Value: "host-1"}, series.Label{Name: "region", Value: "eu-west-1"}); err != nil {
		b.Fatal(err)
	}
	for i := range 100 {
		id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: fmt.Sprintf("cpu_usage_%d", i)}, {Name: "team", Value: "sf"}}, series.Gauge, "", 0)
		if err != nil {
			b.Fatal(err)
		}
		for r := range rows {
			if err := fb.Append(id, int64(r+1)*10e9, float64((i*31+r*7)%100)); err != nil {
				b.Fatal(err)
			}
		}
	}
	return host{fb, frame.NewEncoder(frame.Options{})}
}

func (h host) frame(b testing.TB, boot identity.Boot, k int) []byte {
	batch, err := h.fb.Build(boot, uint64(k)*uint64(h.fb.Records()))
	if err != nil {
		b.Fatal(err)
	}
	f, err := h.enc.Encode(nil, batch)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// BenchmarkStream sends distinct batches over gRPC streams to a collector over the
// memory store, sender and collector in this process.
func BenchmarkStream(b *testing.B) {
	for _, rows := range []int{5, 100} {
		for _, agents := range []int{1, 8} {
			b.Run(fmt.Sprintf("samples=%d/agents=%d", rows*100, agents), func(b *testing.B) {
				benchmarkStream(b, rows, agents)
			})
		}
	}
}

func benchmarkStream(b *testing.B, rows, agents int) {
	c := start(b, newStore(), func(c *ingest.Config) { c.Limits.StreamBatches = 32 })
	frames := make([][][]byte, agents)
	h := newHost(b, rows)
	bytes := 0
	for i := range b.N {
		f := h.frame(b, identity.Boot{Agent: fmt.Sprint("a", i%agents), Boot: "b"}, i/agents)
		bytes += len(f)
		frames[i%agents] = append(frames[i%agents], f)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i, fs := range frames {
		wg.Go(func() { pump(b, c.GRPCAddr(), identity.Boot{Agent: fmt.Sprint("a", i), Boot: "b"}, fs) })
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N*rows*100)/b.Elapsed().Seconds(), "samples/s")
	b.ReportMetric(float64(bytes)/float64(b.N), "frame-bytes")
}

// pump sends the frames and waits for as many acceptances.
func pump(b testing.TB, address string, boot identity.Boot, frames [][]byte) {
	conn, err := rpc.Dial(address, rpc.ClientConfig{})
	if err != nil {
		b.Error(err)
		return
	}
	defer conn.Close()
	st, err := ingestv1.NewIngestServiceClient(conn).StreamBatches(context.Background())
	if err != nil {
		b.Error(err)
		return
	}
	_ = st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{Hello: &ingestv1.Hello{AgentId: boot.Agent, BootId: boot.Boot}}})
	go func() { // errors show in Recv
		for _, f := range frames {
			_ = st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Frame{Frame: f}})
		}
		_ = st.CloseSend()
	}()
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil || m.GetWelcome() == nil && m.GetResult().GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
			b.Errorf("%v, %v", m, err)
			return
		}
	}
}

// BenchmarkBareRequests is the floor: the same conditional requests on the same
// kind of store, without identities, validation or a wire.
func BenchmarkBareRequests(b *testing.B) {
	h := newHost(b, 5)
	frames := make([][]byte, b.N)
	for i := range frames {
		frames[i] = h.frame(b, boot, i)
	}
	store := mem.New(time.Now)
	manifest := make([]byte, 700)
	b.ResetTimer()
	for i, f := range frames {
		sum := identity.Sum(f)
		ctx := b.Context()
		_, err1 := store.Create(ctx, layout.Blob(sum, 0), f, objstore.PutOptions{SHA256: sum})
		_, err2 := store.Create(ctx, layout.Accepted(identity.Batch{Agent: "a", Boot: "b", SeqStart: uint64(i), SeqEnd: uint64(i)}), manifest, objstore.PutOptions{})
		_, _, err3 := store.Get(ctx, layout.Condemned(sum, 0), objstore.GetOptions{})
		if err1 != nil || err2 != nil || !errors.Is(err3, objstore.ErrNotFound) {
			b.Fatal(err1, err2, err3)
		}
	}
}
