package ingest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	grpccodes "google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Reasons of this service, next to those of pkg/frame, internal/acceptance/accept and internal/platform/rpc.
const (
	ReasonIdentityConflict = "IDENTITY_CONFLICT"
	ReasonForeignIdentity  = "FOREIGN_IDENTITY" // a frame of another agent or boot than the stream's hello
	ReasonRateLimited      = "RATE_LIMITED"
	// ReasonSeriesLimit: the agent would have too many active series.
	ReasonSeriesLimit = "SERIES_LIMIT"
	// ReasonBatchSeriesLimit and ReasonLabelBytesLimit depend on the batch alone.
	ReasonBatchSeriesLimit = "BATCH_SERIES_LIMIT"
	ReasonLabelBytesLimit  = "LABEL_BYTES_LIMIT"
	ReasonTimeInFuture     = "TIME_IN_FUTURE" // samples too far ahead of the collector's clock and the store's
	ReasonTooManyStreams   = "TOO_MANY_STREAMS"
	ReasonBadHello         = "BAD_HELLO"
	ReasonBadSpoolID       = "BAD_SPOOL_ID"
	ReasonContentEncoding  = "CONTENT_ENCODING"
	ReasonContentType      = "CONTENT_TYPE"
)

// maxSpoolIDBytes bounds the sender's spool id.
const maxSpoolIDBytes = 64

// failure is an error with a code and a reason for the sender: a refusal, or a request to try again.
type failure struct{ rpc.Failure }

func (f *failure) Error() string { return f.Reason + ": " + f.Message }

func failed(code grpccodes.Code, reason, format string, args ...any) *failure {
	return &failure{rpc.Failure{Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}}
}

func (f *failure) after(d time.Duration) *failure {
	f.RetryAfter = d
	return f
}

// describe returns the failure that the sender gets for any error. An error that is not in
// the table becomes a retry and never a rejection: a sender may drop a rejected batch, and
// the outcome of this one is unknown.
func (s *Service) describe(err error) rpc.Failure {
	var own *failure
	if errors.As(err, &own) {
		return own.Failure
	}
	f := service.Describe(err, failures)
	if f.Code == grpccodes.Internal || f.Code == grpccodes.Canceled {
		f.Code, f.RetryAfter = grpccodes.Unavailable, s.cfg.Limits.RetryAfter
	}
	return f
}

// retryable reports whether the same bytes may be sent again.
func retryable(f rpc.Failure) bool {
	return f.Code == grpccodes.Unavailable || f.Code == grpccodes.ResourceExhausted
}

// submission is one frame and its transport metadata.
type submission struct {
	frame   []byte
	spoolID string
	// only is the stream's boot, to which the frame must belong; nil for unary calls.
	only *identity.Boot
}

// decision is the answer to a submission: a result or a failure. The identity is
// known when the frame's header could be read.
type decision struct {
	id     identity.Batch
	sha256 identity.Digest
	result accept.Result
	by     *authority
	err    error
	// kept: the frame's buffer was handed over to recentFrames.
	kept bool
}

// handle decides a frame: it validates it, runs the acceptance protocol, and reports the
// outcome to metrics, log and reconcilers. The frame is not retained, unless the decision says that it is kept.
func (s *Service) handle(ctx context.Context, sub submission) decision {
	start := s.now()
	v := decision{sha256: identity.Sum(sub.frame)}
	ctx, span := s.tracer.Start(ctx, "ingest.accept")
	defer span.End()
	if span.IsRecording() { // attributes are allocated
		span.SetAttributes(attribute.Int("frame.bytes", len(sub.frame)))
	}
	v.result, v.err = s.decideSafely(ctx, sub, &v)
	failpoint.Hit("ingest.accept.decide.after")
	took := s.now().Sub(start)
	if v.err != nil {
		f := s.describe(v.err)
		if f.Reason == string(accept.ReasonStoreDenied) {
			s.storeDenied(v.err)
		}
		if f.Reason == string(accept.ReasonLinearizerDenied) {
			s.claimer.m.denied.Set(1)
			s.requestDenied("the identity linearizer", v.err)
		}
		span.SetStatus(codes.Error, f.Reason)
		s.metrics.failed(f, took)
		s.errlog.log(ctx, "batch not accepted", "reason", f.Reason, "error", v.err,
			"agent", v.id.Agent, "boot", v.id.Boot, "seq_start", v.id.SeqStart, "seq_end", v.id.SeqEnd,
			"frame_sha256", v.sha256.String(), "frame_bytes", len(sub.frame))
		return v
	}
	if span.IsRecording() {
		span.SetAttributes(attribute.String("outcome", v.result.Outcome.String()), attribute.String("journal.position", positionText(v.result.Position)))
	}
	s.metrics.decided(v.result, len(sub.frame), took)
	switch v.result.Outcome {
	case accept.Accepted:
		v.by.decided()
	case accept.Conflict:
		args := []any{"reason", ReasonIdentityConflict, "agent", v.id.Agent, "boot", v.id.Boot,
			"seq_start", v.id.SeqStart, "seq_end", v.id.SeqEnd, "submitted_sha256", v.sha256.String(),
			"accepted_sha256", v.result.Manifest.FrameSHA256.String(), "quarantine_key", v.result.QuarantineKey}
		if met := v.result.Met; met != (identity.Batch{}) {
			args = append(args, "accepted_seq_start", met.SeqStart, "accepted_seq_end", met.SeqEnd)
		}
		s.errlog.log(ctx, "identity conflict", args...)
	}
	return v
}

// decideSafely turns a panic into an error, so that one frame can't end the process.
func (s *Service) decideSafely(ctx context.Context, sub submission, v *decision) (_ accept.Result, err error) {
	defer func() {
		if r := recover(); r != nil {
			s.tel.Log.Error("panic over a frame", "panic", r, "frame_sha256", v.sha256.String(), "stack", string(debug.Stack()))
			err = errors.New("internal error")
		}
	}()
	return s.decide(ctx, sub, v)
}

func (s *Service) decide(ctx context.Context, sub submission, v *decision) (accept.Result, error) {
	var none accept.Result
	acceptor, err := s.ready()
	if err != nil {
		return none, err
	}
	v.by = acceptor
	// gRPC receives somewhat larger messages, so that this answer names the batch.
	if n, limit := len(sub.frame), s.cfg.Limits.FrameBytes.Int(); n > limit {
		if h, err := frame.ParseHeader(sub.frame); err == nil {
			v.id = h.Identity // so that the answer names the batch
		}
		return none, &frame.Error{Reason: frame.TooLarge, Detail: fmt.Sprintf("frame has %d bytes, at most %d", n, limit)}
	}
	h, err := frame.ParseHeader(sub.frame)
	if err != nil {
		return none, err
	}
	v.id = h.Identity
	// By the header first, so that nobody can make the collector decode frames of others.
	if err := s.allowed(ctx, h.Identity, sub.only); err != nil {
		return none, err
	}
	if err := s.released(ctx, acceptor.authorityID, h.Identity.BootOf()); err != nil {
		return none, err
	}
	if wait, ok := s.agents.takeBatch(h.Identity.Agent); !ok {
		return none, failed(grpccodes.ResourceExhausted, ReasonRateLimited, "agent %q sends more batches than it may", h.Identity.Agent).after(wait)
	}
	var sh shape
	sum, err := s.decoding.inspect(ctx, sub.frame, h, &sh)
	if err != nil {
		return none, err
	}
	// The decoder has compared header and payload, so from here on this is the identity.
	if err := s.allowed(ctx, sum.Identity, sub.only); err != nil {
		return none, err
	}
	v.id = sum.Identity
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AcceptTimeout)
	defer cancel()
	// Before anything is written, or asked of the store: where the linearizer is away there is nothing to be had by it.
	if l := s.claimer; l != nil {
		if err := l.reachable(); err != nil {
			return none, s.noLinearizer(err)
		}
	}
	if err := s.checkBounds(ctx, acceptor, sum, &sh); err != nil {
		return none, err
	}
	failpoint.Hit("ingest.accept.decide.before")
	submitted := accept.Submission{
		Frame: sub.frame, Identity: sum.Identity, SHA256: v.sha256, Records: sum.Records,
		MinTime: sum.MinTime, MaxTime: sum.MaxTime,
		WireVersion: uint32(sum.WireVersion), FrameVersion: uint32(sum.FrameVersion),
		SpoolID: sub.spoolID, Traceparent: traceparent(ctx),
	}
	var res accept.Result
	if acceptor.local { // what the spool accepts is kept when it lands
		res, err = acceptor.Accept(ctx, submitted)
	} else {
		res, v.kept, err = s.recent.accept(ctx, acceptor, submitted)
	}
	if err != nil {
		s.clashes.note(ctx, s, acceptor, v.id.BootOf(), sub.spoolID, err)
	}
	return res, err
}

// allowed checks whether the principal may write the identity, and whether it belongs to the stream's boot.
func (s *Service) allowed(ctx context.Context, id identity.Batch, only *identity.Boot) error {
	p, ok := rpc.PrincipalFrom(ctx)
	if !ok {
		return failed(grpccodes.Unauthenticated, rpc.ReasonUnauthenticated, "no principal")
	}
	if !p.MayWrite(id.Agent) {
		return failed(grpccodes.PermissionDenied, rpc.ReasonForbidden, "principal %q may not write agent %q", p.Name, id.Agent)
	}
	if only != nil && id.BootOf() != *only {
		return failed(grpccodes.PermissionDenied, ReasonForeignIdentity, "frame is of %v, the stream of %v", id.BootOf(), *only)
	}
	return nil
}

// traceparent is the W3C trace context of a sampled span; else "".
func traceparent(ctx context.Context) string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() || !sc.IsSampled() {
		return ""
	}
	t, p := sc.TraceID(), sc.SpanID()
	return "00-" + hex.EncodeToString(t[:]) + "-" + hex.EncodeToString(p[:]) + "-01"
}
