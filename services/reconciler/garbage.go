package reconciler

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/collect"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/tail"
)

// newCollector makes the keeper of the collection of orphan blobs.
func (s *Service) newCollector() *collect.Keeper {
	return collect.New(s.cfg.GC, collect.Deps{
		By: s.ID(), Log: s.log, Store: s.store, Authority: s.journal.authority, Fan: tail.Fan(s.cfg.Journal.Readers),
		Inventory: s.journal.to.inventory, Metrics: collect.NewMetrics(s.m.reg, s.now), Now: s.now,
	})
}

// GetGarbage returns the state of garbage collection; of a dry run what it has found.
func (g server) GetGarbage(ctx context.Context, _ *reconcilerv1.GetGarbageRequest) (*reconcilerv1.GetGarbageResponse, error) {
	if st := g.s.garbage.Found(); st != nil {
		return &reconcilerv1.GetGarbageResponse{State: garbage(st)}, nil
	}
	authority, err := g.s.journal.authority(ctx)
	if err != nil {
		return nil, unreachable(err)
	}
	st, _, err := gc.ReadState(ctx, g.s.store, authority)
	if err != nil {
		return nil, unreachable(err)
	}
	return &reconcilerv1.GetGarbageResponse{State: garbage(&st)}, nil
}

// StartSweep notes that a sweep is wanted, and has this reconciler look at once.
func (g server) StartSweep(ctx context.Context, _ *reconcilerv1.StartSweepRequest) (*reconcilerv1.StartSweepResponse, error) {
	authority, err := g.s.journal.authority(ctx)
	if err != nil {
		return nil, unreachable(err)
	}
	st, err := gc.RequestSweep(ctx, g.s.store, authority)
	if err != nil {
		return nil, unreachable(err)
	}
	g.s.log.Info("an operator asks for a sweep of all blobs", "by", caller(ctx))
	g.s.garbage.Wake()
	return &reconcilerv1.StartSweepResponse{State: garbage(&st)}, nil
}

// ReleaseBreaker lets the collection go on.
func (g server) ReleaseBreaker(ctx context.Context, _ *reconcilerv1.ReleaseBreakerRequest) (*reconcilerv1.ReleaseBreakerResponse, error) {
	authority, err := g.s.journal.authority(ctx)
	if err != nil {
		return nil, unreachable(err)
	}
	st, err := gc.ReleaseBreaker(ctx, g.s.store, authority, caller(ctx))
	switch {
	case errors.Is(err, gc.ErrNotTripped):
		return nil, rpc.Failure{Code: codes.FailedPrecondition, Reason: ReasonNotTripped, Message: err.Error()}.Err()
	case err != nil:
		return nil, unreachable(err)
	}
	g.s.log.Warn("an operator has released the breaker of garbage collection", "by", caller(ctx), "cause", st.Breaker.Cause)
	g.s.garbage.Wake()
	return &reconcilerv1.ReleaseBreakerResponse{State: garbage(&st)}, nil
}

// ReasonNotTripped is the ErrorInfo reason of a release of a breaker that does not hold.
const ReasonNotTripped = "NOT_TRIPPED"

// caller names who asks.
func caller(ctx context.Context) string {
	if p, ok := rpc.PrincipalFrom(ctx); ok && p.Name != "" {
		return p.Name
	}
	return "an operator"
}

// unreachable is a failure of the store, or of what stands there.
func unreachable(err error) error {
	return rpc.Failure{Code: codes.Unavailable, Reason: rpc.ReasonStoreUnavailable, Message: err.Error()}.Err()
}

func garbage(s *gc.State) *reconcilerv1.GarbageState {
	out := &reconcilerv1.GarbageState{
		Holder: s.Holder, Plan: s.Plan, Sweep: garbageSweep(&s.Sweep), LastSweep: garbageSweep(&s.Last), SweepRequested: s.Requested,
		DeletedBlobs: s.Deleted, DeletedBytes: s.Bytes, Markers: s.Markers, BreakerHolds: s.Holds(),
	}
	if b := s.Breaker; b != nil {
		out.Breaker = &reconcilerv1.GarbageBreaker{Cause: string(b.Cause), AtUnixS: b.At, Candidates: b.Candidates, Listed: b.Listed, Key: b.Key, ReleasedBy: b.By}
	}
	return out
}

func garbageSweep(s *gc.Sweep) *reconcilerv1.GarbageSweep {
	if s.BeganAt == 0 {
		return nil
	}
	return &reconcilerv1.GarbageSweep{BeganAtUnixS: s.BeganAt, EndedAtUnixS: s.EndedAt, Listed: s.Listed, Candidates: s.Candidates, Deleted: s.Deleted,
		DeletedBytes: s.Bytes, Kept: s.Kept, Doubtful: s.Doubtful, Foreign: s.Foreign}
}
