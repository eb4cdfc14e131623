package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lightmetrics.dev/lightmetrics/pkg/coordinator"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/web"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
)

// Deps are what a coordinator is built over.
type Deps struct {
	Telemetry *telemetry.Telemetry
	// Terms outlive a restore of etcd; nil is none, and then fences may repeat after one.
	Terms etcd.Terms
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Service is one coordinator. Any number may share one etcd.
type Service struct {
	cfg   Config
	tel   *telemetry.Telemetry
	terms etcd.Terms
	log   *slog.Logger
	now   func() time.Time
	auth  *rpc.Authenticator
	m     *metrics

	readiness          *run.Readiness
	etcdPart           *run.Part
	ready              chan struct{}
	stopping           chan struct{}
	httpAddr, grpcAddr net.Addr

	back    atomic.Pointer[backend]          // nil until etcd is there
	gateway atomic.Pointer[runtime.ServeMux] // likewise
}

// backend is what needs etcd.
type backend struct {
	client   *etcd.Client
	mirror   *etcd.Mirror
	sessions *etcd.Sessions
	leader   *etcd.Leader
}

// New builds a coordinator; it does nothing before Run.
func New(cfg Config, d Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	if d.Telemetry == nil {
		return nil, errors.New("coordinator: needs telemetry")
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if cfg.ID == "" {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		cfg.ID = "coordinator-" + hex.EncodeToString(b[:])
	}
	auth, err := rpc.NewAuthenticator(cfg.Auth)
	if err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	s := &Service{
		cfg: cfg, tel: d.Telemetry, terms: d.Terms, log: d.Telemetry.Log, now: d.Now, auth: auth,
		ready: make(chan struct{}), stopping: make(chan struct{}),
	}
	s.readiness = run.NewReadiness(d.Telemetry.Log)
	s.etcdPart = s.readiness.Probed("etcd")
	s.m = newMetrics(d.Telemetry.Registry, s)
	return s, nil
}

// Ready is closed when the service serves; an embedded member has found its quorum by then.
func (s *Service) Ready() <-chan struct{} { return s.ready }

// HTTPAddr is valid after Ready.
func (s *Service) HTTPAddr() net.Addr { return s.httpAddr }

// GRPCAddr is valid after Ready.
func (s *Service) GRPCAddr() net.Addr { return s.grpcAddr }

// Leading reports whether this coordinator assigns the shards.
func (s *Service) Leading() bool {
	b := s.back.Load()
	return b != nil && b.leader.Leading()
}

// Run serves until ctx ends, then ends the workers' streams, resigns and stops an
// embedded member. Workers keep their shards for as long as their leases last.
//
// HTTP is served at once, so that a member that waits for its quorum can be looked at;
// gRPC only once etcd is there, so that workers go to another coordinator until then.
func (s *Service) Run(ctx context.Context) error {
	hl, err := s.cfg.HTTP.Open(ctx)
	if err != nil {
		return fmt.Errorf("coordinator: http: %w", err)
	}
	s.httpAddr = hl.Addr()
	hs := s.cfg.HTTP.Server(s.handler())
	if hs.TLSConfig, err = s.cfg.TLS.Config(); err != nil {
		return fmt.Errorf("coordinator: %w", errors.Join(err, hl.Close()))
	}
	var closers []func()
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			closers[i]()
		}
	}()
	g := run.NewGroup(ctx)
	g.Go("http", func(ctx context.Context) error { return web.ServeHTTP(ctx, hs, hl, s.cfg.DrainTimeout) })
	g.Go("ready", func(ctx context.Context) error {
		return s.etcdPart.Probe(ctx, func(context.Context) error { return s.notReady() })
	})
	g.Go("stop", func(ctx context.Context) error {
		<-ctx.Done()
		close(s.stopping) // ends the streams, so that the server can drain
		return nil
	})
	g.Go("etcd", func(ctx context.Context) error {
		if err := s.connect(ctx, &closers); err != nil {
			return err
		}
		return s.serve(ctx)
	})
	return g.Wait()
}

// serve is everything that needs etcd.
func (s *Service) serve(ctx context.Context) error {
	b := s.back.Load()
	gs, err := rpc.NewServer(s.cfg.TLS, s.auth, access, s.tel)
	if err != nil {
		return err
	}
	api := &server{s: s, b: b, streams: make(chan struct{}, s.cfg.MaxStreams)}
	store := etcd.NewPendingWork(b.client.Etcd, etcd.PendingOptions{Prefix: b.client.Prefix + "/work/v1", Timeout: b.client.Timeout, Now: s.now})
	work := coordinator.NewPendingServer(store, store)
	local := &rpc.Local{Access: access}
	for _, r := range []grpc.ServiceRegistrar{gs.Server, local} {
		coordinatorv1.RegisterOwnershipServiceServer(r, api)
		work.Register(r)
	}
	coordinator.NewRefsServer(etcd.NewRefs(b.client.Etcd, b.client.Prefix+"/refs/v1", b.client.Timeout)).Register(gs.Server)
	if err := s.route(ctx, local); err != nil {
		return err
	}
	gl, err := s.cfg.GRPC.Open(ctx)
	if err != nil {
		return err
	}
	s.grpcAddr = gl.Addr()
	g := run.NewGroup(ctx)
	g.Go("mirror", b.mirror.Run)
	g.Go("leader", b.leader.Run)
	g.Go("forget", func(ctx context.Context) error { return s.forget(ctx, store, store) })
	g.Go("grpc", func(ctx context.Context) error { return gs.Serve(ctx, gl, s.cfg.DrainTimeout) })
	g.Go("health", func(ctx context.Context) error { return s.readiness.Watch(ctx, gs.SetServing) })
	close(s.ready)
	return g.Wait()
}

// connect starts an embedded member where there is to be one, and makes the client.
func (s *Service) connect(ctx context.Context, closers *[]func()) error {
	var endpoint string
	if !s.cfg.Etcd.External() {
		m, err := etcd.StartEmbedded(ctx, s.cfg.Etcd.Embedded, s.log)
		if err != nil {
			return err
		}
		*closers = append(*closers, m.Close)
		endpoint = m.Endpoint()
	}
	c, err := etcd.Dial(s.cfg.Etcd, endpoint, s.log)
	if err != nil {
		return err
	}
	*closers = append(*closers, func() { _ = c.Close() }) // nothing is in flight
	mirror := etcd.NewMirror(c, s.log)
	s.back.Store(&backend{
		client: c, mirror: mirror,
		sessions: etcd.NewSessions(c, mirror, s.cfg.Lease.Worker),
		leader: &etcd.Leader{
			Client: c, Mirror: mirror, ID: s.cfg.ID, TTL: s.cfg.Lease.Leader, Settle: s.cfg.settle(),
			Terms: s.terms, Log: s.log, Now: s.now, Observe: s.m.observer(),
		},
	})
	return nil
}

// route makes the JSON API.
func (s *Service) route(ctx context.Context, local *rpc.Local) error {
	gw := runtime.NewServeMux(rpc.JSON())
	if err := errors.Join(
		coordinatorv1.RegisterOwnershipServiceHandlerClient(ctx, gw, coordinatorv1.NewOwnershipServiceClient(local)),
		coordinatorv1.RegisterWorkServiceHandlerClient(ctx, gw, coordinatorv1.NewWorkServiceClient(local))); err != nil {
		return err
	}
	s.gateway.Store(gw)
	return nil
}

// handler is the HTTP face: JSON API and admin paths.
func (s *Service) handler() http.Handler {
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gw := s.gateway.Load()
		if gw == nil {
			w.Header().Set("Retry-After", "1")
			web.WriteError(w, http.StatusServiceUnavailable, "not_ready", errNoEtcd.Error(), nil)
			return
		}
		gw.ServeHTTP(w, r)
	})
	mux := web.NewMux("lightmetrics coordinator", telemetry.Version(), s.auth.Guard(nil))
	for _, d := range []protoreflect.ServiceDescriptor{
		coordinatorv1.File_lightmetrics_coordinator_v1_ownership_proto.Services().ByName("OwnershipService"),
		coordinatorv1.File_lightmetrics_coordinator_v1_work_proto.Services().ByName("WorkService"),
	} {
		for _, r := range rpc.GatewayRoutes(d, access, api) {
			mux.Handle(r)
		}
	}
	telemetry.Admin{Telemetry: s.tel, Ready: s.readiness, Config: s.cfg, Pprof: s.cfg.Pprof}.Register(mux)
	return mux
}

var errNoEtcd = errors.New("etcd is not there yet")

// notReady says why the service is of no use now: nil while etcd answers.
func (s *Service) notReady() error {
	b := s.back.Load()
	if b == nil {
		return errNoEtcd
	}
	select {
	case <-s.stopping:
		return errors.New("shutting down")
	default:
		return b.mirror.Err()
	}
}
