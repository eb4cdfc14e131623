package query

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/live"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/web"
	"lightmetrics.dev/lightmetrics/pkg/window"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
	"lightmetrics.dev/lightmetrics/services/query/internal/promapi"
	"lightmetrics.dev/lightmetrics/services/query/internal/sets"
)

// Deps are what a query node is built over.
type Deps struct {
	// Store is the acceptance authority; it is only read.
	Store     objstore.Reader
	Telemetry *telemetry.Telemetry
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// SetMemoryLimit sets the soft limit of the process's memory; nil leaves it alone.
	SetMemoryLimit func(bytes int64)
}

// Service is one query node. Any number may run over one authority.
type Service struct {
	cfg    Config
	store  objstore.Reader
	tel    *telemetry.Telemetry
	now    func() time.Time
	setMem func(bytes int64) // nil: the process's memory has no limit, or another's
	auth   *rpc.Authenticator
	live   *live.Store
	follow *follow.Follower
	sets   *sets.Keeper
	eval   *answer.Evaluator
	api    *promapi.API

	readiness          *run.Readiness
	storePart          *run.Part
	ready              chan struct{}
	draining           atomic.Bool
	httpAddr, grpcAddr net.Addr
}

// New builds a query node; it does nothing before Run.
func New(cfg Config, d Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	if d.Store == nil || d.Telemetry == nil {
		return nil, errors.New("query: needs a store and telemetry")
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	auth, err := rpc.NewAuthenticator(cfg.Auth)
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	ls, err := live.New(cfg.live())
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	keeper, err := sets.New(cfg.Rollup, sets.Deps{
		Store: d.Store, Window: cfg.History.Window, AgentLabel: cfg.Series.AgentLabel, Log: d.Telemetry.Log, Registry: d.Telemetry.Registry, Now: d.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	ls.SetCover(cover(keeper))
	f, err := follow.New(cfg.Follow, follow.Deps{
		Store: d.Store, Live: ls, History: cfg.History.Window, Needed: keeper.Needed,
		Log: d.Telemetry.Log, Registry: d.Telemetry.Registry, Now: d.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	keeper.SetTake(f.Take)
	eval := answer.New(
		answer.Config{Limits: cfg.Limits, Lookback: cfg.Lookback, StaleAfter: cfg.StaleAfter},
		answer.Deps{Live: ls, Follower: f, Sets: keeper, Log: d.Telemetry.Log, Registry: d.Telemetry.Registry, Now: d.Now})
	s := &Service{
		cfg: cfg, store: d.Store, tel: d.Telemetry, now: d.Now, setMem: d.SetMemoryLimit, auth: auth, live: ls, follow: f, sets: keeper, eval: eval,
		api:   promapi.New(eval, telemetry.Version(), d.Telemetry.Log, d.Telemetry.Registry),
		ready: make(chan struct{}),
	}
	s.readiness = run.NewReadiness(d.Telemetry.Log)
	s.storePart = s.readiness.Probed("store")
	s.readiness.Check("completeness", s.incomplete)
	return s, nil
}

// cover tells the live store which batches published sets hold.
func cover(k *sets.Keeper) live.Cover {
	return func(id identity.Batch, hours []window.Hour) live.Held {
		switch held, known := k.Held(id, hours); {
		case !known:
			return live.Unknown
		case held:
			return live.Published
		}
		return live.OnlyHere
	}
}

// Ready is closed when the service listens. It answers from then on; until the first
// audit has succeeded its answers are partial and /-/ready says no.
func (s *Service) Ready() <-chan struct{} { return s.ready }

// Complete is closed when the first audit has succeeded.
func (s *Service) Complete() <-chan struct{} { return s.follow.First() }

// SetsSettled is closed when the published sets of recent hours were read, or there are none.
func (s *Service) SetsSettled() <-chan struct{} { return s.sets.Settled() }

// IntakeKnown reports that all accepted batches before the window that are in no set were
// looked at; true where there are no sets at all.
func (s *Service) IntakeKnown() bool { return s.sets.Known() }

// LateBatches in memory lie before the window and are in no published set.
func (s *Service) LateBatches() int { return s.live.Stats().Late }

// HTTPAddr is valid after Ready.
func (s *Service) HTTPAddr() net.Addr { return s.httpAddr }

// GRPCAddr is valid after Ready.
func (s *Service) GRPCAddr() net.Addr { return s.grpcAddr }

// incomplete says why answers are not complete up to now.
func (s *Service) incomplete() error {
	if s.draining.Load() {
		return errors.New("shutting down")
	}
	st := s.follow.Status()
	if st.CompleteThrough.IsZero() {
		if st.AuditError != nil {
			return fmt.Errorf("the first audit has not succeeded: %w", st.AuditError)
		}
		return errors.New("the first audit is not done")
	}
	select {
	case <-s.sets.Settled():
	default:
		return errors.New("the published sets were not read yet")
	}
	if age := s.now().Sub(st.CompleteThrough); age > s.cfg.StaleAfter {
		return fmt.Errorf("no audit has succeeded for %s", age.Round(time.Second))
	}
	return nil
}

// Run serves and follows until ctx ends, then lets queries finish.
func (s *Service) Run(ctx context.Context) error {
	defer s.eval.Close()
	gs, err := rpc.NewServer(s.cfg.TLS, s.auth, access, s.tel)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	api := &server{s: s}
	queryv1.RegisterQueryServiceServer(gs.Server, api)

	// The gateway reaches the service in memory: callers were authenticated before it.
	inner, err := rpc.NewServer(rpc.ServerTLS{}, nil, nil, s.tel)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	queryv1.RegisterQueryServiceServer(inner.Server, api)
	pipe := bufconn.Listen(1 << 20)
	conn, err := grpc.NewClient("passthrough:gateway", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		return fmt.Errorf("query: gateway: %w", err)
	}
	defer conn.Close()
	handler, err := s.handler(ctx, conn)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	hs := s.cfg.HTTP.Server(web.LimitWrites(s.cfg.CORS.Handler(handler), s.cfg.WriteTimeout))
	if hs.TLSConfig, err = s.cfg.TLS.Config(); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	hl, err := s.cfg.HTTP.Open(ctx)
	if err != nil {
		return fmt.Errorf("query: http: %w", err)
	}
	gl, err := s.cfg.GRPC.Open(ctx)
	if err != nil {
		return fmt.Errorf("query: grpc: %w", errors.Join(err, hl.Close()))
	}
	s.httpAddr, s.grpcAddr = hl.Addr(), gl.Addr()

	// The gateway outlives the HTTP server that uses it.
	inside, stopInside := context.WithCancel(context.WithoutCancel(ctx))
	defer stopInside()
	g := run.NewGroup(ctx)
	g.Go("http", func(ctx context.Context) error {
		defer stopInside()
		return web.ServeHTTP(ctx, hs, hl, s.cfg.DrainTimeout)
	})
	g.Go("gateway", func(context.Context) error { return inner.Serve(inside, pipe, s.cfg.DrainTimeout) })
	g.Go("grpc", func(ctx context.Context) error { return gs.Serve(ctx, gl, s.cfg.DrainTimeout) })
	g.Go("follow", s.follow.Run)
	g.Go("sets", s.sets.Run)
	g.Go("store", func(ctx context.Context) error {
		return s.storePart.Probe(ctx, func(ctx context.Context) error { return objstore.CheckAnswers(ctx, s.store, layout.AuthorityKey) })
	})
	g.Go("health", func(ctx context.Context) error {
		defer s.draining.Store(true)
		return s.readiness.Watch(ctx, gs.SetServing)
	})
	if s.setMem != nil {
		g.Go("memory", s.limitMemory)
	}
	close(s.ready)
	return g.Wait()
}

// prometheusPrefix is before the paths of the Prometheus HTTP API; it refuses in its own form.
const prometheusPrefix = "/api/v1/"

func (s *Service) handler(ctx context.Context, conn *grpc.ClientConn) (http.Handler, error) {
	gw, err := gateway(ctx, conn)
	if err != nil {
		return nil, err
	}
	prometheus := http.NewServeMux()
	s.api.Register(prometheus)
	compressed, err := web.Compress(prometheus)
	if err != nil {
		return nil, err
	}
	mux := web.NewMux("lightmetrics query", telemetry.Version(), s.auth.Guard(func(w http.ResponseWriter, r *http.Request, err error) {
		if strings.HasPrefix(r.URL.Path, prometheusPrefix) {
			s.api.Refuse(w, r, err)
			return
		}
		rpc.Deny(w, r, err)
	}))
	mux.Handle(web.Route{Pattern: prometheusPrefix, About: "the Prometheus HTTP API", Roles: reads, OwnBody: true, Handler: compressed})
	for _, r := range rpc.GatewayRoutes(queryv1.File_lightmetrics_query_v1_query_proto.Services().ByName("QueryService"), access, gw) {
		mux.Handle(r)
	}
	mux.Handle(web.Route{Pattern: "GET /status", About: "how complete answers are, agents, conflicts", Roles: sees, Handler: http.HandlerFunc(s.page)})
	telemetry.Admin{Telemetry: s.tel, Ready: s.readiness, Config: s.cfg, Pprof: s.cfg.Pprof}.Register(mux)
	return mux, nil
}
