package blocks

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
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

	firstPoll     chan struct{} // closed when it is known whether there are blocks, and what is recent was read
	firstPollOnce sync.Once
	deltasAt      time.Time // when the deltas were listed last; only the poll uses it
	// later: the blocks were found after the first poll; served: queries may read them nevertheless.
	later, served atomic.Bool

	mu     sync.Mutex
	wanted map[timegrid.Hour]struct{} // hours of late batches, read with the recent ones
	asked  time.Time                  // when a query last asked for an older hour
}

// state is a view, with when its hours were read.
type state struct {
	shards uint32
	view   *catalog.View
	// open is the first of the hours that polls read, which have no end: samples may lie in the future. They were
	// read at polled; zero is not yet.
	open   timegrid.Hour
	polled time.Time
	// read is when each other hour was read.
	read map[timegrid.Hour]time.Time
}

// readAt is when the hour was read last; false when it was not.
func (s *state) readAt(h timegrid.Hour) (time.Time, bool) {
	if at, ok := s.read[h]; ok && (h < s.open || at.After(s.polled)) {
		return at, true
	}
	return s.polled, h >= s.open && !s.polled.IsZero()
}

// ahead bounds how far after now blocks are read. Answers that would need later ones are marked, see Ahead.
const ahead = 31 * 24

// newest is the last hour that queries read: that of the last block, and at least the one that now may reach.
func (s *state) newest(now time.Time) timegrid.Hour {
	first := timegrid.HourOf(now.UnixMilli()) + 1
	if last, ok := s.view.Last(); ok {
		return min(max(first, last), first+ahead)
	}
	return first
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
	k := &Keeper{cfg: cfg, d: d, reader: r, turn: semaphore.NewWeighted(1), wanted: map[timegrid.Hour]struct{}{}, firstPoll: make(chan struct{})}
	k.m = newMetrics(d.Registry, k)
	return k, nil
}

// CacheBytes is the memory of the caches: of indexes; and of blocks, with the columns decoded from them.
func (k *Keeper) CacheBytes() (indexes, blocks int64) { return k.reader.CacheBytes() }

// LabelBytes is the memory of the labels of published series, estimated.
func (k *Keeper) LabelBytes() int64 { return k.reader.LabelBytes() }

// FirstPollDone is closed once it is known whether there are blocks, and those of recent hours were read.
func (k *Keeper) FirstPollDone() <-chan struct{} { return k.firstPoll }

// Shards is the authority's number of shards; 0 while it has no blocks.
func (k *Keeper) Shards() uint32 {
	if s := k.state.Load(); s != nil {
		return s.shards
	}
	return 0
}

// Oldest is the time from which on blocks are read; zero while there are none.
func (k *Keeper) Oldest() time.Time {
	if k.state.Load() == nil {
		return time.Time{}
	}
	return timegrid.HourOf(k.d.Now().Add(-k.cfg.History).UnixMilli()).Start()
}

// Serve lets queries read blocks that were found after the first poll: memory has by now what they lack.
func (k *Keeper) Serve() { k.served.Store(true) }

// Query begins the reading of one query; nil while there are no blocks. Open the live snapshot before: what leaves
// memory afterwards is in the blocks that this query sees.
func (k *Keeper) Query(l published.Limits) *published.Query {
	s := k.state.Load()
	// Until memory has what these blocks lack, an answer from them would lack it too, unmarked.
	if s == nil || k.later.Load() && !k.served.Load() {
		return nil
	}
	now := k.d.Now()
	// The query gets the hours of one moment, so that an hour that passes does not change what it may ask for.
	return k.reader.Query(k, s.shards, published.Span{Oldest: timegrid.HourOf(now.Add(-k.cfg.History).UnixMilli()), Newest: s.newest(now)}, l)
}

// Resolutions reports whether rolled blocks may answer.
func (k *Keeper) Resolutions() bool { return k.cfg.Resolutions }

// Ahead reports that there are blocks of hours after those that queries read, up to the given one.
func (k *Keeper) Ahead(upTo timegrid.Hour) bool {
	s := k.state.Load()
	if s == nil {
		return false
	}
	newest := s.newest(k.d.Now())
	return s.view.Any(newest+1, upTo)
}

func (k *Keeper) recent(now time.Time) timegrid.Hour {
	return timegrid.HourOf(now.Add(-k.d.Window).UnixMilli()) - 1
}

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
		at, ok := s.readAt(h)
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

// Renew makes everything that queries read from now on as new as this call, or newer. It follows the reading of how
// far the journal is rolled up: what that says to be in blocks must be in those that are seen.
func (k *Keeper) Renew(ctx context.Context) error {
	if k.state.Load() == nil {
		return nil
	}
	if err := k.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	k.dropOlder()
	k.turn.Release(1)
	return k.Refresh(ctx, k.recent(k.d.Now()), endless)
}

// dropOlder drops the hours before those that polls read. The caller holds turn, as the catalog is for one caller at a
// time.
func (k *Keeper) dropOlder() {
	old := k.state.Load()
	if len(old.read) == 0 {
		return
	}
	k.cat.Forget(old.open, endless)
	k.state.Store(&state{shards: old.shards, view: k.cat.View(), open: old.open, polled: old.polled, read: map[timegrid.Hour]time.Time{}})
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
	s := &state{shards: old.shards, view: view, open: old.open, polled: old.polled, read: make(map[timegrid.Hour]time.Time, len(old.read)+8)}
	for h, at := range old.read {
		s.read[h] = at
	}
	// The time is that before the listing, as the view is at least as new.
	switch {
	case err != nil:
	case to == endless:
		s.open, s.polled = from, started
		for h := old.open; h < from && !old.polled.IsZero(); h++ {
			s.read[h] = old.polled // it was open, and has left the recent ones
		}
	default:
		for h := from; h <= to; h++ {
			s.read[h] = started
		}
	}
	k.state.Store(s)
	return err
}

// endless is the end of hours that have none.
const endless = catalog.Endless

// Held says whether blocks have the batch in all of these hours; known is false when there are no blocks at all.
// It decides a live.Cover, is called under the live store's lock, and so never reads the store: an hour that was
// not read yet is read by the next poll.
func (k *Keeper) Held(id identity.Batch, hours []timegrid.Hour) (held, known bool) {
	s := k.state.Load()
	if s == nil {
		return false, false
	}
	for _, h := range hours {
		if _, ok := s.readAt(h); !ok {
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

// Missing is Needed for a caller that may wait: it reads the hours that were not read yet.
func (k *Keeper) Missing(ctx context.Context, id identity.Batch, minNS, maxNS int64) (bool, error) {
	if !k.Needed(id, minNS, maxNS) {
		return false, nil
	}
	first, last := timegrid.HourOfNS(minNS), timegrid.HourOfNS(maxNS)
	if last-first >= maxHours {
		return true, nil
	}
	// The batch may only seem missing because its hours were never read.
	if _, err := k.View(ctx, first, last); err != nil {
		return false, err
	}
	return k.Needed(id, minNS, maxNS), nil
}

// authority reads the authority's id and its number of shards; false when it has no blocks.
func (k *Keeper) authority(ctx context.Context) (id string, count uint32, ok bool, err error) {
	count, err = shards.Read(ctx, k.d.Store)
	if errors.Is(err, objstore.ErrNotFound) {
		return "", 0, false, nil
	}
	if err != nil {
		return "", 0, false, err
	}
	a, err := accept.ReadAuthority(ctx, k.d.Store)
	return a.AuthorityID, count, err == nil, err
}
