package ingest

import (
	"context"
	"crypto/rand"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// qualify checks the authority's id and the store's semantics, and returns the acceptor.
func (s *Service) qualify(ctx context.Context) (*authority, error) {
	id, err := s.ensureAuthority(ctx)
	if err != nil {
		return nil, err
	}
	runID := rand.Text()
	if _, err := qualify.Run(ctx, s.store, qualify.Options{RunID: runID, Now: s.now}); err != nil {
		return nil, err
	}
	if err := s.clock.probe(ctx, layout.ProbePrefix+runID+"/clock"); err != nil {
		return nil, err
	}
	// A repeated probe must not open the spool again, whose directory is locked by this process.
	if a := s.last; a != nil && a.authorityID == id {
		return a, nil
	}
	policy := accept.DefaultPolicy()
	policy.RetryAfter = s.cfg.Limits.RetryAfter
	p, err := accept.New(accept.Config{
		Store: s.store, AuthorityID: id, CollectorID: s.collectorID, Mode: accept.Mode(s.cfg.Acceptance),
		Clock: clock{s.now}, Rand: rand.Reader, Policy: policy, Events: s.metrics.events(s.tel.Log),
	})
	if err != nil {
		return nil, err
	}
	if accept.Mode(s.cfg.Acceptance) == accept.ModeLocalSpool {
		s.last, err = s.openSpool(id, p)
		return s.last, err
	}
	s.last = &authority{Acceptor: p, authorityID: id, claim: p.ClaimBoot, decided: s.notify.accepted}
	return s.last, nil
}

// ensureAuthority returns the authority's id. A configured id must be that of the bucket, and
// is written if the bucket has none. Without a configured id it is the bucket's, or a new one.
func (s *Service) ensureAuthority(ctx context.Context) (string, error) {
	if id := s.cfg.AuthorityID; id != "" {
		return id, accept.EnsureAuthority(ctx, s.store, id, true)
	}
	id, err := accept.ReadAuthority(ctx, s.store)
	if !errors.Is(err, accept.ErrNoAuthority) {
		return id, err
	}
	id = "authority-" + rand.Text()
	err = accept.EnsureAuthority(ctx, s.store, id, true)
	var other *accept.AuthorityError
	if errors.As(err, &other) { // another collector was first
		return other.Got, nil
	}
	return id, err
}

// fatal reports whether the error ends the collector: the bucket, or the spool, belongs to another authority, which waiting can't change.
func fatal(err error) bool {
	var other *accept.AuthorityError
	return errors.As(err, &other) || errors.Is(err, spool.ErrOtherAuthority)
}

// denied reports whether the store refuses what acceptance needs.
func denied(err error) bool {
	var r *accept.RetryError
	return errors.Is(err, objstore.ErrDenied) || errors.Is(err, objstore.ErrNoBucket) ||
		errors.As(err, &r) && r.Reason == accept.ReasonStoreDenied
}
