// Package reconciler is the service behind the acceptance: it follows the journal, folds it, keeps the ledgers of
// all boots, audits what was accepted against the journal, checks frames, and reports what is damaged or
// missing as repair records. With derived keys as objects it has each manifest reconciled by
// internal/derived/reconcile.
package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/acceptance/sharedid"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/collect"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/scrub"
)

// rememberBad bounds the foreign keys that were reported. One that was dropped is reported again.
const rememberBad = 100_000

// scanAgain is the longest wait after a scan that failed.
const scanAgain = time.Second

// Deps are the dependencies of a reconciler.
type Deps struct {
	Store     objstore.Store
	Telemetry *telemetry.Telemetry
	// Inventory opens the inventory of the bucket with a key, or the newest one for ""; nil lists the bucket.
	Inventory func(context.Context, string) (audit.Inventory, error)
	// Events is the queue of events.queue; nil takes none from a queue.
	Events events.MessageQueue
	// Replica has copies of frames, which are only read; nil is none.
	Replica objstore.Reader
	// Claims is the identity linearizer; it is needed where there are regions.
	Claims Linearizer
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

	core     *reconcile.Reconciler
	queue    *queue
	shared   *sharedid.Detector
	journal  *journalKeeper
	garbage  *collect.Keeper
	scrubber *scrub.Scrubber
	m        *metrics

	conflicts conflicts
	putBacks  putBacks

	bad *seen // foreign keys that were reported

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
	if cfg.Region != "" && d.Claims == nil {
		return nil, errors.New("reconciler: needs the linearizer of its region")
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
		core:     &reconcile.Reconciler{Store: store, AuthorityID: cfg.AuthorityID, Now: d.Now, ID: srv.ID(), KeysInJournal: cfg.Derived != DerivedObjects},
		queue:    newQueue(cfg.Queue.Capacity, cfg.Queue.MaxRetries),
		shared:   sharedid.New(),
		bad:      newSeen(rememberBad),
		stopping: make(chan struct{}),

		conflicts: conflicts{log: resolution.NewLog(store, run.Each(resolution.Ahead))},
	}
	srv.Probe("store", cfg.Probe(store))
	srv.Readiness().Check("journal", s.notRead)
	s.core.Removed = framelog.NewIndex(store, cfg.AuthorityID).Removed
	s.m = newMetrics(d.Telemetry.Registry, s.queue, s.shared, d.Now)
	s.journal = newJournalKeeper(cfg, srv.ID(), store, srv.Log(), newJournalMetrics(d.Telemetry.Registry, func() int { return s.journal.relay.count() }), sinks{
		reconcile: s.reconcileAll, added: s.added, applied: s.applied,
		unusable: func(key string) { s.offer(key, fromFullAudit) }, foreign: s.reportForeign, underived: s.underived, inventory: d.Inventory,
		linearizer: d.Claims, removed: s.core.Removed,
	})
	if cfg.Region != "" {
		srv.Readiness().Check("linearizer", s.journal.denied)
		s.journal.m.claims = newClaimMetrics(d.Telemetry.Registry)
		s.journal.checks.m = newCheckMetrics(d.Telemetry.Registry, s.journal.checks.waiting)
	}
	s.takeEvents(d.Events)
	s.garbage = s.newCollector()
	if err := s.openPlaces(d.Replica); err != nil {
		return nil, err
	}
	srv.OnStop(func() {
		close(s.stopping) // ends the streams, so that the servers can drain
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

// loops starts the background loops; each ends with its context.
func (s *Service) loops() {
	for i := range s.cfg.Workers {
		s.Go(fmt.Sprintf("worker %d", i), s.work)
	}
	s.Go("retries", s.promote)
	s.Go("journal", s.journal.run)
	s.Go("repair_sweep", func(ctx context.Context) error {
		for {
			wait := s.cfg.Repairs.Interval
			if s.scan(ctx, "repair_sweep", s.sweepRepairs) != nil {
				wait = min(wait, scanAgain)
			}
			if err := run.Sleep(ctx, wait); err != nil {
				return err
			}
		}
	})
	s.scrubber = scrub.New(s.cfg.Scrub, s.ID(), s.log, s.store, s.core.HasFrame, s.suspect, s.now)
	s.m.scrubbed(s.scrubber)
	s.Go("scrub", s.scrubber.Run)
	s.Go("gc", s.garbage.Run)
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

// manifestKey is the key of the record that an entry is about.
func manifestKey(e *journal.Entry) string {
	if e.Outcome.Conflict() {
		return layout.Quarantine(e.ID, e.SHA256)
	}
	return layout.Accepted(e.ID)
}

// reconcileAll has the manifests of entries reconciled where derived keys are objects. It waits for room.
func (s *Service) reconcileAll(ctx context.Context, entries []journal.Entry, r *round) error {
	if s.cfg.Derived != DerivedObjects {
		return nil
	}
	for i := range entries {
		e := &entries[i]
		if e.Outcome == journal.Elsewhere {
			continue // there need not be a manifest
		}
		known := e.Outcome != journal.Accepted && e.Outcome != journal.Conflict
		if err := s.enqueue(ctx, &item{key: manifestKey(e), src: fromJournal, headFirst: known, rounds: []*round{r}}); err != nil {
			return err
		}
	}
	return nil
}

// added takes an accepted batch that the ledgers did not know.
func (s *Service) added(c ledgers.Change) {
	e := c.Entry
	b := sharedid.Batch{Boot: e.ID.BootOf(), AcceptedAt: e.At, MinTime: e.MinTime, MaxTime: e.MaxTime}
	if boots := s.shared.Add(s.now(), b); boots != nil {
		s.log.Warn("several machines send as one agent", "agent", b.Boot.Agent, "boots", boots)
	}
	if len(c.Overlap) > 0 {
		s.m.overlaps.Inc()
		s.log.Warn("identities overlap", "identity", e.ID.String(), "ranges", c.Overlap)
	}
}

// applied measures how long entries took to get here.
func (s *Service) applied(entries []journal.Entry) {
	now := s.now()
	for i := range entries {
		// A duplicate was accepted long before it was answered once more.
		if e := &entries[i]; e.Outcome == journal.Accepted {
			s.m.lag.Observe(max(0, now.Sub(time.Unix(0, e.At)).Seconds()))
		}
	}
}

// underived has the manifest of an entry reconciled of which a derived key was lost.
func (s *Service) underived(ctx context.Context, e *journal.Entry) error {
	return s.enqueue(ctx, &item{key: manifestKey(e), src: fromFullAudit, headFirst: true})
}

// suspect has the manifest of an entry reconciled whose frame is not where the entry says.
func (s *Service) suspect(ctx context.Context, e *journal.Entry) error {
	return s.enqueue(ctx, &item{key: manifestKey(e), src: fromScrub, headFirst: true, read: s.cfg.Scrub.Verify == scrub.VerifyBytes})
}

var errNotRead = errors.New("the journal has not been read yet")

// notRead says why the service is not ready; nil once the journal was read.
func (s *Service) notRead() error {
	if err := s.journal.misfit(); err != nil {
		return err
	}
	if _, _, ready := s.journal.status(); ready {
		return nil
	}
	return errNotRead
}
