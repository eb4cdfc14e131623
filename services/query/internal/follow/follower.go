package follow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Blocks says which batches are in blocks.
type Blocks interface {
	// FirstPollDone is closed once it is known whether there are blocks.
	FirstPollDone() <-chan struct{}
	// Missing reports that there are blocks, and that they lack the batch, or perhaps lack a part of it.
	Missing(ctx context.Context, id identity.Batch, minNS, maxNS int64) (bool, error)
	// Shards is the authority's number of shards, 0 while it has no blocks, and Oldest is how far back they are read.
	Shards() uint32
	Oldest() time.Time
	// Renew reads what is known of blocks again: how far the journal is rolled up was read before.
	Renew(ctx context.Context) error
	// Serve lets queries read blocks that were found after the first poll of them: memory has what they lack.
	Serve()
}

// Deps of a Follower.
type Deps struct {
	Store objstore.Reader
	Live  *live.Store
	// History is that of Live: batches before it are fetched only where blocks lack them.
	History  time.Duration
	Blocks   Blocks
	Log      *slog.Logger
	Registry prometheus.Registerer
	Now      func() time.Time
}

// Follower keeps a live store supplied.
type Follower struct {
	cfg   Config
	d     Deps
	m     *metrics
	queue *queue
	book  *book
	kick  chan struct{} // asks for a poll now
	hints chan journal.Position
	// first is closed after the first poll whose batches were all taken.
	first     chan struct{}
	firstOnce sync.Once
	polled    chan struct{} // closed when the first poll has ended, however
	pollOnce  sync.Once
	packs     *packs
	peers     *peerframes.Set
	polling   sync.Mutex // one poll at a time

	mu         sync.Mutex
	journal    *journal.Follower // nil before the first poll
	withBlocks bool              // journal began when it was known that there are blocks
	authority  string            // of journal
	helpsAt    time.Time         // when the helps of metrics in blocks are to be read; zero: they were
	begin      journal.Begin     // what is known of the journal's completeness
	lost       uint64            // Polled.Lost of the last poll
	since      time.Time         // begin of the last poll that succeeded, by this machine's clock
	lastErr    error
	polls      polls
	unread     map[identity.Batch]*Unread
	unreadable *unreadSet      // of unread; nil after a change
	overflow   int             // unreadable batches beyond the bound
	landed     map[string]bool // writers of spooling runs whose watch says that nothing is unlanded
	watches    map[string]bool // addresses whose watch is on
}

// polls counts polls, for those who wait for one.
type polls struct {
	begun uint64
	done  uint64            // the newest that succeeded
	by    *journal.Follower // which made that one
	ended chan struct{}     // closed when one ends, however
}

// New makes a Follower; Run does the work.
func New(cfg Config, d Deps) (*Follower, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if d.Store == nil || d.Live == nil || d.Blocks == nil || d.Now == nil || d.Log == nil || d.Registry == nil {
		return nil, errors.New("follow: a dependency is missing")
	}
	f := &Follower{
		cfg: cfg, d: d, queue: newQueue(maxQueued), book: newBook(d.Log, d.Now),
		kick: make(chan struct{}, 1), hints: make(chan journal.Position, maxHints), first: make(chan struct{}), polled: make(chan struct{}), polls: polls{ended: make(chan struct{})},
		unread: map[identity.Batch]*Unread{}, landed: map[string]bool{}, watches: map[string]bool{},
	}
	f.queue.shardOf = f.ShardOf
	f.m, f.packs = newMetrics(d.Registry, f), newPacks(d.Registry)
	f.peers = peerframes.New(peerframes.Config{Wait: cfg.FramesWait, Now: d.Now, Log: d.Log, Metrics: peerframes.NewMetrics(d.Registry, "query")})
	return f, nil
}

// First is closed once everything that a poll found is in memory or known to be missing: from then on
// answers can be complete.
func (f *Follower) First() <-chan struct{} { return f.first }

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	select {
	// Without the blocks every batch before the window would look missing.
	case <-f.d.Blocks.FirstPollDone():
	case <-ctx.Done():
		return ctx.Err()
	}
	g := run.NewGroup(ctx)
	g.Go("polls", f.pollLoop)
	g.Go("fetches", f.fetchLoop)
	g.Go("retries", f.retryLoop)
	g.Go("rechecks", f.recheckLoop)
	g.Go("hints", f.hintLoop)
	for _, addr := range f.cfg.Watch {
		g.Go("watch "+addr, func(ctx context.Context) error { return f.watch(ctx, addr) })
	}
	return g.Wait()
}

// CatchUp polls once and takes what it found, each frame at most once. Afterwards everything that was
// answered before is in memory, in blocks or known to be missing; an error says that it is not.
func (f *Follower) CatchUp(ctx context.Context) error {
	err := f.Poll(ctx)
	return errors.Join(err, f.takeQueued(ctx, f.cfg.Snapshots))
}
