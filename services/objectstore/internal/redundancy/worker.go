package redundancy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// rounds is the most plans that one attempt at a body carries out. Each makes progress, or ends the attempt.
const rounds = 64

// errBusy: others change the body all the time.
var errBusy = errors.New("the body did not come to rest")

// body carries out plans of a body until nothing is left to do, or nothing can be done now.
func (k *Keeper) body(ctx context.Context, body string) (Plan, error) {
	for range rounds {
		v, err := k.view(body)
		if err != nil {
			return Plan{}, err
		}
		if len(v.Rows) == 0 && v.Naming == Named && k.listedAll() {
			return Plan{}, fmt.Errorf("body %s: %w: no place has one", body, ErrUnreadable)
		}
		plan := Next(v)
		if len(plan.Steps) == 0 {
			return plan, nil
		}
		var failed error
		for _, s := range plan.Steps {
			if err := ctx.Err(); err != nil {
				return Plan{}, err
			}
			err := k.step(ctx, v, s)
			// Somebody else has changed the row: the next plan sees how.
			if err != nil && !errors.Is(err, ledger.ErrRaced) && !errors.Is(err, ledger.ErrExists) {
				failed = errors.Join(failed, err)
			}
		}
		if failed != nil {
			return Plan{}, failed
		}
	}
	return Plan{}, errBusy
}

// view collects what the plan of a body depends on.
func (k *Keeper) view(body string) (View, error) {
	v := View{Body: body, Policy: k.policy, Places: k.tracker.places(), Now: k.now(),
		HealAfter: k.opt.HealAfter, Rebalance: k.opt.Rebalance}
	var err error
	if v.Rows, err = k.ledger.Rows(body); err != nil {
		return v, err
	}
	v.Naming, err = k.opt.Names(body)
	return v, err
}

func (k *Keeper) step(ctx context.Context, v View, s Step) error {
	failpoint.Hit("objectstore.redundancy.step.before")
	k.opt.Step("step.before")
	defer k.opt.Step("step.after")
	now := k.now()
	switch s.Do {
	case Stage:
		_, err := k.ledger.Insert(s.Row, now)
		return err
	case Assign:
		// What a writer may have left at the place before turns up in a listing.
		_, err := k.ledger.Assign(s.Row, s.Place, now)
		return err
	case Lose:
		return k.apply(s.Row, ledger.Lost, errGone, func(r *ledger.Row) {
			if s.Place != "" {
				r.Place = s.Place
			}
		})
	case Revive:
		return k.apply(s.Row, ledger.Redrive, nil, nil)
	case Make:
		return k.make(ctx, v, s.Rows)
	case Read:
		return k.read(ctx, s.Row)
	case Shift:
		return k.shift(ctx, v, s.Row, s.Place)
	case Drop:
		return k.drop(ctx, s.Row, s.Relies)
	case Remove:
		return k.remove(ctx, s.Row)
	case Forget:
		return k.ledger.Forget(s.Row)
	}
	return fmt.Errorf("step %d is not known", s.Do)
}

var errGone = errors.New("its place is gone, or is away for too long")

func (k *Keeper) apply(r ledger.Row, e ledger.Event, cause error, edit func(*ledger.Row)) error {
	_, err := k.ledger.Apply(r, e, k.now(), cause, edit)
	return err
}

// make writes files, in the order: the row says that somebody writes, the file, the row says that it was written.
func (k *Keeper) make(ctx context.Context, v View, rows []ledger.Row) error {
	var mine []ledger.Row
	var want []File
	size := int64(-1)
	for _, r := range rows {
		begun, err := k.ledger.Apply(r, ledger.Begin, k.now(), nil, nil)
		if errors.Is(err, ledger.ErrRaced) {
			continue
		}
		if err != nil {
			return err
		}
		mine, want, size = append(mine, begun), append(want, fileOf(begun)), max(size, begun.Size)
	}
	if len(mine) == 0 {
		return ledger.ErrRaced
	}
	failpoint.Hit("objectstore.redundancy.make.begun")
	k.opt.Step("make.begun")
	results := k.files.Make(ctx, v.Body, size, v.Policy, want)
	failpoint.Hit("objectstore.redundancy.make.written")
	k.opt.Step("make.written")
	var failed error
	for i, r := range mine {
		err := results[i]
		if err == nil {
			err = k.apply(r, ledger.Wrote, nil, nil)
			k.count.made(size, v.Policy)
			k.tracker.grew(r.Place)
			if errors.Is(err, ledger.ErrRaced) {
				k.abandon(ctx, r)
			}
			failed = errors.Join(failed, notRaced(err))
			continue
		}
		k.failed(r.Place, err)
		failed = errors.Join(failed, err, notRaced(k.apply(r, ledger.Retry, err, nil)))
	}
	return failed
}

func notRaced(err error) error {
	if errors.Is(err, ledger.ErrRaced) {
		return nil
	}
	return err
}

// abandon looks at a file that was written for a row that changed meanwhile. If the row is gone, or is of another place, the
// file is nobody's, and a listing would find it in time; removing it now saves the space. Otherwise the file is the one that the
// row speaks of, whoever wrote it.
func (k *Keeper) abandon(ctx context.Context, r ledger.Row) {
	rows, err := k.ledger.Rows(r.Body)
	if err != nil {
		return
	}
	for _, have := range rows {
		if have.Key == r.Key && have.Place == r.Place {
			return
		}
		// All copies of a place have one name.
		if have.Kind == ledger.Copy && r.Kind == ledger.Copy && have.Place == r.Place {
			return
		}
	}
	// Nothing but a second copy of what its row has elsewhere: unless that was read back, this one may be all there is.
	for _, have := range rows {
		if have.Key == r.Key && have.State == ledger.Durable && k.files.Stat(ctx, fileOf(have)) == nil {
			_ = k.files.Remove(ctx, fileOf(r))
			return
		}
	}
}

// failed notes a place that does not answer.
func (k *Keeper) failed(place string, err error) {
	if errors.Is(err, ErrAway) {
		k.tracker.away(place, err)
	}
}

// read reads a file back.
func (k *Keeper) read(ctx context.Context, r ledger.Row) error {
	r, err := k.ledger.Apply(r, ledger.Check, k.now(), nil, nil)
	if err != nil {
		return err
	}
	failpoint.Hit("objectstore.redundancy.read.begun")
	k.opt.Step("read.begun")
	got, err := k.files.Verify(ctx, fileOf(r))
	failpoint.Hit("objectstore.redundancy.read.done")
	k.opt.Step("read.done")
	k.count.read(got.Bytes)
	switch {
	case err == nil && r.Size >= 0 && got.BodySize != r.Size:
		err = fmt.Errorf("%w: it is of a body of %d bytes, not %d", ErrDamaged, got.BodySize, r.Size)
		fallthrough
	case errors.Is(err, ErrDamaged) || errors.Is(err, fs.ErrNotExist):
		k.count.lost(err)
		return k.apply(r, ledger.Lost, err, nil)
	case err != nil:
		k.failed(r.Place, err)
		return errors.Join(err, notRaced(k.apply(r, ledger.Retry, err, nil)))
	}
	return k.apply(r, ledger.Found, nil, func(r *ledger.Row) { r.Size, r.Checksum = got.BodySize, got.Checksum })
}

// shift moves a file: it is made and read back at the new place, then the row names that, and then the old one goes.
func (k *Keeper) shift(ctx context.Context, v View, r ledger.Row, place string) error {
	if !k.hold(r.Body) {
		return ledger.ErrRaced
	}
	defer k.release(r.Body)
	to := fileOf(r)
	to.Place = place
	if err := errors.Join(k.files.Make(ctx, r.Body, r.Size, v.Policy, []File{to})...); err != nil {
		k.failed(place, err)
		return err
	}
	failpoint.Hit("objectstore.redundancy.shift.written")
	k.opt.Step("shift.written")
	got, err := k.files.Verify(ctx, to)
	if err != nil {
		k.failed(place, err)
		return err
	}
	moved, err := k.ledger.Apply(r, ledger.Found, k.now(), nil, func(r *ledger.Row) { r.Place, r.Checksum = place, got.Checksum })
	if err != nil {
		return err
	}
	k.count.moved()
	k.tracker.grew(place)
	failpoint.Hit("objectstore.redundancy.shift.named")
	k.opt.Step("shift.named")
	if err := k.files.Stat(ctx, fileOf(moved)); err != nil {
		return err
	}
	if err := k.files.Remove(ctx, fileOf(r)); err != nil {
		// A listing of the place finds it.
		k.failed(r.Place, err)
	}
	return nil
}

// drop gives a file up, once the places have said that the files are there that the body is kept by from now on. The ledger
// is not asked: it may be older than the files.
func (k *Keeper) drop(ctx context.Context, r ledger.Row, relies []ledger.Row) error {
	for _, o := range relies {
		err := k.files.Stat(ctx, fileOf(o))
		if errors.Is(err, fs.ErrNotExist) {
			return errors.Join(k.apply(o, ledger.Lost, err, nil), ledger.ErrRaced)
		}
		if err != nil {
			k.failed(o.Place, err)
			return err
		}
	}
	dropped, err := k.ledger.Apply(r, ledger.Drop, k.now(), nil, nil)
	if err != nil {
		return err
	}
	failpoint.Hit("objectstore.redundancy.drop.said")
	k.opt.Step("drop.said")
	return k.remove(ctx, dropped)
}

// remove deletes the file of a row that is being removed, and the row.
func (k *Keeper) remove(ctx context.Context, r ledger.Row) error {
	if k.shared(r) {
		return k.ledger.Forget(r)
	}
	if err := k.files.Remove(ctx, fileOf(r)); err != nil {
		k.failed(r.Place, err)
		return err
	}
	k.count.removed()
	failpoint.Hit("objectstore.redundancy.remove.gone")
	k.opt.Step("remove.gone")
	return k.ledger.Forget(r)
}

// shared: another row that is wanted has the same file. Copies have no index in their names.
func (k *Keeper) shared(r ledger.Row) bool {
	if r.Kind != ledger.Copy {
		return false
	}
	rows, err := k.ledger.Rows(r.Body)
	if err != nil {
		return true // the file stays, and is found by a listing
	}
	for _, o := range rows {
		if o.Kind == ledger.Copy && o.Key != r.Key && o.Place == r.Place && o.State != ledger.Removing {
			return true
		}
	}
	return false
}

// one works on the message that is due first; false when none is.
func (k *Keeper) one(ctx context.Context) (bool, error) {
	m, ok, err := k.ledger.Take(k.now(), k.opt.Lease)
	if err != nil || !ok {
		return false, err
	}
	// The attempt ends before the message is given to another.
	wctx, cancel := context.WithTimeout(ctx, k.opt.Lease*3/4)
	defer cancel()
	plan, err := k.body(wctx, m.Body)
	failpoint.Hit("objectstore.redundancy.body.done")
	k.opt.Step("body.done")
	now := k.now()
	switch {
	case ctx.Err() != nil:
		return true, k.ledger.Await(m, now, now, errStopped)
	case err != nil && k.excused(err):
		return true, k.ledger.Await(m, now, now.Add(k.opt.Backoff.Wait(3)), err)
	case err != nil:
		return true, k.later(m, now, err)
	case plan.Wait != "":
		return true, k.ledger.Await(m, now, plan.Until, errors.New(plan.Wait))
	}
	return true, k.ledger.Done(m, now)
}

var errStopped = errors.New("the store was stopped")

// excused: what failed may be for a place that is away, and says nothing of the body.
func (k *Keeper) excused(err error) bool {
	if errors.Is(err, ErrAway) || errors.Is(err, ErrNoRoom) || errors.Is(err, ErrOnProbation) {
		return true
	}
	if !errors.Is(err, ErrUnreadable) {
		return false
	}
	for _, p := range k.tracker.places() {
		if !p.Up {
			return true
		}
	}
	return k.tracker.stranger()
}

// later gives a message back that failed, and marks what it wanted when it was the last attempt.
func (k *Keeper) later(m ledger.Message, now time.Time, cause error) error {
	dead, err := k.ledger.Later(m, now, cause, k.opt.Backoff)
	if err != nil || !dead {
		return err
	}
	k.opt.Log.Error("a body could not be made redundant; lmctl store dlq shows it", "body", m.Body, "error", cause)
	rows, err := k.ledger.Rows(m.Body)
	for _, r := range rows {
		if r.State == ledger.Staged {
			err = errors.Join(err, notRaced(k.apply(r, ledger.GiveUp, cause, nil)))
		}
	}
	return err
}
