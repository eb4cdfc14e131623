package rpc

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"crypto/tls"
)

// open methods need no credentials.
func open(method string) bool {
	return strings.HasPrefix(method, "/grpc.health.v1.") || strings.HasPrefix(method, "/grpc.reflection.")
}

func (a *Authenticator) fromContext(ctx context.Context) (context.Context, error) {
	if _, ok := PrincipalFrom(ctx); ok {
		return ctx, nil // by Tap
	}
	var token string
	if md, ok := metadata.FromIncomingContext(ctx); ok {
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
	pr, err := a.Authenticate(token, conn)
	if err != nil {
		return ctx, Failure{Code: codes.Unauthenticated, Reason: ReasonUnauthenticated, Message: err.Error()}.Err()
	}
	return WithPrincipal(ctx, pr), nil
}

func (a *Authenticator) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !open(info.FullMethod) {
		var err error
		if ctx, err = a.fromContext(ctx); err != nil {
			return nil, err
		}
	}
	return next(ctx, req)
}

func (a *Authenticator) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if open(info.FullMethod) {
		return next(srv, ss)
	}
	ctx, err := a.fromContext(ss.Context())
	if err != nil {
		return err
	}
	return next(srv, &streamWithContext{ServerStream: ss, ctx: ctx})
}

type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamWithContext) Context() context.Context { return s.ctx }

// Middleware authenticates HTTP requests and puts the principal into their context.
// deny writes the refusal.
func (a *Authenticator) Middleware(next http.Handler, deny func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := a.Authenticate(BearerToken(Authorization(r.Header)), r.TLS)
		if err != nil {
			deny(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), p)))
	})
}

// recovered turns a panic of a handler into INTERNAL and logs its stack.
func recovered(log *slog.Logger, method string, err *error) {
	if r := recover(); r != nil {
		log.Error("panic in handler", "method", method, "panic", r, "stack", string(debug.Stack()))
		*err = Failure{Code: codes.Internal, Reason: ReasonInternal, Message: "internal error"}.Err()
	}
}
