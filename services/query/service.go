package query

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
	"lightmetrics.dev/lightmetrics/services/query/internal/blocks"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
	"lightmetrics.dev/lightmetrics/services/query/internal/promapi"
	"lightmetrics.dev/lightmetrics/services/query/internal/regions"
)

// Deps are what a query node is built over.
type Deps struct {
	// Store is the acceptance authority; it is only read.
	Store     objstore.Reader
	Telemetry *telemetry.Telemetry
	// Events is the queue of events.queue; nil takes none from a queue.
	Events events.MessageQueue
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// DialRegions are further options of the connections to other regions.
	DialRegions []grpc.DialOption
	// SetMemoryLimit sets the soft limit of the process's memory; nil leaves it alone.
	SetMemoryLimit func(bytes int64)
}

// Service is one query node. Any number may run over one authority.
type Service struct {
	*service.Server
	cfg    Config
	store  objstore.Reader
	now    func() time.Time
	setMem func(bytes int64) // nil when the process's memory limit is not this service's
	live   *live.Store
	follow *follow.Follower
	blocks *blocks.Keeper
	eval   *answer.Evaluator
	peers  *regions.Peers
	// forRegions answers the query nodes of other regions.
	forRegions *regionServer
	api        *promapi.API

	draining atomic.Bool
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
	srv, err := service.New("query", cfg.Base, cfg, d.Telemetry, service.Options{HTTP: func(h http.Handler) http.Handler {
		return web.LimitWrites(cfg.CORS.Handler(h), cfg.WriteTimeout)
	}})
	if err != nil {
		return nil, err
	}
	ls, err := live.New(cfg.live())
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	keeper, err := blocks.New(cfg.Rollup, blocks.Deps{
		Store: d.Store, Window: cfg.History.Window, AgentLabel: cfg.Series.AgentLabel, Log: srv.Log(), Registry: d.Telemetry.Registry, Now: d.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	ls.SetCover(cover(keeper))
	f, err := follow.New(cfg.Follow, follow.Deps{
		Store: d.Store, Live: ls, History: cfg.History.Window, Blocks: keeper,
		Log: srv.Log(), Registry: d.Telemetry.Registry, Now: d.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	ls.SetShards(f.ShardOf)
	peers, err := regions.New(cfg.Region, cfg.Regions, string(cfg.Series.AgentLabel), cfg.Fanout, d.Telemetry.Registry, d.DialRegions...)
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	eval := answer.New(
		answer.Config{Limits: cfg.Limits, Lookback: cfg.Lookback, StaleAfter: cfg.StaleAfter, Several: cfg.Region != "", Serve: cfg.Fanout.Serve},
		answer.Deps{Live: ls, Follower: f, Blocks: keeper, Regions: peers, Log: srv.Log(), Registry: d.Telemetry.Registry, Now: d.Now})
	s := &Service{
		Server: srv, cfg: cfg, store: d.Store, now: d.Now, setMem: d.SetMemoryLimit, live: ls, follow: f, blocks: keeper, eval: eval, peers: peers,
		api: promapi.New(eval, telemetry.Version(), srv.Log(), d.Telemetry.Registry),
	}
	s.forRegions = newRegionServer(s, d.Telemetry.Registry)
	srv.Probe("store", cfg.Probe(s.store))
	srv.Readiness().Check("completeness", s.incomplete)
	srv.OnStop(func() { s.draining.Store(true) })
	srv.Go("follow", f.Run)
	srv.Go("blocks", keeper.Run)
	s.takeEvents(d)
	if s.setMem != nil {
		srv.Go("memory", s.limitMemory)
	}
	return s, s.register()
}

// takeEvents has the follower read what events of the bucket name.
func (s *Service) takeEvents(d Deps) {
	if !s.cfg.Events.Webhook && d.Events == nil {
		return
	}
	to := events.NewReceiver(events.Deps{
		Bucket: s.cfg.Store.Bucket, Prefix: s.cfg.Store.Prefix, Segment: s.follow.Hint,
		Metrics: events.NewMetrics(d.Telemetry.Registry), Log: s.Log(), Now: d.Now,
	})
	if s.cfg.Events.Webhook {
		s.Handle(to.Route())
	}
	if d.Events != nil {
		s.Go("events", events.NewConsumer(s.cfg.Events.Queue, d.Events, to).Run)
	}
}

// prometheusPrefix begins the paths of the Prometheus HTTP API, which has its own form of errors.
const prometheusPrefix = "/api/v1/"

// register adds the three interfaces: the Prometheus HTTP API, gRPC with JSON, and the status page.
func (s *Service) register() error {
	prometheus := http.NewServeMux()
	s.api.Register(prometheus)
	compressed, err := web.Compress(prometheus)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	s.Handle(web.Route{Pattern: prometheusPrefix, About: "the Prometheus HTTP API", Roles: reads, OwnBody: true, Handler: compressed, Deny: s.api.Refuse})
	s.Handle(web.Route{Pattern: "GET /status", About: "how complete answers are, agents, conflicts", Roles: sees, Handler: http.HandlerFunc(s.page)})
	return errors.Join(s.Register(service.API{
		Desc: &queryv1.QueryService_ServiceDesc, Impl: &server{s: s}, Access: access,
		JSON: service.JSON(queryv1.NewQueryServiceClient, queryv1.RegisterQueryServiceHandlerClient),
	}), s.Register(service.API{Desc: &queryv1.RegionService_ServiceDesc, Impl: s.forRegions, Access: access}))
}

// cover tells the live store which batches blocks hold.
func cover(k *blocks.Keeper) live.Cover {
	return func(id identity.Batch, hours []timegrid.Hour) live.Held {
		switch held, known := k.Held(id, hours); {
		case !known:
			return live.Unknown
		case held:
			return live.Published
		}
		return live.OnlyHere
	}
}

// Complete is closed when everything that was accepted before the start is accounted for.
func (s *Service) Complete() <-chan struct{} { return s.follow.First() }

// BlocksRead is closed when the blocks of recent hours were read, or there are none.
func (s *Service) BlocksRead() <-chan struct{} { return s.blocks.FirstPollDone() }

// LateBatches counts the batches in memory that lie before the window and are in no block.
func (s *Service) LateBatches() int { return s.live.Stats().Late }

// incomplete says why answers are not complete up to now.
func (s *Service) incomplete() error {
	if s.draining.Load() {
		return errors.New("shutting down")
	}
	st := s.follow.Status()
	// Not ready until something is proven, so that a load balancer prefers nodes that can answer completely. A node
	// over a journal that is incomplete is ready: no other node can say more.
	if st.Since.IsZero() {
		if st.PollError != nil {
			return fmt.Errorf("the journal could not be read: %w", st.PollError)
		}
		return errors.New("the journal was not read to its end yet")
	}
	select {
	// Without the blocks every older hour would look as if it had no samples.
	case <-s.blocks.FirstPollDone():
	default:
		return errors.New("the blocks were not read yet")
	}
	if age := s.now().Sub(st.Since); age > s.cfg.StaleAfter {
		return fmt.Errorf("the journal was not read to its end for %s", age.Round(time.Second))
	}
	return nil
}

// Run serves and follows until ctx ends, then lets queries finish. It answers from the start; until the journal
// was read to its end its answers are partial and /-/ready is negative.
func (s *Service) Run(ctx context.Context) error {
	defer s.eval.Close()
	defer s.peers.Close()
	return s.Server.Run(ctx)
}
