package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// Terms hands out numbers that only grow, from a place that does not forget when etcd is restored from a backup.
// If it is nil, fences and epochs only grow as long as etcd forgets nothing.
type Terms interface {
	// Next returns a number that is greater than all that it returned before, to any caller.
	Next(ctx context.Context) (uint64, error)
}

// Leader assigns and grants shards while it leads; of all coordinators of an etcd one does.
type Leader struct {
	Client *Client
	Mirror *Mirror
	// ID names this coordinator in the election.
	ID string
	// TTL of the election's lease: how long nobody leads after a leader died.
	TTL       time.Duration
	Rebalance ownership.RebalanceDelay
	Terms     Terms
	Log       *slog.Logger
	Now       func() time.Time
	// Observe is called after something was done; every field may be nil.
	Observe Observer

	leading atomic.Bool
	term    atomic.Uint64
}

// Observer has the calls that a leader makes.
type Observer struct {
	Moved   func(kind ownership.Kind, m Move)
	Granted func(kind ownership.Kind, n int)
	Refused func(kind ownership.Kind) // a write whose comparison failed
	Failed  func(kind ownership.Kind)
	Leading func(bool)
}

// Waits of the leader.
const (
	campaignMin, campaignMax = 250 * time.Millisecond, 2 * time.Second
	// retryAfter is the wait after a write that was refused or failed, unless something changes before.
	retryAfter = 250 * time.Millisecond
	termsTime  = 30 * time.Second // for the next term's number, from the object store
)

// Leading reports whether this coordinator leads, as far as it knows.
func (l *Leader) Leading() bool { return l.leading.Load() }

// Term is the number of the present term; 0 without Terms.
func (l *Leader) Term() uint64 { return l.term.Load() }

// Run campaigns and leads until ctx ends; then it resigns.
func (l *Leader) Run(ctx context.Context) error {
	for backoff := run.NewBackoff(campaignMin, campaignMax); ; {
		led, err := l.lead(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// Every end of a term comes here, also one whose lease was lost while etcd did not answer.
		l.Log.Warn("not leading; trying again", "error", err)
		if led {
			backoff.Reset()
		}
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
}

// lead is one candidacy and the term that may follow; led is whether one did.
func (l *Leader) lead(ctx context.Context) (led bool, err error) {
	gctx, cancel := l.Client.Bound(ctx)
	lease, err := l.Client.Etcd.Grant(gctx, int64((l.TTL+time.Second-1)/time.Second))
	cancel()
	if err != nil {
		return false, fmt.Errorf("etcd: grant the leader's lease: %w", err)
	}
	// The session has the client's context, not ctx: it must not end before Close revokes the lease, so that
	// another coordinator can lead at once.
	session, err := concurrency.NewSession(l.Client.Etcd, concurrency.WithLease(lease.ID), concurrency.WithTTL(int(lease.TTL)))
	if err != nil {
		return false, fmt.Errorf("etcd: keep the leader's lease: %w", err)
	}
	defer session.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // ends with the session, which Close ends, or with ctx
		select {
		case <-session.Done():
			stop(errors.New("the leader's lease has ended"))
		case <-ctx.Done():
		}
	}()
	election := concurrency.NewElection(session, keys{l.Client.Prefix}.election())
	// Campaign returns when this coordinator leads, which may take as long as another one does.
	if err := election.Campaign(ctx, l.ID); err != nil {
		return false, fmt.Errorf("etcd: campaign: %w", errors.Join(err, context.Cause(ctx)))
	}
	t := &term{l: l, restores: l.Client.Restores(), keys: keys{l.Client.Prefix}, lead: clientv3.Compare(clientv3.CreateRevision(election.Key()), "=", election.Rev()),
		machines: map[ownership.Kind]*ownership.Machine{}}
	if err := t.next(ctx); err != nil {
		return false, err
	}
	failpoint.Hit("coordinator.leader.elected.after")
	l.Log.Info("leading", "id", l.ID, "term", t.number)
	l.setLeading(true)
	defer l.setLeading(false)
	return true, t.run(ctx)
}

func (l *Leader) setLeading(on bool) {
	l.leading.Store(on)
	if l.Observe.Leading != nil {
		l.Observe.Leading(on)
	}
}
