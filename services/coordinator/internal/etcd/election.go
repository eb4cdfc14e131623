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
	for backoff := run.NewBackoff(campaignMin, campaignMax); ; {
		was, err := e.stand(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		e.Log.Warn("not chosen; standing again", "election", e.Key, "error", err)
		if was {
			backoff.Reset()
		}
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
}

// stand is one candidacy, and the time after it if it succeeds.
func (e *Election) stand(ctx context.Context) (was bool, err error) {
	gctx, cancel := e.Client.Bound(ctx)
	lease, err := e.Client.Etcd.Grant(gctx, int64((e.TTL+time.Second-1)/time.Second))
	cancel()
	if err != nil {
		return false, fmt.Errorf("etcd: grant the lease of an election: %w", err)
	}
	// With the client's context and not ctx: Close revokes the lease, so that another one is chosen at once.
	session, err := concurrency.NewSession(e.Client.Etcd, concurrency.WithLease(lease.ID), concurrency.WithTTL(int(lease.TTL)))
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
	election := concurrency.NewElection(session, e.Key)
	if err := election.Campaign(ctx, e.ID); err != nil {
		return false, fmt.Errorf("etcd: campaign: %w", errors.Join(err, context.Cause(ctx)))
	}
	e.chosen.Store(true)
	defer e.chosen.Store(false)
	return true, e.hold(ctx, election.Key(), election.Rev())
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
