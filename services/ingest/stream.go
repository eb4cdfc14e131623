package ingest

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

type batchStream = grpc.BidiStreamingServer[ingestv1.StreamBatchesRequest, ingestv1.StreamBatchesResponse]

// stream is one StreamBatches call. Its reader receives messages while the window has room.
// Every batch is decided on a goroutine of its own; the window bounds their number.
type stream struct {
	s    *Service
	grpc batchStream
	conn *gateConn
	// work is the context of the stream's batches. A frame that was read is finished even if the sender has
	// gone: that costs less than the retry would, and the retry is then a duplicate that is answered at once.
	work  context.Context
	boot  identity.Boot
	spool string

	mu      sync.Mutex
	room    sync.Cond // signalled when batches or bytes decrease, and when closing is set
	batches int
	bytes   int64
	closing bool // nothing more is read

	send sync.Mutex
}

// StreamBatches implements IngestServiceServer.
func (s *Service) StreamBatches(g batchStream) error {
	if !s.enter() {
		return s.draining()
	}
	defer s.leave()
	if n := s.streams.Add(1); n > int64(s.limits().Streams) {
		s.streams.Add(-1)
		s.metrics.sheds.WithLabelValues("streams").Inc()
		return failed(codes.ResourceExhausted, ReasonTooManyStreams, "%d streams are open", n-1).after(s.cfg.Limits.RetryAfter).Err()
	}
	defer s.streams.Add(-1)
	st := &stream{s: s, grpc: g, conn: connOf(g.Context())}
	st.room.L = &st.mu
	var cancel context.CancelFunc
	st.work, cancel = s.finishing(g.Context())
	defer cancel()
	defer st.finish()
	return st.run()
}

// run reads on a goroutine that ends with the call. The goroutine may block in Recv until
// this function has returned; after that it changes nothing.
func (st *stream) run() error {
	heard := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		h, err := st.hello()
		if err == nil {
			close(heard)
			err = st.handshake(h)
		}
		if err == nil {
			err = st.read()
		}
		ended <- err
	}()
	// Only the sender's part of the handshake is timed here: a store that is slow to list what
	// is accepted is no fault of the sender.
	limit := st.s.limits().HelloTimeout
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-heard:
	case err := <-ended:
		return err
	case <-timer.C:
		return failed(codes.InvalidArgument, ReasonBadHello, "no hello within %v", limit).Err()
	case <-st.s.drain:
		return st.s.draining()
	}
	select {
	case err := <-ended:
		return err
	case <-st.s.drain:
		return st.s.draining()
	}
}

// hello reads the first message.
func (st *stream) hello() (*ingestv1.Hello, error) {
	req, err := st.grpc.Recv()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, failed(codes.InvalidArgument, ReasonBadHello, "the stream ended before its hello").Err()
		}
		return nil, err
	}
	st.conn.admitted()
	failpoint.Hit("ingest.stream.hello.received")
	h := req.GetHello()
	if h == nil {
		st.s.buffers.put(req.GetFrame())
		return nil, failed(codes.InvalidArgument, ReasonBadHello, "the first message is not a hello").Err()
	}
	return h, nil
}

// handshake answers the hello with a welcome, or refuses the stream.
func (st *stream) handshake(h *ingestv1.Hello) error {
	st.boot = identity.Boot{Agent: h.GetAgentId(), Boot: h.GetBootId()}
	st.spool = h.GetSpoolId()
	w, err := st.s.welcome(st.grpc.Context(), st.boot, st.spool, h.GetNextSeq())
	if err != nil {
		f := st.s.describe(err)
		st.s.metrics.hellos.WithLabelValues(f.Reason).Inc()
		st.s.errlog.log(st.grpc.Context(), "stream refused", "reason", f.Reason, "error", err, "agent", st.boot.Agent, "boot", st.boot.Boot)
		return f.Err()
	}
	st.s.metrics.hellos.WithLabelValues("").Inc()
	failpoint.Hit("ingest.stream.welcome.before")
	return st.reply(&ingestv1.StreamBatchesResponse{Message: &ingestv1.StreamBatchesResponse_Welcome{Welcome: w}})
}

// read receives batches until the sender is done, the call ends or the stream closes.
func (st *stream) read() error {
	for st.waitForRoom() {
		req, err := st.grpc.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		failpoint.Hit("ingest.stream.frame.received")
		m, ok := req.GetMessage().(*ingestv1.StreamBatchesRequest_Frame)
		if !ok {
			return failed(codes.InvalidArgument, ReasonBadHello, "a message after the hello is not a frame").Err()
		}
		b := m.Frame
		if !st.begin(len(b)) {
			return nil
		}
		// The stream is not read while it waits for memory, which is no fault of its sender: its
		// connection must not be closed for it.
		resume := st.conn.pause()
		err = st.s.admit(st.grpc.Context(), len(b))
		resume()
		st.conn.admitted()
		if err != nil {
			id, sum := nameOf(b)
			st.s.buffers.put(b)
			st.s.metrics.countRefused(st.s.describe(err))
			st.answer(decision{id: id, sha256: sum, err: err}, len(b))
			continue
		}
		failpoint.Hit("ingest.stream.frame.admitted")
		st.s.workers.start(st, b)
	}
	return nil
}

// batch decides one admitted frame and answers it.
func (st *stream) batch(b []byte) {
	n := len(b)
	v := st.s.handle(st.work, submission{frame: b, spoolID: st.spool, only: &st.boot})
	st.s.recycle(b, v)
	st.s.release(n)
	st.answer(v, n)
}

// waitForRoom blocks while the window is full; false if the stream closes.
func (st *stream) waitForRoom() bool {
	l := &st.s.cfg.Limits
	st.mu.Lock()
	defer st.mu.Unlock()
	full := func() bool { return st.batches >= l.StreamBatches || st.bytes >= int64(l.StreamBytes) }
	if full() {
		defer st.conn.pause()()
	}
	for !st.closing && full() {
		st.room.Wait()
	}
	return !st.closing
}

// begin counts a batch that was read; false if the stream closed in the meantime.
func (st *stream) begin(n int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closing {
		return false
	}
	st.batches++
	st.bytes += int64(n)
	return true
}

// answer sends the decision on a batch of n bytes, and frees its part of the window.
func (st *stream) answer(v decision, n int) {
	failpoint.Hit("ingest.stream.answer.before")
	// A failed send ends the call, which the reader notices.
	_ = st.reply(&ingestv1.StreamBatchesResponse{Message: &ingestv1.StreamBatchesResponse_Result{Result: st.s.batchResult(v)}})
	failpoint.Hit("ingest.stream.answer.after")
	st.mu.Lock()
	st.batches--
	st.bytes -= int64(n)
	st.room.Broadcast()
	st.mu.Unlock()
}

// finish stops reading and waits for the batches that were begun.
func (st *stream) finish() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closing = true
	st.room.Broadcast()
	for st.batches > 0 {
		st.room.Wait()
	}
}

func (st *stream) reply(m *ingestv1.StreamBatchesResponse) error {
	st.send.Lock()
	defer st.send.Unlock()
	return st.grpc.Send(m)
}

// batchResult is the protobuf message of a decision.
func (s *Service) batchResult(v decision) *ingestv1.BatchResult {
	r := &ingestv1.BatchResult{SeqStart: v.id.SeqStart, SeqEnd: v.id.SeqEnd, FrameSha256: v.sha256[:]}
	if v.err != nil {
		f := s.describe(v.err)
		r.Status, r.Reason, r.Detail = ingestv1.BatchStatus_BATCH_STATUS_REJECTED, f.Reason, f.Message
		if retryable(f) {
			r.Status = ingestv1.BatchStatus_BATCH_STATUS_RETRY
			r.RetryDelay = durationpb.New(f.RetryAfter)
		}
		return r
	}
	switch v.result.Outcome {
	case accept.Accepted:
		r.Status, r.Acceptance = ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED, acceptance(v.result)
	case accept.Duplicate:
		r.Status, r.Acceptance = ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE, acceptance(v.result)
	case accept.Conflict:
		r.Status = ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT
		r.Reason = ReasonIdentityConflict
		m := v.result.Manifest
		r.Conflict = &ingestv1.Conflict{
			AcceptedSha256: m.FrameSHA256[:], SubmittedSha256: v.sha256[:],
			AcceptedAtUnixNs: m.AcceptedAt, CollectorId: m.CollectorID, QuarantineKey: v.result.QuarantineKey,
			JournalPosition: positionText(v.result.Position),
		}
		if met := v.result.Met; met != (identity.Batch{}) {
			r.Detail = metDetail(v.id, met)
			r.Conflict.AcceptedSeqStart, r.Conflict.AcceptedSeqEnd = &met.SeqStart, &met.SeqEnd
		}
	}
	return r
}

func acceptance(r accept.Result) *ingestv1.Acceptance {
	a := &ingestv1.Acceptance{FrameSha256: r.Manifest.FrameSHA256[:], ManifestKey: r.ManifestKey, JournalPosition: positionText(r.Position)}
	// Of a duplicate of another region the manifest is this call's: it has not accepted the batch.
	if !r.Elsewhere {
		a.AcceptedAtUnixNs, a.CollectorId = r.Manifest.AcceptedAt, r.Manifest.CollectorID
	}
	return a
}

// finishing returns a context that outlives the call but not the service's drain.
func (s *Service) finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.hard, cancel)
	return ctx, func() { stop(); cancel() }
}

// draining is the error that callers get while the service stops.
func (s *Service) draining() error {
	return rpc.Failure{Code: codes.Unavailable, Reason: rpc.ReasonDraining,
		Message: "this collector is stopping; send to another", RetryAfter: s.cfg.Limits.RetryAfter}.Err()
}
