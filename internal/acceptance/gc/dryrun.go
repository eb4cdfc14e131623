package gc

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// dryState is what a dry run has in place of the state in the bucket, of which it is a copy at first. It writes none, so that it
// takes no work from a process that collects, and changes nothing that an operator sees of that; and it keeps the reports.
type dryState struct {
	state State
	known bool
	// asked is the number of the move that an operator's request for a sweep was seen at.
	asked uint64
	// seen are the reports that were planned.
	seen map[string]bool
}

// readState reads the state; that of a dry run has of the bucket's what an operator asks for.
func (r *Runner) readState(ctx context.Context, now time.Time) (State, error) {
	st, _, err := ReadState(ctx, r.store, r.cfg.AuthorityID)
	if err != nil || !r.cfg.DryRun {
		return st, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &r.dry
	if !d.known {
		d.state, d.known = st, true
		own := &d.state
		own.AuthorityID, own.Holder, own.Claim, own.Sweep, own.Requested, own.Breaker, own.Postponed = r.cfg.AuthorityID, "", "", Sweep{}, false, nil, nil
	}
	if st.Requested && st.Moves > d.asked {
		d.state.Requested, d.asked = true, st.Moves
	}
	// Nobody can release a breaker that stands nowhere. So it is asked for again after a while.
	if b := d.state.Breaker; b != nil && now.Sub(time.Unix(b.At, 0)) >= r.cfg.Lease {
		d.state.Breaker = nil
	}
	return d.state.clone(), nil
}

// moveState changes the state, for a dry run that in memory. The caller holds r.mu.
func (r *Runner) moveState(ctx context.Context, change func(*State) error) (State, error) {
	if !r.cfg.DryRun {
		return MoveState(ctx, r.store, r.cfg.AuthorityID, change)
	}
	st := r.dry.state.clone()
	if err := change(&st); err != nil {
		return State{}, err
	}
	st.Moves++
	r.dry.state = st
	return st.clone(), nil
}

// clone shares nothing with the state. What a program has written it can read.
func (s State) clone() State {
	c, _ := ParseState(s.Marshal())
	return c
}

func (d *dryState) see(key string) {
	if d.seen == nil {
		d.seen = map[string]bool{}
	}
	d.seen[key] = true
}

// listed forgets reports that are gone.
func (d *dryState) listed(reports []objstore.Info) {
	left := map[string]bool{}
	for _, o := range reports {
		if d.seen[o.Key] {
			left[o.Key] = true
		}
	}
	d.seen = left
}
