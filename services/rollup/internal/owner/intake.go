package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/backlog"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/schedule"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/segments"
)

// deletesDown is how many deletes, one after the other, a store may leave without an answer
// before the others wait for the next round: each of them may wait for its deadline.
const deletesDown = 3

// Snapshots are handed what is read of the intake, so that it is not read twice. Nil makes none.
type Snapshots interface{ Offer([]accepted.Batch) }

// Follower reads the intake of one shard into its backlog.
type Follower struct {
	store     objstore.Store
	segments  segments.Reader
	frames    *frames.Reader
	backlog   *backlog.Backlog
	snapshots Snapshots
	metrics   *metrics.Metrics
	log       *slog.Logger
	now       func() time.Time
	schedule  schedule.Policy
	shard     shard.ID
	// recheck is the time between two rescans of the whole intake.
	recheck time.Duration
	hasRoom func() bool

	reader *intake.Reader
	// rescan reads all segments again, those that the backlog knows excepted; nil between two.
	rescan   *intake.Reader
	rescanAt time.Time // when the last rescan ended, or the ownership began
	// unusable is how many segments the last scan left where they are. Nobody knows what
	// batches they name.
	unusable int
}

// Follow reads new segments, as many as there is room for, and from time to time those again
// that the backlog does not know. more: there may be others at once.
func (f *Follower) Follow(ctx context.Context) (more bool, err error) {
	if !f.hasRoom() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, segments.PollTimeout)
	defer cancel()
	take := func(key string) error { return f.take(ctx, key) }
	more, err = f.reader.Poll(ctx, segments.PerPoll, take)
	if err == nil && !more {
		more, err = f.scanAgain(ctx, take)
	}
	if errors.Is(err, segments.ErrNoRoom) {
		return false, nil
	}
	return more, err
}

// scanAgain reads all segments that the backlog does not know: those of evicted batches, those
// that could not be read, and any that appeared late.
func (f *Follower) scanAgain(ctx context.Context, take func(string) error) (more bool, err error) {
	if f.rescan == nil {
		if f.now().Sub(f.rescanAt) < f.recheck {
			return false, nil
		}
		f.rescan = intake.NewReader(f.store, f.shard)
		f.backlog.ForgetEvicted()
		f.unusable = 0
	}
	more, err = f.rescan.Poll(ctx, segments.PerPoll, take)
	if err == nil && !more {
		f.rescan, f.rescanAt = nil, f.now()
	}
	return more, err
}

// take reads one segment into the backlog.
func (f *Follower) take(ctx context.Context, key string) error {
	if f.backlog.Knows(key) {
		return nil
	}
	if !f.hasRoom() {
		return segments.ErrNoRoom
	}
	seg, err := f.segments.Read(ctx, key)
	var foreign *segments.ForeignError
	switch {
	case errors.Is(err, record.ErrCorrupt):
		f.leave(ctx, "corrupt", key, err)
		return nil
	case errors.As(err, &foreign):
		f.leave(ctx, "foreign", key, err)
		return nil
	case errors.Is(err, objstore.ErrNotFound):
		return nil // a former owner deleted it
	case err != nil:
		return f.deferred(key, err)
	}
	now := f.now()
	hours := make(map[identity.Batch][]timegrid.Hour, len(seg.Entries))
	ahead := 0
	for _, e := range seg.Entries {
		hs, err := f.frames.Hours(ctx, e)
		if err != nil && ctx.Err() == nil {
			// The frame of one wide batch can't be read now; segments behind this one go on.
			err = fmt.Errorf("%w: %w", intake.ErrLater, err)
		}
		if err != nil {
			return f.deferred(key, err)
		}
		hours[e.Identity] = hs
		if len(hs) > 0 && f.schedule.FarAhead(hs[len(hs)-1], now) && !f.backlog.Has(e.Identity) {
			ahead++
		}
	}
	f.metrics.Segments.WithLabelValues("read").Inc()
	f.metrics.Ahead.Add(float64(ahead))
	if f.snapshots != nil {
		f.snapshots.Offer(seg.Entries)
	}
	f.backlog.AddSegment(key, seg.Entries, func(e accepted.Batch) []timegrid.Hour { return hours[e.Identity] }, now)
	return nil
}

// leave tells of a segment that is not one of this authority's. The reconcilers' ledgers have
// the batches that it was to name, so no reconciler lists them again: an operator has to.
func (f *Follower) leave(ctx context.Context, what, key string, err error) {
	f.unusable++
	f.metrics.Segments.WithLabelValues(what).Inc()
	written := "unknown"
	if info, herr := f.store.Head(ctx, key); herr == nil {
		written = info.LastModified.UTC().Format(time.RFC3339)
	}
	f.log.Error("intake segment is "+what+" and is left alone; lmctl reprocess enters what was accepted until it was written", "key", key, "written", written, "error", err)
}

// deferred tells of a segment that can't be taken now.
func (f *Follower) deferred(key string, err error) error {
	if errors.Is(err, intake.ErrLater) {
		f.metrics.Segments.WithLabelValues("deferred").Inc()
		f.log.Warn("intake segment can't be taken now and is tried again; others go on", "key", key, "error", err)
	}
	return err
}

// Deferred is the number of segments that can't be taken now.
func (f *Follower) Deferred() int { return f.reader.Deferred() }

// Complete reports whether every batch that waits in the intake is known to be pending: nothing
// is being scanned, deferred, evicted or unusable.
func (f *Follower) Complete() bool {
	return f.rescan == nil && f.unusable == 0 && f.backlog.Evicted() == 0 && f.reader.Deferred() == 0
}

// ClockWentBack keeps the next rescan from waiting for where the clock was.
func (f *Follower) ClockWentBack(now time.Time) {
	if f.rescanAt.After(now) {
		f.rescanAt = now
	}
}

// DeleteSpent deletes segments whose batches are covered in all their hours.
func (f *Follower) DeleteSpent(ctx context.Context) (err error) {
	down := 0
	for _, key := range f.backlog.Spent() {
		if derr := f.store.Delete(ctx, key); derr != nil {
			// One that may not be deleted keeps none of the others.
			err = fmt.Errorf("delete %q: %w", key, derr)
			if down++; down == deletesDown {
				return err
			}
			continue
		}
		f.metrics.Segments.WithLabelValues("deleted").Inc()
		f.backlog.Deleted(key)
	}
	return err
}
