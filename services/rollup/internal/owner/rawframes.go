package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/backlog"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/storeclock"
)

const (
	// framesAtOnce bounds the batches whose frames are removed between two readings of what arrived,
	// framePages the pages of manifests that are listed, frameHours the hours that are opened.
	framesAtOnce = 500
	framePages   = 5
	frameHours   = 20
	// notesAtOnce bounds the notes of rewritten frames of a pass; the next continues behind them.
	notesAtOnce = 10_000
	// FramesFullEvery is how often all hours are gone through: late batches may have made new
	// generations of old ones.
	FramesFullEvery = 7 * 24 * time.Hour
	// FrameRetry is the time until a pass that failed continues.
	FrameRetry = 10 * time.Second
)

// FramesConfig of the removal of raw frames.
type FramesConfig struct {
	// Keep is how long frames stay after they are rolled up; 0 is for ever.
	Keep time.Duration
	// Interval between two passes.
	Interval time.Duration
	// AtOnce bounds the frames that are removed at once.
	AtOnce   int
	WorkerID string
	Clock    storeclock.Clock
}

// frameRemoval removes the raw frames of one shard, some at a time between two readings of
// what arrived. The shard's owner does it, because it knows which late batches wait, and no job of
// its own reads frames meanwhile.
type frameRemoval struct {
	FramesConfig
	store     objstore.Store
	log       *slog.Logger
	metrics   *metrics.Metrics
	authority string
	shard     shard.ID
	shards    uint32
	now       func() time.Time
	backlog   *backlog.Backlog

	remover *compact.FrameRemover
	done    *compact.FrameProgress // as it is in the store; nil: not read yet
	next    time.Time              // when to go on
	pass    *framePass             // under way; nil between two
	// notesAfter is the key of the last note of a rewritten frame that a pass took; "" begins again.
	notesAfter string
}

// framePass goes once through the hours whose frames are old enough.
type framePass struct {
	began  time.Time // by the store's clock
	limits compact.FrameLimits
	from   timegrid.Hour
	to     timegrid.Hour
	full   bool
	cursor string // of the listing
	listed bool   // to its end
	todo   []timegrid.Hour
	hour   *compact.FrameHour // under way, of todo[0]
	again  []timegrid.Hour    // that keep something which may go later
	// rewritten are the frames that duplicates wrote again, those of one hour together: their hours
	// may have been finished long ago.
	rewritten [][]compact.Rewritten
	rewriting *compact.FrameHour // under way, of rewritten[0]
	report    compact.FrameReport
}

// remove continues with the removal of frames that are old enough. The caller has taken
// everything that arrived, so that it is known which late batches wait.
func (r *frameRemoval) remove(ctx context.Context) error {
	if r.Keep == 0 {
		return nil
	}
	now := r.now()
	// A wait that is longer than any that is ever set was set before the clock went back.
	if now.Before(r.next) && now.After(r.next.Add(-r.Interval-FrameRetry)) {
		return nil
	}
	if err := r.step(ctx); err != nil {
		r.metrics.MaintenanceFails.WithLabelValues("raw_frames").Inc()
		r.next = now.Add(FrameRetry)
		return fmt.Errorf("removal of raw frames: %w", err)
	}
	return nil
}

// step lists some hours and removes some frames.
func (r *frameRemoval) step(ctx context.Context) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	p := r.pass
	removed := p.report.Batches
	defer func() { r.metrics.RemovedFrames.Add(float64(p.report.Batches - removed)) }()
	if err := r.list(ctx, p); err != nil {
		return err
	}
	opened := 0
	for ; len(p.rewritten) > 0 && opened < frameHours && p.report.Batches-removed < framesAtOnce; opened++ {
		if err := r.removeRewritten(ctx, p, framesAtOnce-(p.report.Batches-removed)); err != nil {
			return err
		}
	}
	for ; len(p.todo) > 0 && opened < frameHours && p.report.Batches-removed < framesAtOnce; opened++ {
		if err := r.removeHour(ctx, p, framesAtOnce-(p.report.Batches-removed)); err != nil {
			return err
		}
	}
	if len(p.rewritten) > 0 || len(p.todo) > 0 || !p.listed {
		return nil // the next round continues, so that rollups do not wait for this
	}
	return r.finish(ctx, p)
}

// begin begins a pass, unless one is under way.
func (r *frameRemoval) begin(ctx context.Context) (err error) {
	if r.pass != nil {
		return nil
	}
	if r.remover == nil {
		if r.remover, err = r.newRemover(); err != nil {
			return err
		}
	}
	if r.done == nil {
		if r.done, err = r.readProgress(ctx); err != nil {
			return err
		}
	}
	confirmed, err := r.Clock.Confirmed(ctx)
	if err != nil {
		return err
	}
	old := confirmed.Add(-r.Keep)
	p := &framePass{
		began: confirmed, limits: compact.FrameLimits{Ended: old, Rolled: old}, to: compact.LastEnded(old), from: hour.Earliest,
		full: confirmed.UnixNano()-r.done.Full >= int64(FramesFullEvery), report: compact.FrameReport{Kept: map[string]int{}},
	}
	// Between two full passes only hours are gone through that ended since, and those that kept
	// something.
	if !p.full {
		p.from, p.todo = r.done.Through+1, slices.Clone(r.done.Again)
		p.todo = slices.DeleteFunc(p.todo, func(h timegrid.Hour) bool { return h > p.to })
	}
	notes, next, err := r.remover.Notes(ctx, r.notesAfter, p.to, notesAtOnce, func(agent string) bool { return shard.Of(agent, r.shards) == r.shard })
	if err != nil {
		return err
	}
	for _, n := range notes {
		if k := len(p.rewritten) - 1; k >= 0 && p.rewritten[k][0].Hour == n.Hour {
			p.rewritten[k] = append(p.rewritten[k], n)
		} else {
			p.rewritten = append(p.rewritten, []compact.Rewritten{n})
		}
	}
	r.pass, r.notesAfter = p, next
	return nil
}

// list finds hours to open, while none is left.
func (r *frameRemoval) list(ctx context.Context, p *framePass) error {
	// The first pass goes through all hours there are, so only a few pages of them are in memory.
	if p.listed || len(p.todo) > 0 {
		return nil
	}
	found, next, err := r.remover.ShardHours(ctx, r.shard, p.from, p.to, p.cursor, framePages)
	if err != nil {
		return err
	}
	for _, at := range found {
		if !r.done.Done(at) {
			p.todo = append(p.todo, at.Hour)
		}
	}
	p.cursor, p.listed = next, next == ""
	return nil
}

// removeHour removes up to limit frames of the next hour.
func (r *frameRemoval) removeHour(ctx context.Context, p *framePass, limit int) (err error) {
	h := p.todo[0]
	if p.hour == nil {
		if p.hour, err = r.remover.Open(ctx, r.shard, h, p.limits); err != nil {
			return fmt.Errorf("hour %s: %w", h, err)
		}
	}
	done, err := p.hour.Step(ctx, limit, false, &p.report)
	if err != nil {
		return fmt.Errorf("hour %s: %w", h, err)
	}
	if done {
		if p.hour.KeepsRemovable() && !slices.Contains(p.again, h) {
			p.again = append(p.again, h)
		}
		p.report.Hours++
		p.hour, p.todo = nil, p.todo[1:]
	}
	return nil
}

// removeRewritten removes up to limit frames of the next hour that duplicates wrote again.
func (r *frameRemoval) removeRewritten(ctx context.Context, p *framePass, limit int) (err error) {
	h := p.rewritten[0][0].Hour
	if p.rewriting == nil {
		if p.rewriting, err = r.remover.Open(ctx, r.shard, h, p.limits); err != nil {
			return fmt.Errorf("rewritten frames of %s: %w", h, err)
		}
		p.rewriting.Only(p.rewritten[0])
	}
	done, err := p.rewriting.Step(ctx, limit, false, &p.report)
	if err == nil && done {
		err = p.rewriting.DeleteNotes(ctx, &p.report)
	}
	if err != nil {
		return fmt.Errorf("rewritten frames of %s: %w", h, err)
	}
	if done {
		p.rewriting, p.rewritten = nil, p.rewritten[1:]
	}
	return nil
}

// finish writes down how far the pass came.
func (r *frameRemoval) finish(ctx context.Context, p *framePass) error {
	next := compact.FrameProgress{AuthorityID: r.authority, Shard: r.shard, Through: p.to, Since: r.done.Since, Full: r.done.Full,
		Keep: p.began.Sub(p.limits.Ended), Again: p.again}
	// Keep holds for every hour that any pass went through, so it is the shortest retention of all
	// of them.
	if r.done.Full > 0 {
		next.Keep = min(next.Keep, r.done.Keep)
	}
	if p.full {
		next.Since, next.Full = p.began.UnixNano(), p.began.UnixNano()
	}
	slices.Sort(next.Again)
	if p.report.Batches > 0 || len(p.report.Kept) > 0 {
		r.log.Info("retention removed raw frames", "shard", r.shard, "before", p.limits.Ended.UTC(), "hours", p.report.Hours, "batches", p.report.Batches,
			"bytes", p.report.Bytes, "rewritten", p.report.Rewritten, "kept", p.report.Kept)
	}
	// Where too many hours wait for the record, the next pass goes through all of them again.
	if len(next.Again) <= compact.MaxFramesAgain && next.Through >= r.done.Through {
		if _, err := r.store.Put(ctx, next.Key(), next.Marshal(), objstore.PutOptions{ContentType: "application/json"}); err != nil {
			return fmt.Errorf("put %q: %w", next.Key(), err)
		}
		r.done = &next
	}
	r.pass, r.next = nil, r.now().Add(r.Interval)
	return nil
}

// readProgress reads how far the passes before came. Without a record that can be read nothing is
// done: to go through all hours again costs requests, and removes nothing that it should not.
func (r *frameRemoval) readProgress(ctx context.Context) (*compact.FrameProgress, error) {
	key := layout.RollupFrames(r.shard)
	none := &compact.FrameProgress{AuthorityID: r.authority, Shard: r.shard, Through: hour.Earliest}
	b, _, err := r.store.Get(ctx, key, objstore.GetOptions{Limit: int64(compact.FrameProgressKind.MaxBytes)})
	if errors.Is(err, objstore.ErrNotFound) {
		return none, nil
	}
	var p compact.FrameProgress
	if err == nil {
		p, err = compact.ParseFrameProgress(b)
	}
	switch {
	case record.Unreadable(err):
		r.log.Error("the note of removed raw frames can't be read; all hours are gone through again", "key", key, "error", err)
		return none, nil
	case err != nil:
		return nil, fmt.Errorf("read %q: %w", key, err)
	case p.AuthorityID != r.authority || p.Shard != r.shard:
		r.log.Error("the note of removed raw frames is another's; all hours are gone through again", "key", key, "authority", p.AuthorityID, "shard", p.Shard)
		return none, nil
	}
	return &p, nil
}

func (r *frameRemoval) newRemover() (*compact.FrameRemover, error) {
	return compact.NewFrameRemover(compact.FrameConfig{
		Store: r.store, AuthorityID: r.authority, By: r.WorkerID, Now: r.now,
		Pending: func(_ shard.ID, h timegrid.Hour) bool { return r.backlog.Hour(h) != nil },
		Each:    run.Each(r.AtOnce),
	})
}
