package blocks

import (
	"context"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// soon is the wait after a failure.
const soon = time.Second

// Run polls until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		err := k.Poll(ctx)
		if err != nil && ctx.Err() == nil {
			k.m.failed.Inc()
			k.d.Log.Warn("poll of the blocks failed", "error", err)
		}
		d := k.cfg.Poll
		if err != nil {
			d = min(d, soon)
		}
		t := time.NewTimer(d)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}

// Poll reads the blocks of recent hours and of all later ones, and those of hours that late batches wait for.
func (k *Keeper) Poll(ctx context.Context) error {
	if k.state.Load() == nil {
		id, shards, ok, err := k.authority(ctx)
		if err != nil {
			return err
		}
		if !ok {
			// An authority without rollups has no blocks to wait for, so nothing may be held up by them.
			k.firstPollOnce.Do(func() { close(k.firstPoll) })
			return nil
		}
		cat, err := catalog.New(catalog.Config{Reader: k.d.Store, AuthorityID: id, Each: k.each, Copies: true, Unusable: func(key string, err error) {
			// The records are read one by one instead, which takes longer and changes no answer.
			k.d.Log.Warn("copies of block records can't be read", "key", key, "error", err)
		}})
		if err != nil {
			return err
		}
		k.cat = cat
		select {
		case <-k.firstPoll:
			k.later.Store(true)
		default:
		}
		k.state.Store(&state{shards: shards, view: cat.View(), read: map[timegrid.Hour]time.Time{}})
	}
	now := k.d.Now()
	// Deltas are listed before any hour is read: what leaves them afterwards is in the blocks that are read then.
	if k.deltasAt.IsZero() || now.Sub(k.deltasAt) >= k.cfg.TTL {
		if err := k.RefreshDeltas(ctx); err != nil {
			return err
		}
		k.deltasAt = now
	}
	if err := k.refreshHours(ctx, k.recent(now), endless); err != nil {
		return err
	}
	if err := k.refreshWanted(ctx, now); err != nil {
		return err
	}
	k.forget(now)
	k.firstPollOnce.Do(func() { close(k.firstPoll) })
	return nil
}

// each runs the requests of a refresh, several at once.
func (k *Keeper) each(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(k.cfg.Parallel)
	for i := range n {
		g.Go(func() error { return fn(gctx, i) })
	}
	return g.Wait()
}

// refreshWanted reads the older hours of late batches, neighbouring hours with one listing.
func (k *Keeper) refreshWanted(ctx context.Context, now time.Time) error {
	k.mu.Lock()
	hours := slices.Sorted(maps.Keys(k.wanted))
	clear(k.wanted) // batches that still wait ask again
	k.mu.Unlock()
	recent := k.recent(now)
	for i := 0; i < len(hours); {
		j := i + 1
		// A small hole is read too: one listing of a few hours more is cheaper than two.
		for j < len(hours) && hours[j] <= hours[j-1]+2 {
			j++
		}
		from, to := hours[i], hours[j-1]
		i = j
		s := k.state.Load()
		if first, last, stale := k.stale(s, from, to); stale && first < recent {
			if err := k.refreshHours(ctx, first, last); err != nil {
				// All of them, also those that were read: the list was cleared above, and an hour that is fresh
				// costs nothing.
				for _, h := range hours {
					k.want(h)
				}
				return err
			}
		}
	}
	return nil
}

// idle is how long older hours are kept after the last query that asked for one.
const idle = 10 * time.Minute

// forget drops older hours that no query has asked for lately.
func (k *Keeper) forget(now time.Time) {
	k.mu.Lock()
	busy := now.Sub(k.asked) < idle
	k.mu.Unlock()
	// A refresh that is running means that somebody asks.
	if busy || !k.turn.TryAcquire(1) {
		return
	}
	defer k.turn.Release(1)
	k.dropOlder()
}
