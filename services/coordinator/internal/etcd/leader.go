package etcd

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
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
	return campaigns(ctx, func(ctx context.Context) (bool, error) {
		return campaign(ctx, l.Client, keys{l.Client.Prefix}.election(), l.ID, l.TTL, l.lead)
	}, func(err error) { l.Log.Warn("not leading; trying again", "error", err) })
}

// lead is the term that follows an election; led is whether it began.
func (l *Leader) lead(ctx context.Context, election *concurrency.Election) (led bool, err error) {
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
