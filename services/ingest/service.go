// Package ingest is the collector: it authenticates senders, validates frames and
// accepts batches. docs/protocol/stream.md is its protocol, docs/guide/ingest.md its settings.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/spool"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/web"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// Deps are what a collector works with.
type Deps struct {
	// Store is the acceptance authority's part of a bucket, its prefix applied.
	Store     objstore.Store
	Telemetry *telemetry.Telemetry
	// Now is the clock of manifests; nil is time.Now.
	Now func() time.Time
}

// Service is one collector.
type Service struct {
	ingestv1.UnimplementedIngestServiceServer

	cfg     Config
	tel     *telemetry.Telemetry
	tracer  trace.Tracer
	now     func() time.Time
	store   objstore.Store
	auth    *rpc.Authenticator
	metrics *metrics
	errlog  *errlog
	buffers *buffers
	gate    *gate
	agents  *agents
	clock   *storeClock
	notify  *notifier

	// live are the limits in force: Reload exchanges those that need nothing but a comparison.
	live     atomic.Pointer[Limits]
	decoding *decoding
	room     *semaphore.Weighted
	// bodies bounds what of room is promised to HTTP bodies that are not here yet.
	bodies     *semaphore.Weighted
	bodiesRoom int64
	inFlight   atomic.Int64
	streams    atomic.Int64
	requests   atomic.Int64

	state       atomic.Pointer[state]
	last        *authority // of keepQualified only
	spooled     chan *spool.Spool
	reprobe     chan struct{}
	collectorID string

	callsMu sync.Mutex
	calls   sync.WaitGroup
	drain   chan struct{}   // closed when the service stops taking anything
	hard    context.Context // ends when the drain's time is over
	kill    context.CancelFunc

	readiness             *run.Readiness
	storePart             *run.Part
	up                    chan struct{}
	grpcL, httpL, adminL  net.Listener
	grpcServer            *rpc.Server
	httpServer, adminHTTP *http.Server
}

// New makes a collector; nothing listens before Run.
func New(cfg Config, d Deps) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	if d.Store == nil || d.Telemetry == nil {
		return nil, errors.New("ingest: store and telemetry are needed")
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	auth, err := rpc.NewAuthenticator(cfg.Auth)
	if err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	l := cfg.Limits
	s := &Service{
		cfg: cfg, tel: d.Telemetry, now: d.Now, auth: auth,
		tracer: d.Telemetry.Tracer.Tracer("lightmetrics.dev/lightmetrics/services/ingest"),
		errlog: newErrlog(d.Telemetry.Log, d.Now), buffers: &buffers{}, gate: newGate(l.Receivers),
		agents:   newAgents(l, d.Now),
		decoding: newDecoding(l), room: semaphore.NewWeighted(int64(l.InFlightBytes)),
		reprobe: make(chan struct{}, 1), spooled: make(chan *spool.Spool, 1), drain: make(chan struct{}), up: make(chan struct{}),
	}
	s.clock = &storeClock{Store: d.Store, now: d.Now}
	s.bodiesRoom = int64(max(l.InFlightBytes/2, l.FrameBytes))
	s.bodies = semaphore.NewWeighted(s.bodiesRoom)
	s.hard, s.kill = context.WithCancel(context.Background())
	s.live.Store(&l)
	s.state.Store(&state{err: errStarting})
	s.readiness = run.NewReadiness(d.Telemetry.Log)
	s.readiness.Check("submissions", s.NotReady)
	if accept.Mode(cfg.Acceptance) == accept.ModeS3Manifest { // a local spool is there to do without the store
		s.storePart = s.readiness.Probed("store")
	}
	if s.metrics, err = newMetrics(d.Telemetry.Registry, s); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	s.store = s.clock
	if s.notify, err = newNotifier(cfg.Notify, d.Telemetry.Log, s.metrics); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	if s.grpcServer, err = rpc.NewServer(cfg.TLS, auth, access, d.Telemetry, s.grpcOptions()...); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	ingestv1.RegisterIngestServiceServer(s.grpcServer, s)
	s.grpcServer.SetServing(false)
	return s, s.buildHTTP()
}

// streamWindow is the flow-control window of a stream that is not being read, the
// least that gRPC takes. A fixed one turns off its estimation, which grows windows to 16 MiB.
const streamWindow = 64 << 10

func (s *Service) grpcOptions() []grpc.ServerOption {
	l := s.cfg.Limits
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec(s.buffers)),
		grpc.StatsHandler(gateStats{s.gate}),
		grpc.InTapHandle(s.auth.Tap(s.introduce)),
		// Frames somewhat over the limit are read, so that they can be refused one by one.
		grpc.MaxRecvMsgSize(2*l.FrameBytes.Int() + 4096),
		grpc.MaxSendMsgSize(1 << 20),
		grpc.MaxConcurrentStreams(uint32(l.StreamsPerConnection)),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(1 << 20),
		grpc.ReadBufferSize(16 << 10),
		grpc.WriteBufferSize(16 << 10),
		grpc.WaitForHandlers(true),
	}
}

// introduce tells the gate whose connection it is. Without credentials that tell senders
// apart, it stays its address's.
func (s *Service) introduce(ctx context.Context, p rpc.Principal) {
	key := ""
	if s.cfg.Auth.Mode != rpc.AuthNone {
		key = "principal " + p.Name
	}
	connOf(ctx).introduced(key)
}

func (s *Service) buildHTTP() error {
	api, err := s.gateway(s.hard)
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	mux := web.NewMux("lightmetrics ingest", telemetry.Version(), s.auth.Guard(s.deny))
	for _, r := range api {
		mux.Handle(r)
	}
	admin := telemetry.Admin{Telemetry: s.tel, Ready: s.readiness, Config: s.cfg, Pprof: s.cfg.Admin.Pprof}
	if s.cfg.Admin.Listen == "" {
		admin.Register(mux)
	} else {
		am := web.NewMux("lightmetrics ingest, admin paths", telemetry.Version(), s.auth.Guard(nil))
		admin.Register(am)
		s.adminHTTP = s.admin().Server(am)
		if s.adminHTTP.TLSConfig, err = s.cfg.TLS.ProbeConfig(); err != nil {
			return err
		}
	}
	s.httpServer = s.cfg.HTTP.Server(mux)
	s.httpServer.ErrorLog = slog.NewLogLogger(s.tel.Log.Handler(), slog.LevelDebug)
	s.httpServer.TLSConfig, err = s.cfg.TLS.Config()
	return err
}

// Reload takes the limits of new settings, which are valid.
func (s *Service) Reload(c Config) {
	s.live.Store(&c.Limits)
	s.agents.setRate(c.Limits.AgentBatchesPerSec, c.Limits.AgentBatchesBurst)
}

// limits are those in force now.
func (s *Service) limits() *Limits { return s.live.Load() }

// Ready is closed when the service listens and its addresses are known. Whether it
// takes submissions is NotReady's answer.
func (s *Service) Ready() <-chan struct{} { return s.up }

// GRPCAddr is where gRPC is served; valid after Ready.
func (s *Service) GRPCAddr() string { return s.grpcL.Addr().String() }

// HTTPAddr is where HTTP is served; valid after Ready.
func (s *Service) HTTPAddr() string { return s.httpL.Addr().String() }

// AdminAddr is where the admin paths are served; valid after Ready.
func (s *Service) AdminAddr() string {
	if s.adminL == nil {
		return s.HTTPAddr()
	}
	return s.adminL.Addr().String()
}

// Run serves until ctx ends; then it stops reading, finishes what was read and
// returns nil. A bucket of another authority ends it with an error.
func (s *Service) Run(ctx context.Context) (err error) {
	defer s.kill()
	defer func() { err = errors.Join(err, s.notify.close()) }()
	if err := s.listen(ctx); err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	if s.collectorID, err = s.name(); err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	g := run.NewGroup(ctx)
	// The side jobs outlive the drain, so that what is accepted last is notified too.
	side, stopSide := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSide()
	background := run.NewGroup(side)
	s.notify.start(background)
	background.Go("land", s.land)
	g.Go("drain", s.drainWhenDone)
	g.Go("grpc", func(ctx context.Context) error {
		return s.grpcServer.Serve(ctx, s.gate.listener(s.grpcL), s.cfg.DrainTimeout)
	})
	g.Go("http", func(ctx context.Context) error {
		return web.ServeHTTP(ctx, s.httpServer, s.httpL, s.cfg.DrainTimeout)
	})
	if s.adminL != nil {
		g.Go("admin", func(ctx context.Context) error {
			return web.ServeHTTP(ctx, s.adminHTTP, s.adminL, s.cfg.DrainTimeout)
		})
	}
	g.Go("qualify", s.keepQualified)
	if s.storePart != nil {
		g.Go("store", func(ctx context.Context) error {
			return s.storePart.Probe(ctx, func(ctx context.Context) error { return objstore.CheckAnswers(ctx, s.store, layout.AuthorityKey) })
		})
	}
	g.Go("health", func(ctx context.Context) error { return s.readiness.Watch(ctx, s.grpcServer.SetServing) })
	failpoint.Hit("ingest.start.ready.before")
	close(s.up)
	s.tel.Log.Info("collector listens", "grpc", s.GRPCAddr(), "http", s.HTTPAddr(), "admin", s.AdminAddr(),
		"collector_id", s.collectorID, "acceptance", s.cfg.Acceptance, "auth", s.cfg.Auth.Mode)
	err = g.Wait()
	s.kill() // nothing is left but what the drain's time did not suffice for
	s.calls.Wait()
	stopSide()
	return errors.Join(err, background.Wait())
}

// drainWhenDone turns senders away as soon as ctx ends.
func (s *Service) drainWhenDone(ctx context.Context) error {
	<-ctx.Done()
	s.callsMu.Lock()
	close(s.drain)
	s.callsMu.Unlock()
	s.tel.Log.Info("collector drains", "in_flight_bytes", s.inFlight.Load(), "streams", s.streams.Load())
	time.AfterFunc(s.cfg.DrainTimeout, s.kill)
	return nil
}

// admin is the listener of the admin paths, which has the HTTP port's bounds.
func (s *Service) admin() web.HTTPConfig {
	c := s.cfg.HTTP
	c.Listen = s.cfg.Admin.Listen
	return c
}

func (s *Service) listen(ctx context.Context) (err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, open := range []net.Listener{s.grpcL, s.httpL} {
			if open != nil {
				_ = open.Close()
			}
		}
	}()
	if s.grpcL, err = s.cfg.GRPC.Open(ctx); err != nil {
		return err
	}
	if s.httpL, err = s.cfg.HTTP.Open(ctx); err != nil {
		return err
	}
	if s.cfg.Admin.Listen != "" {
		s.adminL, err = s.admin().Open(ctx)
	}
	return err
}

// name is the collector's id: configured, or the host with the gRPC port.
func (s *Service) name() (string, error) {
	if s.cfg.CollectorID != "" {
		return s.cfg.CollectorID, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(s.GRPCAddr())
	return host + ":" + port, err
}
