package redundancy

import (
	"cmp"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/placement"
)

// Naming is what the log says of a body.
type Naming uint8

const (
	// Unsure: the log cannot say. The body is treated as one that is named.
	Unsure Naming = iota
	// Named by an object, or by a part of an upload.
	Named
	// Unnamed: nothing refers to the body, and nothing will.
	Unnamed
	// Awaited: nothing refers to the body, and somebody in this process has it: its writer, whose record may follow, or a
	// reader of an object that was deleted meanwhile.
	Awaited
)

// Place is what a plan has to know of a place.
type Place struct {
	ID   string // of the drive or bucket that is there now
	Name string // in the settings; a drive that is replaced leaves it to the next
	// Up: it answers. Since is when it last did, if it does not.
	Up    bool
	Since time.Time
	// Full: it takes no more files, and keeps those that it has.
	Full bool
	// Leaving: it is being emptied. It gets no files, and what it has is moved to the others.
	Leaving bool
	// Weight is the room of the place, its files included, as it was adopted, bytes; 0: it is not known.
	Weight int64
	// Old: it has bodies of the time before places. They are read from, and replaced.
	Old bool
}

// View is everything that a plan depends on.
type View struct {
	Body   string
	Naming Naming
	Rows   []ledger.Row
	Policy Policy
	Places []Place
	Now    time.Time
	// HealAfter is how long a place may be away before its files are made again elsewhere.
	HealAfter time.Duration
	// Rebalance: files are moved to where they would be written today.
	Rebalance bool
}

// Do is a kind of step.
type Do uint8

// Steps. Each is safe to repeat, and to be broken off anywhere.
const (
	Stage  Do = iota + 1 // add Row, which is wanted at Row.Place
	Assign               // Row is wanted at Place from now on: the place before is gone, or not needed
	Lose                 // Row's file went with its place; it is wanted at Place, if that is set
	Revive               // Row had failed; it is tried again
	Make                 // write the files of Rows
	Read                 // read Row back
	Shift                // move the file of Row to Place
	Drop                 // Row is no longer wanted; Relies have the body
	Remove               // delete the file of Row, which is being removed
	Forget               // take Row away: its file went with its place
)

// Step is a part of a plan.
type Step struct {
	Do     Do
	Row    ledger.Row
	Rows   []ledger.Row
	Place  string
	Relies []ledger.Row
}

// Plan is what a body needs next.
type Plan struct {
	// Steps to do now, in any order. The body is planned again behind them.
	Steps []Step
	// Wait is why nothing can be done now although something is missing; empty when nothing is.
	Wait string
	// Until is when to look again.
	Until time.Time
}

// Next plans the next steps of a body. It depends on nothing but the view. Its order is the safety of the whole: files are
// made, then read back, and only when all that the policy wants were read back on places of their own, others are dropped.
func Next(v View) Plan {
	p := &planner{View: v, places: map[string]Place{}}
	for _, pl := range v.Places {
		p.places[pl.ID] = pl
	}
	if steps := p.removals(); len(steps) > 0 {
		return Plan{Steps: steps}
	}
	switch v.Naming {
	case Awaited:
		return p.awaited()
	case Unnamed:
		return p.unnamed()
	}
	p.size()
	if p.bytes < 0 {
		return p.learn()
	}
	p.choose()
	for _, phase := range []func() []Step{p.revive, p.lose, p.stage, p.make, p.read, p.leave, p.separate, p.drop, p.rebalance} {
		if steps := phase(); len(steps) > 0 {
			return Plan{Steps: steps}
		}
	}
	return p.rest()
}

type planner struct {
	View
	places map[string]Place
	bytes  int64 // of the body; -1: not known

	wanted []ledger.Row // of the policy in force; those without a version are not in the ledger yet
	other  []ledger.Row // the rest
	wait   string
	until  time.Time
}

// pending notes why the plan has to wait.
func (p *planner) pending(why string, until time.Time) {
	p.wait = why
	if p.until.IsZero() || until.Before(p.until) {
		p.until = until
	}
}

func (p *planner) up(r ledger.Row) bool { return p.places[r.Place].Up }

func (p *planner) gone(r ledger.Row) bool {
	_, ok := p.places[r.Place]
	return !ok
}

// away: the place has not answered for so long that its files are made again.
func (p *planner) away(r ledger.Row) bool {
	pl, ok := p.places[r.Place]
	return ok && !pl.Up && p.Now.Sub(pl.Since) >= p.HealAfter
}

// removals ends what was begun: no reader and no plan counts on rows that are being removed.
func (p *planner) removals() (steps []Step) {
	p.Rows = slices.DeleteFunc(slices.Clone(p.Rows), func(r ledger.Row) bool {
		switch {
		case r.State != ledger.Removing:
			return false
		case p.gone(r):
			steps = append(steps, Step{Do: Forget, Row: r})
		case p.up(r):
			steps = append(steps, Step{Do: Remove, Row: r})
		default:
			p.pending("a file is to be removed from a place that is away", p.Now.Add(retryAway))
		}
		return true
	})
	return steps
}

// retryAway is the time between two tries of a place that is away. Its return queues what waits for it anyway.
const retryAway = 5 * time.Minute

// unnamed removes a body that nothing refers to. Its age does not matter: its writer has ended, however the clocks are set.
func (p *planner) unnamed() Plan {
	var steps []Step
	for _, r := range p.Rows {
		steps = append(steps, Step{Do: Drop, Row: r})
	}
	if len(steps) > 0 {
		return Plan{Steps: steps}
	}
	return p.rest()
}

// awaited leaves a body alone that somebody has.
func (p *planner) awaited() Plan {
	var age time.Duration
	for _, r := range p.Rows {
		age = max(age, p.Now.Sub(time.Unix(0, r.Created)))
	}
	if len(p.Rows) > 0 {
		p.pending("the body is being written or read, and no object names it", p.Now.Add(untilNamed(age)))
	}
	return p.rest()
}

// untilNamed is when to look again at a body whose record is still to come, given its age: the record is mostly there a moment
// after the body. A clock that was set makes this too soon or too late by half a minute, and no more.
func untilNamed(age time.Duration) time.Duration {
	return min(max(age, firstUnnamed), retryUnnamed)
}

const (
	firstUnnamed = 200 * time.Millisecond
	retryUnnamed = 30 * time.Second
)

// size takes the size of the body from any row that knows it.
func (p *planner) size() {
	p.bytes = -1
	for _, r := range p.Rows {
		p.bytes = max(p.bytes, r.Size)
	}
}

// learn reads files back until one has told the size of the body. Without it is not known what the policy wants.
func (p *planner) learn() Plan {
	var steps []Step
	for _, r := range p.Rows {
		if r.State == ledger.Uploaded && p.up(r) {
			steps = append(steps, Step{Do: Read, Row: r})
		}
	}
	if len(steps) > 0 {
		return Plan{Steps: steps}
	}
	// A body without any row is lost, unless a place is away that was never listed.
	p.pending("no file of the body can be read", p.Now.Add(retryAway))
	return p.rest()
}

// choose divides the rows into those that the policy wants and the others.
func (p *planner) choose() {
	if !p.Policy.Coded(p.bytes) {
		p.chooseCopies()
		return
	}
	have := map[ledger.Key]ledger.Row{}
	for _, r := range p.Rows {
		have[r.Key] = r
	}
	for i := range p.Policy.Data + p.Policy.Parity {
		k := p.Policy.shard(p.Body, i)
		r, ok := have[k]
		if !ok {
			r = ledger.Row{Key: k, K: uint8(p.Policy.Data), M: uint8(p.Policy.Parity), Size: p.bytes}
		}
		delete(have, k)
		p.wanted = append(p.wanted, r)
	}
	for _, r := range p.Rows {
		if _, ok := have[r.Key]; ok {
			p.other = append(p.other, r)
		}
	}
}

// chooseCopies: any copies will do, so those count first that are there, and where they would be written today.
func (p *planner) chooseCopies() {
	var copies []ledger.Row
	free := uint16(0)
	for _, r := range p.Rows {
		if r.Kind == ledger.Copy {
			free = max(free, r.Index+1)
		}
		if r.Kind == ledger.Copy && !p.places[r.Place].Old {
			copies = append(copies, r)
		} else {
			p.other = append(p.other, r)
		}
	}
	targets := p.targets(p.Policy.Copies, copies)
	used := map[string]bool{}
	rank := func(r ledger.Row) int {
		n := 0
		if !r.State.Readable() || p.gone(r) || p.away(r) {
			n += 8
		}
		if r.State != ledger.Durable {
			n += 2
		}
		if !slices.Contains(targets, r.Place) {
			n++
		}
		return n
	}
	slices.SortStableFunc(copies, func(a, b ledger.Row) int { return cmp.Compare(rank(a), rank(b)) })
	for _, r := range copies {
		// One place keeps one copy of a body, whatever the ledger says.
		if len(p.wanted) == p.Policy.Copies || used[r.Place] {
			p.other = append(p.other, r)
			continue
		}
		used[r.Place] = true
		p.wanted = append(p.wanted, r)
	}
	for len(p.wanted) < p.Policy.Copies {
		p.wanted = append(p.wanted, ledger.Row{Key: ledger.Key{Body: p.Body, Kind: ledger.Copy, Index: free}, K: 1, Size: p.bytes})
		free++
	}
}

// order gives the places that files may be on, the first choice first. The first copies of a body are written in the same order
// (package spread), so most of them need not move. A full place is among them where has says that the body has a file there:
// what it has it keeps, because moving it away would only make room for the next one.
func (p *planner) order(has func(id string) bool) []string {
	list := slices.DeleteFunc(slices.Clone(p.Places), func(pl Place) bool { return !pl.Up || pl.Old || pl.Leaving || pl.Full && !has(pl.ID) })
	candidates := make([]placement.Candidate, len(list))
	for i, pl := range list {
		candidates[i] = placement.Candidate{Name: pl.Name, Weight: pl.Weight}
	}
	ids := make([]string, len(list))
	for i, at := range placement.Order(p.Body, candidates) {
		ids[i] = list[at].ID
	}
	return ids
}

// targets are the places where n files of the body should be, some of which it has.
func (p *planner) targets(n int, rows []ledger.Row) []string {
	ids := p.order(func(id string) bool { return hasReadable(rows, id) })
	return ids[:min(n, len(ids))]
}

func hasReadable(rows []ledger.Row, place string) bool {
	return slices.ContainsFunc(rows, func(r ledger.Row) bool { return r.Place == place && r.State.Readable() })
}

func hasAny(rows []ledger.Row, place string) bool {
	return slices.ContainsFunc(rows, func(r ledger.Row) bool { return r.Place == place })
}

// spare gives places without a file that the policy wants, best first. Each takes files.
func (p *planner) spare() []string {
	none := func(string) bool { return false }
	return slices.DeleteFunc(p.order(none), func(id string) bool { return hasAny(p.wanted, id) })
}

// revive tries again what had failed: the plan was asked for, so somebody wants it.
func (p *planner) revive() (steps []Step) {
	for _, r := range p.wanted {
		if r.State == ledger.Failed {
			steps = append(steps, Step{Do: Revive, Row: r})
		}
	}
	return steps
}

// lose gives up files of places that are gone, or away for long while another place could have them.
func (p *planner) lose() (steps []Step) {
	spare := p.spare()
	for _, r := range p.wanted {
		if !r.State.Readable() {
			continue
		}
		switch {
		case p.gone(r):
			steps = append(steps, Step{Do: Lose, Row: r})
		case p.away(r) && len(spare) > 0:
			steps = append(steps, Step{Do: Lose, Row: r, Place: spare[0]})
			spare = spare[1:]
		}
	}
	return steps
}

// stage gives each wanted file a place.
func (p *planner) stage() (steps []Step) {
	spare := p.spare()
	for _, r := range p.wanted {
		fresh := r.Version == 0
		if !fresh && !(r.State == ledger.Staged && p.misplaced(r)) {
			continue
		}
		if len(spare) == 0 {
			p.pending("there are fewer places than files of the body", p.Now.Add(retryAway))
			continue
		}
		if fresh {
			r.State, r.Place = ledger.Staged, spare[0]
			steps = append(steps, Step{Do: Stage, Row: r})
		} else {
			steps = append(steps, Step{Do: Assign, Row: r, Place: spare[0]})
		}
		spare = spare[1:]
	}
	return steps
}

// misplaced: what is not written yet should be written elsewhere.
func (p *planner) misplaced(r ledger.Row) bool {
	if p.gone(r) || p.away(r) || p.places[r.Place].Full || p.places[r.Place].Leaving {
		return true
	}
	return slices.ContainsFunc(p.wanted, func(o ledger.Row) bool {
		return o.Key != r.Key && o.Place == r.Place && (o.State != ledger.Staged || o.Key.Less(r.Key))
	})
}

// make writes what is not there. All files are made in one pass over the body.
func (p *planner) make() []Step {
	var rows []ledger.Row
	for _, r := range p.wanted {
		switch {
		case r.State != ledger.Staged || r.Version == 0:
		case p.up(r):
			rows = append(rows, r)
		default:
			p.pending("a place is away", p.Now.Add(retryAway))
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return []Step{{Do: Make, Rows: rows}}
}

// read verifies what was written.
func (p *planner) read() (steps []Step) {
	for _, r := range p.wanted {
		switch r.State {
		case ledger.Uploaded:
			if p.up(r) {
				steps = append(steps, Step{Do: Read, Row: r})
			} else {
				p.pending("a place is away", p.Now.Add(retryAway))
			}
		case ledger.Uploading, ledger.Verifying:
			p.pending("another worker has a file of the body", p.Now.Add(retryAway))
		}
	}
	return steps
}

// leave moves files away from places that are being emptied. A file on one is as good as any until it was moved.
func (p *planner) leave() (steps []Step) {
	spare := p.spare()
	for _, r := range p.wanted {
		if r.State != ledger.Durable || !p.places[r.Place].Leaving || !p.up(r) {
			continue
		}
		if len(spare) == 0 {
			p.pending("no other place can take the files of a place that is being emptied", p.Now.Add(retryAway))
			continue
		}
		steps = append(steps, Step{Do: Shift, Row: r, Place: spare[0]})
		spare = spare[1:]
	}
	return steps
}

// separate moves files apart that share a place.
func (p *planner) separate() []Step {
	spare := p.spare()
	seen := map[string]bool{}
	for _, r := range p.wanted {
		if r.State == ledger.Durable && seen[r.Place] && p.up(r) {
			if len(spare) == 0 {
				p.pending("there are fewer places than files of the body", p.Now.Add(retryAway))
				continue
			}
			return []Step{{Do: Shift, Row: r, Place: spare[0]}}
		}
		seen[r.Place] = true
	}
	return nil
}

// complete: all that the policy wants was read back, on places of their own, which can be asked now.
func (p *planner) complete() bool {
	seen := map[string]bool{}
	for _, r := range p.wanted {
		if r.State != ledger.Durable || seen[r.Place] || !p.up(r) {
			return false
		}
		seen[r.Place] = true
	}
	return len(p.wanted) > 0
}

// drop gives up what the policy does not want, once all that it wants is there.
func (p *planner) drop() (steps []Step) {
	if !p.complete() {
		// What a place took away with it is of no use, whatever else is there.
		for _, r := range p.other {
			if p.gone(r) {
				steps = append(steps, Step{Do: Forget, Row: r})
			}
		}
		return steps
	}
	for _, r := range p.other {
		if p.gone(r) {
			steps = append(steps, Step{Do: Forget, Row: r})
		} else {
			steps = append(steps, Step{Do: Drop, Row: r, Relies: p.wanted})
		}
	}
	return steps
}

// rebalance moves one file of a body that is complete to a place that should have it.
func (p *planner) rebalance() []Step {
	if !p.Rebalance || !p.complete() {
		return nil
	}
	targets := p.targets(len(p.wanted), p.wanted)
	// Where a target is full, the body has a file there already.
	free := slices.DeleteFunc(p.spare(), func(id string) bool { return !slices.Contains(targets, id) })
	for _, r := range p.wanted {
		if len(free) > 0 && !slices.Contains(targets, r.Place) {
			return []Step{{Do: Shift, Row: r, Place: free[0]}}
		}
	}
	return nil
}

// rest ends a plan without steps.
func (p *planner) rest() Plan {
	for _, r := range p.wanted {
		if r.State == ledger.Durable && !p.up(r) {
			p.pending("a place is away", p.Now.Add(retryAway))
		}
	}
	return Plan{Wait: p.wait, Until: p.until}
}
