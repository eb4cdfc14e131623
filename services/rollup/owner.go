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
	second *intake.Reader // of a second look; nil between two
	looked time.Time      // when the last one ended, or the ownership began
	log    *backlog
	snaps  *snapshots // nil: none are made
	out    map[identity.Batch]leftOut
	swept  time.Time
	orders map[window.Hour]*order // of operators, pending
	listed time.Time              // when orders were listed
	seen   time.Time              // the clock at the last round
	aside  asides
	frames rawFrames
	alone  int // segments that are left alone; nobody knows which batches they name
	// attempts are the keys of notes that this owner has in the store.
	attempts map[string]struct{}
	// perRecord is the memory that a record of the shard took when its last hour was made; 0: not known.
	perRecord float64
}

func (s *Service) newOwner(g Grant) *owner {
	return &owner{s: s, grant: g, reader: intake.NewReader(s.store, g.Shard), looked: s.now(), log: newBacklog(), out: map[identity.Batch]leftOut{}, attempts: map[string]struct{}{}}
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
		if err != nil && ctx.Err() == nil {
			s.log.Warn("round failed; it is tried again", "shard", g.Shard, "err", err)
		}
		if again { // what failed has waits of its own
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
// be more to do at once. What fails is told and tried again; it keeps nothing else from
// going on, but a store that is down ends the round.
func (o *owner) round(ctx context.Context) (again bool, err error) {
	o.watchClock()
	again, err = o.follow(ctx)
	idle := err == nil && !again
	err = errors.Join(err, o.sweep(ctx), o.listAsides(ctx))
	if o.aside.of == nil {
		return again, err // a job must not begin before it is known who is set aside
	}
	did, oerr := o.obey(ctx)
	again, err = again || did, errors.Join(err, oerr)
	o.relieve()
	down := 0
	for i, w := range o.log.due(o.s.now()) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if i == hoursAtOnce {
			again = true // a look at the intake, and at what to say of the shard, comes first
			break
		}
		did, herr := o.hour(ctx, w)
		again = again || did
		if herr != nil {
			err = errors.Join(err, fmt.Errorf("hour %s: %w", w.hour, herr))
		}
		if !isDown(herr) {
			down = 0
		} else if down++; down == downAtOnce {
			break
		}
	}
	return again, errors.Join(err, o.clean(ctx), o.removeFrames(ctx, idle && o.second == nil))
}

const (
	// hoursAtOnce bounds the hours between two looks at the intake: a batch may span thousands.
	hoursAtOnce = 32
	// downAtOnce hours, or deletes, one after the other that the store does not answer end
	// the round: each of them may wait for its deadline.
	downAtOnce = 3
)

// isDown: the store did not answer.
func isDown(err error) bool {
	return errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrUnknown) || errors.Is(err, context.DeadlineExceeded)
}

// hour looks at the published sets of an hour with pending batches, and does its job when
// that is due. did: a job was done, so that the hour should be looked at again.
func (o *owner) hour(ctx context.Context, w *hourWork) (did bool, err error) {
	s := o.s
	pub, err := s.published(ctx, w.hour, o.grant.Shard)
	if err != nil {
		s.m.damage(err)
		o.failed(w, err)
		return false, err
	}
	o.log.covered(w.hour, pub.covers)
	now := s.now()
	if len(w.ids) == 0 && !pub.unfinished() {
		return false, nil
	}
	at, early := o.dueAt(w, pub)
	if now.Before(at) {
		w.next = at
		return false, nil
	}
	if err := o.rivals(ctx, w.hour); err != nil {
		o.failed(w, err)
		return false, err
	}
	in, again, err := o.readable(ctx, w.hour)
	if err != nil {
		o.failed(w, err)
		return false, err
	}
	if !pub.unfinished() && len(in) == 0 {
		w.next = again // all that is left can't be read
		return false, nil
	}
	gen := pub.next()
	outcome, err := s.do(ctx, o, w.hour, gen)
	switch outcome {
	case work.Completed:
		w.fails, w.stuck, w.crowded, w.next = 0, 0, false, now
		if early != onTime {
			s.m.early.WithLabelValues(string(early)).Inc()
		}
		return true, err
	case work.Duplicate:
		w.next = now.Add(s.cfg.Schedule.RetryBase)
		return false, errors.Join(err, o.reconcile(ctx, w.hour, gen))
	case work.Busy, work.Deferred, work.Fenced, work.Lost, work.HandedOver:
		w.next = now.Add(s.cfg.Schedule.RetryBase)
		return false, err
	}
	o.failed(w, err)
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

// clean deletes segments whose batches are covered in all their hours.
func (o *owner) clean(ctx context.Context) (err error) {
	down := 0
	for _, key := range slices.Clone(o.log.spent) {
		dctx, cancel := context.WithTimeout(ctx, storeTimeout)
		derr := o.s.store.Delete(dctx, key)
		cancel()
		if derr != nil { // one that is not to be deleted keeps none of the others
			err = fmt.Errorf("delete %q: %w", key, derr)
			if down++; down == downAtOnce {
				return err
			}
			continue
		}
		o.s.m.segments.WithLabelValues("deleted").Inc()
		o.log.deleted(key)
	}
	return err
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
