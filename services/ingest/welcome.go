package ingest

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

const (
	// welcomePages bounds the listing for a welcome, in pages; ranges beyond it are omitted.
	welcomePages = 3
	// welcomeRanges bounds the ranges, and the gaps, in a welcome.
	welcomeRanges = 1000
	// welcomeTimeout bounds the store requests of a welcome.
	welcomeTimeout = 15 * time.Second
	// localListTimeout bounds the listing when a local spool accepts: the sender should not
	// wait for a store that acceptance does not need.
	localListTimeout = time.Second
)

// welcome checks a hello, claims its boot and lists what is accepted of it.
func (s *Service) welcome(ctx context.Context, boot identity.Boot, spoolID string, firstPending uint64) (*ingestv1.Welcome, error) {
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
	ctx, cancel := context.WithTimeout(ctx, welcomeTimeout)
	defer cancel()
	if err := acceptor.ClaimBoot(ctx, boot, spoolID); err != nil {
		return nil, err
	}
	// A welcome is advice: what it omits the sender sends again, and gets "duplicate".
	l := ledger.New(boot)
	list := welcomeTimeout
	if acceptor.local {
		list = localListTimeout
	}
	lctx, stop := context.WithTimeout(ctx, list)
	defer stop()
	// With a local spool the welcome says less when the store does not answer, and the sender may
	// send batches that are accepted already.
	if err := s.listAccepted(lctx, l, boot, firstPending); err != nil && !acceptor.local {
		return nil, err
	}
	acceptor.Pending(boot, firstPending, func(start, end uint64) { l.Add(ledger.Entry{Start: start, End: end}) })
	lim := s.cfg.Limits
	w := &ingestv1.Welcome{
		MaxInFlightBatches: uint32(lim.StreamBatches), MaxInFlightBytes: uint64(lim.StreamBytes),
		MaxFrameBytes: uint64(lim.FrameBytes), CollectorId: s.collectorID, AuthorityId: acceptor.authorityID,
	}
	beyond := firstPending
	if through, ok := l.AcceptedThroughFrom(firstPending); ok {
		w.AcceptedThrough, beyond = &through, through
	}
	for _, r := range l.Intervals() {
		if r.Start > beyond && len(w.AcceptedBeyond) < welcomeRanges {
			w.AcceptedBeyond = append(w.AcceptedBeyond, &ingestv1.SeqRange{Start: r.Start, End: r.End})
		}
	}
	for _, r := range l.GapsFrom(firstPending, welcomeRanges) {
		w.Gaps = append(w.Gaps, &ingestv1.SeqRange{Start: r.Start, End: r.End})
	}
	return w, nil
}

// listAccepted adds the accepted ranges of a boot from a sequence number on. A batch that
// begins before it is not listed, which loses nothing: a sender's batch never changes its
// range, so its first pending batch begins at that number.
func (s *Service) listAccepted(ctx context.Context, l *ledger.Ledger, boot identity.Boot, from uint64) error {
	dir := layout.AcceptedBoot(boot)
	after := ""
	if from > 0 {
		after = dir + layout.SeqName(from-1, math.MaxUint64) + ".json"
	}
	for range welcomePages {
		page, err := s.store.List(ctx, objstore.ListOptions{Prefix: dir, StartAfter: after})
		if err != nil {
			return &accept.RetryError{Reason: accept.ReasonStoreUnavailable, Err: err}
		}
		for _, o := range page.Objects {
			if id, err := layout.ParseAccepted(o.Key); err == nil { // other keys are reported by audits
				l.Add(ledger.Entry{Start: id.SeqStart, End: id.SeqEnd, AcceptedAt: o.LastModified.UnixNano()})
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
	return nil
}

func checkSpoolID(id string) error {
	if len(id) > maxSpoolIDBytes {
		return failed(codes.InvalidArgument, ReasonBadSpoolID, "spool_id has %d bytes, at most %d", len(id), maxSpoolIDBytes)
	}
	return nil
}
