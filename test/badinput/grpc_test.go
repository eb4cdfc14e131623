package badinput

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// grpcCase is a call with messages as bytes: recipes, in which hello is a good hello
// message and good a message with a frame that would be accepted.
type grpcCase struct {
	named  `yaml:",inline"`
	Method string            `yaml:"method"` // Submit (default), Stream, or a full name
	Send   []string          `yaml:"send"`
	Meta   map[string]string `yaml:"meta"`
	// Results are the per-batch answers, sorted.
	Results []string `yaml:"results"`
	// Code and Reason of the call's status.
	Code   string `yaml:"code"`
	Reason string `yaml:"reason"`
	// Accepts: one good frame of the case is accepted by design.
	Accepts bool `yaml:"accepts"`
}

// bytesCodec sends and receives messages as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }
func (bytesCodec) Marshal(v any) ([]byte, error) {
	return *v.(*[]byte), nil
}
func (bytesCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(b)
	return nil
}

var methods = map[string]string{
	"":       ingestv1.IngestService_SubmitBatch_FullMethodName,
	"Submit": ingestv1.IngestService_SubmitBatch_FullMethodName,
	"Stream": ingestv1.IngestService_StreamBatches_FullMethodName,
}

// TestGRPC sends bad messages to the collector's gRPC face.
func TestGRPC(t *testing.T) {
	store := memStore()
	c := startCollector(t, store)
	boundMemory(t, 160<<20)
	for i, k := range load[grpcCase](t, "grpc") {
		t.Run(k.Name, func(t *testing.T) {
			before := listing(t, store)
			boot := fmt.Sprintf("boot-%d", i)
			frame := goodFrame(t, "grpc", boot, 2)
			hello, err := proto.Marshal(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{
				Hello: &ingestv1.Hello{AgentId: "grpc", BootId: boot}}})
			if err != nil {
				t.Fatal(err)
			}
			vars := map[string][]byte{"frame": frame, "hello": hello, "boot": []byte(boot),
				"good": append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(frame))), frame...),
				"item": append(binary.AppendUvarint([]byte{2<<3 | 2}, uint64(len(frame))), frame...)}
			method := k.Method
			if full, ok := methods[method]; ok {
				method = full
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			for n, v := range k.Meta {
				ctx = metadata.AppendToOutgoingContext(ctx, n, string(expand(t, v, nil)))
			}
			st, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodec(bytesCodec{}))
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range k.Send {
				m := expand(t, r, vars)
				if st.SendMsg(&m) != nil {
					break // refused already: RecvMsg says why
				}
			}
			_ = st.CloseSend() // the status says all
			var results []string
			for {
				var m []byte
				if err = st.RecvMsg(&m); err != nil {
					break
				}
				var res ingestv1.StreamBatchesResponse
				if strings.HasSuffix(method, "StreamBatches") && proto.Unmarshal(m, &res) == nil && res.GetResult() != nil {
					results = append(results, res.GetResult().GetStatus().String()[len("BATCH_STATUS_"):]+" "+res.GetResult().GetReason())
				}
			}
			slices.Sort(results)
			if errors.Is(err, io.EOF) {
				err = nil
			}
			if got := status.Code(err).String(); got != k.Code || rpc.Reason(err) != k.Reason || fmt.Sprint(results) != fmt.Sprint(k.Results) {
				t.Errorf("got %s %q %q, want %s %q %q: %v", got, rpc.Reason(err), results, k.Code, k.Reason, k.Results, err)
			}
			if k.Accepts {
				return
			}
			after := listing(t, store)
			for key, etag := range after { // a hello claims its boot, by design
				if strings.HasPrefix(key, "boots/") && before[key] == "" {
					before[key] = etag
				}
			}
			wantUnchanged(t, store, before)
		})
	}
	wantNoPanics(t)
	c.wantHealthy(t)
}
