package blocks

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Run polls until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	g := run.NewGroup(ctx)
	g.Go("blocks", func(ctx context.Context) error { return k.every(ctx, k.cfg.Poll, k.Poll, "blocks") })
	g.Go("intake", func(ctx context.Context) error { return k.every(ctx, k.cfg.Intake, k.PollIntake, "intake") })
	return g.Wait()
}

// soon is the wait until the first pass has succeeded, and after a failure.
const soon = time.Second

// every polls until ctx ends.
func (k *Keeper) every(ctx context.Context, wait time.Duration, poll func(context.Context) (bool, error), what string) error {
	for {
		done, err := poll(ctx)
		if err != nil && ctx.Err() == nil {
			k.m.failed.Inc()
			k.d.Log.Warn("poll failed", "of", what, "error", err)
		}
		d := wait
		if err != nil || !done {
			d = min(wait, soon)
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

// Poll reads the blocks of recent hours, and of those that late batches wait for. It reports that there is nothing
// left to do until the next poll.
func (k *Keeper) Poll(ctx context.Context) (bool, error) {
	if k.state.Load() == nil {
		id, first, ok, err := k.authority(ctx)
		if err != nil {
			return false, err
		}
		if !ok {
			// An authority without rollups has no blocks to wait for, so nothing may be held up by them.
			k.firstPollOnce.Do(func() { close(k.firstPoll) })
			return true, nil
		}
		cat, err := catalog.New(catalog.Config{Reader: k.d.Store, AuthorityID: id})
		if err != nil {
			return false, err
		}
		k.cat = cat
		for s := range first.shards {
			k.intake = append(k.intake, intake.NewReader(k.d.Store, shard.ID(s)))
		}
		first.view, first.read = cat.View(), map[timegrid.Hour]time.Time{}
		k.state.Store(&first)
	}
	now := k.d.Now()
	// Deltas are listed before any hour is read: what leaves them afterwards is in the blocks that are read then.
	if !k.deltas.Load() {
		if err := k.RefreshDeltas(ctx); err != nil {
			return false, err
		}
		k.deltas.Store(true)
	}
	if err := k.refreshHours(ctx, k.recent(now), k.newest(now)); err != nil {
		return false, err
	}
	if err := k.refreshWanted(ctx, now); err != nil {
		return false, err
	}
	k.forget(now)
	k.firstPollOnce.Do(func() { close(k.firstPoll) })
	return true, nil
}

// refreshWanted reads the older hours of late batches, neighbouring hours with one listing.
func (k *Keeper) refreshWanted(ctx context.Context, now time.Time) error {
	k.mu.Lock()
	hours := slices.Sorted(maps.Keys(k.wanted))
	clear(k.wanted) // batches that still wait ask again
	k.mu.Unlock()
	recent, newest := k.recent(now), k.newest(now)
	for i := 0; i < len(hours); {
		j := i + 1
		// A small hole is read too: one listing of a few hours more is cheaper than two.
		for j < len(hours) && hours[j] <= hours[j-1]+2 {
			j++
		}
		from, to := hours[i], hours[j-1]
		i = j
		s := k.state.Load()
		if first, last, stale := k.stale(s, from, to); stale && (first < recent || last > newest) {
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
	recent, newest := k.recent(now), k.newest(now)
	old := k.state.Load()
	s := &state{shards: old.shards, began: old.began, read: map[timegrid.Hour]time.Time{}}
	for h, at := range old.read {
		if h >= recent && h <= newest {
			s.read[h] = at
		}
	}
	if len(s.read) == len(old.read) {
		return
	}
	// Under turn, because the catalog is for one caller at a time.
	k.cat.Forget(recent, newest)
	s.view = k.cat.View()
	k.state.Store(s)
}

// PollIntake reads new segments of the intake for batches before the window that no block has, and takes them. It
// reports that it has read everything.
func (k *Keeper) PollIntake(ctx context.Context) (bool, error) {
	select {
	case <-k.firstPoll:
	default:
		return false, nil // without the blocks every batch would look missing
	}
	if k.state.Load() == nil {
		return true, nil
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(min(k.cfg.Parallel, 8))
	for _, r := range k.intake {
		g.Go(func() error {
			_, err := r.Poll(gctx, 0, func(key string) error { return k.readSegment(gctx, key) })
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return false, err
	}
	// A late batch that left the intake while it was read is in a delta by then.
	if err := k.RefreshDeltas(ctx); err != nil {
		return false, err
	}
	// Only when every shard was read to its end: before that a batch may wait in an unread segment.
	k.known.Store(true)
	return true, nil
}

// readSegment takes the batches of a segment that must be kept in memory.
func (k *Keeper) readSegment(ctx context.Context, key string) error {
	seg, err := intake.ReadSegment(ctx, k.d.Store, key)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil // deleted since it was listed: every batch in it is published
	case record.Opaque(err):
		// Reading continues, but the node can no longer say that it knows every batch, so its answers say so.
		k.d.Log.Warn("intake segment can't be read: what is not rolled up is not known", "key", key, "error", err)
		k.damaged.Store(true)
		return nil
	case err != nil:
		return err
	}
	for _, e := range seg.Entries {
		if e.MaxTime >= k.d.Now().Add(-k.d.Window).UnixNano() || !k.Needed(e.Identity, e.MinTime, e.MaxTime) {
			continue
		}
		// The batch may only seem missing because its hours were never read: read them, and ask again.
		if err := k.readHours(ctx, e); err != nil {
			return err
		}
		if !k.Needed(e.Identity, e.MinTime, e.MaxTime) {
			continue
		}
		if err := k.d.Take(ctx, layout.Accepted(e.Identity)); err != nil {
			return err
		}
	}
	return nil
}

// readHours reads the blocks of an entry's hours if they were never read.
func (k *Keeper) readHours(ctx context.Context, e accepted.Batch) error {
	first, last := e.Hours()
	if last-first >= maxHours {
		return nil
	}
	_, err := k.View(ctx, first, last)
	return err
}
