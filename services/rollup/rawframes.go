package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Raw frames are removed by the owner of their agents' shard, between two looks at its
// intake: it knows which late batches wait, and no job of its own reads frames meanwhile.

const (
	// framesAtOnce bounds the batches whose frames are removed between two looks at the
	// intake, framePages the pages of manifests that are listed, frameHours the hours.
	framesAtOnce = 500
	framePages   = 5
	frameHours   = 20
	// framesFullEvery is how often all hours are looked at: late batches may have made old ones anew.
	framesFullEvery = 7 * 24 * time.Hour
)

// rawFrames is a shard's state of the removal of raw frames.
type rawFrames struct {
	remover *compact.FrameRemover
	done    *compact.FrameProgress // as it is in the store; nil: not read yet
	next    time.Time              // when to go on
	pass    *framePass             // under way; nil between two
}

// framePass is one look at the hours whose frames are old enough.
type framePass struct {
	began  time.Time // by the store's clock
	lim    compact.FrameLimits
	to     timegrid.Hour
	from   timegrid.Hour
	full   bool
	cursor string
	listed bool
	todo   []timegrid.Hour
	hour   *compact.FrameHour // under way, of todo[0]
	again  []timegrid.Hour
	rep    compact.FrameReport
}

// removeFrames goes on with the removal of raw frames that are old enough. idle: nothing
// of the intake is left to read, so that it is known which late batches wait.
func (o *owner) removeFrames(ctx context.Context, idle bool) error {
	keep := o.s.cfg.Retention.RawFrames
	if keep == 0 || !idle || o.log.shelved > 0 || o.alone > 0 || o.reader.Aside() > 0 {
		return nil
	}
	now := o.s.now()
	if now.Before(o.frames.next) && now.After(o.frames.next.Add(-o.s.cfg.Retention.Interval-frameRetry)) {
		return nil // else the clock was set back
	}
	if err := o.removeSome(ctx, keep); err != nil {
		o.s.m.compact.failures.WithLabelValues("raw_frames").Inc()
		o.frames.next = now.Add(frameRetry)
		return fmt.Errorf("removal of raw frames: %w", err)
	}
	return nil
}

func (o *owner) removeSome(ctx context.Context, keep time.Duration) error {
	if err := o.beginFrames(ctx, keep); err != nil {
		return err
	}
	p := o.frames.pass
	removed := p.rep.Batches
	defer func() { o.s.m.compact.frames.Add(float64(p.rep.Batches - removed)) }()
	if err := o.listFrames(ctx, p); err != nil {
		return err
	}
	for opened := 0; len(p.todo) > 0 && opened < frameHours && p.rep.Batches-removed < framesAtOnce; opened++ {
		if err := o.frameHour(ctx, p, framesAtOnce-(p.rep.Batches-removed)); err != nil {
			return err
		}
	}
	if len(p.todo) > 0 || !p.listed {
		return nil // the next round goes on
	}
	return o.endFrames(ctx, p)
}

// frameRetry is the time until a pass that failed goes on.
const frameRetry = 10 * time.Second

// beginFrames begins a pass, unless one is under way.
func (o *owner) beginFrames(ctx context.Context, keep time.Duration) (err error) {
	f := &o.frames
	if f.pass != nil {
		return nil
	}
	if f.remover == nil {
		if f.remover, err = o.s.frameRemover(o.pendingNear); err != nil {
			return err
		}
	}
	if f.done == nil {
		if f.done, err = o.readFrameProgress(ctx); err != nil {
			return err
		}
	}
	confirmed, err := o.s.confirmedNow(ctx)
	if err != nil {
		return err
	}
	old := confirmed.Add(-keep)
	p := &framePass{
		began: confirmed, lim: compact.FrameLimits{Ended: old, Rolled: old}, to: compact.LastEnded(old), from: earliest,
		full: confirmed.UnixNano()-f.done.Full >= int64(framesFullEvery), rep: compact.FrameReport{Kept: map[string]int{}},
	}
	if !p.full {
		p.from, p.todo = f.done.Through+1, slices.Clone(f.done.Again)
		p.todo = slices.DeleteFunc(p.todo, func(h timegrid.Hour) bool { return h > p.to })
	}
	f.pass = p
	return nil
}

// listFrames finds hours to look at, while none is there.
func (o *owner) listFrames(ctx context.Context, p *framePass) error {
	if p.listed || len(p.todo) > 0 {
		return nil
	}
	found, next, err := o.frames.remover.ShardHours(ctx, o.grant.Shard, p.from, p.to, p.cursor, framePages)
	if err != nil {
		return err
	}
	for _, at := range found {
		if !o.frames.done.Done(at) {
			p.todo = append(p.todo, at.Hour)
		}
	}
	p.cursor, p.listed = next, next == ""
	return nil
}

// frameHour removes up to limit frames of the next hour.
func (o *owner) frameHour(ctx context.Context, p *framePass, limit int) (err error) {
	h := p.todo[0]
	if p.hour == nil {
		if p.hour, err = o.frames.remover.Open(ctx, o.grant.Shard, h, p.lim); err != nil {
			return fmt.Errorf("hour %s: %w", h, err)
		}
	}
	done, err := p.hour.Step(ctx, limit, false, &p.rep)
	if err != nil {
		return fmt.Errorf("hour %s: %w", h, err)
	}
	if done {
		if p.hour.Waits() && !slices.Contains(p.again, h) {
			p.again = append(p.again, h)
		}
		p.rep.Hours++
		p.hour, p.todo = nil, p.todo[1:]
	}
	return nil
}

// endFrames writes down how far the pass came.
func (o *owner) endFrames(ctx context.Context, p *framePass) error {
	f := &o.frames
	next := compact.FrameProgress{AuthorityID: o.s.cfg.AuthorityID, Shard: o.grant.Shard, Through: p.to, Since: f.done.Since, Full: f.done.Full,
		Keep: p.began.Sub(p.lim.Ended), Again: p.again}
	if f.done.Full > 0 {
		next.Keep = min(next.Keep, f.done.Keep)
	}
	if p.full {
		next.Since, next.Full = p.began.UnixNano(), p.began.UnixNano()
	}
	slices.Sort(next.Again)
	if p.rep.Batches > 0 || len(p.rep.Kept) > 0 {
		o.s.log.Info("retention removed raw frames", "shard", o.grant.Shard, "before", p.lim.Ended.UTC(), "hours", p.rep.Hours, "batches", p.rep.Batches,
			"bytes", p.rep.Bytes, "kept", p.rep.Kept)
	}
	// Where too many hours wait, the next pass looks at all of them again.
	if len(next.Again) <= compact.MaxFramesAgain && next.Through >= f.done.Through {
		if _, err := o.s.store.Put(ctx, next.Key(), next.Marshal(), objstore.PutOptions{ContentType: "application/json"}); err != nil {
			return fmt.Errorf("put %q: %w", next.Key(), err)
		}
		f.done = &next
	}
	f.pass, f.next = nil, o.s.now().Add(o.s.cfg.Retention.Interval)
	return nil
}

// readFrameProgress reads the note. One that is not there, or no note, has nothing done.
func (o *owner) readFrameProgress(ctx context.Context) (*compact.FrameProgress, error) {
	key := layout.RollupFrames(o.grant.Shard)
	none := &compact.FrameProgress{AuthorityID: o.s.cfg.AuthorityID, Shard: o.grant.Shard, Through: earliest}
	b, _, err := o.s.store.Get(ctx, key, objstore.GetOptions{Limit: int64(compact.FrameProgressKind.MaxBytes)})
	if errors.Is(err, objstore.ErrNotFound) {
		return none, nil
	}
	var p compact.FrameProgress
	if err == nil {
		p, err = compact.ParseFrameProgress(b)
	}
	switch {
	case record.Unreadable(err):
		o.s.log.Error("the note of removed raw frames can't be read; all hours are looked at again", "key", key, "error", err)
		return none, nil
	case err != nil:
		return nil, fmt.Errorf("read %q: %w", key, err)
	case p.AuthorityID != o.s.cfg.AuthorityID || p.Shard != o.grant.Shard:
		o.s.log.Error("the note of removed raw frames is another's; all hours are looked at again", "key", key, "authority", p.AuthorityID, "shard", p.Shard)
		return none, nil
	}
	return &p, nil
}

// pendingNear reports that a batch of the hour is not rolled up.
func (o *owner) pendingNear(_ shard.ID, h timegrid.Hour) bool {
	w := o.log.hours[h]
	return w != nil && len(w.ids) > 0
}

func (s *Service) frameRemover(pending func(shard.ID, timegrid.Hour) bool) (*compact.FrameRemover, error) {
	return compact.NewFrameRemover(compact.FrameConfig{
		Store: s.store, AuthorityID: s.cfg.AuthorityID, By: s.cfg.ID, Now: s.now, Pending: pending,
		Each: func(ctx context.Context, n int, fn func(context.Context, int) error) error {
			g, gctx := errgroup.WithContext(ctx)
			g.SetLimit(s.cfg.Jobs.Readers)
			for i := range n {
				g.Go(func() error { return fn(gctx, i) })
			}
			return g.Wait()
		},
	})
}
