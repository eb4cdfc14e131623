package send

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// Reasons of collectors on which the agent acts, and reasons that the agent gives itself.
const (
	reasonBootClash = "BOOT_ID_CLASH"
	reasonConflict  = "IDENTITY_CONFLICT"
	reasonTooLarge  = "FRAME_TOO_LARGE"
	reasonDamaged   = "DAMAGED_ON_DISK"
	// reasonLinearizer: the collector's region has no way to the identity linearizer.
	reasonLinearizer = "LINEARIZER_UNAVAILABLE"
)

// retriesBeforeMove is the number of RETRY answers in a row after which another collector is tried.
const retriesBeforeMove = 3

// handleAnswer acts on one answer. Answers are matched to batches by the hash of the frame alone:
// only it names the exact bytes that were sent.
func (x *session) handleAnswer(r *ingestv1.BatchResult) error {
	d, err := identity.DigestFromBytes(r.GetFrameSha256())
	f := x.flights[d]
	if err != nil || f == nil {
		x.s.metrics.answers.WithLabelValues(statusUnknown).Inc()
		// Ignored: acting on it could finish a batch that no collector has answered.
		x.s.log.Warn("answer to a batch that is not in flight", "collector", x.target.address,
			"seq_start", r.GetSeqStart(), "seq_end", r.GetSeqEnd(), "status", r.GetStatus().String())
		return nil
	}
	x.endFlight(d, f)
	x.s.metrics.latency.Observe(x.s.now().Sub(f.at).Seconds())
	switch r.GetStatus() {
	case ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED:
		x.s.noteClock(f.at, r.GetAcceptance().GetAcceptedAtUnixNs())
		return x.handleAccepted(f.entry, statusAccepted, r.GetAcceptance().GetJournalPosition())
	case ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE:
		return x.handleAccepted(f.entry, statusDuplicate, r.GetAcceptance().GetJournalPosition())
	case ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT:
		x.s.metrics.answers.WithLabelValues(statusConflict).Inc()
		return x.handleConflict(f.entry, r)
	case ingestv1.BatchStatus_BATCH_STATUS_REJECTED:
		x.s.metrics.answers.WithLabelValues(statusRejected).Inc()
		if r.GetReason() == reasonBootClash {
			return x.handleBootClash(x.target.address, r.GetDetail())
		}
		return x.deadLetter(f.entry, queue.HoldReason{Reason: r.GetReason(), Detail: r.GetDetail(), Collector: x.target.address})
	case ingestv1.BatchStatus_BATCH_STATUS_RETRY:
		return x.handleRetry(f.entry, r)
	default:
		return fmt.Errorf("answer with status %s", r.GetStatus())
	}
}

func (x *session) handleAccepted(e queue.Entry, status, position string) error {
	x.s.metrics.answers.WithLabelValues(status).Inc()
	if x.s.onAccept != nil {
		x.s.onAccept(position)
	}
	x.noteFinalAnswer(e)
	x.s.waits.accepted(e.No, x.s.cfg.MaxInFlightBatches)
	now := x.s.now()
	x.s.update(func(st *Status) { st.LastAccepted, st.Retrying, st.LastRetryReason = &now, false, "" })
	failpoint.Hit("agent.send.ack.before")
	if err := ignoreNotFound(x.s.queue.Ack(e.No)); err != nil {
		// It is finished in memory. At worst a restart sends it again and gets DUPLICATE.
		x.s.log.Warn("could not note an accepted batch", "identity", e.Identity.String(), "error", err)
	}
	failpoint.Hit("agent.send.ack.after")
	x.s.logProgress(1)
	return nil
}

// noteFinalAnswer notes an answer after which a batch is not sent again.
func (x *session) noteFinalAnswer(e queue.Entry) {
	x.progressed, x.retries = true, 0
	if x.target.list == Preferred && x.s.prefer.list() == Fallback {
		x.s.noteList(Preferred)
	}
	x.s.waits.forget(e.No)
}

// handleConflict parks the batch. Its bytes are kept until an operator decides.
func (x *session) handleConflict(e queue.Entry, r *ingestv1.BatchResult) error {
	c := r.GetConflict()
	v := queue.HoldReason{Reason: reasonConflict, Detail: r.GetDetail(), Collector: x.target.address,
		AcceptedBy: c.GetCollectorId(), QuarantineKey: c.GetQuarantineKey()}
	if d, err := identity.DigestFromBytes(c.GetAcceptedSha256()); err == nil {
		v.AcceptedSHA256 = d.String()
	}
	if ns := c.GetAcceptedAtUnixNs(); ns != 0 {
		at := time.Unix(0, ns).UTC()
		v.AcceptedAt = &at
	}
	if c != nil && c.AcceptedSeqStart != nil && c.AcceptedSeqEnd != nil {
		v.AcceptedSeqStart, v.AcceptedSeqEnd = c.AcceptedSeqStart, c.AcceptedSeqEnd
	}
	x.noteFinalAnswer(e)
	if err := x.park(e, v); err != nil {
		return err
	}
	x.s.logProgress(1)
	return nil
}

func (x *session) park(e queue.Entry, v queue.HoldReason) error {
	failpoint.Hit("agent.send.park.before")
	a, err := x.s.removeRefused(queue.Parked, func() (queue.HeldBatch, error) { return x.s.queue.Park(e.No, v) })
	if err != nil {
		return x.holdFailed(e, err)
	}
	x.s.log.Error("batch is parked: "+v.Reason, "id", a.ID, "identity", e.Identity.String(), "frame_sha256", a.FrameSHA256.String(),
		"accepted_sha256", v.AcceptedSHA256, "accepted_by", v.AcceptedBy, "accepted_numbers", v.Met(), "detail", v.Detail)
	x.s.noteError("parked " + a.ID + ": " + v.Reason)
	return nil
}

func (x *session) deadLetter(e queue.Entry, v queue.HoldReason) error {
	x.noteFinalAnswer(e)
	a, err := x.s.removeRefused(queue.Dead, func() (queue.HeldBatch, error) { return x.s.queue.DeadLetter(e.No, v) })
	if err != nil {
		return x.holdFailed(e, err)
	}
	x.s.log.Error("batch is rejected and in the dead-letter folder", "id", a.ID, "identity", e.Identity.String(),
		"reason", v.Reason, "detail", v.Detail)
	x.s.noteError("rejected " + a.ID + ": " + v.Reason + " " + v.Detail)
	x.s.logProgress(1)
	return nil
}

// holdFailed keeps a batch pending that could not be held, for example on a full disk. It is sent
// again later and gets the same answer.
func (x *session) holdFailed(e queue.Entry, err error) error {
	if errors.Is(err, queue.ErrNotFound) {
		return nil
	}
	x.s.log.Error("a refused batch could not be held; it stays in the queue", "identity", e.Identity.String(), "error", err)
	x.s.noteError("hold " + e.Identity.String() + ": " + err.Error())
	x.s.waits.retry(e.No, 0, 0, x.s.now())
	return nil
}

// handleBootClash handles that the boot id belongs to another spool. That never changes, so none of
// this boot's batches can be accepted from this queue: they are parked, and new batches get a new
// boot.
func (x *session) handleBootClash(collector, detail string) error {
	text := fmt.Sprintf("boot id %s of agent %s belongs to another queue: starting a new boot", x.boot.Boot, x.boot.Agent)
	x.s.log.Error(text, "collector", x.target.address, "detail", detail)
	x.s.noteError(text)
	// The clash may be about an older boot than the current one; that one is not affected.
	if boot, _, _ := x.s.queue.Boot(); boot == x.boot {
		if err := x.s.queue.NewBoot("BOOT_ID_CLASH"); err != nil {
			return fmt.Errorf("start a new boot: %w", err)
		}
	}
	for after := uint64(0); ; {
		list := x.s.queue.Pending(after, 64)
		for _, e := range list {
			after = e.No
			if e.Identity.BootOf() != x.boot || e.Spool != x.spool {
				continue
			}
			if err := x.park(e, queue.HoldReason{Reason: reasonBootClash, Detail: detail, Collector: collector}); err != nil {
				return err
			}
		}
		if len(list) < 64 {
			return errOtherBoot
		}
	}
}

func (x *session) handleRetry(e queue.Entry, r *ingestv1.BatchResult) error {
	x.s.metrics.answers.WithLabelValues(statusRetry).Inc()
	if r.GetReason() == reasonQuarantined {
		x.s.hold(x.boot, r.GetRetryDelay().AsDuration())
		return errOtherBoot
	}
	now := x.s.now()
	longest := longestWait(r)
	x.s.waits.retry(e.No, r.GetRetryDelay().AsDuration(), longest, now)
	x.s.update(func(st *Status) { st.Retrying, st.LastRetryReason = true, r.GetReason() })
	x.s.log.Debug("retry", "identity", e.Identity.String(), "reason", r.GetReason(), "detail", r.GetDetail(),
		"until", x.s.waits.gate)
	if x.retries++; (x.retries >= retriesBeforeMove || x.mayLeave()) && x.s.collectors() > 1 && len(x.flights) == 0 {
		return &tryOtherError{reason: r.GetReason(), longest: longest}
	}
	return nil
}

// linearizerWaits is how many times as long as the collector says a sender waits at most for the identity linearizer. A collector that
// has lost it answers at once, and does nothing for the batch, so that being asked costs it little. Of an overloaded collector or
// store that is not so: there the waits grow to BackoffMax.
const linearizerWaits = 8

// longestWait bounds the wait after a RETRY; 0 is BackoffMax.
func longestWait(r *ingestv1.BatchResult) time.Duration {
	if r.GetReason() != reasonLinearizer {
		return 0
	}
	return linearizerWaits * max(r.GetRetryDelay().AsDuration(), 0)
}

// tryOtherError is errTryOther with the reason of the last answer, and how long the collector is left alone at most; 0 is BackoffMax.
type tryOtherError struct {
	reason  string
	longest time.Duration
}

func (e *tryOtherError) Error() string { return fmt.Sprintf("%v (%s)", errTryOther, e.reason) }
func (e *tryOtherError) Unwrap() error { return errTryOther }

// mayLeave reports that this preferred collector has failed, and that none of them has given answers for so long that the fallback may
// be tried.
func (x *session) mayLeave() bool {
	s := x.s
	at := s.prefer.fallbackAt()
	return x.target.list == Preferred && x.target.failed && len(s.fallback.all) > 0 && s.prefer.list() == Preferred && !at.IsZero() && !s.now().Before(at)
}
