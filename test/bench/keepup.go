package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/commit"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

const (
	keepupWriters = 20
	keepupRate    = 2000 // entries a second of all writers together
	keepupFor     = time.Minute
	// keepupLag is how far behind the reconciler may be.
	keepupLag = 10 * time.Second
)

// benchKeepup has writers of the journal, as in so many collectors, write segments over a slow store, and
// sees how far a reconciler over it is behind them.
func benchKeepup(ctx context.Context, e *env) ([]Result, error) {
	r, err := founded(ctx, e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	slow, stop, err := startDelaying(r.storeAddr, func() time.Duration { return slowRequest })
	if err != nil {
		return nil, err
	}
	defer stop()
	f, err := r.follower("reconciler", slow, "")
	if err != nil {
		return nil, err
	}
	p, _, err := f.start(ctx, r)
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	store, err := r.client(ctx, slow, oursPrefix)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	w := &writers{store: store, notify: f.section["grpc"].(section)["listen"].(string)}
	wctx, halt := context.WithCancel(ctx)
	defer halt()
	done := make(chan error, 1)
	go func() { done <- w.run(wctx) }()
	span := keepupFor
	if e.quick {
		span = 10 * time.Second
	}
	before, err := f.asks(ctx)
	if err != nil {
		return nil, err
	}
	cpu, err := cpuSeconds(p.Pid())
	if err != nil {
		return nil, err
	}
	began := time.Now()
	var lags []time.Duration
	behind := 0.0
	for time.Since(began) < span {
		select {
		case err := <-done:
			return nil, fmt.Errorf("the writers ended: %w", err)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
		written := float64(w.durable.Load())
		s, err := scrape(ctx, f.http)
		if err != nil {
			return nil, err
		}
		behind = written - s.sum("lightmetrics_reconciler_journal_entries_total")
		through := s.sum("lightmetrics_reconciler_complete_through_timestamp_seconds")
		lags = append(lags, time.Since(time.UnixMicro(int64(through*1e6))))
	}
	took := time.Since(began).Seconds()
	rate, segments := float64(w.durable.Load())/took, float64(w.segments.Load())/took
	used, err := cpuSeconds(p.Pid())
	if err != nil {
		return nil, err
	}
	after, err := f.asks(ctx)
	if err != nil {
		return nil, err
	}
	halt()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		return nil, err
	}
	last := lags[len(lags)-1]
	slices.Sort(lags)
	// Behind by no more than what is written between two polls, and what those need.
	ok := last <= keepupLag && behind <= rate*keepupLag.Seconds()
	note := fmt.Sprintf("%d writers, %.0f entries/s of %d wanted in %.0f segments/s; every request, theirs too, takes %v longer; at the end %.0f entries are unread; lag p50 %v, longest %v; requests of the reconciler a second: %s",
		keepupWriters, rate, keepupRate, segments, slowRequest, max(0, behind), quantile(lags, 0.5).Round(10*time.Millisecond), lags[len(lags)-1].Round(10*time.Millisecond), after.minus(before).per(took))
	return []Result{
		{Name: "keepup/reconciler/lag", Value: last.Seconds(), Unit: "s", Goal: fmt.Sprintf("<= %g", keepupLag.Seconds()), Pass: ok, Durability: "object store, fsync", Note: note},
		{Name: "keepup/reconciler/cpu", Value: (used - cpu) / took, Unit: "cores", Note: fmt.Sprintf("%.0f us an entry", (used-cpu)/took/rate*1e6)},
	}, nil
}

// writers are the journals of collectors, without their acceptance.
type writers struct {
	store    objstore.Store
	notify   string
	durable  atomic.Int64
	segments atomic.Int64
}

func (w *writers) run(ctx context.Context) error {
	conn, err := rpc.Dial(w.notify, rpc.ClientConfig{})
	if err != nil {
		return err
	}
	defer conn.Close()
	// All boots are of now, and each batch is another one.
	p := planted{boots: 10_000, batches: 100_000_000, until: time.Now().Add(time.Hour), span: time.Hour}
	g, ctx := errgroup.WithContext(ctx)
	for i := range keepupWriters {
		stream, err := journalv1.NewJournalServiceClient(conn).NotifyJournal(ctx)
		if err != nil {
			return err
		}
		c, err := commit.New(commit.Config{
			Store: w.store, Opening: journal.Opening{Writer: fmt.Sprintf("collector-%d", i), Role: journal.RoleCollector, Authority: authority},
			Events: commit.Events{Durable: func(at journal.Position, es []*journal.Entry, _ time.Duration) {
				w.durable.Add(int64(len(es)))
				w.segments.Add(1)
				_ = stream.Send(&journalv1.NotifyJournalRequest{Position: at.String()}) // a hint that is lost is found by a poll
			}},
		})
		if err != nil {
			return err
		}
		g.Go(func() error { return c.Run(ctx) })
		g.Go(func() error { return w.feed(ctx, c, p, i) })
	}
	return g.Wait()
}

// feed gives a writer its share of the entries.
func (w *writers) feed(ctx context.Context, c *commit.Committer, p planted, i int) error {
	const every = 10 * time.Millisecond
	t := time.NewTicker(every)
	defer t.Stop()
	began, n := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		for due := int(time.Since(began).Seconds() * keepupRate / keepupWriters); n < due; n++ {
			// ErrFull too: then the store is too slow for the writers, which is not what is measured.
			if _, err := c.Add(p.entry(n*keepupWriters + i)); err != nil {
				return err
			}
		}
	}
}
