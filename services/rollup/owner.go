package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/intake"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/rollup"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/window"
	"lightmetrics.dev/lightmetrics/pkg/work"
)

// owner is the loop of one owned shard. Everything it needs is found by listing: intake,
// manifests, plans. Messages only shorten the wait.
type owner struct {
	s      *Service
	grant  Grant
	reader *intake.Reader
	log    *backlog
	snaps  *snapshots // nil: none are made
	// out are batches whose frames can't be read, and when to try them again.
	out   map[identity.Batch]time.Time
	swept time.Time
}

// outFor is how long a batch with an unreadable frame is left out of plans.
const outFor = 5 * time.Minute

func (s *Service) newOwner(g Grant) *owner {
	return &owner{s: s, grant: g, reader: intake.NewReader(s.store, g.Shard), log: newBacklog(), out: map[identity.Batch]time.Time{}}
}

// own works on a shard until ctx ends: the grant is lost, or the service stops.
func (s *Service) own(ctx context.Context, g Grant) error {
	o := s.newOwner(g)
	s.enter(o)
	defer s.leave(o)
	snaps, stop := s.startSnapshots(ctx, g)
	defer stop()
	o.snaps = snaps
	s.log.Info("owns shard", "shard", g.Shard, "fence", g.Fence)
	wait := time.Duration(0)
	for {
		if err := o.sleep(ctx, wait); err != nil {
			s.log.Info("shard is given back", "shard", g.Shard)
			return nil // the grant is over
		}
		wait = s.cfg.Intake.Interval
		again, err := o.round(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			s.log.Warn("round failed; it is tried again", "shard", g.Shard, "err", err)
		case again:
			wait = 0
		}
		s.note(o)
	}
}

// sleep waits for d, or for a message of the shard's topic.
func (o *owner) sleep(ctx context.Context, d time.Duration) error {
	q := o.s.queue
	for d > 0 {
		nap := d
		if q != nil {
			nap = min(d, o.s.cfg.Intake.Queue)
		}
		if err := (run.WallClock{}).Sleep(ctx, nap); err != nil {
			return err
		}
		d -= nap
		if q != nil && o.told(ctx) {
			break
		}
	}
	return ctx.Err()
}

// told takes messages off the shard's topic: something is new. What it is, the intake says.
func (o *owner) told(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	ms, err := o.s.queue.Receive(ctx, rollup.Topic(o.grant.Shard), work.MaxReceive, storeTimeout)
	if err != nil {
		return false
	}
	for _, m := range ms {
		_ = o.s.queue.Delete(ctx, m) // it comes again, and is as harmless
	}
	return len(ms) > 0
}

// round follows the intake, does what is due and deletes what is spent. again: there may
// be more to do at once.
func (o *owner) round(ctx context.Context) (again bool, err error) {
	more, err := o.follow(ctx)
	if err != nil {
		return false, err
	}
	if err := o.sweep(ctx); err != nil {
		return false, err
	}
	for i, w := range o.log.due(o.s.now()) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if i == hoursAtOnce {
			more = true // a look at the intake, and at what to say of the shard, comes first
			break
		}
		did, herr := o.hour(ctx, w)
		again = again || did
		if herr != nil {
			err = errors.Join(err, fmt.Errorf("hour %s: %w", w.hour, herr))
		}
	}
	return again || more, errors.Join(err, o.clean(ctx))
}

// hoursAtOnce bounds the hours between two looks at the intake: a batch may span thousands.
const hoursAtOnce = 32

// follow reads new segments, as many as there is room for.
func (o *owner) follow(ctx context.Context) (more bool, err error) {
	if !o.s.room(o) {
		return false, nil
	}
	lctx, cancel := context.WithTimeout(ctx, segmentsTimeout)
	defer cancel()
	return o.reader.Poll(lctx, segmentsAtOnce, func(key string) error {
		seg, err := intake.ReadSegment(lctx, o.s.store, key)
		switch {
		case errors.Is(err, intake.ErrSegment):
			o.s.m.segments.WithLabelValues("corrupt").Inc()
			o.s.log.Error("intake segment can't be read; its batches are found by a full audit only", "key", key, "err", err)
			return nil
		case errors.Is(err, objstore.ErrNotFound):
			return nil // a former owner deleted it
		case err != nil:
			return err
		}
		if seg.Shards != o.s.cfg.Shards {
			return fmt.Errorf("segment %q is of %d shards, not %d", key, seg.Shards, o.s.cfg.Shards)
		}
		o.s.m.segments.WithLabelValues("read").Inc()
		now := o.s.now()
		hours := make(map[identity.Batch][]window.Hour, len(seg.Entries))
		for _, e := range seg.Entries {
			hs, err := o.s.hours(lctx, e)
			if err != nil {
				return err
			}
			hours[e.Identity()] = hs
		}
		o.snaps.offer(seg.Entries)
		o.log.add(key, seg.Entries, func(e intake.Entry) []window.Hour { return hours[e.Identity()] }, now)
		return nil
	})
}

const (
	segmentsAtOnce  = 200
	segmentsTimeout = time.Minute
)

// hours gives the hours that the batch has records in. Between the first and the last of
// a batch that spans three or more there may be none: its frame tells.
func (s *Service) hours(ctx context.Context, e intake.Entry) ([]window.Hour, error) {
	first, last := e.Hours()
	if last <= first+1 {
		return slices.Compact([]window.Hour{first, last}), nil
	}
	raw, err := s.frames.get(ctx, e)
	var bad *UnreadableError
	if errors.As(err, &bad) {
		return []window.Hour{first, last}, nil // its job will say so
	}
	if err != nil {
		return nil, err
	}
	f, err := s.decoder().decode(raw)
	if err != nil {
		return []window.Hour{first, last}, nil
	}
	var hs []window.Hour
	for i := range f.Groups {
		for _, t := range f.Groups[i].Timestamps {
			if h := window.HourOfNS(t); len(hs) == 0 || hs[len(hs)-1] != h {
				hs = append(hs, h)
			}
		}
	}
	slices.Sort(hs)
	return slices.Compact(hs), nil
}

// readable are the pending inputs of the hour but for those whose frames can't be read.
func (o *owner) readable(ctx context.Context, h window.Hour) ([]intake.Entry, error) {
	all := o.log.inputs(h)
	in := make([]intake.Entry, 0, len(all))
	for _, e := range all {
		until, out := o.out[e.Identity()]
		if out && o.s.now().Before(until) {
			continue
		}
		if out {
			err := o.s.check(ctx, e)
			var bad *UnreadableError
			if errors.As(err, &bad) {
				o.leaveOut(e.Identity())
				continue
			}
			if err != nil {
				return nil, err
			}
			delete(o.out, e.Identity())
		}
		in = append(in, e)
	}
	return in, nil
}

func (o *owner) leaveOut(id identity.Batch) { o.out[id] = o.s.now().Add(outFor) }

// check reads and decodes a frame: *UnreadableError when that can't be.
func (s *Service) check(ctx context.Context, e intake.Entry) error {
	raw, err := s.frames.get(ctx, e)
	if err != nil {
		return err
	}
	if _, err := s.decoder().decode(raw); err != nil {
		return &UnreadableError{e, err}
	}
	return nil
}

// hour looks at the published sets of an hour with pending batches, and does its job when
// that is due. did: a job was done, so that the hour should be looked at again.
func (o *owner) hour(ctx context.Context, w *hourWork) (did bool, err error) {
	s := o.s
	pub, err := s.published(ctx, w.hour, o.grant.Shard)
	if err != nil {
		o.failed(w)
		return false, err
	}
	o.log.covered(w.hour, pub.covers)
	now := s.now()
	if len(w.ids) == 0 && !pub.unfinished() {
		return false, nil
	}
	if at := o.dueAt(w, pub); now.Before(at) {
		w.next = at
		return false, nil
	}
	if err := o.rivals(ctx, w.hour); err != nil {
		o.failed(w)
		return false, err
	}
	in, err := o.readable(ctx, w.hour)
	if err != nil {
		o.failed(w)
		return false, err
	}
	if !pub.unfinished() && len(in) == 0 {
		w.next = now.Add(outFor) // all that is left can't be read
		return false, nil
	}
	gen := pub.next()
	outcome, err := s.do(ctx, o, w.hour, gen)
	switch outcome {
	case work.Completed:
		w.fails, w.next = 0, now
		return true, err
	case work.Duplicate:
		w.next = now.Add(s.cfg.Schedule.RetryBase)
		return false, errors.Join(err, o.reconcile(ctx, w.hour, gen))
	case work.Busy, work.Deferred, work.Fenced, work.Lost, work.HandedOver:
		w.next = now.Add(s.cfg.Schedule.RetryBase)
		return false, err
	}
	o.failed(w)
	return false, err
}

// reconcile settles a table that has a generation for completed: the manifests have the
// last word, and where they have not decided it, the table forgets.
func (o *owner) reconcile(ctx context.Context, h window.Hour, gen uint64) error {
	pub, err := o.s.published(ctx, h, o.grant.Shard)
	if err != nil || pub.next() > gen {
		return err
	}
	l, err := o.s.table.Log(ctx, rollup.Log(o.grant.Shard, h))
	if err != nil {
		return err
	}
	o.s.log.Warn("pending work has a generation for completed that is not published", "shard", o.grant.Shard, "hour", h, "generation", gen)
	return o.s.table.Forget(ctx, l)
}

// dueAt is when the hour's next generation is to be made. What was begun is finished at once.
func (o *owner) dueAt(w *hourWork, pub *published) time.Time {
	c := o.s.cfg.Schedule
	set := pub.sets[window.Raw]
	switch {
	case pub.unfinished():
		return time.Time{}
	case set == nil:
		return w.hour.End().Add(c.FirstAfter)
	}
	at := time.Unix(0, set.CreatedAt)
	if w.since.After(at) {
		at = w.since
	}
	return at.Add(c.LateAfter)
}

func (o *owner) failed(w *hourWork) {
	c := o.s.cfg.Schedule
	w.next = o.s.now().Add(min(c.RetryBase<<min(w.fails, 16), c.RetryMax))
	w.fails++
}

// clean deletes segments whose batches are covered in all their hours.
func (o *owner) clean(ctx context.Context) error {
	for _, key := range slices.Clone(o.log.spent) {
		dctx, cancel := context.WithTimeout(ctx, storeTimeout)
		err := o.s.store.Delete(dctx, key)
		cancel()
		if err != nil {
			return fmt.Errorf("delete %q: %w", key, err)
		}
		o.s.m.segments.WithLabelValues("deleted").Inc()
		o.log.deleted(key)
	}
	return nil
}

// sweep removes rows that a former owner left of generations that are decided, and forgets
// the logs of hours that are long done: manifests have the last word on them.
func (o *owner) sweep(ctx context.Context) error {
	s := o.s
	now := s.now()
	if now.Sub(o.swept) < sweepEvery {
		return nil
	}
	prefix := rollup.LogPrefix(o.grant.Shard)
	var rows []work.Row
	for after := ""; ; {
		page, next, err := s.table.Rows(ctx, prefix, after, work.MaxPage)
		if err != nil {
			return fmt.Errorf("rows of %s: %w", prefix, err)
		}
		rows = append(rows, page...)
		if after = next; after == "" {
			break
		}
	}
	for _, r := range rows {
		h, err := rollup.ParseLog(o.grant.Shard, r.Log)
		if r.Live && r.Fence >= o.grant.Fence || err != nil {
			continue
		}
		pub, err := s.published(ctx, h, o.grant.Shard)
		if err != nil { // a record that can't be read holds up its hour, not the shard
			s.log.Warn("a job that was left can't be judged yet", "job", r.Key, "err", err)
			continue
		}
		if pub.next() <= r.Number {
			continue // not decided: the hour's pending batches bring it up when it is due
		}
		if _, err := s.do(ctx, o, h, r.Number); err != nil {
			s.log.Warn("a job that was left is not finished yet", "job", r.Key, "err", err)
		}
	}
	logs, _, err := s.table.Logs(ctx, prefix, "", work.MaxPage)
	for _, l := range logs {
		if now.Sub(l.Completed) > forgetAfter && err == nil {
			err = s.table.Forget(ctx, l)
		}
	}
	if err != nil && !errors.Is(err, work.ErrMoved) {
		return fmt.Errorf("logs of %s: %w", prefix, err)
	}
	o.swept = now
	return nil
}

const (
	sweepEvery  = time.Minute
	forgetAfter = 48 * time.Hour
)
