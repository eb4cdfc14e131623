package rpc

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// ReasonCredentialsChanged: the principal of a stream may do other things than when the
// stream began; a new stream is judged by them.
const ReasonCredentialsChanged = "CREDENTIALS_CHANGED"

// recheckedStream is a stream whose caller is looked at again when the principals have changed:
// with each message that comes, or that goes where none comes after the first. A stream
// may last for months; whoever is taken out of the file must not stay that long.
type recheckedStream struct {
	grpc.ServerStream
	gatekeeper gatekeeper
	ctx        context.Context
	info       *grpc.StreamServerInfo
	caller     Principal
	seen       atomic.Pointer[principals]
}

func (s *recheckedStream) Context() context.Context { return s.ctx }

func (s *recheckedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.recheck()
}

func (s *recheckedStream) SendMsg(m any) error {
	if !s.info.IsClientStream {
		if err := s.recheck(); err != nil {
			return err
		}
	}
	return s.ServerStream.SendMsg(m)
}

func (s *recheckedStream) recheck() error {
	now := s.gatekeeper.current()
	if now == s.seen.Load() {
		return nil
	}
	p, err := s.gatekeeper.authorizeCall(s.ServerStream.Context(), now, s.info.FullMethod)
	if err != nil {
		return err
	}
	if !p.same(s.caller) {
		return Failure{Code: codes.Unavailable, Reason: ReasonCredentialsChanged, RetryAfter: DefaultRetryAfter,
			Message: "what principal " + p.Name + " may do has changed; come again"}.Err()
	}
	s.seen.Store(now)
	return nil
}
