package ingest

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

const (
	// welcomeTimeout bounds the store requests of a welcome.
	welcomeTimeout = 15 * time.Second
	// localListTimeout bounds the listing when a local spool accepts: the sender should not
	// wait for a store that acceptance does not need.
	localListTimeout = time.Second
)

// welcome checks a hello, claims its boot, and finds out whether another sender uses it. next is the
// smallest sequence number that the sender has given to no batch.
func (s *Service) welcome(ctx context.Context, boot identity.Boot, spoolID string, next uint64) (*ingestv1.Welcome, error) {
	acceptor, err := s.ready()
	if err != nil {
		return nil, err
	}
	if err := boot.Validate(); err != nil {
		return nil, failed(codes.InvalidArgument, ReasonBadHello, "%v", err)
	}
	if err := checkSpoolID(spoolID); err != nil {
		return nil, err
	}
	p, ok := rpc.PrincipalFrom(ctx)
	if !ok || !p.MayWrite(boot.Agent) {
		return nil, failed(codes.PermissionDenied, rpc.ReasonForbidden, "principal %q may not write agent %q", p.Name, boot.Agent)
	}
	if err := s.released(ctx, acceptor.authorityID, boot); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, welcomeTimeout)
	defer cancel()
	if err := acceptor.ClaimBoot(ctx, boot, spoolID); err != nil {
		s.clashes.note(ctx, s, acceptor, boot, spoolID, err)
		return nil, err
	}
	list := welcomeTimeout
	if acceptor.local {
		list = localListTimeout
	}
	lctx, stop := context.WithTimeout(ctx, list)
	defer stop()
	// With a local spool the welcome says less when the store does not answer: then a conflict tells the
	// sender that another one uses its boot id.
	taken, err := s.numbersTaken(lctx, boot, next)
	if err != nil && !acceptor.local {
		return nil, err
	}
	if s.claimer != nil && !taken {
		taken = s.numbersDecided(ctx, boot, next)
	}
	acceptor.Pending(boot, next, func(_, end uint64) { taken = taken || end >= next })
	lim := s.cfg.Limits
	return &ingestv1.Welcome{
		NumbersTaken:       taken,
		MaxInFlightBatches: uint32(lim.StreamBatches), MaxInFlightBytes: uint64(lim.StreamBytes),
		MaxFrameBytes: uint64(lim.FrameBytes), CollectorId: s.collectorID, AuthorityId: acceptor.authorityID,
	}, nil
}

// numbersTaken reports whether a batch of the boot that begins at or above next is accepted. The
// welcome does not say which batches are: one whose manifest exists may be in no segment of the
// journal, so its sender must send it again, and get "duplicate", before it forgets it.
func (s *Service) numbersTaken(ctx context.Context, boot identity.Boot, next uint64) (bool, error) {
	dir := layout.AcceptedBoot(boot)
	after := ""
	if next > 0 {
		after = dir + layout.SeqName(next-1, math.MaxUint64) + ".json"
	}
	page, err := s.store.List(ctx, objstore.ListOptions{Prefix: dir, StartAfter: after, Limit: 1})
	if err != nil {
		return false, &accept.RetryError{Reason: accept.ReasonStoreUnavailable, Err: err}
	}
	return len(page.Objects) > 0, nil
}

// numbersDecided reports whether a batch of the boot with numbers from next on is decided in any region. Where the linearizer does not
// say soon, the welcome says less, as with a local spool: nothing may be accepted without it, so nothing goes wrong meanwhile.
func (s *Service) numbersDecided(ctx context.Context, boot identity.Boot, next uint64) bool {
	if next == math.MaxUint64 {
		return false // the boot is an older one, of which nobody takes numbers
	}
	id := identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: next, SeqEnd: math.MaxUint64}
	if next == 0 {
		id.SeqEnd-- // no range has all numbers
	}
	a, err := s.claimer.list(ctx, id)
	if err != nil {
		s.tel.Log.Debug("a welcome does not say whether other regions have batches of the boot", "agent", boot.Agent, "boot", boot.Boot, "error", err)
	}
	return err == nil && decides(a, id)
}

func checkSpoolID(id string) error {
	if len(id) > maxSpoolIDBytes {
		return failed(codes.InvalidArgument, ReasonBadSpoolID, "spool_id has %d bytes, at most %d", len(id), maxSpoolIDBytes)
	}
	return nil
}
