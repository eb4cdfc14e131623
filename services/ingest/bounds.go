package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	grpccodes "google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Bounds on a valid batch. The limits of a frame protect the collector; these bounds protect
// rollup workers and query nodes, whose memory one agent must not fill.
//
// A refusal is final: the sender moves the batch to its dead letters, where it stays until
// an operator sends it again or drops it. With RETRY the sender's queue would fill behind
// this batch, and none of its other batches could be sent.

// checkBounds checks a batch against the bounds. A batch that is accepted already passes,
// whatever the bounds are now: a sender that lost the answer has to get "duplicate".
func (s *Service) checkBounds(ctx context.Context, a *authority, sum frame.Summary, sh *shape) error {
	refused := s.findRefusal(sum, sh)
	if refused == nil {
		return nil
	}
	accepted, err := s.isAccepted(ctx, a, sum.Identity)
	switch {
	case err != nil: // nothing is known: the sender comes back
		return err
	case accepted:
		return nil
	}
	return refused
}

// findRefusal returns the refusal of a batch, or nil. Checks of the frame alone come first.
// The agent's series come last, because only batches that pass the other checks may count
// towards them.
func (s *Service) findRefusal(sum frame.Summary, sh *shape) error {
	l := s.limits()
	if err := l.checkSpan(sum); err != nil {
		return err
	}
	if sh.series > l.BatchSeries {
		return failed(grpccodes.FailedPrecondition, ReasonBatchSeriesLimit, "the batch has %d series, at most %d (limits.batch_series)", sh.series, l.BatchSeries)
	}
	if sh.labelBytes > l.SeriesBytes.Int() {
		return failed(grpccodes.FailedPrecondition, ReasonLabelBytesLimit,
			"the labels of a series have %d bytes, at most %d (limits.series_bytes)", sh.labelBytes, l.SeriesBytes.Int())
	}
	if err := s.checkFuture(sum.MaxTime); err != nil {
		return err
	}
	if n, ok := s.agents.takeSeries(sum.Identity.Agent, &sh.seen); !ok {
		return failed(grpccodes.FailedPrecondition, ReasonSeriesLimit,
			"agent %q would have about %d active series, at most %d (limits.agent_series); batches without new series are taken", sum.Identity.Agent, n, l.AgentSeries)
	}
	return nil
}

// checkFuture refuses samples that are too far ahead of now. last is the newest one, Unix nanoseconds.
func (s *Service) checkFuture(last int64) error {
	future := s.limits().Future
	if future == 0 {
		return nil
	}
	now := s.clock.latest()
	if ahead := time.Unix(0, last).Sub(now); ahead > future {
		return failed(grpccodes.FailedPrecondition, ReasonTimeInFuture,
			"the last sample is of %s, %v ahead of this collector's clock (%s), at most %v (limits.future): check the clock of the sender, or of what it scraped",
			time.Unix(0, last).UTC().Format(time.RFC3339), ahead.Round(time.Second), now.UTC().Format(time.RFC3339), future)
	}
	return nil
}

// isAccepted reports whether the identity is accepted. With an error this is not known.
func (s *Service) isAccepted(ctx context.Context, a *authority, id identity.Batch) (bool, error) {
	found := false
	a.Pending(id.BootOf(), id.SeqStart, func(start, end uint64) {
		found = found || start == id.SeqStart && end == id.SeqEnd
	})
	if found {
		return true, nil
	}
	// After the spool: a batch that lands in between is then found in at least one of the two.
	_, err := s.store.Head(ctx, layout.Accepted(id))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, objstore.ErrNotFound) && s.claimer != nil:
		return s.isDecided(ctx, id)
	case errors.Is(err, objstore.ErrNotFound):
		return false, nil
	}
	reason := accept.ReasonStoreUnavailable
	if errors.Is(err, objstore.ErrDenied) || errors.Is(err, objstore.ErrNoBucket) {
		reason = accept.ReasonStoreDenied
	}
	return false, &accept.RetryError{Reason: reason, After: s.cfg.Limits.RetryAfter, Err: fmt.Errorf("check for an acceptance: %w", err)}
}

// isDecided reports whether the identity, or one that meets it, is decided in any region, so that this batch can become nothing but a
// duplicate or a conflict.
func (s *Service) isDecided(ctx context.Context, id identity.Batch) (bool, error) {
	a, err := s.claimer.list(ctx, id)
	if err != nil {
		return false, s.noLinearizer(fmt.Errorf("check for an acceptance: %w", err))
	}
	if decides(a, id) {
		return true, nil
	}
	for _, c := range a.Claims {
		// Another region, or another collector whose bounds are wider, may be accepting it.
		if c.Identity == id {
			return false, &accept.RetryError{Reason: accept.ReasonClaimPending, After: s.cfg.Limits.RetryAfter, Err: fmt.Errorf("check for an acceptance: region %s has claimed it", c.Home)}
		}
	}
	return false, nil
}

// decides reports whether anything that the linearizer has of the range can't be given up any more.
func decides(a claims.Answer, id identity.Batch) bool {
	for _, c := range a.Claims {
		if c.Identity.Intersects(id) && (c.State != claims.Claimed || c.Recovered || c.Bound) {
			return true
		}
	}
	for _, sp := range a.Spans {
		if sp.Start <= id.SeqEnd && id.SeqStart <= sp.End {
			return true
		}
	}
	return false
}

// noLinearizer is the answer where the linearizer said nothing.
func (s *Service) noLinearizer(err error) error {
	return &accept.RetryError{Reason: accept.ReasonLinearizer, After: s.cfg.Limits.RetryAfter, Err: err}
}
