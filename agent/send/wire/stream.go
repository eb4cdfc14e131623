// Package wire is the sender's side of the batch protocol with one collector: the stream, and one
// frame over HTTP. It neither stores nor repeats anything; package send does, and so do the test
// programs that use collectors in other ways. The contract is docs/protocol/stream.md.
package wire

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// Hello opens a stream.
type Hello struct {
	// Boot of every frame of the stream, and the spool id that it is claimed with.
	Boot  identity.Boot
	Spool string
	// NextSeq is the smallest sequence number that the sender has given to no batch of the boot.
	NextSeq uint64
}

// Stream is an open stream. Send and Receive may be called by one goroutine each.
type Stream struct {
	st grpc.BidiStreamingClient[ingestv1.StreamBatchesRequest, ingestv1.StreamBatchesResponse]
}

// OpenStream says hello and waits for the welcome. The stream ends with ctx. Errors are
// gRPC statuses with a reason, which internal/platform/rpc reads.
func OpenStream(ctx context.Context, conn grpc.ClientConnInterface, h Hello) (*Stream, *ingestv1.Welcome, error) {
	st, err := ingestv1.NewIngestServiceClient(conn).StreamBatches(ctx)
	if err != nil {
		return nil, nil, err
	}
	hello := &ingestv1.Hello{AgentId: h.Boot.Agent, BootId: h.Boot.Boot, SpoolId: h.Spool, NextSeq: h.NextSeq}
	err = st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{Hello: hello}})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	m, err := st.Recv() // has the reason when Send got EOF
	if err != nil {
		return nil, nil, err
	}
	w := m.GetWelcome()
	if w == nil {
		return nil, nil, fmt.Errorf("first message is %T, want a welcome", m.GetMessage())
	}
	return &Stream{st}, w, nil
}

// Settle asks what was decided about parked batches of an agent, and says what was done.
func Settle(ctx context.Context, conn grpc.ClientConnInterface, req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
	return ingestv1.NewIngestServiceClient(conn).SettleConflicts(ctx, req)
}

// Send hands over the exact bytes of a frame, which must not change until it is answered.
// io.EOF: the stream has ended, and Receive says why.
func (s *Stream) Send(frame []byte) error {
	return s.st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Frame{Frame: frame}})
}

// Receive waits for the next answer; answers come in any order, and name their frame by its
// hash. io.EOF: the collector ended the stream without an error.
func (s *Stream) Receive() (*ingestv1.BatchResult, error) {
	for {
		m, err := s.st.Recv()
		if err != nil {
			return nil, err
		}
		// A later version of the protocol may have other messages; this sender ignores them.
		if r := m.GetResult(); r != nil {
			return r, nil
		}
	}
}
