package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// epochsPerTerm: with Terms, the epochs of every shard begin at the term's number times this, in each term.
const epochsPerTerm = 1024

// grantsPerTxn keeps a transaction below etcd's 128 comparisons: three for each grant, and two more.
const grantsPerTxn = 40

// term is the time in which a coordinator leads. Every write compares the leader's key, so that a coordinator that
// no longer leads, and does not know it, writes nothing.
type term struct {
	l        *Leader
	keys     keys
	lead     clientv3.Cmp
	number   uint64
	restores int64 // of etcd, when the term began
	machines map[ownership.Kind]*ownership.Machine
}

// errRefused: a comparison failed, because the mirror lags or another coordinator leads.
var errRefused = errors.New("refused: the mirror lags, or another coordinator leads")

func (t *term) next(ctx context.Context) error {
	if t.l.Terms == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, termsTime)
	defer cancel()
	n, err := t.l.Terms.Next(ctx)
	if err != nil {
		return fmt.Errorf("next term: %w", err)
	}
	t.number = n
	t.l.term.Store(n)
	return nil
}

// run decides whenever something has changed, until ctx ends or etcd was restored.
func (t *term) run(ctx context.Context) error {
	for {
		// Taken before the step reads the state, so that a change during the step is not missed.
		changed := t.l.Mirror.Changed()
		if t.l.Client.Restores() != t.restores {
			return ErrBehind // the next term has fences above all that were given
		}
		wake := t.step(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		timer := time.NewTimer(wake)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// idle is the longest time between two steps.
const idle = time.Minute

// step decides for every kind, and returns the time until the next step.
func (t *term) step(ctx context.Context) time.Duration {
	wait := idle
	if t.l.Mirror.Err() != nil {
		return wait // etcd does not answer; the mirror wakes the loop when it does
	}
	for _, kind := range ownership.Kinds() {
		st := t.l.Mirror.State(kind)
		if st.Shards == 0 {
			continue
		}
		w, err := t.decide(ctx, kind, st)
		wait = min(wait, w)
		if err == nil {
			continue
		}
		// Refused or failed: the mirror will most likely have changed by then.
		wait = min(wait, retryAfter)
		switch {
		case errors.Is(err, errRefused):
			observe(t.l.Observe.Refused, kind)
		case ctx.Err() == nil:
			observe(t.l.Observe.Failed, kind)
			t.l.Log.Warn("a decision was not written; it is made again", "kind", kind, "error", err)
		}
	}
	return wait
}

func observe(fn func(ownership.Kind), kind ownership.Kind) {
	if fn != nil {
		fn(kind)
	}
}

func (t *term) decide(ctx context.Context, kind ownership.Kind, st *State) (time.Duration, error) {
	m := t.machines[kind]
	if m == nil {
		m = ownership.NewMachine(t.l.Rebalance)
		t.machines[kind] = m
	}
	now := t.l.Now()
	d := m.Step(now, st.View())
	wait := idle
	if !d.Wake.IsZero() {
		wait = max(d.Wake.Sub(now), 0)
	}
	// Grants compare the targets that they are based on: those of the mirror, or those that are written just now.
	rev := st.targetsRev
	if d.Change != nil {
		var err error
		if rev, err = t.assign(ctx, kind, st, *d.Change, now); err != nil {
			return wait, err
		}
	}
	return wait, t.grant(ctx, kind, st, rev, d.Grants, now)
}

// assign writes the targets and records the move; it returns the targets' new revision.
func (t *term) assign(ctx context.Context, kind ownership.Kind, st *State, c ownership.Change, now time.Time) (int64, error) {
	targets, moves := t.keys.targets(kind), t.keys.moves(kind)
	move := Move{AtNS: now.UnixNano(), Joined: c.Joined, Left: c.Left, Workers: c.Workers, Shards: c.Moved}
	failpoint.Hit("coordinator.assign.write.before")
	r, err := t.l.Client.txn(ctx, targets,
		[]clientv3.Cmp{t.lead, clientv3.Compare(clientv3.ModRevision(targets), "=", st.targetsRev)},
		clientv3.OpPut(targets, encode(packTargets(c.Targets))),
		clientv3.OpPut(moves, encode(movesRecord{addMove(st.Moves, move)})))
	if err != nil {
		return 0, err
	}
	if !r.Succeeded {
		return 0, fmt.Errorf("assign %s: %w", kind, errRefused)
	}
	failpoint.Hit("coordinator.assign.write.after")
	t.l.Log.Info("shards were assigned", "kind", kind, "workers", c.Workers, "joined", c.Joined, "left", c.Left, "moved", len(c.Moved))
	if t.l.Observe.Moved != nil {
		t.l.Observe.Moved(kind, move)
	}
	return r.Header.Revision, nil
}

// grant gives free shards to their targets. targetsRev is the revision of the targets on which the grants are
// based.
func (t *term) grant(ctx context.Context, kind ownership.Kind, st *State, targetsRev int64, all []ownership.Grantee, now time.Time) error {
	targets := t.keys.targets(kind)
	for len(all) > 0 {
		batch := all[:min(len(all), grantsPerTxn)]
		all = all[len(batch):]
		cmps := []clientv3.Cmp{t.lead, clientv3.Compare(clientv3.ModRevision(targets), "=", targetsRev)}
		var ops []clientv3.Op
		sessions := map[ownership.Session]bool{}
		for _, g := range batch {
			epoch, err := t.epoch(ctx, st.Epochs[g.Shard].Epoch)
			if err != nil {
				return err
			}
			grant, last := t.keys.grant(kind, g.Shard), t.keys.epoch(kind, g.Shard)
			if !sessions[g.Session] {
				sessions[g.Session] = true
				// The session must still exist, or the grant would have no lease to end with.
				cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(t.keys.session(kind, g.Session)), ">", 0))
			}
			cmps = append(cmps,
				// Nobody may hold the shard, and its epoch must be the one that was read: so no two grants share
				// an epoch.
				clientv3.Compare(clientv3.CreateRevision(grant), "=", 0),
				clientv3.Compare(clientv3.ModRevision(last), "=", st.Epochs[g.Shard].rev))
			ops = append(ops,
				clientv3.OpPut(grant, encode(grantRecord{Worker: g.Worker, Session: g.Session, Epoch: epoch, Term: t.number}), clientv3.WithLease(clientv3.LeaseID(g.Session))),
				clientv3.OpPut(last, encode(epochRecord{Epoch: epoch, Worker: g.Worker, AtNS: now.UnixNano()})))
		}
		r, err := t.l.Client.txn(ctx, t.keys.kind(kind)+"grants", cmps, ops...)
		switch {
		// The lease has just ended. The mirror shows it soon, and the next step decides without the session.
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			return fmt.Errorf("grant %s: %w", kind, errRefused)
		case err != nil:
			return err
		case !r.Succeeded:
			return fmt.Errorf("grant %s: %w", kind, errRefused)
		}
		failpoint.Hit("coordinator.grant.write.after")
		if t.l.Observe.Granted != nil {
			t.l.Observe.Granted(kind, len(batch))
		}
	}
	return nil
}

// epoch is the one after last; with Terms it is also within the term's own range.
func (t *term) epoch(ctx context.Context, last ownership.Epoch) (ownership.Epoch, error) {
	if t.l.Terms == nil {
		return last + 1, nil
	}
	// The range is used up, so a new term is needed for the epochs to keep growing over a restore.
	if uint64(last)+1 >= (t.number+1)*epochsPerTerm {
		if err := t.next(ctx); err != nil {
			return 0, err
		}
	}
	return max(last+1, ownership.Epoch(t.number*epochsPerTerm)), nil
}
