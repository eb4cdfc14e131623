package send

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send/wire"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// reasonQuarantined is a collector's: nothing is taken of this agent or boot for now.
const reasonQuarantined = "SENDER_QUARANTINED"

// settleTimeout bounds one question, with the records that the collector writes, and not the time in which frames are
// queued: what a slow disk takes would be queued again each time.
const settleTimeout = 45 * time.Second

// settleLoop settles parked batches now and every SettleInterval, until ctx ends. It never ends the
// session: what is not settled stays parked.
func (s *Sender) settleLoop(ctx context.Context, conn grpc.ClientConnInterface) error {
	t := time.NewTicker(s.cfg.SettleInterval)
	defer t.Stop()
	s.settleAtHello(ctx, conn)
	for {
		select {
		case <-t.C:
			s.settleParked(ctx, conn)
		case <-ctx.Done():
			return nil
		}
	}
}

// settleAtHello settles parked batches unless that was tried within SettleInterval: streams may end soon
// after each other.
func (s *Sender) settleAtHello(ctx context.Context, conn grpc.ClientConnInterface) {
	if now := s.now(); s.settledAt.IsZero() || now.Sub(s.settledAt) >= s.cfg.SettleInterval {
		s.settleParked(ctx, conn)
	}
}

// settleParked asks what was decided about the parked batches, and does it.
func (s *Sender) settleParked(ctx context.Context, conn grpc.ClientConnInterface) {
	s.settledAt = s.now()
	byAgent := map[string][]queue.HeldBatch{} // the setting agent_id may have changed
	parked := map[identity.Digest]bool{}
	for _, b := range s.queue.HeldBatches(queue.Parked) {
		byAgent[b.AgentID] = append(byAgent[b.AgentID], b)
		parked[b.FrameSHA256] = true
	}
	maps.DeleteFunc(s.kept, func(d identity.Digest, _ identity.Batch) bool { return !parked[d] })
	for agent, list := range byAgent {
		for len(list) > 0 && ctx.Err() == nil {
			n := min(len(list), s.settleAtOnce)
			err := s.settleSome(ctx, conn, agent, list[:n])
			list = list[n:]
			if err == nil || ctx.Err() != nil {
				continue
			}
			s.log.Debug("parked batches could not be settled", "agent_id", agent, "error", err)
			// What is wrong with some batches is nothing of the others. Only a collector of a former release, which does not
			// know the call, is not asked about those.
			if status.Code(err) == codes.Unimplemented {
				return
			}
		}
	}
}

// settleSome acts on what was decided about parked batches of one agent. The order is what makes each
// crash harmless: the records are queued before the collector is told, and the parked frame is removed
// after it has recorded that. Before that everything is done again, with the same result.
func (s *Sender) settleSome(ctx context.Context, conn grpc.ClientConnInterface, agent string, list []queue.HeldBatch) error {
	parked := make([]*ingestv1.ParkedBatch, len(list))
	for i, b := range list {
		parked[i] = &ingestv1.ParkedBatch{BootId: b.BootID, SeqStart: b.SeqStart, SeqEnd: b.SeqEnd, FrameSha256: b.FrameSHA256[:]}
	}
	answers, err := s.askSettled(ctx, conn, agent, parked)
	if err != nil {
		return err
	}
	lost := s.sendWanted(ctx, conn, agent, list, parked, answers)
	s.telling.Store(true)
	defer func() {
		s.telling.Store(false)
		select {
		case s.told <- struct{}{}:
		default:
		}
	}()
	failpoint.Hit("agent.send.settle.decided")
	var done []*ingestv1.ParkedBatch
	var of []queue.HeldBatch
	for i, a := range answers {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if lost[i] {
			continue // its copy is the only one: it is settled when the store has one
		}
		p := parked[i]
		switch a.GetAction() {
		case ingestv1.ResolutionAction_RESOLUTION_ACTION_ACCEPT_EXISTING:
		case ingestv1.ResolutionAction_RESOLUTION_ACTION_KEEP_BOTH:
			id, err := s.keepBoth(list[i])
			if err != nil {
				s.log.Error("the records of a parked batch could not be queued under new numbers; it stays parked", "id", list[i].ID, "error", err)
				s.noteError("keep both " + list[i].ID + ": " + err.Error())
				continue
			}
			p.KeptBootId, p.KeptSeqEnd = id.Boot, id.SeqEnd
			failpoint.Hit("agent.send.settle.queued")
		default: // nothing is decided, or something that this release does not know
			continue
		}
		p.Resolution = a.GetResolution()
		done, of = append(done, p), append(of, list[i])
	}
	if len(done) == 0 {
		return nil
	}
	if answers, err = s.askSettled(ctx, conn, agent, done); err != nil {
		return err
	}
	for i, a := range answers {
		if !a.GetSettled() {
			continue
		}
		failpoint.Hit("agent.send.settle.told")
		if err := ignoreNotFound(s.queue.RemoveHeld(queue.Parked, of[i].ID)); err != nil {
			s.log.Error("a settled batch could not be removed", "id", of[i].ID, "error", err)
			continue
		}
		failpoint.Hit("agent.send.settle.removed")
		s.metrics.settled.WithLabelValues(settledAs(a.GetAction())).Inc()
		s.log.Warn("a parked batch is settled by an operator's decision", "id", of[i].ID, "identity", of[i].Identity().String(), "action", settledAs(a.GetAction()),
			"resolution", a.GetResolution(), "kept_boot_id", done[i].GetKeptBootId())
	}
	return nil
}

// sendWanted sends the frames that the collector asks for, because the store has lost its copy, and returns those of which
// it does not say that it needs them no more. They have to stay: who still wants them asks again. A parked frame that can't be
// read is no copy, so it is not among them.
func (s *Sender) sendWanted(ctx context.Context, conn grpc.ClientConnInterface, agent string, list []queue.HeldBatch, parked []*ingestv1.ParkedBatch, answers []*ingestv1.ConflictSettlement) map[int]bool {
	lost := map[int]bool{}
	for i, a := range answers {
		if !a.GetFrameWanted() {
			continue
		}
		frame, err := s.queue.HeldFrame(queue.Parked, list[i].ID)
		if err != nil {
			s.log.Warn("a parked frame that the collector asks for can't be read", "id", list[i].ID, "error", err)
			continue
		}
		lost[i] = true
		b := proto.CloneOf(parked[i])
		b.Frame = frame
		said, err := s.askSettled(ctx, conn, agent, []*ingestv1.ParkedBatch{b})
		if ctx.Err() != nil {
			return lost
		}
		if err != nil {
			s.log.Warn("a parked frame that the collector asks for was not sent", "id", list[i].ID, "error", err)
			continue
		}
		s.metrics.wanted.Inc()
		s.log.Info("a parked frame was sent to the collector, because the store has lost it", "id", list[i].ID, "identity", list[i].Identity().String())
		if !said[0].GetFrameWanted() {
			delete(lost, i)
		}
	}
	return lost
}

func settledAs(a ingestv1.ResolutionAction) string {
	if a == ingestv1.ResolutionAction_RESOLUTION_ACTION_KEEP_BOTH {
		return string(resolution.KeepBoth)
	}
	return string(resolution.AcceptExisting)
}

// askSettled returns an answer for each batch of the question.
func (s *Sender) askSettled(ctx context.Context, conn grpc.ClientConnInterface, agent string, parked []*ingestv1.ParkedBatch) ([]*ingestv1.ConflictSettlement, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	out, err := wire.Settle(ctx, conn, &ingestv1.SettleConflictsRequest{AgentId: agent, Parked: parked, Host: s.at.Host, Page: s.at.Page, Directory: s.at.Directory})
	if err != nil {
		return nil, err
	}
	list := out.GetSettlements()
	if len(list) != len(parked) {
		return nil, fmt.Errorf("%d answers about %d parked batches", len(list), len(parked))
	}
	for i, a := range list {
		// Acting on an answer about another frame could drop one that nobody has decided about.
		if d, err := identity.DigestFromBytes(a.GetFrameSha256()); err != nil || string(d[:]) != string(parked[i].GetFrameSha256()) {
			return nil, errors.New("an answer about a batch that was not asked about")
		}
	}
	return list, nil
}

// keepBoth queues the records of a parked batch under the identity that follows from its frame. What this process has
// queued is not queued again while collectors can't record it: it is in the queue, or has its answer.
func (s *Sender) keepBoth(b queue.HeldBatch) (identity.Batch, error) {
	if id, ok := s.kept[b.FrameSHA256]; ok {
		return id, nil
	}
	raw, err := s.queue.HeldFrame(queue.Parked, b.ID)
	if err != nil {
		return identity.Batch{}, err
	}
	id, renumbered, err := resolution.Renumber(raw)
	if err != nil {
		return identity.Batch{}, err
	}
	if err := s.queue.QueueAs(id, resolution.KeptSpool(b.FrameSHA256), b.QueuedAt, renumbered); err != nil {
		return identity.Batch{}, err
	}
	s.kept[b.FrameSHA256] = id
	return id, nil
}

// hold leaves the batches of a boot in the queue until its collector may be asked again: others are
// sent meanwhile.
func (s *Sender) hold(boot identity.Boot, d time.Duration) {
	now := s.now()
	for b, until := range s.holding {
		if !now.Before(until) {
			delete(s.holding, b)
		}
	}
	s.holding[boot] = now.Add(min(max(d, s.cfg.BackoffInitial), s.cfg.BackoffMax))
	text := fmt.Sprintf("boot %s of agent %s is in quarantine: its batches stay in the queue", boot.Boot, boot.Agent)
	s.log.Error(text)
	s.noteError(text)
}

// refusedHello handles a stream that was refused.
func (x *session) refusedHello(ctx context.Context, conn grpc.ClientConnInterface, err error) error {
	switch rpc.Reason(err) {
	case reasonBootClash:
		return x.handleBootClash("", err.Error())
	case reasonQuarantined:
		// A decision about parked batches reaches a quarantined agent, too.
		x.s.settleAtHello(ctx, conn)
		x.s.hold(x.boot, rpc.RetryAfter(err))
		if boot, spool := x.s.nextBoot(); boot != x.boot || spool != x.spool {
			return errOtherBoot
		}
	}
	return fmt.Errorf("open stream: %w", err)
}
