package rpc

import (
	"context"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"crypto/tls"
)

// identify authenticates a call by its metadata and connection, with these principals.
func (a *Authenticator) identify(ctx context.Context, ps *principals) (Principal, error) {
	var token string
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		// Two headers are treated as none: a proxy may have checked the other one.
		if v := md.Get("authorization"); len(v) == 1 {
			token = BearerToken(v[0])
		}
	}
	var conn *tls.ConnectionState
	if p, ok := peer.FromContext(ctx); ok {
		if t, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			conn = &t.State
		}
	}
	p, err := a.authenticateWith(ps, token, conn)
	if err != nil {
		return p, Failure{Code: codes.Unauthenticated, Reason: ReasonUnauthenticated, Message: err.Error()}.Err()
	}
	return p, nil
}

// gatekeeper authenticates and authorizes every call of a server.
type gatekeeper struct {
	*Authenticator
	access Access
}

// authorizeCall gives the caller, if it may call the method.
func (d gatekeeper) authorizeCall(ctx context.Context, ps *principals, method string) (Principal, error) {
	p, err := d.identify(ctx, ps)
	if err != nil {
		return p, err
	}
	return p, Status(d.access.Authorize(p, method))
}

func (d gatekeeper) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if open(info.FullMethod) {
		return next(ctx, req)
	}
	// Tap has authenticated the call already, where the server uses one.
	p, known := PrincipalFrom(ctx) // by Tap
	if !known {
		var err error
		if p, err = d.identify(ctx, d.current()); err != nil {
			return nil, err
		}
		ctx = WithPrincipal(ctx, p)
	}
	if err := d.access.Authorize(p, info.FullMethod); err != nil {
		return nil, Status(err)
	}
	return next(ctx, req)
}

func (d gatekeeper) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if open(info.FullMethod) {
		return next(srv, ss)
	}
	ps := d.current()
	p, err := d.authorizeCall(ss.Context(), ps, info.FullMethod)
	if err != nil {
		return err
	}
	s := &recheckedStream{ServerStream: ss, gatekeeper: d, ctx: WithPrincipal(ss.Context(), p), info: info, caller: p}
	s.seen.Store(ps)
	return next(srv, s)
}

// Recovered turns a panic of a handler into INTERNAL and logs its stack. It is deferred.
func Recovered(log *slog.Logger, method string, err *error) {
	if r := recover(); r != nil {
		log.Error("panic in handler", "method", method, "panic", r, "stack", string(debug.Stack()))
		*err = Failure{Code: codes.Internal, Reason: ReasonInternal, Message: "internal error"}.Err()
	}
}
