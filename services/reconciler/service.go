// Package reconciler is the service that turns accepted manifests into derived
// state: it finds them (events, collectors' hints, time scan, audits), has each
// reconciled by pkg/reconcile, keeps the ledgers, and passes reconciled manifests on.
package reconciler

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

	"lightmetrics.dev/lightmetrics/pkg/framelog"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/reconcile"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/sharedid"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/web"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// Bounds of what is remembered to save requests; forgetting costs requests, nothing else.
const (
	rememberIndexed = 1_000_000
	rememberBad     = 100_000
)

// Waits after a scan that failed, where the interval is longer.
const (
	scanAgain      = time.Second
	fullAuditAgain = time.Minute
)

// Deps are what a reconciler is built over.
type Deps struct {
	Store     objstore.Store
	Telemetry *telemetry.Telemetry
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Service is one reconciler. Any number may run over one authority.
type Service struct {
	cfg   Config
	store objstore.Store
	tel   *telemetry.Telemetry
	log   *slog.Logger
	now   func() time.Time
	auth  *rpc.Authenticator

	core   *reconcile.Reconciler
	queue  *queue
	book   *book
	shared *sharedid.Detector
	hub    *hub
	stage  *stage // nil: no rollups
	m      *metrics

	indexed *seen // accepted-by-time keys that this process has seen through
	bad     *seen // keys that were reported and that no scan need queue again

	listed      atomic.Bool  // a frontier audit has listed every boot
	complete    atomic.Int64 // Unix nanoseconds
	reconciled  atomic.Uint64
	openRepairs atomic.Int64
	repairs     tally

	readiness          *run.Readiness
	storePart          *run.Part
	ready              chan struct{}
	stopping           chan struct{}
	httpAddr, grpcAddr net.Addr
}

// New builds a reconciler; it does nothing before Run.
func New(cfg Config, d Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("reconciler: %w", err)
	}
	if d.Store == nil || d.Telemetry == nil {
		return nil, errors.New("reconciler: needs a store and telemetry")
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if cfg.ID == "" {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		cfg.ID = "reconciler-" + hex.EncodeToString(b[:])
	}
	auth, err := rpc.NewAuthenticator(cfg.Auth)
	if err != nil {
		return nil, fmt.Errorf("reconciler: %w", err)
	}
	s := &Service{
		cfg: cfg, store: d.Store, tel: d.Telemetry, log: d.Telemetry.Log, now: d.Now, auth: auth,
		core:    &reconcile.Reconciler{Store: d.Store, AuthorityID: cfg.AuthorityID, Now: d.Now, ID: cfg.ID},
		queue:   newQueue(cfg.Queue.Capacity, cfg.Queue.MaxRetries),
		book:    newBook(d.Store, d.Telemetry.Log, cfg.Ledgers.MaxInMemory),
		shared:  sharedid.New(),
		hub:     newHub(cfg.Watch.Buffer, cfg.Watch.MaxWatchers),
		indexed: newSeen(rememberIndexed), bad: newSeen(rememberBad),
		ready: make(chan struct{}), stopping: make(chan struct{}),
	}
	s.readiness = run.NewReadiness(d.Telemetry.Log)
	s.storePart = s.readiness.Probed("store")
	s.readiness.Check("boots", s.notListed)
	s.core.Removed = framelog.NewIndex(d.Store, cfg.AuthorityID).Removed
	if cfg.Intake.Shards > 0 {
		s.stage = newStage(d.Store, cfg.Intake)
		s.book.barrier = s.stage.barrier
	}
	s.m = newMetrics(d.Telemetry.Registry, s.queue, s.hub, s.stage, s.shared, d.Now)
	return s, nil
}

// Ready is closed when the service listens.
func (s *Service) Ready() <-chan struct{} { return s.ready }

// HTTPAddr is valid after Ready.
func (s *Service) HTTPAddr() net.Addr { return s.httpAddr }

// GRPCAddr is valid after Ready.
func (s *Service) GRPCAddr() net.Addr { return s.grpcAddr }

// Run serves, scans and reconciles until ctx ends; then it ends what is in work and
// writes the changed ledgers. What waits in the queue is found again by a scan.
func (s *Service) Run(ctx context.Context) error {
	gs, err := rpc.NewServer(s.cfg.TLS, s.auth, access, s.tel)
	if err != nil {
		return fmt.Errorf("reconciler: %w", err)
	}
	api := server{s: s}
	reconcilerv1.RegisterReconcilerServiceServer(gs.Server, api)
	mux, err := s.handler(ctx, api)
	if err != nil {
		return fmt.Errorf("reconciler: %w", err)
	}
	hs := s.cfg.HTTP.Server(mux)
	if hs.TLSConfig, err = s.cfg.TLS.Config(); err != nil {
		return fmt.Errorf("reconciler: %w", err)
	}
	hl, err := s.cfg.HTTP.Open(ctx)
	if err != nil {
		return fmt.Errorf("reconciler: http: %w", err)
	}
	gl, err := s.cfg.GRPC.Open(ctx)
	if err != nil {
		return fmt.Errorf("reconciler: grpc: %w", errors.Join(err, hl.Close()))
	}
	s.httpAddr, s.grpcAddr = hl.Addr(), gl.Addr()

	g := run.NewGroup(ctx)
	g.Go("http", func(ctx context.Context) error { return web.ServeHTTP(ctx, hs, hl, s.cfg.DrainTimeout) })
	g.Go("grpc", func(ctx context.Context) error { return gs.Serve(ctx, gl, s.cfg.DrainTimeout) })
	g.Go("store", func(ctx context.Context) error {
		return s.storePart.Probe(ctx, func(ctx context.Context) error { return objstore.CheckAnswers(ctx, s.store, layout.AuthorityKey) })
	})
	g.Go("health", func(ctx context.Context) error { return s.readiness.Watch(ctx, gs.SetServing) })
	g.Go("stop", func(ctx context.Context) error {
		<-ctx.Done()
		close(s.stopping) // ends the streams, so that the servers can drain
		s.hub.close()
		return nil
	})
	s.loops(g)
	close(s.ready)
	err = g.Wait()

	fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	if ferr := errors.Join(s.stage.barrier(fctx), s.book.flush(fctx)); ferr != nil {
		s.log.Warn("intake and ledgers were not all written; the next start lists more", "err", ferr)
	}
	return err
}

// loops starts everything that works in the background; each loop ends with its context.
func (s *Service) loops(g *run.Group) {
	for i := range s.cfg.Workers {
		g.Go(fmt.Sprintf("worker %d", i), s.work)
	}
	g.Go("retries", s.promote)
	scan := func(name string, interval time.Duration, fn func(context.Context) error) {
		g.Go(name, func(ctx context.Context) error {
			for {
				wait := interval
				if s.scan(ctx, name, fn) != nil {
					wait = min(wait, scanAgain)
				}
				if err := sleep(ctx, wait); err != nil {
					return err
				}
			}
		})
	}
	scan("frontier_audit", s.cfg.Frontier.Interval, s.frontierAudit)
	scan("time_scan", s.cfg.TimeScan.Interval, s.timeScan)
	scan("repair_sweep", s.cfg.Repairs.Interval, s.sweepRepairs)
	g.Go("full_audit", s.fullAudits)
	if s.stage != nil {
		g.Go("intake", s.feedIntake)
	}
	g.Go("ledgers", func(ctx context.Context) error {
		return every(ctx, s.cfg.Ledgers.FlushInterval, func() { s.flush(ctx) })
	})
}

func (s *Service) fullAudits(ctx context.Context) error {
	const name = "full_audit"
	due := s.cfg.FullAudit.AtStart
	for {
		wait := s.cfg.FullAudit.Interval
		if due {
			if s.scan(ctx, name, s.fullAudit) != nil {
				wait = fullAuditAgain
			}
		}
		if wait == 0 {
			return nil
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		due = true
	}
}

func (s *Service) scan(ctx context.Context, name string, fn func(context.Context) error) error {
	start := s.now()
	err := fn(ctx)
	s.m.auditTime.WithLabelValues(name).Observe(s.now().Sub(start).Seconds())
	switch {
	case err == nil:
		s.m.audits.WithLabelValues(name, "ok").Inc()
	case ctx.Err() != nil: // stopping
	default:
		s.m.audits.WithLabelValues(name, "failed").Inc()
		s.log.Warn("scan failed; the next one begins again", "scan", name, "err", err)
	}
	return err
}

func (s *Service) flush(ctx context.Context) {
	err := s.book.flush(ctx)
	switch {
	case err == nil:
		s.m.flushes.WithLabelValues("ok").Inc()
	case ctx.Err() == nil:
		s.m.flushes.WithLabelValues("failed").Inc()
		s.log.Warn("ledgers were not all written; tried again at the next round", "err", err)
	}
}

// handler is the HTTP face: webhook, JSON API, admin paths.
func (s *Service) handler(ctx context.Context, api server) (http.Handler, error) {
	gw := runtime.NewServeMux(rpc.JSON())
	if err := reconcilerv1.RegisterReconcilerServiceHandlerServer(ctx, gw, api); err != nil {
		return nil, err
	}
	mux := web.NewMux("lightmetrics reconciler", telemetry.Version(), s.auth.Guard(nil))
	mux.Handle(s.eventsRoute())
	for _, r := range rpc.GatewayRoutes(reconcilerv1.File_lightmetrics_reconciler_v1_reconciler_proto.Services().ByName("ReconcilerService"), access, gw) {
		mux.Handle(r)
	}
	telemetry.Admin{Telemetry: s.tel, Ready: s.readiness, Config: s.cfg, Pprof: s.cfg.Pprof}.Register(mux)
	return mux, nil
}

var errNotListed = errors.New("no frontier audit has listed all boots yet")

// notListed says why the service is not ready: nil once every boot was listed.
func (s *Service) notListed() error {
	if s.listed.Load() {
		return nil
	}
	return errNotListed
}
