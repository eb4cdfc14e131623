package ingest

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// frameMarshaler decodes raw frames and encodes answers as JSON, for the gateway.
type frameMarshaler struct{}

// ContentType implements runtime.Marshaler: that of the answers.
func (frameMarshaler) ContentType(any) string { return "application/json" }

// Marshal implements runtime.Marshaler.
func (frameMarshaler) Marshal(v any) ([]byte, error) {
	r, ok := v.(*ingestv1.SubmitBatchResponse)
	if !ok {
		return nil, fmt.Errorf("marshal %T for %s", v, frame.MediaType)
	}
	a := r.GetAcceptance()
	out := acceptedJSON{
		Duplicate:   r.GetDuplicate(),
		FrameSHA256: hex.EncodeToString(a.GetFrameSha256()),
		CollectorID: a.GetCollectorId(),
		ManifestKey: a.GetManifestKey(), JournalPosition: a.GetJournalPosition(),
	}
	if ns := a.GetAcceptedAtUnixNs(); ns != 0 {
		out.AcceptedAt = time.Unix(0, ns).UTC().Format(timeFormat)
	}
	return json.Marshal(out)
}

// acceptedJSON is the body of a 200.
type acceptedJSON struct {
	Duplicate   bool   `json:"duplicate"`
	FrameSHA256 string `json:"frame_sha256"`
	// AcceptedAt and CollectorID are absent where another region accepted the batch.
	AcceptedAt  string `json:"accepted_at,omitempty"`
	CollectorID string `json:"collector_id,omitempty"`
	ManifestKey string `json:"manifest_key"`
	// JournalPosition is empty where the batch is accepted on the collector's own disk alone.
	JournalPosition string `json:"journal_position,omitempty"`
}

// Unmarshal implements runtime.Marshaler.
func (frameMarshaler) Unmarshal(data []byte, v any) error {
	p, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("unmarshal %s into %T", frame.MediaType, v)
	}
	*p = data
	return nil
}

// NewDecoder implements runtime.Marshaler. takeBody has read the body, within its bound.
func (m frameMarshaler) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		b, ok := r.(*frameBody)
		if !ok {
			return fmt.Errorf("body is a %T", r)
		}
		return m.Unmarshal(b.bytes, v)
	})
}

// NewEncoder implements runtime.Marshaler.
func (m frameMarshaler) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		b, err := m.Marshal(v)
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	})
}
