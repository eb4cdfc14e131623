package follow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"lightmetrics.dev/lightmetrics/internal/acceptance/sharedid"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Deps of a Follower.
type Deps struct {
	Store objstore.Reader
	Live  *live.Store
	// History is that of Live: batches before it are counted, but their frames are not read.
	History time.Duration
	// Needed reports that a batch before History must be read nevertheless; nil never does.
	Needed   func(id identity.Batch, minNS, maxNS int64) bool
	Log      *slog.Logger
	Registry prometheus.Registerer
	Now      func() time.Time
}

// Follower keeps a live store supplied.
type Follower struct {
	cfg  Config
	d    Deps
	m    *metrics
	slot *semaphore.Weighted // bounds concurrent fetches
	one  singleflight.Group  // by manifest key
	kick chan struct{}       // asks for an audit now
	// first is closed after the first audit that succeeded.
	first chan struct{}
	// restore is what came from live-state snapshots.
	restore *restorer
	firsts  *firsts
	shared  *sharedid.Detector

	mu       sync.Mutex
	ledgers  map[identity.Boot]*ledger.Ledger
	unread   map[string]*Unread // by manifest key
	overflow int                // unreadable batches beyond the bound
	complete time.Time
	fullAt   time.Time // start of the last full audit that succeeded
	lastErr  error
	started  bool
	recent   map[string]int64 // accepted-by-time keys that were taken, with their time
	polled   int64            // newest acceptance that a poll has seen, Unix nanoseconds
}

// New makes a Follower; Run does the work.
func New(cfg Config, d Deps) (*Follower, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if d.Store == nil || d.Live == nil || d.Now == nil || d.Log == nil || d.Registry == nil {
		return nil, errors.New("follow: a dependency is missing")
	}
	f := &Follower{
		cfg: cfg, d: d,
		slot: semaphore.NewWeighted(int64(cfg.Fetchers)),
		kick: make(chan struct{}, 1), first: make(chan struct{}),
		shared:  sharedid.New(),
		ledgers: map[identity.Boot]*ledger.Ledger{}, unread: map[string]*Unread{}, recent: map[string]int64{},
	}
	f.m = newMetrics(d.Registry, f)
	f.restore, f.firsts = newRestorer(d.Registry), newFirsts()
	return f, nil
}

// First is closed once an audit has succeeded: from then on answers can be complete.
func (f *Follower) First() <-chan struct{} { return f.first }

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	g := run.NewGroup(ctx)
	g.Go("audits", f.audits)
	if f.cfg.PollInterval > 0 {
		g.Go("polls", f.polls)
	}
	for _, addr := range f.cfg.Watch {
		g.Go("watch "+addr, func(ctx context.Context) error { return f.watch(ctx, addr) })
	}
	return g.Wait()
}

// firstRetry is the wait after a failed audit while none has succeeded yet.
const firstRetry = time.Second

// audits audits at intervals until ctx ends.
func (f *Follower) audits(ctx context.Context) error {
	restored := !f.cfg.Snapshots
	for {
		// Without a restore the audit would fetch every batch on its own. It is tried until the list of snapshots
		// could be read.
		if !restored {
			restored = f.Restore(ctx) == nil
		}
		err := f.Audit(ctx, f.fullDue())
		if err != nil && ctx.Err() == nil {
			f.d.Log.Warn("audit failed; complete_through stays", "error", err)
		}
		f.d.Live.Expire(f.d.Now())
		wait := f.cfg.AuditInterval
		// Until an audit has succeeded every answer is partial, so the first one is tried again soon.
		if f.Status().CompleteThrough.IsZero() {
			wait = min(wait, firstRetry)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-f.kick:
		}
		t.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (f *Follower) fullDue() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fullAt.IsZero() || f.cfg.FullAuditInterval > 0 && f.d.Now().Sub(f.fullAt) >= f.cfg.FullAuditInterval
}

// auditSoon asks for an audit now. One that was asked for already is enough.
func (f *Follower) auditSoon() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}
