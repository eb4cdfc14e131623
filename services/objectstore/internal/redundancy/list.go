package redundancy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// A listing of a place brings the ledger up to date with its files: what is not there is lost, what is there and was not known
// is adopted. A ledger that was lost is nothing else than one that knows of no file.

// highestPolicy gives the highest version that a file names. It is asked only of a new ledger, once. A place that cannot be
// listed now must not keep the store from starting: it may have files of later versions, so some are left out.
func (k *Keeper) highestPolicy(ctx context.Context) (high uint32) {
	all := true
	for _, p := range k.tracker.statuses() {
		if !p.Up {
			all = all && p.State == string(spread.Lost)
			continue
		}
		lctx, cancel := context.WithTimeout(ctx, policyTime)
		err := k.files.List(lctx, p.ID, "", func(f Listed) error {
			high = max(high, f.Policy)
			return lctx.Err()
		})
		cancel()
		if err != nil {
			k.opt.Log.Warn("a place could not be listed; the next version of the policy leaves room for those that it may have", "place", p.Name, "error", err)
			all = false
		}
	}
	if !all && high < math.MaxUint32-2*policyRoom {
		high += policyRoom
	}
	return high
}

const (
	// policyTime is how long one place may take to tell the versions of its files: the store starts behind it.
	policyTime = 30 * time.Second
	// policyRoom is more than the changes of the settings in a store's life.
	policyRoom = 10_000
)

// listDue lists the places whose last listing is too long ago.
func (k *Keeper) listDue(ctx context.Context) error {
	var failed error
	for _, p := range k.tracker.places() {
		last := k.pass(p.ID)
		if !p.Up || !last.Ended.IsZero() && !due(k.now(), last.Ended, k.opt.ListPeriod) {
			continue
		}
		if err := k.list(ctx, p.ID); err != nil {
			failed = errors.Join(failed, fmt.Errorf("list place %s: %w", p.Name, err))
		}
	}
	return failed
}

// list compares the files of a place with the rows of it. Both come in the order of their bodies.
func (k *Keeper) list(ctx context.Context, place string) error {
	pass := Pass{Began: k.now()}
	asked := k.setPass(place, pass)
	old := false
	for _, p := range k.tracker.places() {
		old = old || p.ID == place && p.Old
	}
	// Files that nobody ended cost room and no more: the listing does not depend on it.
	if err := k.files.Tidy(ctx, place); err != nil && ctx.Err() == nil {
		k.opt.Log.Warn("unfinished files of a place could not be removed; the next listing tries again", "place", k.tracker.name(place), "error", err)
	}
	c := &comparison{k: k, old: old, ctx: ctx, place: place}
	err := k.files.List(ctx, place, "", func(f Listed) error {
		pass.Files++
		pass.Bytes += f.Bytes
		if pass.Files%1000 == 0 {
			k.setPass(place, pass)
		}
		return c.file(f)
	})
	if err == nil {
		err = c.end()
	}
	if err == nil && !c.again {
		err = errors.Join(k.recount(place), k.tracker.compared(place))
	}
	pass.Ended, pass.Found = k.now(), c.found
	if err != nil {
		pass.Ended, pass.Error = time.Time{}, err.Error()
	}
	if c.again {
		pass.Ended = time.Time{}
	}
	if k.setPass(place, pass) != asked {
		k.setPass(place, Pass{}) // somebody wants another one, which sees what this one has passed
	}
	k.rouse()
	return err
}

// recount corrects what the ledger says that a place has, once its rows are those of the files.
func (k *Keeper) recount(place string) error {
	off, err := k.ledger.Recount(place)
	if err == nil && off != (ledger.Use{}) {
		k.opt.Log.Warn("what a place has was counted wrong, and is corrected", "place", k.tracker.name(place), "files", off.Files, "bytes", off.Bytes)
	}
	return err
}

// comparison is a listing under way. It holds the files of one body, and the rows of one page.
type comparison struct {
	k     *Keeper
	ctx   context.Context
	place string
	old   bool  // files are bodies, and no more
	found int64 // differences
	again bool  // a body was busy: the place is listed again

	body  string
	files []Listed

	rows   []ledger.Row
	behind ledger.Key
	done   bool // there are no more rows
}

func (c *comparison) file(f Listed) error {
	if f.Body != c.body {
		if err := c.compare(); err != nil {
			return err
		}
		c.body, c.files = f.Body, c.files[:0]
	}
	c.files = append(c.files, f)
	return c.ctx.Err()
}

func (c *comparison) end() error {
	if err := c.compare(); err != nil {
		return err
	}
	return c.missing("")
}

// next gives the first row that was not compared; false when there is none.
func (c *comparison) next() (r ledger.Row, ok bool, err error) {
	if len(c.rows) == 0 && !c.done {
		const page = 500
		if c.rows, err = c.k.ledger.AtPlace(c.place, c.behind, page); err != nil {
			return r, false, err
		}
		c.done = len(c.rows) < page
	}
	if len(c.rows) == 0 {
		return r, false, nil
	}
	return c.rows[0], true, nil
}

func (c *comparison) skip() {
	c.behind = c.rows[0].Key
	c.rows = c.rows[1:]
}

// missing handles the rows of bodies before one, of which the place has no file; with "", of all that are left.
func (c *comparison) missing(before string) error {
	for {
		r, ok, err := c.next()
		if err != nil || !ok || before != "" && r.Body >= before {
			return err
		}
		c.skip()
		if err := c.lost(r); err != nil {
			return err
		}
	}
}

// lost notes that a file is not there. The place is asked for this very file: it may have come since the listing passed it.
func (c *comparison) lost(r ledger.Row) error {
	if !r.State.Readable() {
		return nil
	}
	err := c.k.files.Stat(c.ctx, fileOf(r))
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c.found++
	c.k.count.lost(err)
	if err := notRaced(c.k.apply(r, ledger.Lost, err, nil)); err != nil {
		return err
	}
	return c.k.ledger.Send(r.Body, "a listing misses a file", c.k.now())
}

// compare handles one body.
func (c *comparison) compare() error {
	if c.body == "" {
		return nil
	}
	if err := c.missing(c.body); err != nil {
		return err
	}
	var mine []ledger.Row
	for {
		r, ok, err := c.next()
		if err != nil {
			return err
		}
		if !ok || r.Body != c.body {
			break
		}
		mine = append(mine, r)
		c.skip()
	}
	for _, f := range c.files {
		had := false
		for _, r := range mine {
			had = had || sameFile(r, f.File)
		}
		if !had {
			c.found++
		}
		size := int64(-1)
		if c.old {
			size = f.Bytes
		}
		if err := c.k.adopt(f, size); errors.Is(err, errBusy) {
			c.again = true
		} else if err != nil {
			return err
		}
	}
	for _, r := range mine {
		there := false
		for _, f := range c.files {
			there = there || sameFile(r, f.File)
		}
		if !there {
			if err := c.lost(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameFile: the row speaks of the file. Copies have no index in their names.
func sameFile(r ledger.Row, f File) bool {
	if r.Kind == ledger.Copy && f.Kind == ledger.Copy {
		return r.Body == f.Body && r.Place == f.Place
	}
	return r.Key == f.Key && r.Place == f.Place
}

// adopt makes the ledger know a file that is there. size is that of the body; -1: not known. A worker may change the body's
// rows meanwhile, and the file has to be seen beside what they are then: nobody looks at it again for a day.
func (k *Keeper) adopt(f Listed, size int64) error {
	for range adoptions {
		err := k.adoptOnce(f, size)
		if !errors.Is(err, ledger.ErrRaced) && !errors.Is(err, ledger.ErrExists) {
			return err
		}
	}
	return errBusy
}

// adoptions is how often a file is looked at whose rows change all the time.
const adoptions = 3

func (k *Keeper) adoptOnce(f Listed, size int64) error {
	rows, err := k.ledger.Rows(f.Body)
	if err != nil {
		return err
	}
	k.opt.Step("adopt.read")
	free := f.Key
	for _, r := range rows {
		if sameFile(r, f.File) {
			return k.turnedUp(r, "")
		}
		if r.Kind == ledger.Copy && f.Kind == ledger.Copy {
			free.Index = max(free.Index, r.Index+1)
		}
	}
	for _, r := range rows {
		if r.Key != f.Key || f.Kind == ledger.Copy {
			continue
		}
		switch r.State {
		case ledger.Durable:
			return k.surplus(f, r)
		case ledger.Staged, ledger.Failed:
			return k.turnedUp(r, f.Place)
		default:
			return errBusy // whether this one is needed shows when the other was read back
		}
	}
	if _, err = k.ledger.Insert(ledger.Row{Key: free, K: f.K, M: f.M, Place: f.Place, Size: size, State: ledger.Uploaded}, k.now()); err != nil {
		return err
	}
	return k.ledger.Send(f.Body, "a file turned up", k.now())
}

// turnedUp notes that the file of a row is there, at another place when one is given. A row that somebody works on is
// left alone.
func (k *Keeper) turnedUp(r ledger.Row, place string) error {
	if r.State != ledger.Staged && r.State != ledger.Failed {
		return nil
	}
	err := k.apply(r, ledger.Turned, nil, func(r *ledger.Row) {
		if place != "" {
			r.Place = place
		}
	})
	if err != nil {
		return err
	}
	return k.ledger.Send(r.Body, "a file turned up", k.now())
}

// surplus removes a file that its row has at another place, when that place says so now. It is what a move has left, or
// a place that came back. Not while the body's files are being moved: this may be where one goes.
func (k *Keeper) surplus(f Listed, r ledger.Row) error {
	if !k.hold(r.Body) {
		return errBusy
	}
	defer k.release(r.Body)
	ctx, cancel := context.WithTimeout(context.Background(), statTimeout)
	defer cancel()
	rows, err := k.ledger.Rows(r.Body)
	if err != nil {
		return err
	}
	for _, now := range rows {
		if now != r {
			continue
		}
		err := k.files.Stat(ctx, fileOf(r))
		if errors.Is(err, fs.ErrNotExist) {
			// This one is not too many then: it is the file of the row, once that does not say another.
			k.count.lost(err)
			return errors.Join(k.apply(r, ledger.Lost, err, nil), ledger.ErrRaced)
		}
		if err != nil {
			return nil // looked at again by the next listing
		}
		k.count.removed()
		return k.files.Remove(ctx, f.File)
	}
	return ledger.ErrRaced
}

// hold keeps others from moving files of a body; false when somebody does.
func (k *Keeper) hold(body string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.moving[body] {
		return false
	}
	k.moving[body] = true
	return true
}

func (k *Keeper) release(body string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.moving, body)
}

// statTimeout bounds the question whether a file is there.
const statTimeout = 30 * time.Second
