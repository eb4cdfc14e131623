package redundancy

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// Pass is how far a pass over many files is, or what the last one did.
type Pass struct {
	Began time.Time `json:"began_at"`
	Ended time.Time `json:"ended_at"` // zero while it goes on, and when it failed
	Files int64     `json:"files"`
	Bytes int64     `json:"bytes"`
	// Found is how many files were missing, damaged or not known.
	Found int64  `json:"found"`
	Error string `json:"error,omitempty"`
	// After is the file that was looked at last. A pass goes on behind it after a restart.
	After ledger.Key `json:"after"`
	// Last is the end of the last pass that was ended.
	Last time.Time `json:"last_ended_at"`
}

func (k *Keeper) pass(place string) Pass {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.inventory[place]
}

// setPass notes how far the listing of a place is, and gives how often all listings were to begin anew.
func (k *Keeper) setPass(place string, p Pass) (asked int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inventory[place] = p
	return k.asked
}

const (
	valueOfScrub = "scrub"
	valueOfSweep = "sweep"
)

// progress is how far a pass over the ledger is.
type progress struct {
	pass  Pass
	epoch int // counts what makes the pass begin anew
}

// due reports whether something that is done once in a period is due, when it was last done at a time. A time that is still to
// come was written before the clock was set back, and says nothing.
func due(now, last time.Time, period time.Duration) bool {
	since := now.Sub(last)
	return since < 0 || since >= period
}

// resume gives the pass to go on with, and the epoch to save it under; false when none is due. from is the time from which the
// period counts.
func (k *Keeper) resume(g *progress, from func(Pass) time.Time, period time.Duration) (p Pass, epoch int, ok bool) {
	k.mu.Lock()
	p, epoch = g.pass, g.epoch
	k.mu.Unlock()
	now := k.now()
	if !p.Ended.IsZero() && !due(now, from(p), period) {
		return p, epoch, false
	}
	if p.Began.IsZero() || !p.Ended.IsZero() || p.Began.After(now) {
		p = Pass{Began: now, Last: p.Last}
	}
	return p, epoch, true
}

// renew makes the next pass begin at the beginning, and gives what is saved of it.
func (k *Keeper) renew(g *progress) (Pass, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g.pass = Pass{Last: g.pass.Last}
	g.epoch++
	return g.pass, g.epoch
}

// loadPasses reads how far the passes of an earlier process were. Listings begin anew at each start: they bring the ledger up to
// date with what happened while nobody was there.
func (k *Keeper) loadPasses() error {
	for name, p := range map[string]*Pass{valueOfScrub: &k.scrub.pass, valueOfSweep: &k.sweep.pass} {
		b, err := k.ledger.Value(name)
		if err == nil && b != nil {
			err = json.Unmarshal(b, p)
		}
		if err != nil {
			return fmt.Errorf("progress of the %s: %w", name, err)
		}
	}
	// A policy may be another since, and places too: the first sweep of a process begins at the beginning.
	k.sweep.pass = Pass{Last: k.sweep.pass.Last}
	return nil
}

// save notes how far a pass is; false when it is to begin anew meanwhile.
func (k *Keeper) save(name string, g *progress, p Pass, epoch int) (bool, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return false, err
	}
	k.saving.Lock()
	defer k.saving.Unlock()
	k.mu.Lock()
	current := g.epoch == epoch
	if current {
		g.pass = p
	}
	k.mu.Unlock()
	if !current {
		return false, nil
	}
	return true, k.ledger.SetValue(name, b)
}

// look asks the places, and acts on what is new: what waits for a place is due when it is back, and bodies are gone over
// when there are other places than before.
func (k *Keeper) look(ctx context.Context) error {
	k.measure()
	n, err := k.tracker.look(ctx, k.now())
	if err != nil {
		return err
	}
	for _, id := range n.came {
		k.opt.Log.Info("a place is there", "place", k.tracker.name(id))
		k.setPass(id, Pass{}) // listed at once: who knows what happened to it
	}
	if len(n.came) > 0 {
		if _, err := k.ledger.Hasten(k.now()); err != nil {
			return err
		}
		k.rouse()
		k.begin(passList)
	}
	if n.changed || len(n.came) > 0 || k.overdue() {
		k.resweep()
	}
	return k.emptied(ctx)
}

// overdue: a place has just been away for so long that its files are to be made again.
func (k *Keeper) overdue() bool {
	k.mu.Lock()
	last := k.sweep.pass.Began
	k.mu.Unlock()
	for _, p := range k.tracker.places() {
		if at := p.Since.Add(k.opt.HealAfter); !p.Up && !at.After(k.now()) && last.Before(at) {
			return true
		}
	}
	return false
}

// resweep makes the next sweep begin now, and at the beginning.
func (k *Keeper) resweep() {
	k.renew(&k.sweep)
	k.begin(passSweep)
}

// sweepLimit is how many bodies wait at most before a sweep pauses: the ledger knows what is to do anyway.
const sweepLimit = 10_000

// sweepDue goes over all bodies of the ledger and queues those that need something: after a change of the policy or of the
// places, and once in a while for what fell through.
func (k *Keeper) sweepDue(ctx context.Context) error {
	p, epoch, ok := k.resume(&k.sweep, func(p Pass) time.Time { return p.Ended }, k.opt.ListPeriod)
	if !ok {
		return nil
	}
	for more := true; more && ctx.Err() == nil; {
		if k.ledger.Totals().Queued > sweepLimit {
			break
		}
		var err error
		if more, err = k.sweepSome(&p); err != nil {
			return err
		}
		if !more {
			if err := k.withoutFiles(ctx, &p); err != nil {
				return err
			}
			p.Ended, p.Last, p.After = k.now(), k.now(), ledger.Key{}
		}
	}
	// Where the places have changed meanwhile it is not saved, and the next sweep begins at the beginning.
	_, err := k.save(valueOfSweep, &k.sweep, p, epoch)
	return err
}

// sweepSome looks at the bodies of one page.
func (k *Keeper) sweepSome(p *Pass) (more bool, err error) {
	rows, err := k.ledger.List(p.After, 500)
	if err != nil || len(rows) == 0 {
		return false, err
	}
	last := ""
	for _, r := range rows {
		p.After = r.Key
		p.Files++
		if r.Body == last {
			continue
		}
		last = r.Body
		v, err := k.view(r.Body)
		if err != nil {
			return false, err
		}
		plan := Next(v)
		if len(plan.Steps) == 0 && plan.Wait == "" {
			continue
		}
		p.Found++
		if err := k.ledger.Send(r.Body, "a sweep", k.now()); err != nil {
			return false, err
		}
		k.rouse()
	}
	return true, nil
}

// withoutFiles queues bodies that the log names and the ledger knows nothing of, once every place was listed.
func (k *Keeper) withoutFiles(ctx context.Context, p *Pass) error {
	if k.opt.Bodies == nil || !k.listedAll() {
		return nil
	}
	for after := ""; ctx.Err() == nil; {
		ids, err := k.opt.Bodies(after, 500)
		if err != nil || len(ids) == 0 {
			return err
		}
		for _, id := range ids {
			after = id
			rows, err := k.ledger.Rows(id)
			if err != nil {
				return err
			}
			if len(rows) > 0 {
				continue
			}
			p.Found++
			if err := k.ledger.Send(id, "no place has a file of the body", k.now()); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// listedAll: every place of the settings is there, and was listed since it is.
func (k *Keeper) listedAll() bool {
	for _, p := range k.tracker.places() {
		if !p.Up || k.pass(p.ID).Ended.IsZero() {
			return false
		}
	}
	return !k.tracker.stranger()
}

// tidy returns what workers did not, and queues what is not durable and waits for nobody.
func (k *Keeper) tidy(context.Context) error {
	n, err := k.ledger.ReturnStuck(k.now(), k.opt.Lease)
	if err != nil {
		return err
	}
	if n > 0 {
		k.opt.Log.Warn("redundancy: workers did not come back", "files", n)
	}
	// Where the clock was set back, what is due by the time before would wait for years.
	longest := max(k.opt.Lease, k.opt.Backoff.Max, retryAway)
	if n, err = k.ledger.Recall(k.now(), longest); err != nil {
		return err
	}
	if n > 0 {
		k.opt.Log.Warn("redundancy: the clock was set back; what waited for a later time is due now", "bodies", n)
		k.rouse()
	}
	for _, s := range []ledger.State{ledger.Staged, ledger.Uploaded, ledger.Removing} {
		for behind := (ledger.Key{}); ; {
			rows, err := k.ledger.InState(s, behind, 500)
			if err != nil {
				return err
			}
			for _, r := range rows {
				behind = r.Key
				queued, err := k.ledger.Queued(r.Body)
				if err == nil && !queued {
					err = k.ledger.Send(r.Body, "nobody worked on it", k.now())
				}
				if err != nil {
					return err
				}
			}
			if len(rows) < 500 {
				break
			}
		}
	}
	return k.tidyDead()
}

// tidyDead drops dead letters of bodies that are gone.
func (k *Keeper) tidyDead() error {
	for behind := ""; ; {
		list, err := k.ledger.Dead(behind, 100)
		if err != nil {
			return err
		}
		for _, m := range list {
			behind = m.Body
			rows, err := k.ledger.Rows(m.Body)
			if err != nil {
				return err
			}
			naming, err := k.opt.Names(m.Body)
			if err != nil {
				return err
			}
			if naming == Unnamed && len(rows) == 0 {
				if _, err := k.ledger.DropDead(m.Body); err != nil {
					return err
				}
			}
		}
		if len(list) < 100 {
			return nil
		}
	}
}
