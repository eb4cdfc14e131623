package ingest

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// qualify checks the authority's id and the store's semantics, and returns the acceptor.
func (s *Service) qualify(ctx context.Context) (*authority, error) {
	found, err := s.ensureAuthority(ctx)
	if err != nil {
		return nil, err
	}
	id := found.AuthorityID
	s.reportBinding(found)
	runID := rand.Text()
	if _, err := qualify.Run(ctx, s.store, qualify.Options{RunID: runID, Now: s.now}); err != nil {
		return nil, err
	}
	if err := s.checkRegion(ctx); err != nil {
		return nil, err
	}
	if s.claimer != nil {
		if err := s.claimer.permitted(ctx); err != nil {
			return nil, err
		}
	}
	policy, err := s.probePolicy(ctx, runID)
	s.found.Store(&finding{authority: found, policy: policy, at: s.now()})
	if err != nil {
		return nil, err
	}
	if err := s.clock.probe(ctx, layout.ProbePrefix+runID+"/clock"); err != nil {
		return nil, err
	}
	// Before the first batch: a quarantined sender must not be taken for a released one.
	if err := s.readResolutions(ctx, id); err != nil {
		return nil, err
	}
	// A repeated probe must not open the spool again, whose directory is locked by this process.
	if a := s.last; a != nil && a.authorityID == id {
		return a, nil
	}
	rules := accept.DefaultPolicy()
	bound := time.Time{}
	if found.BoundAt != 0 {
		bound = time.Unix(0, found.BoundAt)
	}
	rules.RetryAfter = s.cfg.Limits.RetryAfter
	j, err := s.openJournal(id)
	if err != nil {
		return nil, err
	}
	events := s.metrics.events(s.tel.Log)
	events.BlobUnneeded = func(key string) {
		s.metrics.unneeded.Inc()
		s.abandoned.unneeded(key)
	}
	if g := s.claimer; g != nil {
		events.Affirmed = func(string) { g.m.affirmed.Inc() }
		events.ClaimTakenOver, events.ClaimReplaced = g.m.takenOver.Inc, g.m.replaced.Inc
		events.ManifestRestored = func(key string) {
			g.m.restored.Inc()
			s.tel.Log.Error("the linearizer says that this region accepted a batch whose manifest was not there; it was written again", "key", key)
		}
	}
	var spares func(identity.Digest) bool
	if s.condemned.Load() != nil {
		spares = j.Spares
	}
	// Before the first run opens, which says for all of its life whether it names epochs.
	if c := s.condemned.Load(); c != nil {
		if err := c.update(ctx); err != nil {
			s.tel.Log.Warn("epochs of condemned names could not be read; markers are read as long as this lasts", "error", err)
		}
	}
	p, err := accept.New(accept.Config{
		SparesMarker: spares,
		Store:        s.store, Journal: j, AuthorityID: id, BoundAt: bound, CollectorID: s.collectorID, Mode: accept.Mode(s.cfg.Acceptance),
		Clock: clock{s.now}, Rand: rand.Reader, Policy: rules, InlineBelow: s.cfg.InlineBelow.Int(), Events: events,
	})
	if err != nil {
		return nil, err
	}
	if accept.Mode(s.cfg.Acceptance) == accept.ModeLocalSpool {
		s.last, err = s.openSpool(ctx, id, p, j)
		return s.last, err
	}
	if s.claimer != nil {
		global, err := accept.NewGlobal(p, accept.GlobalConfig{Region: s.cfg.Region, Claims: s.claimer, TakeOver: s.cfg.TakeOver})
		if err != nil {
			return nil, err
		}
		s.last = &authority{Acceptor: watched{global, s.abandoned}, authorityID: id, claim: p.ClaimBoot, decided: func() {}}
		return s.last, nil
	}
	s.last = &authority{Acceptor: watched{p, s.abandoned}, authorityID: id, claim: p.ClaimBoot, decided: func() {}}
	return s.last, nil
}

// ensureAuthority returns the authority, bound to this bucket. A configured id must be that of the
// bucket, and is written if the bucket has none. Without a configured id it is the bucket's, or a new one.
func (s *Service) ensureAuthority(ctx context.Context) (accept.Authority, error) {
	if id := s.cfg.AuthorityID; id != "" {
		return accept.EnsureAuthority(ctx, s.store, id, true)
	}
	a, err := accept.ReadAuthority(ctx, s.store)
	if errors.Is(err, accept.ErrNoAuthority) {
		a.AuthorityID, err = "authority-"+rand.Text(), nil
	}
	if err != nil {
		return a, err
	}
	a, err = accept.EnsureAuthority(ctx, s.store, a.AuthorityID, true)
	var other *accept.AuthorityError
	if errors.As(err, &other) && other.Reason == accept.AuthorityOther { // another collector was first
		return accept.EnsureAuthority(ctx, s.store, other.Got, true)
	}
	return a, err
}

// reportBinding warns of what is allowed and may still be a mistake.
func (s *Service) reportBinding(a accept.Authority) {
	const page = "docs/guide/authority.md"
	switch {
	case a.At == objstore.Place{}: // a store in memory
	case !a.Bound():
		s.tel.Log.Warn("the authority record is not bound to this bucket, because the store denies replacing it: a replica would pass for the authority", "authority_id", a.AuthorityID, "page", page)
	case len(a.Renamed) > 0:
		s.tel.Log.Warn("the authority was bound under another name; make sure that this is the same bucket", "changed", a.Renamed, "bound_to", a.Place.String(), "here", a.At.String(), "page", page)
	}
}

// fatal reports whether the error ends the collector: the bucket, or the spool, belongs to another
// authority or is a copy of it, which waiting can't change.
func fatal(err error) bool {
	var other *accept.AuthorityError
	var region *RegionError
	return errors.As(err, &other) || errors.As(err, &region) || errors.Is(err, spool.ErrOtherAuthority)
}

// denied reports whether the store, or the linearizer, refuses what acceptance needs.
func denied(err error) bool {
	var r *accept.RetryError
	return errors.Is(err, accept.ErrClaimDenied) || errors.Is(err, objstore.ErrDenied) || errors.Is(err, objstore.ErrNoBucket) ||
		errors.As(err, &r) && r.Reason == accept.ReasonStoreDenied
}
