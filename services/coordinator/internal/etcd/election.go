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

	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Election chooses one of several coordinators for work that any of them may do, and that is best done by one. That two believe to be
// chosen for a moment must be harmless.
type Election struct {
	Client *Client
	// Key begins the keys of the candidates.
	Key string
	ID  string
	// TTL of the lease: how long nobody is chosen after the one who was has died.
	TTL time.Duration
	Log *slog.Logger

	chosen atomic.Bool
}

// Chosen reports whether this coordinator is the one, as far as it knows.
func (e *Election) Chosen() bool { return e.chosen.Load() }

// Run stands for election until ctx ends; then it resigns.
func (e *Election) Run(ctx context.Context) error {
	return campaigns(ctx, func(ctx context.Context) (bool, error) {
		return campaign(ctx, e.Client, e.Key, e.ID, e.TTL, func(ctx context.Context, won *concurrency.Election) (bool, error) {
			e.chosen.Store(true)
			defer e.chosen.Store(false)
			return true, e.hold(ctx, won.Key(), won.Rev())
		})
	}, func(err error) { e.Log.Warn("not chosen; standing again", "election", e.Key, "error", err) })
}

// campaigns repeats candidacies until ctx ends. Every end of one is told, also one whose lease was lost while etcd did not answer.
func campaigns(ctx context.Context, stand func(context.Context) (held bool, err error), ended func(error)) error {
	for backoff := run.NewBackoff(campaignMin, campaignMax); ; {
		held, err := stand(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ended(err)
		if held {
			backoff.Reset()
		}
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
}

// campaign is one candidacy for the keys below a prefix, and what follows if it is won: won is called then, with a context that ends
// with the lease, and says whether it was of use.
func campaign(ctx context.Context, c *Client, prefix, id string, ttl time.Duration, won func(context.Context, *concurrency.Election) (bool, error)) (bool, error) {
	gctx, cancel := c.Bound(ctx)
	lease, err := c.Etcd.Grant(gctx, int64((ttl+time.Second-1)/time.Second))
	cancel()
	if err != nil {
		return false, fmt.Errorf("etcd: grant the lease of an election: %w", err)
	}
	// The session has the client's context, not ctx: it must not end before Close revokes the lease, so that
	// another coordinator is elected at once.
	session, err := concurrency.NewSession(c.Etcd, concurrency.WithLease(lease.ID), concurrency.WithTTL(int(lease.TTL)))
	if err != nil {
		return false, fmt.Errorf("etcd: keep the lease of an election: %w", err)
	}
	defer session.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // ends with the session, which Close ends, or with ctx
		select {
		case <-session.Done():
			stop(errors.New("the lease of the election has ended"))
		case <-ctx.Done():
		}
	}()
	election := concurrency.NewElection(session, prefix)
	// Campaign returns when this coordinator is elected, which may take as long as another one is.
	if err := election.Campaign(ctx, id); err != nil {
		return false, fmt.Errorf("etcd: campaign: %w", errors.Join(err, context.Cause(ctx)))
	}
	return won(ctx, election)
}

// holdEvery is how often it is looked whether the key is still there: etcd that was restored does not have it, and its lease may be
// another's.
const holdEvery = 2 * time.Second

func (e *Election) hold(ctx context.Context, key string, created int64) error {
	tick := time.NewTicker(holdEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		gctx, cancel := e.Client.Bound(ctx)
		r, err := e.Client.Etcd.Get(gctx, key, clientv3.WithCountOnly(), clientv3.WithMinCreateRev(created), clientv3.WithMaxCreateRev(created))
		cancel()
		// Without an answer the lease decides.
		if err == nil && r.Count == 0 {
			return errors.New("the key of the election is gone")
		}
	}
}
