package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// authority is the acceptance authority of a store that passed its probe.
type authority struct {
	accept.Acceptor
	authorityID string
	// claim claims a boot for a spool.
	claim func(ctx context.Context, boot identity.Boot, spoolID string) error
	// decided is called after every acceptance.
	decided func()
	// local says that batches are accepted without the store (local_spool).
	local bool
	// pending calls fn for the ranges that are accepted but not in the bucket yet; may be nil.
	pending func(boot identity.Boot, from uint64, fn func(start, end uint64))
}

// ClaimBoot claims a boot for a spool; a clash is *accept.RefusedError.
func (a *authority) ClaimBoot(ctx context.Context, boot identity.Boot, spoolID string) error {
	return a.claim(ctx, boot, spoolID)
}

// Pending calls fn for ranges that are accepted but not in the bucket yet.
func (a *authority) Pending(boot identity.Boot, from uint64, fn func(start, end uint64)) {
	if a.pending != nil {
		a.pending(boot, from, fn)
	}
}

// state is either an authority or the reason why there is none.
type state struct {
	authority *authority
	err       error
}

var errStarting = errors.New("the store was not probed yet")

// ready returns the authority, or the failure that senders get.
func (s *Service) ready() (*authority, error) {
	st := s.state.Load()
	if st.authority != nil {
		return st.authority, nil
	}
	return nil, failed(codes.Unavailable, rpc.ReasonNotReady, "collector is not ready: %v", st.err).after(s.cfg.Limits.RetryAfter)
}

// NotReady says why the collector accepts no submissions; nil if it does.
func (s *Service) NotReady() error { return s.state.Load().err }

// Bounds of the wait between probes of a store that fails them.
const (
	probeMinBackoff = 500 * time.Millisecond
	probeMaxBackoff = 30 * time.Second
)

// keepQualified probes the store at the start, every QualifyInterval, and after it denied a
// request. It ends with ctx, or with an error if the bucket belongs to another authority.
func (s *Service) keepQualified(ctx context.Context) error {
	backoff := run.NewBackoff(probeMinBackoff, probeMaxBackoff)
	asked := false // whether this probe follows a denied request
	failures := 0  // in a row
	for {
		start := s.now()
		a, err := s.qualify(ctx)
		wait := s.cfg.QualifyInterval
		switch {
		case ctx.Err() != nil:
			return nil
		case fatal(err):
			s.setState(&state{err: err})
			return err
		case err != nil:
			s.metrics.probes.WithLabelValues("failed").Inc()
			failures++
			if s.mustStop(err, failures) {
				s.setState(&state{err: err})
			}
			wait = backoff.Next()
			s.tel.Log.Error("store probe failed", "error", err, "again_in", wait)
		default:
			failpoint.Hit("ingest.qualify.pass.before")
			failures = 0
			s.metrics.probes.WithLabelValues("passed").Inc()
			s.setState(&state{authority: a})
			s.tel.Log.Info("store qualified", "authority_id", a.authorityID, "took", s.now().Sub(start))
			// After a probe that a denied request caused, the wait continues to grow: the store may
			// pass every probe and deny the next request again.
			if !asked {
				backoff.Reset()
			}
		}
		asked = false
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.reprobe:
			// A policy that lets the probe pass and denies other requests must not make this loop spin.
			timer.Stop()
			asked = true
			if backoff.Sleep(ctx) != nil {
				return nil
			}
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// toleratedFailures is how many probes in a row a store may leave unanswered before a ready collector is taken out of service.
const toleratedFailures = 3

// mustStop decides whether a failed probe takes a ready collector out of service. A store
// that answers wrongly, or denies the request, does so at once. A store that does not answer
// makes submissions fail anyway, and may recover.
func (s *Service) mustStop(err error, failures int) bool {
	a := s.state.Load().authority
	switch {
	case a == nil:
		return true
	case !qualify.Unanswered(err) || denied(err):
		return true
	}
	return !a.local && failures >= toleratedFailures
}

func (s *Service) setState(st *state) {
	s.state.Store(st)
	s.UpdateHealth()
}

// storeDenied takes the collector out of service until a probe passes again.
func (s *Service) storeDenied(err error) { s.requestDenied("the store", err) }

// requestDenied does so for whoever refused this collector's credentials.
func (s *Service) requestDenied(who string, err error) {
	if s.state.Load().authority == nil {
		return
	}
	s.setState(&state{err: fmt.Errorf("%s denied a request: %w", who, err)})
	select {
	case s.reprobe <- struct{}{}:
	default: // a probe is requested already
	}
}
