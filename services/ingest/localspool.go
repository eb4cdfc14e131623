package ingest

import (
	"context"
	"errors"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// openSpool opens the local spool as the acceptor; its batches land through the protocol p.
func (s *Service) openSpool(authorityID string, p *accept.Protocol) (*authority, error) {
	sp, err := spool.Open(spool.Config{
		Dir: s.cfg.Spool.Dir, AuthorityID: authorityID, CollectorID: s.collectorID, Target: p,
		MaxBytes: int64(s.cfg.Spool.MaxBytes), Clock: clock{s.now}, RetryAfter: s.cfg.Limits.RetryAfter,
		Events: s.spoolEvents(),
	})
	if err != nil {
		return nil, err
	}
	s.spool.Store(sp)
	s.hub.spooled()
	s.spooled <- sp
	return &authority{
		Acceptor: sp, authorityID: authorityID, claim: sp.ClaimBoot, local: true,
		// Reconcilers are notified only when the manifest is in the bucket, at the landing.
		decided: func(string, []byte) { s.hub.spooled() },
		pending: func(boot identity.Boot, _ uint64, fn func(start, end uint64)) {
			sp.Ranges(boot, fn)
		},
	}, nil
}

func (s *Service) spoolEvents() spool.Events {
	log := s.tel.Log
	return spool.Events{
		Landed: func(id identity.Batch, o accept.Outcome) {
			s.metrics.landed.WithLabelValues(o.String()).Inc()
			s.notify.accepted(layout.Accepted(id), nil)
			s.hub.spooled()
		},
		Parked: func(id identity.Batch, d identity.Digest, cause error) {
			s.metrics.landed.WithLabelValues("parked").Inc()
			log.Error("a spooled batch could not land and is parked", "batch", id.String(), "frame_sha256", d.String(), "error", cause)
		},
		Corrupt:       func(path string, err error) { log.Error("corrupt spool file", "path", path, "error", err) },
		Failed:        func(err error) { log.Error("spool failed: it accepts nothing until a restart", "error", err) },
		LandingFailed: func(err error) { log.Warn("landing interrupted", "error", err) },
	}
}

// land waits until the spool is open and lands its batches until ctx ends, which is after the
// drain: the calls that the drain finishes still need the spool.
func (s *Service) land(ctx context.Context) error {
	select {
	case sp := <-s.spooled:
		l := spool.Lander{Spool: sp, Interval: time.Duration(s.cfg.Spool.LandingIntervalMS) * time.Millisecond}
		return errors.Join(l.Run(ctx), sp.Close())
	case <-ctx.Done():
	}
	select {
	case sp := <-s.spooled:
		return sp.Close()
	default:
		return nil
	}
}
