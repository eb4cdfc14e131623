package send

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send/wire"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// flight is a batch that was sent and has no answer yet.
type flight struct {
	entry queue.Entry
	at    time.Time
}

// session is one stream of one boot.
type session struct {
	s        *Sender
	target   *target
	boot     identity.Boot
	spool    string
	out      chan []byte
	in       chan *ingestv1.BatchResult
	flights  map[identity.Digest]*flight
	inFlight map[uint64]bool
	bytes    int64
	// The window: the smaller of the welcome's and the settings' bounds.
	maxBatches int
	maxBytes   int64
	maxFrame   uint64
	retries    int // RETRY answers in a row
	progressed bool

	// trials come from goBack. trial is the one under way, and tried its batch, once there is one.
	trials chan *trial
	trial  *trial
	tried  *flight
	// leaving is the preferred collector to go back to; reloading: there are other settings. Either ends the session once nothing
	// is in flight.
	leaving   *target
	reloading bool
}

// session opens a stream and sends on it until it fails, ctx ends, or something else is to be done. The session that is returned says
// whether any batch got a final answer, and where to go back to.
func (s *Sender) session(ctx context.Context, t *target, boot identity.Boot, spool string) (*session, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x := &session{
		s: s, target: t, boot: boot, spool: spool,
		out:     make(chan []byte),
		in:      make(chan *ingestv1.BatchResult, 64),
		flights: map[identity.Digest]*flight{}, inFlight: map[uint64]bool{},
		trials: make(chan *trial),
	}
	// A new connection for each session: a connection that is kept would follow its own back-off
	// after a failure and not the sender's.
	conn, err := s.dial(t.address)
	if err != nil {
		return x, err
	}
	defer conn.Close()
	st, w, err := x.openUnlessReloaded(ctx, cancel, conn)
	if errors.Is(err, errReloaded) {
		return x, err
	}
	if err != nil {
		return x, x.refusedHello(ctx, conn, err)
	}
	if err := x.applyWelcome(w); err != nil {
		return x, err
	}
	delete(s.holding, boot) // it is welcome: a quarantine has ended
	s.noteConnected(t, w.GetCollectorId())
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return x.write(gctx, st) })
	g.Go(func() error { return x.read(gctx, st) })
	g.Go(func() error { return s.settleLoop(gctx, conn) })
	if t.list == Fallback {
		g.Go(func() error { return x.goBack(gctx) })
	}
	g.Go(func() error {
		defer cancel() // ends the reader's Recv
		return x.serve(gctx)
	})
	return x, g.Wait()
}

// open says hello and waits for the welcome, at most ConnectTimeout.
func (x *session) open(ctx context.Context, cancel context.CancelFunc, conn grpc.ClientConnInterface) (*wire.Stream, *ingestv1.Welcome, error) {
	timer := time.AfterFunc(x.s.cfg.ConnectTimeout, cancel)
	failpoint.Hit("agent.send.hello.before")
	st, w, err := wire.OpenStream(ctx, conn, wire.Hello{Boot: x.boot, Spool: x.spool, NextSeq: x.nextSeq()})
	if err == nil {
		failpoint.Hit("agent.send.welcome.received")
	}
	// A welcome that comes at the very end is none: the stream is canceled.
	if !timer.Stop() {
		err = fmt.Errorf("no welcome within %s", x.s.cfg.ConnectTimeout)
	}
	return st, w, err
}

// openUnlessReloaded is open; it ends with errReloaded when there are other collectors, or one that does not answer would be waited for.
func (x *session) openUnlessReloaded(ctx context.Context, cancel context.CancelFunc, conn grpc.ClientConnInterface) (*wire.Stream, *ingestv1.Welcome, error) {
	opened, watched, reloaded := make(chan struct{}), make(chan struct{}), false
	go func() {
		defer close(watched)
		select {
		case <-x.s.reloaded:
			reloaded = true
			cancel()
		case <-opened:
		}
	}()
	st, w, err := x.open(ctx, cancel, conn)
	close(opened)
	<-watched
	if reloaded {
		err = errReloaded
	}
	return st, w, err
}

// nextSeq is the smallest sequence number that the queue has given to no batch of the boot. Of an
// older boot it is not known any more, and nobody can take its numbers: then it is the greatest one.
func (x *session) nextSeq() uint64 {
	if boot, _, next := x.s.queue.Boot(); boot == x.boot {
		return next
	}
	return math.MaxUint64
}

// applyWelcome applies the window of a welcome, and detects a second sender of this boot: a batch
// that is accepted at or above this queue's next number was not sent by this queue.
func (x *session) applyWelcome(w *ingestv1.Welcome) error {
	x.maxBatches, x.maxBytes, x.maxFrame = x.s.cfg.MaxInFlightBatches, int64(x.s.cfg.MaxInFlightBytes), w.GetMaxFrameBytes()
	// The collector may lower the window of the settings, but not raise it.
	if n := int(w.GetMaxInFlightBatches()); n > 0 {
		x.maxBatches = min(x.maxBatches, n)
	}
	if n := w.GetMaxInFlightBytes(); n > 0 && n < uint64(x.maxBytes) {
		x.maxBytes = int64(n)
	}
	x.s.update(func(st *Status) { st.AuthorityID = w.GetAuthorityId() })
	boot, _, next := x.s.queue.Boot()
	if !w.GetNumbersTaken() || boot != x.boot {
		return nil
	}
	text := fmt.Sprintf("collectors have records of boot %s at or above number %d, but this queue only gave out numbers below it: another queue uses the same boot id",
		boot.Boot, next)
	x.s.log.Error(text, "collector", x.target.address)
	x.s.noteError(text)
	return x.s.queue.NewBoot("another queue uses the boot id")
}

func (x *session) write(ctx context.Context, st *wire.Stream) error {
	for {
		select {
		case f := <-x.out:
			failpoint.Hit("agent.send.frame.before")
			if err := st.Send(f); err != nil {
				if errors.Is(err, io.EOF) {
					return nil // the stream has ended; Receive gives the reason
				}
				return fmt.Errorf("send: %w", err)
			}
			failpoint.Hit("agent.send.frame.after")
		case <-ctx.Done():
			return nil
		}
	}
}

func (x *session) read(ctx context.Context, st *wire.Stream) error {
	for {
		r, err := st.Receive()
		if errors.Is(err, io.EOF) {
			return errors.New("the collector ended the stream")
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		failpoint.Hit("agent.send.answer.received")
		select {
		case x.in <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// minStallCheck is the shortest time between two checks for batches without an answer.
const minStallCheck = 10 * time.Millisecond

// serve sends batches within the window and handles answers. It is the only goroutine that changes
// the session's state.
func (x *session) serve(ctx context.Context) error {
	progress := time.NewTicker(x.s.cfg.ProgressInterval)
	defer progress.Stop()
	stall := time.NewTicker(max(x.s.cfg.AnswerTimeout/4, minStallCheck))
	defer stall.Stop()
	x.s.logProgress(0)
	var out chan []byte
	var next []byte
	for {
		if err := x.left(); err != nil {
			return err
		}
		changed := x.s.queue.Changed() // taken before the queue is read, so that no change is missed
		wake := x.s.nextWake(x.s.now())
		if err := x.offerTrial(); err != nil {
			return err
		}
		if next == nil {
			var err error
			if next, err = x.nextFrame(); err != nil {
				return err
			}
			if next != nil {
				out = x.out
			}
		}
		err := func() error {
			var timer <-chan time.Time
			if !wake.IsZero() {
				t := time.NewTimer(wake.Sub(x.s.now()))
				defer t.Stop()
				timer = t.C
			}
			// out is nil while there is nothing to send, so that its case is never chosen.
			select {
			case out <- next:
				next, out = nil, nil
			case r := <-x.in:
				return x.handleAnswer(r)
			case <-stall.C:
				if x.stalled() {
					return errStalled
				}
			case <-timer:
			case <-progress.C:
				x.s.logProgress(0)
			case <-changed:
			case <-x.s.told:
			case x.trial = <-x.trials:
			case r := <-x.trialDone():
				return x.endTrial(r)
			case <-x.s.reloaded:
				x.reloading = true
			case <-ctx.Done():
				return x.handleLateAnswers()
			}
			return nil
		}()
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// handleLateAnswers handles the answers that were read before the stream ended: each saves sending
// a batch again.
func (x *session) handleLateAnswers() error {
	for {
		select {
		case r := <-x.in:
			if err := x.handleAnswer(r); err != nil {
				return err
			}
		case r := <-x.trialDone():
			if err := x.endTrial(r); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (x *session) stalled() bool {
	now := x.s.now()
	for _, f := range x.flights {
		if now.Sub(f.at) >= x.s.cfg.AnswerTimeout {
			return true
		}
	}
	return false
}

// nextFrame selects the next batch, counts it as in flight, and gives its bytes; nil when the
// window, the gate or the queue do not allow one. errOtherBoot: this boot has nothing more to send.
func (x *session) nextFrame() ([]byte, error) {
	if x.ending() {
		return nil, nil
	}
	w := x.s.waits
	for len(x.flights) < min(x.maxBatches, w.window) && !x.s.now().Before(w.gate) {
		e, ok := x.s.nextEntry(x.inFlight, x.mine)
		if !ok {
			return nil, x.checkOtherBoot()
		}
		// A batch larger than the whole window is sent alone, or it would never be sent.
		if x.bytes > 0 && x.bytes+int64(e.Bytes) > x.maxBytes {
			break
		}
		f, err := x.loadFrame(e)
		if err != nil {
			return nil, err
		}
		if f != nil {
			x.startFlight(e, f)
			return f, nil
		}
	}
	return nil, nil
}

// mine reports whether an entry is sent over this stream.
func (x *session) mine(e queue.Entry) bool {
	return e.Identity.BootOf() == x.boot && e.Spool == x.spool
}

// checkOtherBoot gives errOtherBoot when only another boot has batches to send. While answers are
// outstanding the session continues: ending it would send those batches again. It also does while the collector is
// told what was queued of parked batches, or that would be queued again.
func (x *session) checkOtherBoot() error {
	if len(x.flights) > 0 || x.tried != nil || x.s.telling.Load() {
		return nil
	}
	if boot, spool := x.s.nextBoot(); boot != x.boot || spool != x.spool {
		return errOtherBoot
	}
	return nil
}

// loadFrame reads a frame; nil when the entry was finished instead of being sent.
func (x *session) loadFrame(e queue.Entry) ([]byte, error) {
	b, err := x.s.queue.Frame(e.No)
	switch {
	case errors.Is(err, queue.ErrNotFound):
		return nil, nil
	case errors.Is(err, record.ErrCorrupt):
		// The bytes of this identity are lost. Its numbers stay a gap: other bytes must never get them.
		x.s.log.Error("a queued batch is damaged on disk and dropped", "identity", e.Identity.String(), "error", err)
		x.s.metrics.damaged.Inc()
		x.s.noteError("damaged on disk: " + e.Identity.String())
		_, dropErr := x.s.removeRefused(queue.Dropped, func() (queue.HeldBatch, error) {
			id := e.Identity
			return queue.HeldBatch{AgentID: id.Agent, BootID: id.Boot, SpoolID: e.Spool, SeqStart: id.SeqStart, SeqEnd: id.SeqEnd,
				QueuedAt: e.Created, At: x.s.now(), HoldReason: queue.HoldReason{Reason: reasonDamaged, Detail: err.Error()}}, x.s.queue.Drop(e.No)
		})
		return nil, ignoreNotFound(dropErr)
	case err != nil:
		return nil, err
	case x.maxFrame > 0 && uint64(len(b)) > x.maxFrame:
		// Sent, it would end the stream each time, and no batch behind it would be sent.
		return nil, x.deadLetter(e, queue.HoldReason{Reason: reasonTooLarge, Collector: x.target.address,
			Detail: fmt.Sprintf("frame has %d bytes, the collector takes %d", len(b), x.maxFrame)})
	}
	return b, nil
}

// startFlight counts a batch as in flight. It is called before the writer gets the bytes, so that no
// answer can come before the batch is known.
func (x *session) startFlight(e queue.Entry, frame []byte) {
	failpoint.Hit("agent.send.launch.before")
	x.flights[identity.Sum(frame)] = &flight{entry: e, at: x.s.now()}
	x.inFlight[e.No] = true
	x.bytes += int64(e.Bytes)
	x.s.metrics.sent.Inc()
	x.s.metrics.sentBytes.Add(float64(e.Bytes))
	x.publishInFlight()
}

func (x *session) endFlight(d identity.Digest, f *flight) {
	delete(x.flights, d)
	delete(x.inFlight, f.entry.No)
	x.bytes -= int64(f.entry.Bytes)
	x.publishInFlight()
}

func (x *session) publishInFlight() {
	n := len(x.flights)
	x.s.metrics.inFlight.Set(float64(n))
	x.s.update(func(st *Status) { st.InFlight = n })
}

func ignoreNotFound(err error) error {
	if errors.Is(err, queue.ErrNotFound) {
		return nil
	}
	return err
}
