package rpc

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// ReasonCredentialsChanged means that the rights of a stream's principal have changed since the
// stream began. A new stream gets the new rights.
const ReasonCredentialsChanged = "CREDENTIALS_CHANGED"

// recheckedStream is a stream whose caller is authorized again when the principals have changed. It
// is checked with each message from the client, or with each answer when the client sends only one
// message. A stream may last for months; a caller that was removed from the file must not keep it.
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

// recheck authorizes the caller again if the principals have changed since the last time.
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
			Message: "what principal " + p.Name + " may do has changed; open a new stream"}.Err()
	}
	s.seen.Store(now)
	return nil
}
