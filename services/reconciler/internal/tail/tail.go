// Package tail follows the journal: it polls, reads what hints are about, and gives segments and
// folded files to what is built on them.
package tail

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Polling is for the polls.
type Polling struct {
	// Interval is the time between two polls. While nothing is found and somebody sends hints it grows
	// up to IdleInterval.
	Interval     time.Duration `koanf:"poll_interval" help:"time between two polls of the journal"`
	IdleInterval time.Duration `koanf:"idle_interval" help:"longest time between two polls while nothing is found and a collector sends hints"`
	// Timeout bounds one poll.
	Timeout time.Duration `koanf:"poll_timeout" help:"longest time of one poll"`
	Readers int           `koanf:"readers" help:"runs and folded files of the journal that are read at once"`
}

// Fan runs with at most n calls side by side.
func Fan(n int) journal.Fan {
	return func(ctx context.Context, count int, do func(context.Context, int) error) error {
		var g errgroup.Group
		g.SetLimit(n)
		errs := make([]error, count)
		for i := range count {
			g.Go(func() error { errs[i] = do(ctx, i); return nil })
		}
		_ = g.Wait() // the errors of all are in errs
		return errors.Join(errs...)
	}
}

// hints bounds the hints that wait. One that is dropped only waits for the next poll.
const hints = 1024

// Tail follows the journal for one process.
type Tail struct {
	cfg      Polling
	log      *slog.Logger
	follower *journal.Follower
	hints    chan journal.Position
	// hinted says whether somebody is connected who sends hints.
	hinted func() bool
	// polled is called after each poll.
	polled func(journal.Polled, error)

	mu      sync.Mutex
	through time.Time
	at      journal.Positions
	ready   bool
	err     error // of the last poll
}

// New makes a Tail over a follower. polled is called after each poll, hinted asks whether somebody sends hints.
func New(cfg Polling, log *slog.Logger, f *journal.Follower, hinted func() bool, polled func(journal.Polled, error)) *Tail {
	return &Tail{cfg: cfg, log: log, follower: f, hints: make(chan journal.Position, hints), hinted: hinted, polled: polled}
}

// Hint asks to read a run through a segment soon. It never waits; false says that too many hints wait already.
func (t *Tail) Hint(at journal.Position) bool {
	select {
	case t.hints <- at:
		return true
	default:
		return false
	}
}

// Through is the store's time before which everything that was answered is applied, and the positions
// of that; ready says that a poll has succeeded.
func (t *Tail) Through() (through time.Time, at journal.Positions, ready bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.through, t.at, t.ready
}

// Err is why the last poll failed; nil when it succeeded.
func (t *Tail) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Runs are those that may have further segments.
func (t *Tail) Runs() []journal.Run { return t.follower.Runs() }

// Run polls, and reads what hints are about, until ctx ends.
func (t *Tail) Run(ctx context.Context) error {
	backoff := run.NewBackoff(t.cfg.Interval, max(t.cfg.IdleInterval, t.cfg.Interval))
	for {
		found, err := t.poll(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// Waiting does not help: somebody has to begin from nothing.
		if errors.Is(err, journal.ErrHeadWentBack) {
			return err
		}
		wait := t.cfg.Interval
		if err != nil || !found && t.hinted() {
			wait = backoff.Next()
		} else {
			backoff.Reset()
		}
		if err := t.wait(ctx, wait); err != nil {
			return err
		}
	}
}

func (t *Tail) poll(ctx context.Context) (found bool, err error) {
	pctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	p, err := t.follower.Poll(pctx)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err == nil {
		t.mu.Lock()
		t.through, t.at, t.ready = p.Through, p.Positions, true
		t.mu.Unlock()
	} else {
		t.log.Warn("the journal could not be read; tried again soon", "error", err)
	}
	t.mu.Lock()
	t.err = err
	t.mu.Unlock()
	t.polled(p, err)
	return p.Segments > 0, err
}

// wait reads what hints are about until the time is over. A hint at a run that no poll has found ends it.
func (t *Tail) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case at := <-t.hints:
			if !t.follow(ctx, t.waiting(at)) {
				return nil
			}
		}
	}
}

// waiting are the hints that wait, the given one among them; of each run the last.
func (t *Tail) waiting(first journal.Position) []journal.Position {
	last := map[journal.RunID]uint64{first.Run: first.Segment}
	for range len(t.hints) {
		at := <-t.hints
		last[at.Run] = max(last[at.Run], at.Segment)
	}
	out := make([]journal.Position, 0, len(last))
	for run, n := range last {
		out = append(out, journal.Position{Run: run, Segment: n})
	}
	return out
}

// follow reads what hints are about, run beside run. It is false if no poll has found one of the runs.
func (t *Tail) follow(ctx context.Context, hinted []journal.Position) (known bool) {
	var unknown atomic.Bool
	_ = Fan(t.cfg.Readers)(ctx, len(hinted), func(ctx context.Context, i int) error {
		known, err := t.follower.Read(ctx, hinted[i])
		if err != nil && ctx.Err() == nil {
			t.log.Warn("a run of the journal could not be read; a poll reads it", "run", hinted[i].Run.String(), "error", err)
		}
		if !known {
			unknown.Store(true)
		}
		return nil
	})
	return !unknown.Load()
}
