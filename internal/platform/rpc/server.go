package rpc

import (
	"context"
	"errors"
	"net"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/channelz/service"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
)

// maxHeaderListBytes bounds the metadata of a call, as internal/platform/run bounds HTTP headers;
// gRPC's own default would let each stream of a connection hold 16 MiB.
const maxHeaderListBytes = 64 << 10

// Bounds of connections. A client begins at once, and one that is closed while idle connects again.
const (
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 2 * time.Minute
)

// Flow-control windows of a stream and of a connection, in bytes. Fixed ones disable gRPC's estimation, which sends a
// window update and a ping for nearly each message of a stream of single messages: two more system calls at each end.
const (
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)

// Server is a gRPC server with health and reflection.
type Server struct {
	*grpc.Server
	Health *health.Server
}

// NewServer wires TLS, authentication and roles, recovery, traces, health, channelz and
// reflection. access has, or gets before the first call, the methods that are registered later. auth may be nil: then
// every caller is let in without a principal.
func NewServer(t ServerTLS, auth *Authenticator, access Access, tel *telemetry.Telemetry, extra ...grpc.ServerOption) (*Server, error) {
	cfg, err := t.Config()
	if err != nil {
		return nil, err
	}
	unary := []grpc.UnaryServerInterceptor{refuseEncoded}
	stream := []grpc.StreamServerInterceptor{refuseEncodedStream}
	if auth != nil {
		auth.logRefusedFilesTo(tel.Log)
		d := gatekeeper{Authenticator: auth, access: access}
		unary, stream = append(unary, d.unary), append(stream, d.stream)
	}
	log := tel.Log
	unary = append(unary, func(ctx context.Context, req any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
		defer Recovered(log, i.FullMethod, &err)
		return next(ctx, req)
	})
	stream = append(stream, func(srv any, ss grpc.ServerStream, i *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		defer Recovered(log, i.FullMethod, &err)
		return next(srv, ss)
	})
	opts := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
		grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(tel.Tracer), otelgrpc.WithPropagators(propagation.TraceContext{}))),
		grpc.StatsHandler(encodingStats{}),
		//lint:ignore SA1019 the registry that replaces it is the process's, not the server's
		grpc.RPCDecompressor(noDecompressor{}),
		grpc.MaxHeaderListSize(maxHeaderListBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout, Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	if cfg != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg)))
	}
	s := &Server{Server: grpc.NewServer(append(opts, extra...)...), Health: health.NewServer()}
	healthpb.RegisterHealthServer(s.Server, s.Health)
	service.RegisterChannelzServiceToServer(s.Server)
	reflection.Register(s.Server)
	return s, nil
}

// SetServing sets the health of the whole server.
func (s *Server) SetServing(ok bool) {
	st := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		st = healthpb.HealthCheckResponse_SERVING
	}
	s.Health.SetServingStatus("", st)
}

// Serve serves until ctx ends, then stops gracefully for at most drain.
func (s *Server) Serve(ctx context.Context, l net.Listener, drain time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- s.Server.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	// Load balancers stop sending new calls while those under way end.
	s.Health.Shutdown()
	// GracefulStop waits for streams that may never end; after drain they are cut.
	timer := time.AfterFunc(drain, s.Server.Stop)
	defer timer.Stop()
	s.GracefulStop()
	if err := <-done; !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // it was stopped before Serve had begun
}
