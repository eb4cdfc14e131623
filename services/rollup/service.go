// Package rollup is the service that rolls accepted batches up: it owns shards, follows
// the acceptance journal, and publishes each hour of a shard as raw series and as buckets of a
// minute, five minutes and an hour. Late batches make the next generation of exactly
// their hours.
//
// The package is configuration and wiring. What is decided stands in packages below
// internal/ that have no goroutines and no clock: hour (what is published of an hour),
// backlog (what is pending), overlaps, schedule and sizing. Over them work owner (the loop of a
// shard), job (one generation), build (its chunks), maintain and snapshots.
package rollup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/status"
)

// Service is one worker. Any number may run over one authority.
type Service struct {
	*service.Server
	cfg   Config
	deps  Deps
	log   *slog.Logger
	m     *metrics.Metrics
	board *status.Board
	begun atomic.Bool
}

// New builds a worker; it does nothing before Run.
func New(cfg Config, d Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("rollup: %w", err)
	}
	if d.Store == nil || d.Telemetry == nil || d.Refs == nil {
		return nil, errors.New("rollup: needs a store, telemetry and reference sets")
	}
	d = d.withDefaults(cfg)
	srv, err := service.New("rollup", cfg.Base, cfg, d.Telemetry, service.Options{})
	if err != nil {
		return nil, err
	}
	cfg.ID = srv.ID()
	m := metrics.New(d.Telemetry.Registry)
	s := &Service{Server: srv, cfg: cfg, deps: d, log: srv.Log(), m: m, board: status.NewBoard(m, cfg.Follow.MaxPending)}
	srv.Probe("store", cfg.Probe(d.Store))
	srv.Readiness().Check("authority", s.notBegun)
	if o, ok := d.Ownership.(interface{ Err() error }); ok {
		srv.Readiness().Check("coordinator", o.Err)
	}
	srv.Handle(web.Route{Pattern: "GET /v1/rollup/shards", About: "shards of this worker, and what is pending",
		Roles: []web.Role{web.RoleReader, web.RoleOperator}, Handler: http.HandlerFunc(s.listShards)})
	srv.Go("shards", s.work)
	return s, nil
}

// Run owns shards and rolls up until ctx ends; a job that is under way is handed over.
func (s *Service) Run(ctx context.Context) error {
	return errors.Join(s.Server.Run(ctx), s.deps.Close())
}

// Shards that this worker owns now, in order.
func (s *Service) Shards() []status.Shard { return s.board.Shards() }

// work finds the authority, begins the epoch of the reference sets, and runs the worker.
func (s *Service) work(ctx context.Context) error {
	err := s.until(ctx, "authority", func(ctx context.Context) error {
		if err := s.readAuthority(ctx); err != nil {
			return err
		}
		return shards.Ensure(ctx, s.deps.Store, s.cfg.Shards)
	})
	if err != nil {
		return err
	}
	w, err := newWorker(s.cfg, s.deps, s.log, s.m, s.board)
	if err != nil {
		return fmt.Errorf("rollup: %w", err)
	}
	if err := s.until(ctx, "reference sets", w.collection.InitEpoch); err != nil {
		return err
	}
	s.begun.Store(true)
	return w.run(ctx)
}

// readAuthority compares the configured authority id with the bucket's, or takes that.
func (s *Service) readAuthority(ctx context.Context) error {
	a, err := accept.ReadAuthority(ctx, s.deps.Store)
	if err != nil {
		return err
	}
	if s.cfg.AuthorityID != "" && s.cfg.AuthorityID != a.AuthorityID {
		return &accept.AuthorityError{Reason: accept.AuthorityOther, Want: s.cfg.AuthorityID, Got: a.AuthorityID}
	}
	s.cfg.AuthorityID = a.AuthorityID
	return nil
}

// until tries again until fn succeeds, or says that it never will.
func (s *Service) until(ctx context.Context, what string, fn func(context.Context) error) error {
	for backoff := run.NewBackoff(s.cfg.Schedule.RetryBase, s.cfg.Schedule.RetryMax); ; {
		err := fn(ctx)
		var count *shards.CountError
		var other *accept.AuthorityError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &count), errors.As(err, &other), errors.Is(err, record.ErrCorrupt), errors.Is(err, record.ErrNewerVersion):
			return fmt.Errorf("rollup: %w", err) // somebody has to change the settings, or the bucket
		}
		s.log.Warn("not there yet; it is tried again", "what", what, "error", err)
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
}

var errNotBegun = errors.New("authority and reference sets are not there yet")

// notBegun says that the worker does not know yet what it works on.
func (s *Service) notBegun() error {
	if s.begun.Load() {
		return nil
	}
	return errNotBegun
}

// listShards answers with the shards that this worker owns.
func (s *Service) listShards(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"worker_id": s.cfg.ID, "shards": s.Shards()}) // the client went away: nothing to do
}
