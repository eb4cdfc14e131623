// Package sendtest is a collector for the agent's tests: a real gRPC server over an
// in-memory acceptance record that several collectors share, with a script per frame.
package sendtest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// Store is the acceptance authority that collectors share.
type Store struct {
	mu       sync.Mutex
	accepted map[identity.Batch][]byte
	order    []identity.Batch
	changed  chan struct{}
}

// NewStore is empty.
func NewStore() *Store {
	return &Store{accepted: map[identity.Batch][]byte{}, changed: make(chan struct{})}
}

// Accept decides as a collector must: one frame per identity.
func (s *Store) Accept(b []byte) *ingestv1.BatchResult {
	sum := identity.Sum(b)
	r := &ingestv1.BatchResult{FrameSha256: sum[:]}
	info, err := frame.Inspect(b, frame.Limits{})
	if err != nil {
		r.Status, r.Reason, r.Detail = ingestv1.BatchStatus_BATCH_STATUS_REJECTED, "FRAME_INVALID", err.Error()
		return r
	}
	id := info.Identity
	r.SeqStart, r.SeqEnd = id.SeqStart, id.SeqEnd
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.accepted[id]
	switch {
	case !ok:
		s.accepted[id] = append([]byte(nil), b...)
		s.order = append(s.order, id)
		close(s.changed)
		s.changed = make(chan struct{})
		r.Status = ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED
	case identity.Sum(old) == sum:
		r.Status = ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE
	default:
		oldSum := identity.Sum(old)
		r.Status = ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT
		r.Conflict = &ingestv1.Conflict{AcceptedSha256: oldSum[:], SubmittedSha256: sum[:], AcceptedAtUnixNs: 1, CollectorId: "first", QuarantineKey: "quarantine/v1/x"}
	}
	return r
}

// Accepted lists identities in order of acceptance, and the channel that is closed at the next one.
func (s *Store) Accepted() ([]identity.Batch, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]identity.Batch(nil), s.order...), s.changed
}

// Frame is the accepted frame of an identity; nil without one.
func (s *Store) Frame(id identity.Batch) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted[id]
}

// Wait waits until n identities are accepted.
func (s *Store) Wait(ctx context.Context, n int) ([]identity.Batch, error) {
	for {
		list, changed := s.Accepted()
		if len(list) >= n {
			return list, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return list, ctx.Err()
		}
	}
}

// Collector is one server.
type Collector struct {
	ingestv1.UnimplementedIngestServiceServer
	Store *Store
	// OnHello may change the welcome or refuse; nil welcomes.
	OnHello func(*ingestv1.Hello) (*ingestv1.Welcome, error)
	// OnFrame answers a frame by calling reply, now or later, or never; an error ends the
	// stream, io.EOF with OK. nil accepts through Store. Frames of another boot than the
	// hello's never come here: they are rejected, as by every collector.
	OnFrame func(b []byte, reply func(*ingestv1.BatchResult)) error
	// OnSettle answers questions about parked batches; nil does not know them, as a collector of a former
	// release.
	OnSettle func(*ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error)
	// Options of the server, such as TLS.
	Options []grpc.ServerOption

	mu     sync.Mutex
	hellos []*ingestv1.Hello
	server *grpc.Server
	addr   string
}

// Start listens on a free port of loopback, or on addr.
func (c *Collector) Start(addr string) (string, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	c.addr = l.Addr().String()
	c.Serve(l)
	return c.addr, nil
}

// Serve serves a listener until Stop.
func (c *Collector) Serve(l net.Listener) {
	// Collectors permit the pings with which senders find out that a stream is dead.
	pings := grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true})
	c.server = grpc.NewServer(append(c.Options, grpc.MaxRecvMsgSize(16<<20), pings)...)
	ingestv1.RegisterIngestServiceServer(c.server, c)
	go func() { _ = c.server.Serve(l) }()
}

// Stop ends all streams at once.
func (c *Collector) Stop() { c.server.Stop() }

// Hellos that were said.
func (c *Collector) Hellos() []*ingestv1.Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*ingestv1.Hello(nil), c.hellos...)
}

// SettleConflicts answers a question about parked batches.
func (c *Collector) SettleConflicts(ctx context.Context, req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
	if c.OnSettle == nil {
		return c.UnimplementedIngestServiceServer.SettleConflicts(ctx, req)
	}
	return c.OnSettle(req)
}

// StreamBatches serves a stream.
func (c *Collector) StreamBatches(st grpc.BidiStreamingServer[ingestv1.StreamBatchesRequest, ingestv1.StreamBatchesResponse]) error {
	m, err := st.Recv()
	if err != nil {
		return err
	}
	hello := m.GetHello()
	c.mu.Lock()
	c.hellos = append(c.hellos, hello)
	c.mu.Unlock()
	w := &ingestv1.Welcome{CollectorId: c.addr, MaxInFlightBatches: 64, MaxInFlightBytes: 64 << 20, MaxFrameBytes: 4 << 20}
	if c.OnHello != nil {
		if w, err = c.OnHello(hello); err != nil {
			return err
		}
	}
	if err := st.Send(&ingestv1.StreamBatchesResponse{Message: &ingestv1.StreamBatchesResponse_Welcome{Welcome: w}}); err != nil {
		return err
	}
	var sending sync.Mutex
	reply := func(r *ingestv1.BatchResult) {
		sending.Lock()
		defer sending.Unlock()
		_ = st.Send(&ingestv1.StreamBatchesResponse{Message: &ingestv1.StreamBatchesResponse_Result{Result: r}}) // the stream ended: the agent sends again
	}
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		info, err := frame.Inspect(m.GetFrame(), frame.Limits{})
		if err == nil && (info.Identity.Agent != hello.GetAgentId() || info.Identity.Boot != hello.GetBootId()) {
			reply(Answer(m.GetFrame(), ingestv1.BatchStatus_BATCH_STATUS_REJECTED, "FOREIGN_IDENTITY"))
			continue
		}
		if c.OnFrame == nil {
			reply(c.Store.Accept(m.GetFrame()))
			continue
		}
		switch err := c.OnFrame(m.GetFrame(), reply); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// Answer is a result for b with a status and reason of the script's choice.
func Answer(b []byte, status ingestv1.BatchStatus, reason string) *ingestv1.BatchResult {
	sum := identity.Sum(b)
	return &ingestv1.BatchResult{FrameSha256: sum[:], Status: status, Reason: reason, Detail: "scripted"}
}
