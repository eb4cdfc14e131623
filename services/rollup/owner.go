package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// owner is the loop of one owned shard. Everything it needs is found by listing: intake,
// manifests, plans.
type owner struct {
	s      *Service
	grant  Grant
	reader *intake.Reader
	second *intake.Reader // of a second look; nil between two
	looked time.Time      // when the last one ended, or the ownership began
	log    *backlog
	snaps  *snapshots // nil: none are made
	out    map[identity.Batch]leftOut
	orders map[timegrid.Hour]*order // of operators, pending
	listed time.Time                // when orders were listed
	seen   time.Time                // the clock at the last round
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
		if err := (run.WallClock{}).Sleep(ctx, wait); err != nil {
			s.log.Info("shard is given back", "shard", g.Shard)
			return nil // the grant is over
		}
		wait = s.cfg.Intake.Interval
		again, err := o.round(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("round failed; it is tried again", "shard", g.Shard, "error", err)
		}
		if again { // what failed has waits of its own
			wait = 0
		}
		s.note(o)
	}
}

// round follows the intake, does what is due and deletes what is spent. again: there may
// be more to do at once. What fails is told and tried again; it keeps nothing else from
// going on, but a store that is down ends the round.
func (o *owner) round(ctx context.Context) (again bool, err error) {
	o.watchClock()
	again, err = o.follow(ctx)
	idle := err == nil && !again
	err = errors.Join(err, o.listAsides(ctx))
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

// hour looks at the blocks of an hour with pending batches, and does its job when
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
	switch err := s.do(ctx, o, w.hour, gen); {
	case err == nil:
		w.fails, w.stuck, w.crowded, w.next = 0, 0, false, now
		if early != onTime {
			s.m.early.WithLabelValues(string(early)).Inc()
		}
		return true, nil
	case ctx.Err() != nil || o.grant.lost() != nil: // not the hour's fault
		w.next = now.Add(s.cfg.Schedule.RetryBase)
		return false, err
	default:
		o.failed(w, err)
		return false, err
	}
}

// clean deletes segments whose batches are covered in all their hours.
func (o *owner) clean(ctx context.Context) (err error) {
	down := 0
	for _, key := range slices.Clone(o.log.spent) {
		derr := o.s.store.Delete(ctx, key)
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
