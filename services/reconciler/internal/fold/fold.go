// Package fold keeps the journal small: it folds segments into files, deletes them after their
// retention, ends the runs of writers that are gone, and sweeps files that nothing names.
package fold

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Folding is for folding.
type Folding struct {
	Interval   time.Duration `koanf:"fold_interval" help:"time between two foldings of the journal's segments into files"`
	Retention  time.Duration `koanf:"retention" help:"how long segments stay after they were folded; it spares slow readers requests"`
	FenceAfter time.Duration `koanf:"fence_after" help:"time without a segment after which the run of a collector is ended; it goes on in a new one"`
	Sweep      time.Duration `koanf:"sweep_interval" help:"time between two listings of folded files, for those that nothing names"`
	MaxWaiting int           `koanf:"max_waiting" help:"most entries in memory that wait to be folded; beyond it reading waits"`
}

// early is how many waiting entries are folded before the interval is over: those of a full file.
const early = journal.MaxFoldedEntries

// Keeper folds for one process. Any number may work on one journal.
type Keeper struct {
	cfg    Folding
	log    *slog.Logger
	store  journal.Store
	folder *journal.Folder
	// followed is what the process has read of the journal.
	followed Followed
	// done is called after each round.
	done func(s State, moved bool, err error)
	now  func() int64

	mu      sync.Mutex
	pending []*journal.Segment
	count   int
	folding int           // entries that the folder has
	since   int64         // since when something has waited; -1: nothing waits
	room    chan struct{} // closed when pending was taken
	wake    chan struct{}

	quiet  map[journal.RunID]quiet
	swept  int64
	fenced int // in this round
}

// Followed is a follower of the journal, as far as folding asks it.
type Followed interface {
	Runs() []journal.Run
	Positions() journal.Positions
}

// State is what a round left.
type State struct {
	Head journal.Head
	// Fenced is how many runs the round has ended.
	Fenced int
}

// quiet is since when a run has had no news.
type quiet struct {
	next  uint64
	since int64
}

// New makes a Keeper. now is monotonic, in nanoseconds.
func New(cfg Folding, log *slog.Logger, s journal.Store, f *journal.Folder, followed Followed, now func() int64, done func(State, bool, error)) *Keeper {
	return &Keeper{
		cfg: cfg, log: log, store: s, folder: f, followed: followed, done: done, now: now,
		room: make(chan struct{}), wake: make(chan struct{}, 1), quiet: map[journal.RunID]quiet{}, swept: now(), since: -1,
	}
}

// Offer takes a segment, and waits while too many entries wait to be folded.
func (k *Keeper) Offer(ctx context.Context, s *journal.Segment) error {
	for {
		k.mu.Lock()
		// An empty queue takes any segment.
		if k.count == 0 || k.count+len(s.Entries) <= k.cfg.MaxWaiting {
			k.pending, k.count = append(k.pending, s), k.count+len(s.Entries)
			if k.since < 0 && len(s.Entries) > 0 {
				k.since = k.now()
			}
			full := k.count >= early
			k.mu.Unlock()
			if full {
				k.kick()
			}
			return nil
		}
		room := k.room
		k.mu.Unlock()
		k.kick()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (k *Keeper) kick() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Waiting is how many entries no folded file has, and for how long, in nanoseconds, the first of them has been known.
func (k *Keeper) Waiting() (entries int, age int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.since >= 0 {
		age = k.now() - k.since
	}
	return k.count + k.folding, age
}

// afterRound notes what a round left in the folder.
func (k *Keeper) afterRound() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.folding = k.folder.Waiting()
	switch {
	case k.folding > 0: // since is that of these, or earlier
	case k.count > 0:
		k.since = k.now()
	default:
		k.since = -1
	}
	s := State{Head: k.folder.Head(), Fenced: k.fenced}
	k.fenced = 0
	return s
}

// Run folds until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	backoff := run.NewBackoff(min(time.Second, k.cfg.Interval), k.cfg.Interval)
	for {
		wait := k.cfg.Interval
		moved, err := k.round(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch k.done(k.afterRound(), moved, err); {
		case err == nil:
			backoff.Reset()
		case errors.Is(err, objstore.ErrPreconditionFailed):
			k.log.Debug("another reconciler has moved the journal's head meanwhile; tried again soon", "error", err)
			wait = backoff.Next()
		default:
			k.log.Warn("the journal was not folded; tried again soon", "error", err)
			wait = backoff.Next()
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-t.C:
		}
		t.Stop()
	}
}

// round folds everything that waits, and does what is due.
func (k *Keeper) round(ctx context.Context) (bool, error) {
	k.take()
	moved, err := k.fold(ctx)
	if err == nil {
		err = k.fence(ctx)
	}
	// The sweep saves space and nothing else: one that fails must not hold up what others wait for.
	if k.now()-k.swept >= int64(k.cfg.Sweep) {
		swept := k.folder.Sweep(ctx, k.now())
		if swept == nil {
			k.swept = k.now()
		}
		err = errors.Join(err, swept)
	}
	return moved, err
}

// take gives what waits to the folder. What it has no room for stays, and is folded in a later round.
func (k *Keeper) take() {
	k.mu.Lock()
	defer k.mu.Unlock()
	taken := 0
	for _, s := range k.pending {
		if k.folder.Add(s) != nil { // full
			k.kick()
			break
		}
		taken++
		k.count -= len(s.Entries)
	}
	clear(k.pending[:taken])
	k.pending = k.pending[taken:]
	if taken > 0 {
		close(k.room)
		k.room = make(chan struct{})
	}
}

func (k *Keeper) fold(ctx context.Context) (moved bool, err error) {
	// Where another reconciler is known to have moved the head, a move from the older one would write its files in
	// vain. The polls compare the head, so this costs a request only where it has moved.
	if k.followed.Positions().Head > k.folder.Head().Number {
		if _, err := k.folder.Load(ctx); err != nil {
			return false, err
		}
	}
	for {
		again, err := k.folder.Fold(ctx, k.now())
		if err != nil {
			return moved, err
		}
		if !again {
			break
		}
		moved = true
		if k.folder.Waiting() == 0 {
			return moved, nil
		}
	}
	if moved || k.folder.Waiting() == 0 {
		return moved, nil
	}
	// What waits does not follow on this head: another reconciler has folded what is in between.
	_, err = k.folder.Load(ctx)
	return false, err
}

// fence ends the runs that had no segment for long. A spooler's run says that it may have accepted
// batches that nobody else knows, so only an operator ends that.
func (k *Keeper) fence(ctx context.Context) error {
	now := k.now()
	next := make(map[journal.RunID]quiet, len(k.quiet))
	for _, r := range k.followed.Runs() {
		q, ok := k.quiet[r.Run]
		if !ok || q.next != r.Next {
			q = quiet{r.Next, now}
		}
		next[r.Run] = q
		// Quiet polls, too: a process that could not read for long knows nothing of the runs.
		if now-q.since < int64(k.cfg.FenceAfter) || r.Quiet < 3 || r.Next == 0 || r.Opening == nil || r.Opening.Role == journal.RoleSpooler {
			continue
		}
		if err := journal.Fence(ctx, k.store, journal.Position{Run: r.Run, Segment: r.Next}); err != nil {
			k.quiet = next
			return err
		}
		k.fenced++
		k.log.Info("a run of the journal without news was ended", "run", r.Run.String(), "writer", r.Opening.Writer, "segment", r.Next)
		// Once more after the same time, if it is still not known to have ended.
		next[r.Run] = quiet{r.Next, now}
	}
	k.quiet = next
	return nil
}
