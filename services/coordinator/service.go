package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
)

// Deps are what a coordinator is built over.
type Deps struct {
	Telemetry *telemetry.Telemetry
	// Store counts the terms of leaders, so that they outlive a restore of etcd; nil is none,
	// and then fences may repeat after one.
	Store objstore.Store
	// Regions are the buckets of identity.regions, by their names.
	Regions map[claims.Region]regions.Store
	// SetGCPercent sets the collector's goal; nil leaves it as it is.
	SetGCPercent func(percent int)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Service is one coordinator. Any number may share one etcd.
type Service struct {
	*service.Server
	cfg   Config
	terms etcd.Terms
	log   *slog.Logger
	now   func() time.Time
	setGC func(percent int) // nil: not by this service
	m     *metrics

	regions map[claims.Region]regions.Store
	im      *identityMetrics

	stopping chan struct{}
	// last ends, by hang, drain_timeout after the service was asked to stop: so long it may wait for an etcd that does not answer.
	last    context.Context
	hang    context.CancelFunc
	closers []func()                // of what Prepare opened, last first
	back    atomic.Pointer[backend] // nil until etcd is there
}

// backend is what needs etcd.
type backend struct {
	client   *etcd.Client
	mirror   *etcd.Mirror
	sessions *etcd.Sessions
	leader   *etcd.Leader
	// identities is nil without regions.
	identities *identities
	// recoverer is the one of all regions' coordinators that recovers and folds; nil without regions.
	recoverer *etcd.Election
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
	for _, r := range cfg.Identity.Regions {
		if d.Regions[claims.Region(r.Name)] == nil {
			return nil, fmt.Errorf("coordinator: no store of region %s", r.Name)
		}
	}
	s := &Service{cfg: cfg, now: d.Now, setGC: d.SetGCPercent, stopping: make(chan struct{}), regions: d.Regions, im: newIdentityMetrics()}
	srv, err := service.New("coordinator", cfg.Base, cfg, d.Telemetry, service.Options{Prepare: s.prepare})
	if err != nil {
		return nil, err
	}
	s.Server, s.log = srv, srv.Log()
	if d.Store != nil {
		s.terms = etcd.StoreTerms{Store: d.Store}
	}
	s.m = newMetrics(d.Telemetry.Registry, s)
	if len(cfg.Identity.Regions) > 0 {
		var names []claims.Region
		for _, r := range cfg.Identity.Regions {
			names = append(names, claims.Region(r.Name))
		}
		s.im.register(d.Telemetry.Registry, names, func() *identities {
			if b := s.back.Load(); b != nil {
				return b.identities
			}
			return nil
		})
	}
	srv.Probe("etcd", func(context.Context) error { return s.notReady() })
	s.last, s.hang = context.WithCancel(context.Background())
	srv.OnStop(func() {
		close(s.stopping) // ends the streams, so that the server can drain
		time.AfterFunc(cfg.DrainTimeout, s.hang)
	})
	return s, errors.Join(
		srv.Register(service.API{Desc: &coordinatorv1.OwnershipService_ServiceDesc, Access: access,
			JSON: service.JSON(coordinatorv1.NewOwnershipServiceClient, coordinatorv1.RegisterOwnershipServiceHandlerClient)}),
		srv.Register(service.API{Desc: &coordinatorv1.WorkService_ServiceDesc, Access: access,
			JSON: service.JSON(coordinatorv1.NewWorkServiceClient, coordinatorv1.RegisterWorkServiceHandlerClient)}),
		srv.Register(service.API{Desc: &coordinatorv1.IdentityService_ServiceDesc, Access: access}),
		srv.Register(service.API{Desc: &coordinatorv1.RefsService_ServiceDesc, Access: access}))
}

// Leading reports whether this coordinator assigns the shards.
func (s *Service) Leading() bool {
	b := s.back.Load()
	return b != nil && b.leader.Leading()
}

// Run serves until ctx ends, then ends the workers' streams, resigns and stops an
// embedded member. Workers keep their shards for as long as their leases last.
//
// HTTP is served at once, so that a member that waits for its quorum can be checked;
// gRPC only once etcd is there, so that workers go to another coordinator until then.
func (s *Service) Run(ctx context.Context) error {
	defer s.hang()
	defer func() {
		for _, fn := range slices.Backward(s.closers) {
			fn()
		}
	}()
	return s.Server.Run(ctx)
}

// prepare makes everything that needs etcd.
func (s *Service) prepare(ctx context.Context) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	b := s.back.Load()
	store := etcd.NewPendingWork(b.client.Etcd, etcd.PendingOptions{Prefix: b.client.Prefix + "/work/v1", Timeout: b.client.Timeout, Now: s.now})
	// Services are registered before gRPC listens; a worker never reaches a coordinator without etcd.
	own := ofRegion{s, s.cfg.Region}
	coordinatorv1.RegisterOwnershipServiceServer(own, &server{s: s, b: b, streams: make(chan struct{}, s.cfg.MaxStreams)})
	coordinator.NewPendingServer(store, store).Register(own)
	coordinator.NewRefsServer(etcd.NewRefs(b.client.Etcd, b.client.Prefix+"/refs/v1", b.client.Timeout)).Register(own)
	if err := s.serveIdentities(b); err != nil {
		return err
	}
	s.Go("mirror", b.mirror.Run)
	s.Go("leader", b.leader.Run)
	s.Go("sweep", func(ctx context.Context) error { return s.sweep(ctx, store, store) })
	return nil
}

// serveIdentities serves the identity linearizer; without regions every request for it is refused.
func (s *Service) serveIdentities(b *backend) error {
	if len(s.cfg.Identity.Regions) == 0 {
		coordinator.NewIdentityServer(noRegions{}, s.now).Register(s)
		return nil
	}
	v := b.identities
	coordinator.NewIdentityServer(v, s.now).Register(s)
	s.Go("recoverer", b.recoverer.Run)
	s.Go("identities", v.run)
	s.Go("fold", v.fold)
	if s.setGC != nil {
		s.Go("garbage", s.collectLess)
	}
	return nil
}

// noRegions refuses every operation: the settings name no regions.
type noRegions struct{}

var errNoRegions = fmt.Errorf("%w: this coordinator has no regions (coordinator.identity.regions)", claims.ErrUnavailable)

// Do implements coordinator.Claimer.
func (noRegions) Do(_ context.Context, ops []claims.Op) []linearizer.Result {
	out := make([]linearizer.Result, len(ops))
	for i, op := range ops {
		out[i].Err = &claims.Error{Op: op.Kind, Key: op.Identity, Err: errNoRegions}
	}
	return out
}

// connect starts an embedded member where there is to be one, and makes the client.
func (s *Service) connect(ctx context.Context) error {
	var endpoint string
	var member *etcd.Embedded
	if !s.cfg.Etcd.External() {
		m, err := etcd.StartEmbedded(ctx, s.cfg.Etcd.Embedded, s.log)
		if err != nil {
			return err
		}
		// Closed in reverse order: the client ends before the member that it talks to.
		s.closers = append(s.closers, m.Close)
		s.Go("etcd", m.Watch)
		member, endpoint = m, m.Endpoint()
	}
	c, err := etcd.Dial(s.last, s.cfg.Etcd, endpoint, s.log)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { _ = c.Close() }) // nothing is in flight
	if member != nil {
		c.Direct(member)
	}
	mirror := etcd.NewMirror(c, s.log)
	b := &backend{
		client: c, mirror: mirror,
		sessions: etcd.NewSessions(c, mirror, s.cfg.Lease.Worker),
		leader: &etcd.Leader{
			Client: c, Mirror: mirror, ID: s.ID(), TTL: s.cfg.Lease.Leader, Rebalance: s.cfg.rebalanceDelay(),
			Terms: s.terms, Log: s.log, Now: s.now, Observe: s.m.observer(),
		},
	}
	if len(s.cfg.Identity.Regions) > 0 {
		// Not the leader of the shards: each region has one of these, under a prefix of its own.
		b.recoverer = &etcd.Election{Client: c, Key: s.cfg.Identity.Prefix + claimKeys + "recoverer", ID: s.ID(), TTL: s.cfg.Lease.Leader, Log: s.log}
		if b.identities, err = newIdentities(s.cfg.Identity, s.regions, etcd.NewClaimStore(c), s.cfg.Identity.Prefix, b.recoverer.Chosen, c.Restores, s.now, s.log, s.im); err != nil {
			return err
		}
	}
	s.back.Store(b)
	return nil
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
