// Package send sends queued batches to collectors: one stream at a time, the exact bytes of the
// queue, oldest first, until each has a final answer. The rules are in docs/protocol/agent.md.
package send

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Sender sends the batches of one queue. Its loop is Run.
type Sender struct {
	cfg       Config
	queue     *queue.Queue
	log       *slog.Logger
	now       func() time.Time
	onRefused func(queue.State, queue.HeldBatch)
	onAccept  func(position string)
	// at is where the parked batches are.
	at Whereabouts
	// reporting is held while a batch leaves the queue without being accepted, until OnRefused has
	// returned.
	reporting sync.Mutex
	metrics   *metrics
	client    rpc.ClientConfig
	dialer    Dialer
	waits     *waits
	// preferred and fallback are the collectors, and prefer decides between them. They belong to Run and its sessions; the slices are
	// replaced with mu held.
	preferred, fallback targets
	prefer              *preference
	// returning: the next session goes back to a preferred collector that has accepted a trial.
	returning bool
	// reloaded wakes Run when wanted, which mu guards, has other collectors than cfg.
	reloaded chan struct{}
	wanted   Config
	// holding are the boots that are in quarantine, and until when they are not tried. Only one goroutine
	// uses it at a time: Run, or the session that Run waits for.
	holding map[identity.Boot]time.Time
	// telling: records of a parked batch are queued under new numbers and the collector is still to be told, which a
	// session for their boot would interrupt; told wakes the session afterwards.
	telling atomic.Bool
	told    chan struct{}
	// settledAt is when parked batches were last asked about, and kept the identities of those whose records this process
	// has queued under new numbers; by one goroutine at a time as well.
	settledAt time.Time
	kept      map[identity.Digest]identity.Batch
	// settleAtOnce is how many parked batches one question is about: as many as a collector takes, fewer in tests.
	settleAtOnce int

	mu       sync.Mutex
	status   Status
	progress progress

	stopping drain
}

// Errors that end a session without being the collector's fault.
var (
	errOtherBoot = errors.New("the next batch is of another boot")
	errTryOther  = errors.New("only RETRY answers: trying another collector")
	errStalled   = errors.New("no answer within answer_timeout")
	errGoBack    = errors.New("a preferred collector accepts batches again")
	errReloaded  = errors.New("there are other collectors in the settings")
)

// Deps of a sender.
type Deps struct {
	Registry prometheus.Registerer
	Log      *slog.Logger
	Now      func() time.Time
	// OnRefused is called for each batch that leaves the queue without being accepted: parked
	// because of a conflict or a boot clash, dead because it was rejected, or dropped because its
	// bytes on disk are damaged (then it has no ID). It must return soon, because nothing is sent
	// meanwhile, and must not call Flush. It may be nil.
	OnRefused func(queue.State, queue.HeldBatch)
	// OnAccepted is called for each batch that was accepted, before Flush says so, with the position of the journal in
	// the answer; that is empty where the collector has the batch on its own disk only. It may be nil.
	OnAccepted func(position string)
	// Dialer opens connections; nil dials TCP.
	Dialer Dialer
	// Whereabouts of the parked batches, which collectors are told with each question about them.
	Whereabouts Whereabouts
}

// Whereabouts say to people where the batches of a queue are.
type Whereabouts struct {
	// Host is the machine's name. Without it nothing is said.
	Host string
	// Page is the URL of the agent's own page; empty where it has none.
	Page string
	// Directory has the frames of the parked batches.
	Directory string
}

// New dials lazily; nothing is sent before Run.
func New(cfg Config, q *queue.Queue, d Deps) (*Sender, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Sender{cfg: cfg, wanted: cfg, queue: q, log: d.Log, now: d.Now, onRefused: d.OnRefused, onAccept: d.OnAccepted, at: d.Whereabouts, client: cfg.Client, dialer: d.Dialer, waits: newWaits(cfg), prefer: newPreference(cfg), stopping: newDrain(),
		holding: map[identity.Boot]time.Time{}, told: make(chan struct{}, 1), reloaded: make(chan struct{}, 1), kept: map[identity.Digest]identity.Batch{}, settleAtOnce: resolution.MaxConflicts}
	if err := s.checkDial(cfg); err != nil {
		return nil, err
	}
	s.metrics = newMetrics(d.Registry, s.onFallback)
	s.configure(nil)
	s.publishList()
	return s, nil
}

// maxMessage is above every frame that a queue can hold.
const maxMessage = 80 << 20

func (c Config) newBackoff() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: c.BackoffInitial, MaxInterval: c.BackoffMax, Multiplier: 1.5, RandomizationFactor: 0.5,
	}
}

// Run sends until ctx ends. A stream that ends leaves its unanswered batches in the
// queue: they are sent again, with the same bytes, to whichever collector is next.
func (s *Sender) Run(ctx context.Context) error {
	s.waits.backoff.Reset()
	since := s.now()
	s.update(func(st *Status) { st.DisconnectedSince = &since })
	var last *target
	for ctx.Err() == nil {
		// Each round is one session with one collector.
		t, err := s.chooseTarget(ctx, last)
		if err != nil {
			return nil // only ctx ends the wait
		}
		if last != nil && t != last {
			s.waits.moved()
		}
		last = t
		boot, spool := s.nextBoot()
		s.stopping.opened = false
		began := s.now()
		x, err := s.session(ctx, t, boot, spool)
		planned := errors.Is(err, errOtherBoot) || errors.Is(err, errGoBack) || errors.Is(err, errReloaded)
		failed := err != nil && ctx.Err() == nil && !planned
		fault := Fault("")
		// The probe costs a connection, so it is made only when no stream was opened, and not while
		// stopping.
		if failed && !s.stopping.opened && !s.stopping.seen {
			fault = s.faultOf(ctx, t.address, err)
		}
		s.noteDisconnected(t, err, failed, fault)
		s.stopping.noteSession(s.collectors())
		s.returning = false
		if ctx.Err() != nil {
			return nil
		}
		s.noteEnd(x, began, err, planned)
		switch {
		case x.leaving != nil:
			x.leaving.notBefore, s.returning = time.Time{}, true
			s.preferred.use(x.leaving)
		case !planned:
			now := s.now()
			t.notBefore = s.prefer.tryBefore(t, now, now.Add(s.backOff(t, err)))
		default:
			s.of(t.list).use(t)
		}
	}
	return nil
}

// backOff is how long a collector is left alone whose session ended with err.
func (s *Sender) backOff(t *target, err error) time.Duration {
	// A collector that refuses a quarantined sender is healthy, and says when to ask again. Were the wait to grow, a
	// sender would be late when it is released.
	if rpc.Reason(err) == reasonQuarantined {
		t.backoff.Reset()
	}
	longest := time.Duration(0)
	if e := (*tryOtherError)(nil); errors.As(err, &e) {
		longest = e.longest
	}
	return max(bounded(t.backoff, longest), min(rpc.RetryAfter(err), s.cfg.BackoffMax))
}

// nextWake is when a batch that waits, or those of a boot in quarantine, may be sent again; zero when nothing waits.
func (s *Sender) nextWake(now time.Time) time.Time {
	at := s.waits.next(now)
	for _, until := range s.holding {
		if until.After(now) && (at.IsZero() || until.Before(at)) {
			at = until
		}
	}
	return at
}

// chooseTarget waits for the first collector that may be used. last is the one that was used before, or nil.
func (s *Sender) chooseTarget(ctx context.Context, last *target) (*target, error) {
	for {
		if s.stopping.checkBegun() {
			for _, t := range slices.Concat(s.preferred.all, s.fallback.all) {
				t.notBefore = time.Time{}
			}
		}
		s.applyReload(last)
		t, wait := s.candidate(s.now())
		if t != nil {
			return t, nil
		}
		// Every collector is in back-off, or may not be used yet: wait for the one that is due first.
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.stopping.wake():
			timer.Stop()
		case <-s.reloaded:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// nextBoot gives the boot and spool id of the oldest batch that may be sent now, or the current ones
// when there is none. A stream is for one boot.
func (s *Sender) nextBoot() (identity.Boot, string) {
	if e, ok := s.nextEntry(nil, func(queue.Entry) bool { return true }); ok {
		return e.Identity.BootOf(), e.Spool
	}
	boot, spool, _ := s.queue.Boot()
	return boot, spool
}

// nextEntry gives the oldest pending entry that is not in flight, whose wait is over, and for which
// want holds.
func (s *Sender) nextEntry(inFlight map[uint64]bool, want func(queue.Entry) bool) (queue.Entry, bool) {
	now, after := s.now(), uint64(0)
	for {
		list := s.queue.Pending(after, 64)
		for _, e := range list {
			if !inFlight[e.No] && s.waits.due(e.No, now) && !now.Before(s.holding[e.Identity.BootOf()]) && want(e) {
				return e, true
			}
			after = e.No
		}
		if len(list) < 64 {
			return queue.Entry{}, false
		}
	}
}

// removeRefused removes a batch that will not be accepted from the queue and reports it. Flush waits
// for the report, so that its caller has been notified of every refused batch.
func (s *Sender) removeRefused(state queue.State, out func() (queue.HeldBatch, error)) (queue.HeldBatch, error) {
	s.reporting.Lock()
	defer s.reporting.Unlock()
	a, err := out()
	// With a held batch an error concerns something else, such as the bound of the dead letters.
	if a.AgentID != "" && s.onRefused != nil {
		s.onRefused(state, a)
	}
	return a, err
}

// Flush waits until no entry up to through is pending, or ctx ends.
func (s *Sender) Flush(ctx context.Context, through uint64) error {
	for {
		changed := s.queue.Changed()
		if oldest := s.queue.Stats().Oldest; oldest == nil || oldest.No > through {
			s.reporting.Lock()
			defer s.reporting.Unlock()
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
