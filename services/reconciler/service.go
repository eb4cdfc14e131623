// Package reconciler is the service that turns accepted manifests into derived
// state: it finds them (events, collectors' hints, time scan, audits), has each
// reconciled by internal/derived/reconcile, keeps the ledgers, and passes reconciled manifests on.
package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/sharedid"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// Bounds of the sets of keys that save requests. A key that was dropped only costs a request.
const (
	rememberIndexed = 1_000_000
	rememberBad     = 100_000
)

// Longest waits after a failed scan.
const (
	scanAgain      = time.Second
	fullAuditAgain = time.Minute
)

// Deps are the dependencies of a reconciler.
type Deps struct {
	Store     objstore.Store
	Telemetry *telemetry.Telemetry
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Service is one reconciler. Any number may run over one authority.
type Service struct {
	*service.Server
	cfg   Config
	store objstore.Store
	log   *slog.Logger
	now   func() time.Time

	core    *reconcile.Reconciler
	queue   *queue
	ledgers *ledgerCache
	shared  *sharedid.Detector
	hub     *hub
	intake  *intakeBuffer // nil: no rollups
	journal *journalKeeper
	m       *metrics

	indexed *seen // accepted-by-time keys that this process has reconciled
	bad     *seen // keys that were reported and need not be queued again by scans

	listed      atomic.Bool  // a frontier audit has listed every boot
	complete    atomic.Int64 // Unix nanoseconds
	reconciled  atomic.Uint64
	openRepairs atomic.Int64
	repairs     tally

	stopping chan struct{}
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
	srv, err := service.New("reconciler", cfg.Base, cfg, d.Telemetry, service.Options{})
	if err != nil {
		return nil, err
	}
	store := d.Store
	s := &Service{
		Server: srv, cfg: cfg, store: store, log: srv.Log(), now: d.Now,
		core:    &reconcile.Reconciler{Store: store, AuthorityID: cfg.AuthorityID, Now: d.Now, ID: srv.ID()},
		queue:   newQueue(cfg.Queue.Capacity, cfg.Queue.MaxRetries),
		ledgers: newLedgerCache(store, srv.Log(), cfg.Ledgers.MaxInMemory),
		shared:  sharedid.New(),
		hub:     newHub(cfg.Watch.Buffer, cfg.Watch.MaxWatchers),
		indexed: newSeen(rememberIndexed), bad: newSeen(rememberBad),
		stopping: make(chan struct{}),
	}
	srv.Probe("store", cfg.Probe(store))
	srv.Readiness().Check("boots", s.notListed)
	s.core.Removed = framelog.NewIndex(store, cfg.AuthorityID).Removed
	if cfg.Intake.Shards > 0 {
		s.intake = newIntakeBuffer(store, cfg.Intake)
		// Intake before ledger snapshots, see intakeBuffer.
		s.ledgers.flushIntake = s.intake.flush
	}
	s.m = newMetrics(d.Telemetry.Registry, s.queue, s.hub, s.intake, s.shared, d.Now)
	s.journal = newJournalKeeper(cfg, srv.ID(), store, srv.Log(), newJournalMetrics(d.Telemetry.Registry))
	s.journal.foreign = s.reportForeign
	s.journal.unusable = s.queueUnusable
	srv.Handle(s.eventsRoute())
	srv.OnStop(func() {
		close(s.stopping) // ends the streams, so that the servers can drain
		s.hub.close()
		s.journal.relay.close()
	})
	s.loops()
	err = srv.Register(service.API{
		Desc: &journalv1.JournalService_ServiceDesc, Impl: journalServer{k: s.journal, stopping: s.stopping}, Access: journalAccess,
	})
	if err != nil {
		return nil, err
	}
	return s, srv.Register(service.API{
		Desc: &reconcilerv1.ReconcilerService_ServiceDesc, Impl: server{s: s}, Access: access,
		JSON: service.JSON(reconcilerv1.NewReconcilerServiceClient, reconcilerv1.RegisterReconcilerServiceHandlerClient),
	})
}

// Run serves, scans and reconciles until ctx ends. Then it finishes the manifests that are
// being reconciled and writes the changed ledgers. A scan finds the waiting ones again.
func (s *Service) Run(ctx context.Context) error {
	err := s.Server.Run(ctx)
	// ctx has ended, so the last writes get a time of their own.
	fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	if ferr := errors.Join(s.intake.flush(fctx), s.ledgers.flush(fctx)); ferr != nil {
		s.log.Warn("intake and ledgers were not all written; the next start lists more", "error", ferr)
	}
	return err
}

// loops starts the background loops; each ends with its context.
func (s *Service) loops() {
	for i := range s.cfg.Workers {
		s.Go(fmt.Sprintf("worker %d", i), s.work)
	}
	s.Go("retries", s.promote)
	s.Go("journal", s.journal.run)
	scan := func(name string, interval time.Duration, fn func(context.Context) error) {
		s.Go(name, func(ctx context.Context) error {
			for {
				wait := interval
				if s.scan(ctx, name, fn) != nil {
					// Soon, because complete_through does not move until an audit succeeds.
					wait = min(wait, scanAgain)
				}
				if err := run.Sleep(ctx, wait); err != nil {
					return err
				}
			}
		})
	}
	scan("frontier_audit", s.cfg.Frontier.Interval, s.frontierAudit)
	scan("time_scan", s.cfg.TimeScan.Interval, s.timeScan)
	scan("repair_sweep", s.cfg.Repairs.Interval, s.sweepRepairs)
	s.Go("full_audit", s.fullAudits)
	if s.intake != nil {
		s.Go("intake", s.feedIntake)
	}
	s.Go("ledgers", func(ctx context.Context) error {
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
		// An interval of 0 means no further audits.
		if wait == 0 {
			return nil
		}
		if err := run.Sleep(ctx, wait); err != nil {
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
		s.log.Warn("scan failed; the next one begins again", "scan", name, "error", err)
	}
	return err
}

func (s *Service) flush(ctx context.Context) {
	err := s.ledgers.flush(ctx)
	switch {
	case err == nil:
		s.m.flushes.WithLabelValues("ok").Inc()
	case ctx.Err() == nil:
		s.m.flushes.WithLabelValues("failed").Inc()
		s.log.Warn("ledgers were not all written; tried again at the next round", "error", err)
	}
}

var errNotListed = errors.New("no frontier audit has listed all boots yet")

// notListed says why the service is not ready; nil once every boot was listed.
func (s *Service) notListed() error {
	if s.listed.Load() {
		return nil
	}
	return errNotListed
}

// queueUnusable has the pipeline look at a manifest that an audit could not use: it opens the repair record.
func (s *Service) queueUnusable(key string) { s.hint(key, fromFullAudit) }
