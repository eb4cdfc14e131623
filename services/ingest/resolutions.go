package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// ReasonSenderQuarantined: an operator decided that nothing is taken of the agent or boot for now. It
// is a reason to try again later, so that senders keep their batches.
const ReasonSenderQuarantined = "SENDER_QUARANTINED"

const (
	// quarantineRetry is when a quarantined sender may ask again. There are few of them, since people name each, and a
	// refused hello costs no request but the ones of quarantineReread.
	quarantineRetry = 5 * time.Second
	// quarantineReread is how old what was decided may be where a quarantined sender asks: a GET in this time, while one
	// does. So a sender learns of its release with its next hello, and not an interval later.
	quarantineReread = 2 * time.Second
	// rereadTimeout bounds that GET. The sender waits meanwhile.
	rereadTimeout = 5 * time.Second
	// settleTimeout bounds the store requests of one SettleConflicts.
	settleTimeout = 30 * time.Second
	// settleWriters is how many records of one SettleConflicts are written at a time.
	settleWriters = 16
)

// readResolutions reads the decisions that are new. A record that can't be read is no reason to take
// nothing: what was read before stands, and the metric says that there is more.
func (s *Service) readResolutions(ctx context.Context, authority string) error {
	err := s.resolutions.Read(ctx, authority)
	if err == nil {
		s.resolutionsRead.Store(s.now().UnixNano())
	}
	if record.Opaque(err) {
		s.resolutionsRead.CompareAndSwap(0, s.now().UnixNano()) // its age counts from here
		s.tel.Log.Error("a resolution can't be read; this collector acts on those before it alone", "error", err)
		return nil
	}
	return err
}

// followResolutions asks for new decisions until ctx ends.
func (s *Service) followResolutions(ctx context.Context) error {
	for {
		if err := run.Sleep(ctx, s.cfg.ResolutionsInterval); err != nil {
			return err
		}
		a, err := s.ready()
		if err != nil {
			continue // the next qualification reads them
		}
		rctx, cancel := context.WithTimeout(ctx, settleTimeout)
		if err := s.readResolutions(rctx, a.authorityID); err != nil && ctx.Err() == nil {
			s.tel.Log.Warn("resolutions could not be read", "error", err)
		}
		cancel()
	}
}

// released refuses a quarantined sender, unless it was released since the log was read.
func (s *Service) released(ctx context.Context, authorityID string, b identity.Boot) error {
	r := s.resolutions.Quarantined(b)
	if r == nil {
		return nil
	}
	// Many may ask at once: one of them reads.
	now := s.now().UnixNano()
	if last := s.reread.Load(); (now-last >= int64(quarantineReread) || now < last) && s.reread.CompareAndSwap(last, now) {
		rctx, cancel := context.WithTimeout(ctx, rereadTimeout)
		defer cancel()
		if err := s.readResolutions(rctx, authorityID); err != nil {
			s.errlog.log(ctx, "resolutions could not be read for a quarantined sender", "reason", ReasonSenderQuarantined, "error", err, "agent", b.Agent, "boot", b.Boot)
		} else if r = s.resolutions.Quarantined(b); r == nil {
			return nil
		}
	}
	what := "agent " + r.AgentID
	if r.BootID != "" {
		what = "boot " + b.String()
	}
	return failed(codes.Unavailable, ReasonSenderQuarantined, "%s is in quarantine by resolution %d; keep its batches until it is released", what, r.Number).after(quarantineRetry)
}

// SettleConflicts implements IngestServiceServer.
func (s *Service) SettleConflicts(ctx context.Context, req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
	if !s.enter() {
		return nil, s.draining()
	}
	defer s.leave()
	out, err := s.settleAll(ctx, req)
	if err != nil {
		f := s.describe(err)
		return nil, f.Err()
	}
	return out, nil
}

func (s *Service) settleAll(ctx context.Context, req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
	a, err := s.ready()
	if err != nil {
		return nil, err
	}
	p, ok := rpc.PrincipalFrom(ctx)
	if !ok || !p.MayWrite(req.GetAgentId()) {
		return nil, failed(codes.PermissionDenied, rpc.ReasonForbidden, "principal %q may not write agent %q", p.Name, req.GetAgentId())
	}
	if n := len(req.GetParked()); n > resolution.MaxConflicts {
		return nil, failed(codes.InvalidArgument, rpc.ReasonInvalidArgument, "%d parked batches, at most %d", n, resolution.MaxConflicts)
	}
	if err := s.checkSentFrames(req.GetParked()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	wanted := s.wantedFrames(ctx, req.GetAgentId())
	out := &ingestv1.SettleConflictsResponse{Settlements: make([]*ingestv1.ConflictSettlement, len(req.GetParked()))}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(settleWriters)
	for i, b := range req.GetParked() {
		g.Go(func() (err error) {
			out.Settlements[i], err = s.settle(gctx, a, req, b, wanted)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return out, nil
}

// settle says what was decided about a parked batch, and records what its sender did.
func (s *Service) settle(ctx context.Context, a *authority, req *ingestv1.SettleConflictsRequest, b *ingestv1.ParkedBatch, wanted map[string]bool) (*ingestv1.ConflictSettlement, error) {
	id := identity.Batch{Agent: req.GetAgentId(), Boot: b.GetBootId(), SeqStart: b.GetSeqStart(), SeqEnd: b.GetSeqEnd()}
	sum, err := identity.DigestFromBytes(b.GetFrameSha256())
	if err == nil {
		err = id.Validate()
	}
	if err != nil {
		return nil, failed(codes.InvalidArgument, rpc.ReasonInvalidArgument, "parked batch: %v", err)
	}
	out := &ingestv1.ConflictSettlement{FrameSha256: b.GetFrameSha256()}
	if wanted[layout.RepairQuarantine(id, sum)] {
		s.putBack(ctx, a, id, sum, b.GetFrame(), out)
	}
	d := s.resolutions.Of(id, sum)
	if d == nil {
		s.parked.whereabouts(ctx, s, a, req, id, sum)
		return out, nil
	}
	out.Resolution, out.Action = d.Number, ingestv1.ResolutionAction_RESOLUTION_ACTION_ACCEPT_EXISTING
	if d.Action == resolution.KeepBoth {
		out.Action = ingestv1.ResolutionAction_RESOLUTION_ACTION_KEEP_BOTH
	}
	// A sender that says that it did something else is told again what was decided.
	if b.GetResolution() != d.Number {
		return out, nil
	}
	done := resolution.Settled{AuthorityID: a.authorityID, AgentID: id.Agent, BootID: id.Boot, SeqStart: id.SeqStart, SeqEnd: id.SeqEnd, SubmittedSHA256: sum,
		Number: d.Number, Action: d.Action, SettledAt: max(s.now().UnixNano(), 0), CollectorID: s.collectorID}
	if d.Action == resolution.KeepBoth {
		done.KeptBootID, done.KeptSeqEnd = b.GetKeptBootId(), b.GetKeptSeqEnd()
	}
	body := done.Marshal()
	if _, err := resolution.ParseSettled(done.Key(), body); err != nil {
		return nil, failed(codes.InvalidArgument, rpc.ReasonInvalidArgument, "parked batch: %v", err)
	}
	there, _, err := objstore.CreateOrGet(ctx, s.store, done.Key(), body, int64(resolution.SettledKind.MaxBytes), objstore.PutOptions{ContentType: "application/json"})
	switch {
	case err == nil:
	// Whatever is there, another agent with the same parked frame has settled it.
	case errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err):
	default:
		return nil, &accept.RetryError{Reason: accept.ReasonStoreUnavailable, Err: fmt.Errorf("record a settled conflict: %w", err)}
	}
	if !bytes.Equal(there, body) {
		s.tel.Log.Debug("a conflict was settled before", "key", done.Key())
	} else {
		s.tel.Log.Info("a conflict is settled", "identity", id.String(), "frame_sha256", sum.String(), "action", string(d.Action), "resolution", d.Number, "by", d.Principal)
	}
	out.Settled = true
	return out, nil
}
