package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/arrivals"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/backlog"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/overlaps"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/schedule"
)

// Snapshots are handed what arrives, so that it is not read twice. Nil makes none.
type Snapshots interface{ Offer([]accepted.Batch) }

const (
	// perRound bounds the batches that are taken between two checks which hours are due.
	perRound = 5_000
	// maxDeferred bounds the batches that can't be taken now. Where there are more, the owner catches up later.
	maxDeferred = 2 * progress.MaxPending
	// maxStates bounds the hours whose records are kept while the owner catches up.
	maxStates = 64
	// catchUpPause is the time between two attempts to catch up, and roomPause that after one for which there was no room.
	catchUpPause = time.Minute
	roomPause    = 5 * time.Minute
)

// Follower takes what arrives for one shard into its backlog: first what is pending in the record of the shard's
// progress and what the journal has after its positions, then what the worker's hub queues.
type Follower struct {
	ownership.Grant
	hub       *arrivals.Hub
	queue     *arrivals.Queue // nil: not opened yet
	frames    *frames.Reader
	records   hour.Records
	backlog   *backlog.Backlog
	overlaps  overlaps.Finder
	snapshots Snapshots
	metrics   *metrics.Metrics
	log       *slog.Logger
	now       func() time.Time
	schedule  schedule.Policy
	// recheck is the time until batches that were evicted are looked for again.
	recheck time.Duration
	// room is how many more batches may be pending.
	room  func() int
	saved keeper

	// behind: the journal has something that this owner may not know of.
	behind bool
	// through are the newest positions through which everything was taken, while not behind.
	through     journal.Positions
	losses      uint64           // how often something was forgotten
	recheckedAt time.Time        // when evicted batches were looked for last
	nextTry     time.Time        // to catch up
	deferred    []accepted.Batch // that can't be taken now, or for which there was no room
	retryAt     time.Time
	unreadAt    time.Time // when batches whose hours are not all known are tried again
	knownHours  map[timegrid.Hour]*hour.State
}

// Follow takes what has arrived, as much as there is room for, and catches up where that is needed. more: there may be
// other batches at once.
func (f *Follower) Follow(ctx context.Context) (more bool, err error) {
	if f.queue == nil {
		var sink func([]accepted.Batch)
		if f.snapshots != nil {
			sink = f.snapshots.Offer
		}
		f.queue = f.hub.Open(f.Shard, sink)
	}
	if err := f.load(ctx); err != nil {
		return false, err
	}
	if f.room() == 0 {
		return false, nil
	}
	err = errors.Join(f.retryDeferred(ctx), f.retryUnread(ctx))
	if f.backlog.Evicted() > 0 && f.now().Sub(f.recheckedAt) >= f.recheck {
		f.recheckedAt = f.now()
		f.backlog.ForgetEvicted()
		f.lose("batches that were evicted are tried again")
	}
	if f.behind && !f.now().Before(f.nextTry) {
		err = errors.Join(err, f.catchUp(ctx))
	}
	for n := 0; n < perRound; {
		room := f.room()
		if room == 0 || ctx.Err() != nil {
			return false, err
		}
		batches, through, lost := f.queue.Take(min(room, perRound-n))
		switch {
		case lost:
			f.lose("what arrived had no room, or the journal went back")
			return true, err
		case through != nil:
			f.mark(*through)
		case len(batches) == 0:
			return false, err
		default:
			n += len(batches)
			if terr := f.take(ctx, batches, false); terr != nil {
				f.deferAll(batches)
				return false, errors.Join(err, terr)
			}
		}
	}
	return true, err
}

// load reads the record of the shard's progress: at first, and after somebody else may have written it.
func (f *Follower) load(ctx context.Context) error {
	changed, err := f.saved.load(ctx, f.now())
	if err != nil || !changed {
		return err
	}
	f.through = journal.Positions{}
	f.behind, f.nextTry = true, time.Time{}
	return nil
}

// lose notes that the journal has what this owner does not know of.
func (f *Follower) lose(why string) {
	f.behind = true
	f.through = journal.Positions{}
	f.losses++
	f.saved.forgetMarks()
	f.log.Warn("the shard catches up with the journal", "shard", f.Shard, "why", why)
}

// catchUp takes what the journal has after the record's positions.
func (f *Follower) catchUp(ctx context.Context) error {
	f.nextTry = f.now().Add(catchUpPause)
	f.saved.forgetMarks()
	losses := f.losses
	f.knownHours = map[timegrid.Hour]*hour.State{}
	defer func() { f.knownHours = nil }()
	f.metrics.CatchUps.Inc()
	var through journal.Positions
	// What the record names may lie before its positions.
	err := f.takeOld(ctx, f.saved.record.Pending)
	if err == nil {
		through, err = f.hub.CatchUp(ctx, f.Shard, f.saved.record.Positions, func(batches []accepted.Batch) error { return f.takeOld(ctx, batches) })
	}
	// A reading for several shards begins with the earliest positions, which hides that those of one are beyond the head.
	if err == nil && through.Head < f.saved.record.Positions.Head {
		err = fmt.Errorf("%w: from %d to %d", journal.ErrHeadWentBack, f.saved.record.Positions.Head, through.Head)
	}
	switch {
	case errors.Is(err, journal.ErrHeadWentBack):
		// The bucket is an older copy of the one that the record is of, so the record says nothing.
		f.log.Error("the record of the shard's progress is of a newer journal than the bucket's; everything is read", "shard", f.Shard)
		f.saved.record.Positions, f.nextTry = journal.Positions{}, time.Time{}
		return err
	case errors.Is(err, errNoRoom):
		f.nextTry = f.now().Add(roomPause) // there is more when there is room again
		return nil
	case err != nil:
		return err
	}
	// What could not be taken now may have been too much to remember.
	if f.losses > losses {
		return nil
	}
	f.behind = false
	f.mark(through)
	return nil
}

// errNoRoom ends the reading of the journal: what it has would have to be remembered.
var errNoRoom = errors.New("no room for more batches")

// takeOld takes batches of the journal that may be covered by blocks.
func (f *Follower) takeOld(ctx context.Context, batches []accepted.Batch) error {
	if f.snapshots != nil {
		f.snapshots.Offer(batches)
	}
	for len(batches) > 0 {
		n := min(len(batches), f.room())
		if n == 0 {
			return errNoRoom
		}
		if err := f.take(ctx, batches[:n], true); err != nil {
			return err
		}
		batches = batches[n:]
	}
	return nil
}

// retryDeferred tries the batches again that could not be taken.
func (f *Follower) retryDeferred(ctx context.Context) error {
	if len(f.deferred) == 0 || f.now().Before(f.retryAt) {
		return nil
	}
	// What is taken now stands behind the marks of the backlog, though it came before them.
	f.saved.forgetMarks()
	batches := f.deferred
	f.deferred = nil
	for len(batches) > 0 {
		n := min(len(batches), perRound, f.room())
		if n == 0 {
			break
		}
		if err := f.take(ctx, batches[:n], false); err != nil {
			f.deferAll(batches)
			f.retryAt = f.now().Add(f.schedule.RetryBase)
			return err
		}
		batches = batches[n:]
	}
	f.deferAll(batches)
	return nil
}

// unreadAtOnce bounds the batches whose frames are tried at once for the hours that they have.
const unreadAtOnce = 64

// retryUnread asks the frames that could not be read when their batches came, which hours they have besides the first
// and the last. Blocks of those have them by now.
func (f *Follower) retryUnread(ctx context.Context) error {
	if f.now().Before(f.unreadAt) {
		return nil
	}
	batches := f.backlog.Unread(unreadAtOnce)
	if len(batches) == 0 {
		return nil
	}
	f.unreadAt = f.now().Add(backlog.UnreadableWait)
	f.knownHours = map[timegrid.Hour]*hour.State{}
	defer func() { f.knownHours = nil }()
	return f.take(ctx, batches, true)
}

// deferAll keeps batches that can't be taken now.
func (f *Follower) deferAll(batches []accepted.Batch) {
	if len(f.deferred)+len(batches) > maxDeferred {
		f.lose("too many batches can't be taken now")
		return
	}
	f.deferred = append(f.deferred, batches...)
}

// wanted are a batch and the hours that it is to be an input of.
type wanted struct {
	accepted.Batch
	hours []timegrid.Hour
	know  backlog.Knowledge
}

// take enters batches into the backlog, and those that overlap them. check: blocks may cover them already, so
// their hours are asked first. After an error nothing was entered, and the same batches may be taken again.
func (f *Follower) take(ctx context.Context, batches []accepted.Batch, check bool) error {
	fresh := make([]accepted.Batch, 0, len(batches))
	for _, e := range batches {
		if !f.backlog.Knows(e.Identity) && !f.backlog.WasEvicted(e.Identity) {
			fresh = append(fresh, e)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	pairs, err := f.overlaps.Find(ctx, fresh)
	if err != nil {
		return err
	}
	want, again := f.wants(ctx, fresh, pairs)
	if check {
		if err := f.uncovered(ctx, want); err != nil {
			return err
		}
	}
	now := f.now()
	for _, w := range want {
		if n := len(w.hours); n > 0 && f.schedule.FarAhead(w.hours[n-1], now) && !f.backlog.Has(w.Identity) {
			f.metrics.Ahead.Inc()
		}
		f.backlog.Add(w.Batch, w.hours, w.know, now)
	}
	f.metrics.Arrived.Add(float64(len(fresh)))
	f.deferAll(again)
	return nil
}

// wants gives the hours of the batches, and of those that overlap them: each hour that one of a pair has samples in
// needs both. again are batches whose hours can't be found now.
func (f *Follower) wants(ctx context.Context, fresh []accepted.Batch, pairs []overlaps.Pair) (want []*wanted, again []accepted.Batch) {
	by := make(map[identity.Batch]*wanted, len(fresh))
	enter := func(e accepted.Batch, hs []timegrid.Hour, know backlog.Knowledge) {
		w := by[e.Identity]
		if w == nil {
			w = &wanted{Batch: e}
			by[e.Identity] = w
			want = append(want, w)
		}
		w.know = max(w.know, know)
		w.hours = append(w.hours, hs...)
		slices.Sort(w.hours)
		w.hours = slices.Compact(w.hours)
	}
	failed := map[identity.Batch]bool{}
	hours := func(of, e accepted.Batch) (hs []timegrid.Hour, know backlog.Knowledge, ok bool) {
		hs, all, err := f.frames.Hours(ctx, e)
		if err != nil {
			// The frame of one wide batch can't be read now; the others go on.
			f.log.Warn("a batch can't be taken now and is tried again; others go on", "shard", f.Shard, "batch", of.Identity, "error", err)
			f.retryAt = f.now().Add(f.schedule.RetryBase)
			if !failed[of.Identity] {
				failed[of.Identity] = true
				again = append(again, of)
			}
			return nil, 0, false
		}
		if !all {
			return hs, backlog.Ends, true
		}
		return hs, backlog.All, true
	}
	others := make([][]timegrid.Hour, len(pairs))
	for i, p := range pairs {
		others[i], _, _ = hours(p.Batch, p.With)
	}
	own := make(map[identity.Batch][]timegrid.Hour, len(fresh))
	for _, e := range fresh {
		if failed[e.Identity] {
			continue
		}
		if hs, know, ok := hours(e, e); ok {
			own[e.Identity] = hs
			enter(e, hs, know)
		}
	}
	for i, p := range pairs {
		mine, ok := own[p.Batch.Identity]
		if !ok {
			continue // it is tried again, and the pair with it
		}
		enter(p.With, mine, backlog.Shared)
		enter(p.Batch, others[i], backlog.Shared)
		f.metrics.Overlaps.Inc()
	}
	return want, again
}

// uncovered leaves out the hours whose blocks have the batch.
func (f *Follower) uncovered(ctx context.Context, want []*wanted) error {
	for _, w := range want {
		var open []timegrid.Hour
		for _, h := range w.hours {
			st, err := f.stateOf(ctx, h)
			if err != nil {
				return err
			}
			if st == nil || !st.Covers(w.Identity) {
				open = append(open, h)
			}
		}
		w.hours = open
	}
	return nil
}

// stateOf gives what is published of an hour; nil where its records can't be read.
func (f *Follower) stateOf(ctx context.Context, h timegrid.Hour) (*hour.State, error) {
	if st, ok := f.knownHours[h]; ok {
		return st, nil
	}
	st, err := f.records.State(ctx, h, f.Shard, nil)
	if record.Unreadable(err) {
		f.metrics.Damage(err)
		st, err = nil, nil // its batches wait in the backlog until an operator has dealt with it
	}
	if err != nil {
		return nil, err
	}
	if len(f.knownHours) >= maxStates {
		clear(f.knownHours)
	}
	f.knownHours[h] = st
	return st, nil
}

// mark notes that everything through the positions is covered, in the backlog or deferred.
func (f *Follower) mark(at journal.Positions) {
	if !f.behind {
		f.through = at
		f.saved.mark(f.backlog.Mark(), at, f.now())
	}
}

// Save writes the record of the shard's progress when that is due. published: something was covered since the last call;
// calm: there is nothing more to do at once.
func (f *Follower) Save(ctx context.Context, published, calm bool) error {
	return f.save(ctx, published, calm, false)
}

func (f *Follower) save(ctx context.Context, published, calm, last bool) error {
	if f.behind {
		f.saved.forgetMarks() // something before them is known to nobody
	}
	f.saved.published = f.saved.published || published
	return f.saved.save(ctx, f.pendingBefore, f.now(), calm, last)
}

// pendingBefore gives everything that is not covered and was known at a mark, if that is not too much.
func (f *Follower) pendingBefore(mark uint64) ([]accepted.Batch, bool) {
	out, ok := f.backlog.Before(mark, progress.MaxPending)
	if !ok || len(f.deferred) == 0 {
		return out, ok
	}
	out = append(out, f.deferred...)
	slices.SortFunc(out, func(x, y accepted.Batch) int { return x.Identity.Compare(y.Identity) })
	out = slices.CompactFunc(out, func(x, y accepted.Batch) bool { return x.Identity == y.Identity })
	return out, len(out) <= progress.MaxPending
}

// End writes the record once more for the next owner, and takes nothing any more.
func (f *Follower) End(ctx context.Context) error {
	if f.queue != nil {
		f.queue.Close()
	}
	if f.Taken() != nil {
		return nil // the next owner is at work already
	}
	return f.save(ctx, false, true, true)
}

// Complete reports whether every batch of the shard that was accepted is known to be covered, or pending.
func (f *Follower) Complete() bool {
	return f.queue != nil && !f.behind && f.backlog.Evicted() == 0 && len(f.deferred) == 0
}

// ReadThrough gives the positions at or before which every batch of the shard is pending in its hours, or covered there;
// false while there may be one that is not.
func (f *Follower) ReadThrough() (journal.Positions, bool) {
	return f.through, f.Complete() && !f.through.IsZero()
}

// Deferred is the number of batches that can't be taken now.
func (f *Follower) Deferred() int { return len(f.deferred) }

// ClockWentBack keeps nothing waiting for where the clock was.
func (f *Follower) ClockWentBack(now time.Time) {
	f.nextTry, f.retryAt, f.unreadAt = time.Time{}, time.Time{}, time.Time{}
	if f.recheckedAt.After(now) {
		f.recheckedAt = now
	}
	f.saved.clockWentBack(now)
}
