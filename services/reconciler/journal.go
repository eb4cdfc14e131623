package reconciler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/fold"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/tail"
)

// journalKeeper follows the journal for the service: it folds it, ends the runs of writers that are gone, keeps the
// ledgers of all boots and their checkpoint, and audits what was accepted against it.
type journalKeeper struct {
	cfg   Config
	id    string
	store objstore.Store
	log   *slog.Logger
	m     *journalMetrics
	start time.Time // of the monotonic clock
	to    sinks

	// hinting are the streams of hints that are open.
	hinting atomic.Int64

	// complete: the journal is known to have everything that was answered.
	complete atomic.Bool

	// checks are manifests of events that should have an entry.
	checks *checks

	mu    sync.Mutex
	tail  *tail.Tail // nil before the first life
	set   *ledgers.Set
	round *round // of what was given to reconcile since the last checkpoint
	relay *relay

	// refused is why the linearizer refuses this reconciler; nil while it does not.
	refused atomic.Pointer[error]
	// unfitting is why the settings do not fit the region of the bucket; nil while they do.
	unfitting atomic.Pointer[RegionError]
}

// sinks are what gets the entries, and what audits find.
type sinks struct {
	// reconcile takes entries, and may wait; the round ends when they are dealt with.
	reconcile func(context.Context, []journal.Entry, *round) error
	// added takes a batch that the ledgers did not know, and applied what a segment had, once they know it.
	added   func(ledgers.Change)
	applied func([]journal.Entry)
	// unusable and foreign report what an audit finds, and underived gets entries of which derived keys are missing.
	unusable, foreign func(key string)
	underived         func(context.Context, *journal.Entry) error
	// inventory opens an inventory of the bucket; nil where there are none.
	inventory func(context.Context, string) (audit.Inventory, error)
	// linearizer of several regions; nil where there are none. removed reports frames that were removed on purpose.
	linearizer Linearizer
	removed    func(context.Context, identity.Batch) (bool, error)
}

func newJournalKeeper(cfg Config, id string, s objstore.Store, log *slog.Logger, m *journalMetrics, to sinks) *journalKeeper {
	k := &journalKeeper{
		cfg: cfg, id: id, store: s, log: log, m: m, start: time.Now(), to: to, round: newRound(),
		relay: newRelay(cfg.Watch.Buffer, cfg.Watch.MaxWatchers), checks: newChecks(cfg.Events.MaxWaiting),
	}
	return k
}

// monotonic is the time since the keeper was made, in nanoseconds.
func (k *journalKeeper) monotonic() int64 { return int64(time.Since(k.start)) }

// hint takes a hint at a segment; false says that too many wait.
func (k *journalKeeper) hint(p journal.Position) bool {
	k.mu.Lock()
	t := k.tail
	k.mu.Unlock()
	return t != nil && t.Hint(p)
}

// status is the ledgers, and through which time the journal is applied to them; ready says that it was read once.
func (k *journalKeeper) status() (set *ledgers.Set, through time.Time, ready bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tail == nil {
		return ledgers.NewSet(), time.Time{}, false
	}
	through, _, ready = k.tail.Through()
	return k.set, through, ready
}

// describe says how far the journal is read and folded.
func (k *journalKeeper) describe() *reconcilerv1.JournalStatus {
	st := &reconcilerv1.JournalStatus{Complete: k.complete.Load()}
	entries, age := k.m.unfolded()
	st.WaitingEntries, st.WaitingSeconds = uint64(entries), float64(age)/1e9
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tail == nil {
		st.PollError = errNotRead.Error()
		return st
	}
	_, at, _ := k.tail.Through()
	st.Head = at.Head
	for _, r := range at.Runs {
		if !r.Ended {
			st.OpenRuns++
		}
	}
	if err := k.tail.Err(); err != nil {
		st.PollError = err.Error()
	}
	return st
}

// run follows until ctx ends. When the bucket was restored from an older copy, it begins from nothing.
func (k *journalKeeper) run(ctx context.Context) error {
	for backoff := run.NewBackoff(k.cfg.Queue.RetryBase, k.cfg.Queue.RetryMax); ; {
		err := k.live(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e := (*RegionError)(nil); errors.As(err, &e) && k.unfitting.Swap(e) == nil {
			k.log.Error("the settings do not fit the bucket; nothing is done before they do", "error", err)
		} else if e == nil {
			k.log.Warn("the journal is read from the beginning of this process again", "error", err)
		}
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
}

// live is one life: from the checkpoint and the head on.
func (k *journalKeeper) live(ctx context.Context) error {
	of, err := openRegion(ctx, k.store, k.cfg.Region, k.log)
	if err != nil {
		return err
	}
	k.unfitting.Store(nil)
	former := of != nil
	authority, err := k.authority(ctx)
	if err != nil {
		return err
	}
	fan := tail.Fan(k.cfg.Journal.Readers)
	loaded, err := ledgers.LoadCheckpoint(ctx, k.store, fan)
	if record.Unreadable(err) {
		k.log.Error("the checkpoint of the ledgers can't be read; they are rebuilt from the journal", "error", err)
		loaded, err = ledgers.Loaded{Set: ledgers.NewSet()}, nil
	}
	if err != nil {
		return err
	}
	folder, err := journal.NewFolder(journal.FolderConfig{Store: k.store, Rand: rand.Reader, Retention: int64(k.cfg.Journal.Retention), MaxWaiting: 2 * k.cfg.Journal.MaxWaiting, Fan: fan})
	if err != nil {
		return err
	}
	head, err := folder.Load(ctx)
	if err != nil {
		return err
	}
	if at := folder.Head().Number; loaded.Positions.Head > at {
		// The journal was restored from an older copy than the ledgers. They would tell of batches that the bucket may not have, and
		// an audit of news would take these for journalled.
		k.log.Error("the checkpoint of the ledgers is ahead of the journal, which was restored from an older copy; they are rebuilt from the journal", "ledgers", loaded.Positions.Head, "head", at)
		loaded = ledgers.Loaded{Set: ledgers.NewSet()}
	}
	set := loaded.Set
	var keeper *fold.Keeper
	follower, err := journal.NewFollower(journal.FollowerConfig{
		Store: k.store, Authority: authority, Fan: fan, From: journal.Earliest(loaded.Positions, head),
		Segment: func(ctx context.Context, s *journal.Segment) error {
			// The ledgers come last: what they know is not given to anybody again.
			if err := k.to.reconcile(ctx, s.Entries, k.current()); err != nil {
				return err
			}
			if err := keeper.Offer(ctx, s); err != nil {
				return err
			}
			k.apply(set, s.Entries)
			k.to.applied(s.Entries)
			k.m.segments.Inc()
			k.m.lagged.Add(float64(k.relay.publish(s.Position)))
			return nil
		},
		Folded: func(ctx context.Context, es []journal.Entry) error {
			if err := k.to.reconcile(ctx, es, k.current()); err != nil {
				return err
			}
			k.apply(set, es)
			return nil
		},
	})
	if err != nil {
		return err
	}
	keeper = fold.New(k.cfg.Journal.Folding, k.log, k.store, folder, follower, k.monotonic, k.m.folded)
	k.m.waiting.Store(keeper)
	t := tail.New(k.cfg.Journal.Polling, k.log, follower, func() bool { return k.hinting.Load() > 0 }, k.m.polled)
	k.mu.Lock()
	k.tail, k.set, k.round = t, set, newRound()
	k.mu.Unlock()
	c, err := k.openClaims(authority)
	if err != nil {
		return err
	}
	// Of the manifests that stand in no run: the linearizer is asked where there are regions.
	if c != nil {
		of = c
	}
	fits := func(ctx context.Context) error { return k.refit(ctx, former) }
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.Run(gctx) })
	g.Go(func() error { return keeper.Run(gctx) })
	g.Go(func() error {
		return k.save(gctx, t, ledgers.NewSaver(k.store, rand.Reader, int64(k.cfg.Journal.Retention), loaded))
	})
	if c != nil {
		g.Go(func() error { return c.loop(gctx, fits) })
	}
	g.Go(func() error { return k.audits(gctx, authority, set, c, of, fits) })
	g.Go(func() error { return k.runChecks(gctx, authority, set, of, fits) })
	return g.Wait()
}

// authority waits until the store has one.
func (k *journalKeeper) authority(ctx context.Context) (string, error) {
	if k.cfg.AuthorityID != "" {
		return k.cfg.AuthorityID, nil
	}
	a, err := accept.ReadAuthority(ctx, k.store)
	return a.AuthorityID, err
}

func (k *journalKeeper) apply(set *ledgers.Set, entries []journal.Entry) {
	n := 0
	set.Apply(entries, func(c ledgers.Change) {
		if n++; c.Kind == ledger.Added || c.Kind == ledger.Covered {
			k.to.added(c)
		}
	})
	k.m.entries.Add(float64(n))
}

// current is the round of what is read now.
func (k *journalKeeper) current() *round {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.round
}

// save writes the checkpoint each interval, and when ctx ends.
func (k *journalKeeper) save(ctx context.Context, t *tail.Tail, s *ledgers.Saver) error {
	swept := k.monotonic()
	for {
		serr := run.Sleep(ctx, k.cfg.Ledgers.SaveInterval)
		// The process ends, so the last write gets a time of its own.
		last, limit := ctx.Err() != nil, saveTimeout
		if last {
			limit = k.cfg.DrainTimeout
		}
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		err := k.checkpoint(sctx, ctx, t, s)
		if err == nil && !last && k.monotonic()-swept >= int64(k.cfg.Journal.Sweep) {
			err = s.Sweep(sctx, k.monotonic())
			swept = k.monotonic()
		}
		cancel()
		if last {
			return serr
		}
		if k.m.saved(err); errors.Is(err, errNotReconciled) {
			return err // what was given up is read again from the last checkpoint
		} else if err != nil {
			k.log.Warn("the ledgers were not saved; tried again later", "error", err)
		}
	}
}

// checkpoint saves the ledgers once everything that was read up to the positions is dealt with: a
// restart does not read it again. working ends when the workers do.
func (k *journalKeeper) checkpoint(ctx, working context.Context, t *tail.Tail, s *ledgers.Saver) error {
	// The positions first: the round and the ledgers may have more than they say, and never less.
	_, at, ready := t.Through()
	if !ready {
		return nil
	}
	k.mu.Lock()
	r := k.round
	k.round = newRound()
	k.mu.Unlock()
	if err := r.wait(working); err != nil {
		if working.Err() == nil || !r.done() {
			return fmt.Errorf("%w: %w", errNotReconciled, err)
		}
	}
	failpoint.Hit("reconciler.ledgers.save.before")
	_, err := s.Save(ctx, at, k.monotonic())
	failpoint.Hit("reconciler.ledgers.save.after")
	return err
}

var errNotReconciled = errors.New("not everything that was read was reconciled")

// saveTimeout bounds one write of the checkpoint.
const saveTimeout = 5 * time.Minute
