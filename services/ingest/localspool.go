package ingest

import (
	"context"
	"errors"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/commit"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// openSpool opens the local spool as the acceptor; its batches land through the protocol p. A second call,
// after one that failed, goes on with the spool that is open.
func (s *Service) openSpool(ctx context.Context, authorityID string, p *accept.Protocol, j *commit.Committer) (*authority, error) {
	sp := s.spool.Load()
	if sp == nil {
		var err error
		sp, err = spool.Open(spool.Config{
			Dir: s.cfg.Spool.Dir, AuthorityID: authorityID, CollectorID: s.collectorID, Target: landing{p, s.recent},
			MaxBytes: int64(s.cfg.Spool.MaxBytes), Clock: clock{s.now}, RetryAfter: s.cfg.Limits.RetryAfter,
			Events: s.spoolEvents(),
		})
		if err != nil {
			return nil, err
		}
		s.spool.Store(sp)
		s.hub.spooled()
		s.spooled <- sp
	}
	// Before the first batch is accepted on this disk alone, readers can see that there may be some.
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AcceptTimeout)
	defer cancel()
	if _, err := j.Begin(ctx); err != nil {
		return nil, err
	}
	return &authority{
		Acceptor: sp, authorityID: authorityID, claim: sp.ClaimBoot, local: true,
		// Reconcilers are notified only when the manifest is in the bucket, at the landing.
		decided: s.hub.spooled,
		pending: func(boot identity.Boot, _ uint64, fn func(start, end uint64)) {
			sp.Ranges(boot, fn)
		},
	}, nil
}

// noteRun makes a run of the journal known to the next process over the same spool, before the run is
// opened. Without the note that process can't end it, and an operator has to.
func (s *Service) noteRun(run journal.RunID) {
	if sp := s.spool.Load(); sp != nil {
		if err := sp.NoteRun(run); err != nil {
			s.tel.Log.Error("the run of the journal is not noted in the spool: should this process be killed, end it with lmctl journal fence", "run", run.String(), "error", err)
		}
	}
}

// endRuns ends the runs that earlier processes left open over this spool, once what they left has landed: until
// then their open runs say that it may be missing from answers.
func (s *Service) endRuns(ctx context.Context) error {
	if accept.Mode(s.cfg.Acceptance) != accept.ModeLocalSpool {
		return nil
	}
	backoff := run.NewBackoff(endRunsInterval, time.Minute)
	for run.Sleep(ctx, endRunsInterval) == nil {
		sp := s.spool.Load()
		if sp == nil {
			continue
		}
		runs := sp.EndedRuns()
		if err := s.endEach(ctx, sp, runs); err != nil && ctx.Err() == nil {
			s.tel.Log.Warn("runs of the journal that earlier processes left open could not be ended", "error", err)
			_ = backoff.Sleep(ctx) // ends early with ctx, which the loop checks
			continue
		}
		backoff.Reset()
	}
	return nil
}

const endRunsInterval = 200 * time.Millisecond

func (s *Service) endEach(ctx context.Context, sp *spool.Spool, runs []journal.RunID) error {
	if len(runs) == 0 {
		return nil
	}
	for _, r := range runs {
		if err := journal.End(ctx, s.store, r); err != nil {
			return err
		}
	}
	return sp.ForgetRuns()
}

func (s *Service) spoolEvents() spool.Events {
	log := s.tel.Log
	return spool.Events{
		Landed: func(_ identity.Batch, o accept.Outcome) {
			s.metrics.landed.WithLabelValues(o.String()).Inc()
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
