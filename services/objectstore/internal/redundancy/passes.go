package redundancy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

func (k *Keeper) setPass(place string, p Pass) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inventory[place] = p
}

const (
	valueOfScrub = "scrub"
	valueOfSweep = "sweep"
)

// loadPasses reads how far the passes of an earlier process were. Listings begin anew at each start: they bring the ledger up to
// date with what happened while nobody was there.
func (k *Keeper) loadPasses() error {
	for name, p := range map[string]*Pass{valueOfScrub: &k.scrub, valueOfSweep: &k.sweep} {
		b, err := k.ledger.Value(name)
		if err == nil && b != nil {
			err = json.Unmarshal(b, p)
		}
		if err != nil {
			return fmt.Errorf("progress of the %s: %w", name, err)
		}
	}
	// A policy may be another since, and places too: the first sweep of a process begins at the beginning.
	k.sweep = Pass{Last: k.sweep.Last}
	return nil
}

func (k *Keeper) save(name string, to *Pass, p Pass) error {
	k.mu.Lock()
	*to = p
	k.mu.Unlock()
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return k.ledger.SetValue(name, b)
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
	}
	if n.changed || len(n.came) > 0 || k.overdue() {
		k.resweep()
	}
	return nil
}

// overdue: a place has just been away for so long that its files are to be made again.
func (k *Keeper) overdue() bool {
	k.mu.Lock()
	last := k.sweep.Began
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
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sweep = Pass{Last: k.sweep.Last}
	k.epoch++
}

// sweepLimit is how many bodies wait at most before a sweep pauses: the ledger knows what is to do anyway.
const sweepLimit = 10_000

// sweepDue goes over all bodies of the ledger and queues those that need something: after a change of the policy or of the
// places, and once in a while for what fell through.
func (k *Keeper) sweepDue(ctx context.Context) error {
	k.mu.Lock()
	p, epoch := k.sweep, k.epoch
	k.mu.Unlock()
	now := k.now()
	if !p.Ended.IsZero() && now.Sub(p.Ended) < k.opt.ListPeriod {
		return nil
	}
	if p.Began.IsZero() || !p.Ended.IsZero() {
		p = Pass{Began: now, Last: p.Last}
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
	k.mu.Lock()
	stale := k.epoch != epoch // the places have changed meanwhile: the next sweep begins at the beginning
	k.mu.Unlock()
	if stale {
		return nil
	}
	return k.save(valueOfSweep, &k.sweep, p)
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
	return true
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

// scrubDue reads files back until the pass is through, or has done what is due by now: the files of a period are spread
// over it, as far as the rate allows.
func (k *Keeper) scrubDue(ctx context.Context) error {
	k.mu.Lock()
	p := k.scrub
	k.mu.Unlock()
	now := k.now()
	if !p.Ended.IsZero() && now.Sub(p.Began) < k.opt.ScrubPeriod {
		return nil
	}
	if p.Began.IsZero() || !p.Ended.IsZero() {
		p = Pass{Began: now, Last: p.Last}
	}
	for ctx.Err() == nil {
		rows, err := k.ledger.List(p.After, scrubPage)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			p.Ended, p.Last, p.After = k.now(), k.now(), ledger.Key{}
			return k.save(valueOfScrub, &k.scrub, p)
		}
		for _, r := range rows {
			if err := k.scrubOne(ctx, r, &p); err != nil {
				return err
			}
			p.After = r.Key
		}
		if err := k.save(valueOfScrub, &k.scrub, p); err != nil {
			return err
		}
		if k.ahead(p) {
			return nil
		}
	}
	return nil
}

const scrubPage = 64

// ahead: more of the files were read than of the period has passed.
func (k *Keeper) ahead(p Pass) bool {
	total := k.ledger.Totals().Rows[ledger.Durable]
	passed := float64(k.now().Sub(p.Began)) / float64(k.opt.ScrubPeriod)
	return float64(p.Files) > passed*scrubLead*float64(total)
}

// scrubLead makes a pass end before its period does: files come meanwhile.
const scrubLead = 1.25

// scrubOne reads one file back. What is damaged is only noted: the file stays where it is until a new one takes its place,
// since its other blocks may be what the body is mended from.
func (k *Keeper) scrubOne(ctx context.Context, r ledger.Row, p *Pass) error {
	if r.State != ledger.Durable || !k.isUp(r.Place) || r.Verified > p.Began.UnixNano() {
		return nil
	}
	if err := k.scrubs.WaitN(ctx, int(min(max(r.Size, 1), scrubBurst))); err != nil {
		return err
	}
	got, err := k.files.Verify(ctx, fileOf(r))
	p.Files++
	p.Bytes += got.Bytes
	k.count.read(got.Bytes)
	switch {
	case err == nil && r.Checksum != 0 && got.Checksum != r.Checksum:
		err = fmt.Errorf("%w: its checksum is %08x, and was %08x", ErrDamaged, got.Checksum, r.Checksum)
		fallthrough
	case errors.Is(err, ErrDamaged) || errors.Is(err, fs.ErrNotExist):
		p.Found++
		k.count.lost(err)
		k.opt.Log.Error("a scrub found a file that is missing or damaged", "place", k.tracker.name(r.Place), "file", r.Key.String(), "error", err)
		if err := notRaced(k.apply(r, ledger.Lost, err, nil)); err != nil {
			return err
		}
		k.Needed(r.Body, "a scrub found a file that is missing or damaged")
		return nil
	case err != nil:
		k.failed(r.Place, err)
		return nil
	}
	return notRaced(k.apply(r, ledger.Found, nil, nil))
}

func (k *Keeper) isUp(place string) bool {
	for _, p := range k.tracker.places() {
		if p.ID == place {
			return p.Up
		}
	}
	return false
}

// Scrub makes a pass over all files begin now.
func (k *Keeper) Scrub() error {
	k.mu.Lock()
	last := k.scrub.Last
	k.mu.Unlock()
	return k.save(valueOfScrub, &k.scrub, Pass{Last: last})
}
