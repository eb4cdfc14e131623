package ingest

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// wantedTimeout bounds the listing of a question.
const wantedTimeout = 5 * time.Second

// wantedFrames are the quarantined frames of an agent that have an open repair record, as far as one page of them goes. A
// sender that has them parked asks regularly, and has the only other copy: one LIST for its question says whether the store
// needs it. Without an answer nothing is wanted; the next question asks again.
func (s *Service) wantedFrames(ctx context.Context, agent string) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, wantedTimeout)
	defer cancel()
	page, err := s.store.List(ctx, objstore.ListOptions{Prefix: layout.OfAgent(layout.RepairConflictsPrefix, agent)})
	if err != nil {
		s.tel.Log.Debug("the repair records of an agent could not be listed", "agent", agent, "error", err)
		return nil
	}
	var out map[string]bool
	for _, o := range page.Objects {
		if out == nil {
			out = map[string]bool{}
		}
		out[o.Key] = true
	}
	return out
}

// checkSentFrames allows one frame, in a request of its own.
func (s *Service) checkSentFrames(parked []*ingestv1.ParkedBatch) error {
	for _, b := range parked {
		if n := len(b.GetFrame()); n > 0 && (len(parked) > 1 || int64(n) > int64(s.limits().FrameBytes)) {
			return failed(codes.InvalidArgument, rpc.ReasonInvalidArgument, "a frame of %d bytes among %d parked batches: it must be alone, and of at most %d bytes", n, len(parked), s.limits().FrameBytes)
		}
	}
	return nil
}

// putBack puts the frame of a parked batch back, which the store has lost, or asks for it.
func (s *Service) putBack(ctx context.Context, a *authority, id identity.Batch, sum identity.Digest, frame []byte, out *ingestv1.ConflictSettlement) {
	if len(frame) == 0 {
		out.FrameWanted = true
		return
	}
	if err := s.admit(ctx, len(frame)); err != nil {
		out.FrameWanted = true // another time
		return
	}
	defer s.release(len(frame))
	key := layout.Quarantine(id, sum)
	r, err := accept.Restore(ctx, accept.Config{Store: s.store, AuthorityID: a.authorityID, CollectorID: s.collectorID, Clock: clock{s.now}}, key, frame)
	if err != nil {
		// The sender's bytes may be damaged too, so that is no reason to end its question. If they are not, it keeps them for
		// another time: it settles no batch whose frame is wanted.
		out.FrameWanted = !errors.Is(err, accept.ErrOtherBytes) && !errors.Is(err, accept.ErrRecordHasFrame) && !record.Opaque(err) && !errors.Is(err, objstore.ErrNotFound)
		s.tel.Log.Warn("a parked frame was not put back", "quarantine_key", key, "error", err)
		return
	}
	s.metrics.putBack.Inc()
	s.tel.Log.Warn("a frame was put back from its sender's parked copy", "quarantine_key", key, "key", r.Key, "written", r.Written, "unusable_generations", r.Skipped)
}
