package blocks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Deps of a Keeper.
type Deps struct {
	Store objstore.Reader
	// Window is how far back the live store keeps samples.
	Window time.Duration
	// AgentLabel is the live store's.
	AgentLabel agentlabel.Name
	Log        *slog.Logger
	Registry   prometheus.Registerer
	Now        func() time.Time
	// Take fetches an accepted batch into memory, by the key of its manifest.
	Take func(ctx context.Context, key string) error
}

// Keeper keeps a catalog fresh. It is safe for concurrent use.
type Keeper struct {
	cfg    Config
	d      Deps
	m      metrics
	reader *published.Reader

	// turn is held while the catalog is refreshed: the catalog is for one caller at a time.
	turn *semaphore.Weighted
	cat  *catalog.Catalog
	// state is replaced, never changed; nil until the authority is known to have shards.
	state atomic.Pointer[state]

	started       time.Time        // when this node was made
	intake        []*intake.Reader // by shard; only the poll of the intake uses it
	damaged       atomic.Bool      // a segment of the intake could not be read
	known         atomic.Bool      // the intake was read to its end once
	deltas        atomic.Bool      // the deltas were listed once
	firstPoll     chan struct{}    // closed when it is known whether there are blocks, and what is recent was read
	firstPollOnce sync.Once

	mu     sync.Mutex
	wanted map[timegrid.Hour]struct{} // hours of late batches, read with the recent ones
	asked  time.Time                  // when a query last asked for an older hour
}

// state is a view, with when its hours were read.
type state struct {
	shards uint32
	// began is when the authority got its intake, by the store's clock; zero when not known.
	began time.Time
	view  *catalog.View
	// read is when each hour was read.
	read map[timegrid.Hour]time.Time
}

// New makes a Keeper; Run does the work.
func New(cfg Config, d Deps) (*Keeper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if d.Store == nil || d.Log == nil || d.Registry == nil || d.Now == nil || d.Window <= 0 {
		return nil, errors.New("blocks: a dependency is missing")
	}
	r, err := published.New(published.Config{
		Store: d.Store, IndexCache: int64(cfg.IndexCache), BlockCache: int64(cfg.BlockCache), Gap: int64(cfg.Gap),
		Parallel: cfg.Parallel, AgentLabel: d.AgentLabel,
	})
	if err != nil {
		return nil, err
	}
	k := &Keeper{cfg: cfg, d: d, reader: r, started: d.Now(), turn: semaphore.NewWeighted(1), wanted: map[timegrid.Hour]struct{}{}, firstPoll: make(chan struct{})}
	k.m = newMetrics(d.Registry, k)
	return k, nil
}

// CacheBytes is the memory of the caches: of indexes; and of blocks, with the columns decoded from them.
func (k *Keeper) CacheBytes() (indexes, blocks int64) { return k.reader.CacheBytes() }

// SetTake sets Deps.Take. Call it before Run.
func (k *Keeper) SetTake(fn func(ctx context.Context, key string) error) { k.d.Take = fn }

// FirstPollDone is closed once it is known whether there are blocks, and those of recent hours were read.
func (k *Keeper) FirstPollDone() <-chan struct{} { return k.firstPoll }

// Query begins the reading of one query; nil while there are no blocks. Open the live snapshot before: what leaves
// memory afterwards is in the blocks that this query sees.
func (k *Keeper) Query(l published.Limits) *published.Query {
	s := k.state.Load()
	if s == nil {
		return nil
	}
	now := k.d.Now()
	// The query gets the hours of one moment, so that an hour that passes does not change what it may ask for.
	return k.reader.Query(k, s.shards, published.Span{Oldest: timegrid.HourOf(now.Add(-k.cfg.History).UnixMilli()), Newest: k.newest(now)}, l)
}

// Resolutions reports whether rolled blocks may answer.
func (k *Keeper) Resolutions() bool { return k.cfg.Resolutions }

// Known reports that every batch that the intake had at the start was checked; true if there are no blocks.
func (k *Keeper) Known() bool {
	return k.state.Load() == nil || k.IntakeRead()
}

// IntakeRead reports that the intake was read to its end once, every segment of it: batches that it had and that
// no block has were passed to Take before.
func (k *Keeper) IntakeRead() bool { return k.known.Load() && !k.damaged.Load() }

// unlisted is how much earlier than the window a batch may have been accepted for the first audits to check it
// nevertheless: the clocks of collectors differ.
const unlisted = 15 * time.Minute

// MayLack reports that batches of an hour without a block may have been accepted before the authority had an
// intake: they are in no segment, and no worker rolls them up. It is false if this node knows every batch that can
// have samples in the hour, because it ran at that time or its first audit reached back that far.
func (k *Keeper) MayLack(h timegrid.Hour) bool {
	s := k.state.Load()
	if s == nil || s.began.IsZero() {
		return false
	}
	// Later hours are in the intake, and recent ones were listed by this node's own audits.
	return h.Start().Before(s.began) && h.Start().Before(k.started.Add(-k.d.Window-unlisted))
}

func (k *Keeper) recent(now time.Time) timegrid.Hour {
	return timegrid.HourOf(now.Add(-k.d.Window).UnixMilli()) - 1
}

func (k *Keeper) newest(now time.Time) timegrid.Hour { return timegrid.HourOf(now.UnixMilli()) + 1 }

// View returns the hours from..to. Recent ones are as fresh as the last poll; older ones are read if they are
// missing or too old.
func (k *Keeper) View(ctx context.Context, from, to timegrid.Hour) (*catalog.View, error) {
	s := k.state.Load()
	if s == nil {
		return nil, errors.New("no blocks are known yet")
	}
	if _, _, stale := k.stale(s, from, to); !stale {
		return s.view, nil
	}
	if err := k.turn.Acquire(ctx, 1); err != nil {
		return s.view, err
	}
	defer k.turn.Release(1)
	// Another query may have refreshed the hours while this one waited.
	s = k.state.Load()
	first, last, stale := k.stale(s, from, to)
	if !stale {
		return s.view, nil
	}
	err := k.refresh(ctx, first, last)
	return k.state.Load().view, err
}

// stale returns the hours of [from, to] that must be read before a query uses them.
func (k *Keeper) stale(s *state, from, to timegrid.Hour) (first, last timegrid.Hour, any bool) {
	now := k.d.Now()
	recent := k.recent(now)
	if from < recent {
		k.mu.Lock()
		// Older hours are only kept while somebody asks for them.
		k.asked = now
		k.mu.Unlock()
	}
	for h := from; h <= to; h++ {
		at, ok := s.read[h]
		// Recent hours are refreshed by every poll, whatever the TTL.
		if ok && (h >= recent || now.Sub(at) < k.cfg.TTL) {
			continue
		}
		if !any {
			first, any = h, true
		}
		last = h
	}
	return first, last, any
}

// Refresh reads deltas and hours again, however fresh they are: an object that a query needed is gone, because
// others replaced it.
func (k *Keeper) Refresh(ctx context.Context, from, to timegrid.Hour) error {
	if err := k.RefreshDeltas(ctx); err != nil {
		return err
	}
	return k.refreshHours(ctx, from, to)
}

func (k *Keeper) refreshHours(ctx context.Context, from, to timegrid.Hour) error {
	if k.state.Load() == nil {
		return nil
	}
	if err := k.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer k.turn.Release(1)
	return k.refresh(ctx, from, to)
}

// RefreshDeltas lists the deltas, in which late batches are until blocks have them.
func (k *Keeper) RefreshDeltas(ctx context.Context) error {
	if k.state.Load() == nil {
		return nil
	}
	if err := k.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer k.turn.Release(1)
	view, err := k.cat.RefreshDeltas(ctx)
	k.m.refreshed(err)
	s := *k.state.Load()
	s.view = view
	k.state.Store(&s)
	return err
}

// refresh reads hours. The caller holds turn.
func (k *Keeper) refresh(ctx context.Context, from, to timegrid.Hour) error {
	started := k.d.Now()
	view, err := k.cat.Refresh(ctx, from, to)
	k.m.refreshed(err)
	old := k.state.Load()
	// A new state, because queries read the old one without a lock.
	s := &state{shards: old.shards, began: old.began, view: view, read: make(map[timegrid.Hour]time.Time, len(old.read)+8)}
	for h, at := range old.read {
		s.read[h] = at
	}
	// The time is that before the listing, as the view is at least as new.
	if err == nil {
		for h := from; h <= to; h++ {
			s.read[h] = started
		}
	}
	k.state.Store(s)
	return err
}

// Held says whether blocks have the batch in all of these hours; known is false when there are no blocks at all.
// It decides a live.Cover, is called under the live store's lock, and so never reads the store: an hour that was
// not read yet is read by the next poll.
func (k *Keeper) Held(id identity.Batch, hours []timegrid.Hour) (held, known bool) {
	s := k.state.Load()
	if s == nil {
		return false, false
	}
	for _, h := range hours {
		if _, ok := s.read[h]; !ok {
			k.want(h)
			return false, true
		}
		if !s.view.Covers(id, h, timegrid.Raw) {
			k.want(h)
			return false, true
		}
	}
	return true, true
}

// maxWanted bounds the hours that are noted for late batches; others are asked for again.
const maxWanted = 10_000

func (k *Keeper) want(h timegrid.Hour) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// An hour that finds no room is wanted again by the next check of its batch.
	if len(k.wanted) < maxWanted {
		k.wanted[h] = struct{}{}
	}
}

// maxHours is how many hours of a batch are checked one by one. A batch that spans more is always fetched, so that
// its frame tells which hours it has.
const maxHours = 100

// Needed reports that a batch with samples from minNS to maxNS (Unix nanoseconds), before the window, must be kept
// in memory because no block has it, or perhaps not all of it.
func (k *Keeper) Needed(id identity.Batch, minNS, maxNS int64) bool {
	if k.state.Load() == nil {
		return false
	}
	first, last := timegrid.HourOfNS(minNS), timegrid.HourOfNS(maxNS)
	if last-first >= maxHours {
		return true
	}
	var hours []timegrid.Hour
	// A batch may leave memory only when blocks have all of its hours.
	for h := first; h <= last; h++ {
		hours = append(hours, h)
	}
	held, _ := k.Held(id, hours)
	return !held
}

// authority reads the authority's id, its number of shards and since when it has an intake; false when it has no
// blocks.
func (k *Keeper) authority(ctx context.Context) (id string, s state, ok bool, err error) {
	s.shards, err = intake.ReadShards(ctx, k.d.Store)
	if errors.Is(err, objstore.ErrNotFound) {
		return "", s, false, nil
	}
	if err != nil {
		return "", s, false, err
	}
	info, err := k.d.Store.Head(ctx, layout.RollupConfigKey)
	if err != nil {
		return "", s, false, fmt.Errorf("head %q: %w", layout.RollupConfigKey, err)
	}
	// The object that fixes the number of shards is created once, when the authority gets its intake.
	s.began = info.LastModified
	authority, err := accept.ReadAuthority(ctx, k.d.Store)
	if err != nil {
		return "", s, false, err
	}
	return authority.AuthorityID, s, true, nil
}
