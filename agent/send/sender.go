// Package send sends queued batches to collectors: one stream at a time, the exact bytes of the
// queue, oldest first, until each has a final answer. The rules are in docs/protocol/agent.md.
package send

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
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
	targets   []*target
	waits     *waits
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

// target is one collector.
type target struct {
	address   string
	backoff   *backoff.ExponentialBackOff
	notBefore time.Time
}

// Errors that end a session without being the collector's fault.
var (
	errOtherBoot = errors.New("the next batch is of another boot")
	errTryOther  = errors.New("only RETRY answers: trying another collector")
	errStalled   = errors.New("no answer within answer_timeout")
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
	s := &Sender{cfg: cfg, queue: q, log: d.Log, now: d.Now, onRefused: d.OnRefused, onAccept: d.OnAccepted, at: d.Whereabouts, metrics: newMetrics(d.Registry, cfg.Collectors), waits: newWaits(cfg), stopping: newDrain(), holding: map[identity.Boot]time.Time{}, told: make(chan struct{}, 1), kept: map[identity.Digest]identity.Batch{}, settleAtOnce: resolution.MaxConflicts}
	for _, a := range cfg.Collectors {
		conn, err := rpc.Dial(a, cfg.Client) // lazy: this checks the settings
		if err != nil {
			return nil, fmt.Errorf("collector %s: %w", a, err)
		}
		if err := conn.Close(); err != nil {
			return nil, fmt.Errorf("collector %s: %w", a, err)
		}
		s.targets = append(s.targets, &target{address: a, backoff: cfg.newBackoff()})
		s.status.Collectors = append(s.status.Collectors, CollectorStatus{Address: a, State: Standby})
	}
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
	for _, t := range s.targets {
		t.backoff.Reset()
	}
	s.waits.backoff.Reset()
	began := s.now()
	s.update(func(st *Status) { st.DisconnectedSince = &began })
	// Agents of a fleet start with different collectors, by a hash of their id.
	h := fnv.New32a()
	boot, _, _ := s.queue.Boot()
	_, _ = h.Write([]byte(boot.Agent))
	at := int(h.Sum32() % uint32(len(s.targets)))
	for ctx.Err() == nil {
		// Each round is one session with one collector.
		i, err := s.chooseTarget(ctx, at)
		if err != nil {
			return nil // only ctx ends the wait
		}
		t := s.targets[i]
		boot, spool := s.nextBoot()
		s.stopping.opened = false
		progressed, err := s.session(ctx, t, i, boot, spool)
		failed := err != nil && ctx.Err() == nil && !errors.Is(err, errOtherBoot)
		fault := Fault("")
		// The probe costs a connection, so it is made only when no stream was opened, and not while
		// stopping.
		if failed && !s.stopping.opened && !s.stopping.seen {
			fault = s.faultOf(ctx, t.address, err)
		}
		s.noteDisconnected(i, err, failed, fault)
		s.stopping.noteSession(len(s.targets))
		// A collector that answered batches is healthy, whatever ended the stream.
		if progressed {
			t.backoff.Reset()
		}
		at = i
		switch {
		case errors.Is(err, errOtherBoot):
		case ctx.Err() != nil:
			return nil
		default:
			t.notBefore = s.now().Add(s.backOff(t, err))
			at = (i + 1) % len(s.targets)
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
	return max(t.backoff.NextBackOff(), min(rpc.RetryAfter(err), s.cfg.BackoffMax))
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

// chooseTarget waits for the first collector from at on whose back-off is over.
func (s *Sender) chooseTarget(ctx context.Context, at int) (int, error) {
	for {
		if s.stopping.checkBegun() {
			for _, t := range s.targets {
				t.notBefore = time.Time{}
			}
		}
		now, wait := s.now(), time.Duration(-1)
		for k := range s.targets {
			i := (at + k) % len(s.targets)
			d := s.targets[i].notBefore.Sub(now)
			if d <= 0 {
				return i, nil
			}
			if wait < 0 || d < wait {
				wait = d
			}
		}
		// Every collector is in back-off: wait for the one that is due first.
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.stopping.wake():
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return 0, ctx.Err()
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
