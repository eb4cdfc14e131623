package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// answerTimeout is how long a sender waits for one answer before it tries elsewhere.
const answerTimeout = 5 * time.Second

// rowStep is the time between two rows of a frame: small, so that hours of sending do not reach into the future.
const rowStep = 20 * time.Millisecond

// sender sends one boot's frames to one collector after the other over streams.
type sender struct {
	boot  identity.Boot
	spool string
	addrs []string
	next  int

	conn   *grpc.ClientConn
	stream ingestv1.IngestService_StreamBatchesClient
	cancel context.CancelFunc
}

func newSender(boot identity.Boot, addrs ...string) *sender {
	return &sender{boot: boot, spool: "spool-of-" + boot.Agent, addrs: addrs}
}

func (s *sender) close() {
	if s.cancel != nil {
		s.cancel()
		s.conn.Close()
	}
	s.conn, s.stream, s.cancel = nil, nil, nil
}

// open dials the next collector and says hello.
func (s *sender) open(ctx context.Context) error {
	addr := s.addrs[s.next%len(s.addrs)]
	s.next++
	conn, err := rpc.Dial(addr, rpc.ClientConfig{})
	if err != nil {
		return err
	}
	sctx, cancel := context.WithCancel(ctx)
	s.conn, s.cancel = conn, cancel
	if s.stream, err = ingestv1.NewIngestServiceClient(conn).StreamBatches(sctx); err != nil {
		return err
	}
	hello := &ingestv1.Hello{AgentId: s.boot.Agent, BootId: s.boot.Boot, SpoolId: s.spool}
	if err := s.stream.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{Hello: hello}}); err != nil {
		return err
	}
	m, err := s.recv()
	if err == nil && m.GetWelcome() == nil {
		err = fmt.Errorf("%s answered the hello with %v", addr, m)
	}
	return err
}

// recv receives one message or breaks the stream when none comes.
func (s *sender) recv() (*ingestv1.StreamBatchesResponse, error) {
	t := time.AfterFunc(answerTimeout, s.cancel)
	defer t.Stop()
	return s.stream.Recv()
}

// send sends the frame until it has an outcome: accepted, duplicate, conflict or rejected.
func (s *sender) send(ctx context.Context, f []byte) (*ingestv1.BatchResult, error) {
	for {
		r, err := s.try(ctx, f)
		if err == nil && r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY {
			return r, nil
		}
		if err != nil {
			s.close()
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *sender) try(ctx context.Context, f []byte) (*ingestv1.BatchResult, error) {
	if s.stream == nil {
		if err := s.open(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.stream.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Frame{Frame: f}}); err != nil {
		return nil, err
	}
	m, err := s.recv()
	if err != nil {
		return nil, err
	}
	r := m.GetResult()
	if d := identity.Sum(f); r == nil || string(r.GetFrameSha256()) != string(d[:]) {
		return nil, fmt.Errorf("answer to another frame: %v", m)
	}
	return r, nil
}

// makeFrame makes a frame of records from seq on, of two series; their values are
// value, value+1, … and their times start, start+rowStep, ….
func makeFrame(t *testing.T, boot identity.Boot, metric string, seq uint64, rows int, start time.Time, value float64) []byte {
	t.Helper()
	b := frame.NewBuilder()
	for _, part := range []string{"a", "b"} {
		id, err := b.AddSeries([]frame.Label{
			{Name: "__name__", Value: metric}, {Name: "host", Value: boot.Agent}, {Name: "part", Value: part},
		}, frame.Gauge, "", 0)
		must(t, err)
		for r := range rows {
			must(t, b.Append(id, start.Add(time.Duration(r)*rowStep).UnixNano(), value))
			value++
		}
	}
	batch, err := b.Build(boot, seq)
	must(t, err)
	f, err := frame.Encode(nil, batch)
	must(t, err)
	return f
}
