package send

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/agent/send/wire"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// Going back from the fallback. While a stream to a fallback collector is open, goBack opens a second one to a preferred collector from
// time to time, and closes it as soon as it is welcome: a probe. After probes have succeeded for long enough, the second stream is kept
// and one batch is sent over it, which the first stream leaves out meanwhile: the trial. A welcome does not show that a collector accepts
// batches: one whose region has lost its way to the identity linearizer welcomes senders. All other batches go on over the first
// stream, and once the trial is accepted they drain there: what is in flight gets its answer before the preferred collector is used.

// trial is one batch that is tried at a preferred collector. Session.serve chooses the batch, goBack sends it.
type trial struct {
	target *target
	max    uint64           // bytes of a frame that the collector takes; 0 is not said
	frame  chan []byte      // one, from serve
	done   chan trialResult // one, to serve; it has room
}

type trialResult struct {
	answer *ingestv1.BatchResult // nil with err
	err    error
}

// goBack probes preferred collectors until one has accepted a trial, or ctx ends. It never ends the session: what fails is tried again
// later.
func (x *session) goBack(ctx context.Context) error {
	s := x.s
	for {
		timer := time.NewTimer(s.prefer.next.Sub(s.now()))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		t := s.preferred.first()
		tried, err := x.probe(ctx, t)
		if ctx.Err() != nil {
			return nil // the session is over, and says nothing of t
		}
		s.noteProbe(t, err)
		if tried && err == nil {
			return nil
		}
	}
}

// probe opens a stream to t and closes it. When it is time for that, it tries a batch first.
func (x *session) probe(ctx context.Context, t *target) (tried bool, err error) {
	s := x.s
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := s.dial(t.address)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	// What the welcome says of numbers is about this queue's own batches: they are on their way over the other stream.
	st, w, err := x.open(ctx, cancel, conn)
	if err != nil {
		return false, fmt.Errorf("open stream: %w", err)
	}
	if !s.prefer.tryDue(s.now()) {
		return false, nil
	}
	return true, x.try(ctx, t, st, w.GetMaxFrameBytes())
}

// errTrialRefused: a collector welcomed this agent and did not accept a batch.
var errTrialRefused = errors.New("it welcomes this agent and does not accept a batch")

// try sends one batch over st and hands its answer to serve.
func (x *session) try(ctx context.Context, t *target, st *wire.Stream, maxFrame uint64) error {
	results, failed := make(chan *ingestv1.BatchResult, 1), make(chan error, 1)
	go func() { // ends with the stream, which ends with ctx
		for {
			r, err := st.Receive()
			if err != nil {
				failed <- err
				return
			}
			select {
			case results <- r:
			default: // nothing was asked twice
			}
		}
	}()
	y := &trial{target: t, max: maxFrame, frame: make(chan []byte, 1), done: make(chan trialResult, 1)}
	select {
	case x.trials <- y:
	case <-ctx.Done():
		return ctx.Err()
	}
	// However this ends, serve gets the batch back.
	result := trialResult{err: context.Canceled}
	defer func() { y.done <- result }()
	var f []byte
	select { // the next batch may be a while
	case f = <-y.frame:
	case err := <-failed:
		result.err = err
		return fmt.Errorf("the stream ended before there was a batch to try: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := st.Send(f); err != nil {
		result.err = fmt.Errorf("send: %w", err)
		return x.refused(result.err)
	}
	sum, timer := identity.Sum(f), time.NewTimer(x.s.cfg.AnswerTimeout)
	defer timer.Stop()
	for {
		select {
		case r := <-results:
			if d, err := identity.DigestFromBytes(r.GetFrameSha256()); err != nil || d != sum {
				continue // an answer to something else
			}
			result = trialResult{answer: r}
			if !accepts(r) {
				return x.refused(fmt.Errorf("%s %s", r.GetStatus(), r.GetReason()))
			}
			return nil
		case err := <-failed:
			result.err = err
			return x.refused(fmt.Errorf("receive: %w", err))
		case <-timer.C:
			result.err = errStalled
			return x.refused(errStalled)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// refused is the error of a trial.
func (x *session) refused(err error) error { return fmt.Errorf("%w: %w", errTrialRefused, err) }

// accepts reports whether an answer shows that a collector decides about batches; a RETRY or an unknown status does not.
func accepts(r *ingestv1.BatchResult) bool {
	switch r.GetStatus() {
	case ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED, ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE, ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT:
		return true
	case ingestv1.BatchStatus_BATCH_STATUS_REJECTED:
		return r.GetReason() != reasonBootClash
	}
	return false
}

// noteProbe notes how a probe of t ended.
func (s *Sender) noteProbe(t *target, err error) {
	now := s.now()
	if errors.Is(err, errTrialRefused) {
		s.prefer.tried()
	}
	s.prefer.probed(now, err == nil)
	result := probeOK
	switch {
	case errors.Is(err, errTrialRefused):
		result = probeRefused
	case err != nil:
		result = probeFailed
	}
	s.metrics.probes.WithLabelValues(result).Inc()
	s.update(func(*Status) {
		if err == nil {
			t.status = CollectorStatus{Address: t.address, List: t.list, State: Standby}
			return
		}
		t.status.State, t.status.Fault, t.status.LastError, t.status.LastErrorAt = Failing, faultOfCode(err), err.Error(), &now
	})
	if err == nil {
		s.preferred.use(t)
	} else {
		s.preferred.after(t)
		s.log.Debug("a preferred collector does not take this agent back yet", "collector", t.address, "error", err)
	}
	s.publishReturn()
}

// offerTrial gives the batch of a trial that waits for one: the oldest that is not on its way.
func (x *session) offerTrial() error {
	y := x.trial
	if y == nil || x.tried != nil || x.ending() || x.s.stopping.hasBegun() {
		return nil
	}
	for {
		e, ok := x.s.nextEntry(x.inFlight, x.mine)
		if !ok {
			return nil
		}
		b, err := x.loadFrame(e)
		if err != nil {
			return err
		}
		if b == nil {
			continue // it was finished in place of being sent
		}
		if y.max > 0 && uint64(len(b)) > y.max {
			return nil // too large there; this stream takes it, and the next one is tried
		}
		x.inFlight[e.No] = true
		x.tried = &flight{entry: e, at: x.s.now()}
		x.s.metrics.sent.Inc()
		x.s.metrics.sentBytes.Add(float64(e.Bytes))
		y.frame <- b
		return nil
	}
}

// endTrial acts on the end of a trial. Only an acceptance finishes the batch; with any other answer it is sent again, by this stream
// or by the next one, which acts on the answer that it gets.
func (x *session) endTrial(r trialResult) error {
	y, f := x.trial, x.tried
	x.trial, x.tried = nil, nil
	if f != nil {
		delete(x.inFlight, f.entry.No)
	}
	if r.answer == nil || f == nil || !accepts(r.answer) {
		return nil
	}
	x.leaving = y.target
	status := statusAccepted
	switch r.answer.GetStatus() {
	case ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED:
		x.s.noteClock(f.at, r.answer.GetAcceptance().GetAcceptedAtUnixNs())
	case ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE:
		status = statusDuplicate
	default:
		return nil
	}
	x.s.metrics.latency.Observe(x.s.now().Sub(f.at).Seconds())
	return x.handleAccepted(f.entry, status, r.answer.GetAcceptance().GetJournalPosition())
}

// trialDone gives the end of the trial that is under way; nil without one.
func (x *session) trialDone() <-chan trialResult {
	if x.trial == nil {
		return nil
	}
	return x.trial.done
}

// ending reports whether the session ends as soon as nothing is in flight.
func (x *session) ending() bool { return x.leaving != nil || x.reloading }

// left gives the reason to end a session that is ending, once nothing is in flight. While a collector has to record what was queued of parked
// batches the session goes on, or that would be queued again.
func (x *session) left() error {
	switch {
	case !x.ending() || len(x.flights) > 0 || x.tried != nil || x.s.telling.Load():
		return nil
	case x.reloading:
		return errReloaded
	}
	return errGoBack
}
