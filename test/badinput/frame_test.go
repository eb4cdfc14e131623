package badinput

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

const authority = "authority-1"

type frameCase struct {
	named `yaml:",inline"`
	Do    []string `yaml:"do"`
	Want  string   `yaml:"want"`
}

// TestFrames sends every bad frame by stream, unary call and HTTP, to a collector over
// the store in memory and to one over the embedded store.
func TestFrames(t *testing.T) {
	t.Run("mem", func(t *testing.T) { sendFrames(t, memStore()) })
	t.Run("embedded", func(t *testing.T) { sendFrames(t, startObjectStore(t).open(t)) })
}

func sendFrames(t *testing.T, store objstore.Store) {
	c := startCollector(t, store)
	boundMemory(t, 320<<20) // one decode of 64 MiB with its tables, and what the client makes
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	st, err := c.client.StreamBatches(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{
		Hello: &ingestv1.Hello{AgentId: "host-1", BootId: "b1"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	before := listing(t, store)
	for _, k := range load[frameCase](t, "frame") {
		t.Run(k.Name, func(t *testing.T) {
			f := cook(t, k.Do)
			if err := st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Frame{Frame: f}}); err != nil {
				t.Fatal(err)
			}
			m, err := st.Recv()
			if err != nil {
				t.Fatalf("the stream ended: %v", err)
			}
			r := m.GetResult()
			foreign := r.GetReason() == "FOREIGN_IDENTITY" && strings.HasPrefix(k.Want, "IDENTITY_") // by its header it is not of this stream
			if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_REJECTED || r.GetReason() != k.Want && !foreign {
				t.Errorf("stream: %s %s (%s), want REJECTED %s", r.GetStatus(), r.GetReason(), r.GetDetail(), k.Want)
			}
			if _, err := c.client.SubmitBatch(ctx, &ingestv1.SubmitBatchRequest{Frame: f}); rpc.Reason(err) != k.Want {
				t.Errorf("unary: %v, want %s", err, k.Want)
			}
			status, reason := postFrame(t, c.HTTPAddr(), f)
			wantStatus := http.StatusBadRequest
			if k.Want == string(frame.TooLarge) || k.Want == string(frame.DecodedTooLarge) {
				wantStatus = http.StatusRequestEntityTooLarge
			}
			if status != wantStatus || !strings.EqualFold(reason, k.Want) {
				t.Errorf("HTTP: %d %s, want %d %s", status, reason, wantStatus, k.Want)
			}
		})
	}
	wantUnchanged(t, store, before)
	wantNoPanics(t)
	if err := st.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := st.Recv(); err != io.EOF {
		t.Errorf("the stream ended with %v", err)
	}
	c.wantHealthy(t)
}

// postFrame gives status and error of POST /v1/batches.
func postFrame(t testing.TB, addr string, f []byte) (int, string) {
	t.Helper()
	resp, err := http.Post("http://"+addr+"/v1/batches", frame.MediaType, bytes.NewReader(f))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body struct{ Error string }
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Errorf("the answer is no JSON: %v", err)
	}
	return resp.StatusCode, body.Error
}
