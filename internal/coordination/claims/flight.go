package claims

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// gather takes operations of the boots that are ready, in the order in which they became so.
func (g *Group) gather() *Flight {
	f := &Flight{floor: g.revision, Txn: Txn{Guards: []Guard{{Key: g.keys.Epoch(), Is: Holds, Value: g.mark}}}}
	ops, widest, taken := 0, 0, 0
	forgotten := map[string]bool{}
	for _, l := range g.ready {
		room := g.cfg.MaxRequests - len(f.parts) - 1
		// The narrowest part must leave room for the widest one.
		if ops >= g.cfg.MaxOps || widest > room {
			break
		}
		p := g.take(l, g.cfg.MaxOps-ops, room, forgotten)
		if len(p.ops) == 0 {
			break
		}
		taken++
		var part Part
		if p.draft != nil {
			part = p.draft.part()
			widest = max(widest, p.draft.size())
		}
		// A boot that was known is read again only if it has changed: that is rare, and the ranges are long.
		if p.draft == nil || p.guess {
			part.Reads = reads(&l.keys, g.cfg.MaxClaims)
		}
		widest = max(widest, len(part.Reads))
		ops += len(p.ops)
		l.flying, l.ready = true, false
		for _, w := range p.ops {
			w.flying = true
		}
		f.parts, f.Txn.Parts = append(f.parts, p), append(f.Txn.Parts, part)
	}
	g.ready = slices.Delete(g.ready, 0, taken)
	return f
}

// opSize is the most that one operation adds to the size of a part.
const opSize = 3

// take makes a part of the first operations of a boot: those that only read, or others. No two parts of a transaction write the same
// key that says what was forgotten.
func (g *Group) take(l *line, most, room int, forgotten map[string]bool) flightPart {
	p := flightPart{line: l}
	most = min(most, maxPartOps, len(l.ops))
	if l.ops[0].reads() {
		for len(p.ops) < most && l.ops[len(p.ops)].reads() {
			p.ops = append(p.ops, l.ops[len(p.ops)])
		}
		return p
	}
	base := l.view
	if l.view = nil; base == nil {
		base, _ = g.views.Get(l.keys.boot)
	}
	if base == nil {
		// A boot that nothing is known of is taken for a new one. If it is not, the guards fail and its claims are read.
		base, p.guess = &view{boot: l.keys.boot}, true
	}
	p.draft = newDraft(&l.keys, g.epoch, base)
	for _, w := range l.ops[:most] {
		need := opSize + len(w.Claims)
		if w.reads() || p.draft.size()+need > room || p.draft.waits(w.Identity) {
			break
		}
		if w.ofBoot() && len(p.ops) > 0 || w.Kind == DoForget && forgotten[l.keys.forgotten] {
			break
		}
		d, err := p.draft.decide(w.Op, g.cfg.MaxClaims)
		p.ops, p.decisions, p.errs = append(p.ops, w), append(p.decisions, d), append(p.errs, err)
		if w.Kind == DoForget {
			forgotten[l.keys.forgotten] = true
		}
	}
	return p
}

// ErrForgot: the store is at an earlier revision than before, or is another one, so it was restored from a copy.
var ErrForgot = errors.New("the store of claims has forgotten revisions that it had")

// least is the revision that a store which has forgotten nothing has after the transaction: one that writes makes a new one.
func (f *Flight) least(r Result) int64 {
	for i, p := range f.Txn.Parts {
		if len(p.Puts) > 0 && i < len(r.Parts) && r.Parts[i].Held {
			return f.floor + 1
		}
	}
	return f.floor
}

// remembers checks that a result is of the store that the epoch was opened on, which was at least at revision floor.
func (g *Group) remembers(r Result, floor int64) error {
	switch {
	case g.cfg.Cluster != 0 && r.Cluster != g.cfg.Cluster:
		return fmt.Errorf("%w: it is cluster %x, and was %x", ErrForgot, r.Cluster, g.cfg.Cluster)
	case r.Revision < floor:
		return fmt.Errorf("%w: revision %d, before %d", ErrForgot, r.Revision, floor)
	}
	return nil
}

// Land takes what became of a transaction, and gives the ends of operations. Others go into a later transaction.
func (g *Group) Land(now time.Time, f *Flight, res Result, err error) []Done {
	g.flights--
	for _, p := range f.parts {
		p.line.flying = false
		for _, w := range p.ops {
			w.flying = false
		}
	}
	switch {
	case err != nil:
	case g.remembers(res, f.least(res)) != nil:
		err = fmt.Errorf("%w: %w", ErrUnknown, g.remembers(res, f.least(res)))
	case !res.Held:
		err = fmt.Errorf("%w: the store's is not %d", ErrEpoch, g.epoch.Number)
	case len(res.Parts) != len(f.parts):
		err = fmt.Errorf("%w: %d parts of %d were answered", ErrUnknown, len(res.Parts), len(f.parts))
	}
	var done []Done
	for i, p := range f.parts {
		switch {
		case err != nil:
			done = g.lost(done, p, err)
		case p.draft == nil:
			done = g.read(done, p, res.Parts[i], res.Revision)
		case res.Parts[i].Held:
			done = g.committed(done, p, res.Revision)
		default:
			done = g.overtaken(done, p, res.Parts[i])
		}
		g.settle(p.line)
	}
	switch {
	case err == nil:
		g.revision = max(g.revision, res.Revision)
	case errors.Is(err, ErrForgot) || errors.Is(err, ErrEpoch):
		done = append(done, g.Stop(fmt.Errorf("%w: %w", ErrEpoch, err))...)
	}
	for _, p := range f.parts {
		if g.stopped == nil {
			g.makeReady(now, p.line)
		}
	}
	return done
}

// leave takes the operations of a part out of their line.
func (p flightPart) leave() { p.line.ops = slices.Delete(p.line.ops, 0, len(p.ops)) }

// lost answers a part whose transaction failed. What changes nothing was certainly not done.
func (g *Group) lost(done []Done, p flightPart, err error) []Done {
	p.leave()
	unknown := errors.Is(err, ErrUnknown)
	if unknown {
		g.views.Remove(p.line.keys.boot)
	}
	for i, w := range p.ops {
		e := err
		if unknown && (p.draft == nil || !p.decisions[i].changes) {
			e = fmt.Errorf("%w (%v)", ErrUnavailable, err)
		}
		done = g.end(done, w, Answer{}, e)
	}
	return done
}

// committed answers a part that was done.
func (g *Group) committed(done []Done, p flightPart, revision int64) []Done {
	p.leave()
	for i, w := range p.ops {
		a := p.decisions[i].at(revision)
		if p.guess && a.Folds.Modified == 0 {
			// What was forgotten before was not read.
			a.Folds.Forgotten = a.Folds.At
		}
		done = g.end(done, w, a, p.errs[i])
	}
	if v := p.draft.committed(revision); v != nil {
		g.views.Put(p.line.keys.boot, v, v.weight())
	} else {
		g.views.Remove(p.line.keys.boot)
	}
	return done
}

// read answers operations that read.
func (g *Group) read(done []Done, p flightPart, r PartResult, revision int64) []Done {
	p.leave()
	v, err := load(&p.line.keys, g.epoch.Number, g.cfg.MaxClaims, r.Reads)
	if err == nil {
		g.views.Put(p.line.keys.boot, v, v.weight())
		p.line.view = v
	}
	for _, w := range p.ops {
		a := Answer{Outcome: Found, Epoch: g.epoch.Number}
		e := err
		switch {
		case err != nil:
		case w.Kind == DoFoldable:
			a.Claims, a.Folds = v.foldable(w.At), v.folds(g.epoch.Number, revision)
		case !v.knows(w.Identity):
			e = fmt.Errorf("%w: more than %d", ErrTooMany, g.cfg.MaxClaims)
		default:
			for _, s := range v.intersecting(w.Identity) {
				a.Claims = append(a.Claims, s.Claim)
			}
			a.Folds = v.folds(g.epoch.Number, revision)
		}
		done = g.end(done, w, a, e)
	}
	return done
}

// overtaken decides a part again, whose boot is not what it was taken for.
func (g *Group) overtaken(done []Done, p flightPart, r PartResult) []Done {
	g.views.Remove(p.line.keys.boot)
	err := g.stopped
	// One that was known and has changed is taken for a new one next, and read by that.
	if p.guess && err == nil {
		if p.line.view, err = load(&p.line.keys, g.epoch.Number, g.cfg.MaxClaims, r.Reads); err == nil {
			g.views.Put(p.line.keys.boot, p.line.view, p.line.view.weight())
		}
	}
	if err != nil {
		p.leave()
		for _, w := range p.ops {
			done = g.end(done, w, Answer{}, err)
		}
		return done
	}
	keep := p.ops[:0:0]
	for _, w := range p.ops {
		// Who has left is not sent again.
		if w.tries++; w.tries < g.cfg.MaxTries && !w.canceled {
			keep = append(keep, w)
			continue
		}
		done = g.end(done, w, Answer{}, ErrBusy)
	}
	p.line.ops = append(keep, p.line.ops[len(p.ops):]...)
	return done
}
