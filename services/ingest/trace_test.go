package ingest_test

import (
	"net/http"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/metadata"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// TestTraceContextReachesTheManifest sends the same trace by HTTP and by gRPC.
func TestTraceContextReachesTheManifest(t *testing.T) {
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	spans := tracetest.NewInMemoryExporter()
	tel := telemetry.Discard()
	tel.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	c := launchWith(t, newStore(), rpc.ClientConfig{}, tel, nil)
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	if a := c.post(t, encode(t, boot, 0, 1, 0), func(r *http.Request) { r.Header.Set("traceparent", parent) }); a.code != 200 {
		t.Fatalf("%+v", a)
	}
	ctx := metadata.AppendToOutgoingContext(bound(t), "traceparent", parent)
	if _, err := c.client.SubmitBatch(ctx, &ingestv1.SubmitBatchRequest{Frame: encode(t, boot, 1, 1, 0)}); err != nil {
		t.Fatal(err)
	}
	for seq := range uint64(2) {
		key := layout.Accepted(identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: seq, SeqEnd: seq})
		b, _, err := c.store.Get(bound(t), key, objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := accept.ParseManifest(b)
		if err != nil || !strings.HasPrefix(m.Traceparent, "00-"+trace+"-") || m.Traceparent == parent {
			t.Errorf("batch %d: traceparent %q, %v", seq, m.Traceparent, err)
		}
	}
	accepts := 0
	for _, s := range spans.GetSpans() {
		if s.Name == "ingest.accept" && s.SpanContext.TraceID().String() == trace {
			accepts++
		}
	}
	if accepts != 2 {
		t.Errorf("%d spans of acceptance in the trace", accepts)
	}
}
