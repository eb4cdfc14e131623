package main

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// streamsAtOnce bounds the streams of a load: boots beyond it have their turn when others have sent everything.
const streamsAtOnce = 100

// load sends feeds through all collectors of a cluster at a steady rate.
type load struct {
	fleets []*fleet // of one connection each
	pace   *rate.Limiter
}

// newLoad connects to the collectors in turn. perSecond 0 is as fast as the answers come.
func newLoad(c *cluster.Cluster, perSecond float64) (*load, error) {
	l := &load{pace: rate.NewLimiter(rate.Inf, 1)}
	if perSecond > 0 {
		l.pace = rate.NewLimiter(rate.Limit(perSecond), 1+int(perSecond/50))
	}
	for i := range max(streamsAtOnce, len(c.Addr.Collectors)) {
		f, err := newFleet(c.Addr.Collectors[i%len(c.Addr.Collectors)].GRPC, 1)
		if err != nil {
			l.close()
			return nil, err
		}
		f.pace = l.pace
		l.fleets = append(l.fleets, f)
	}
	return l, nil
}

func (l *load) close() {
	for _, f := range l.fleets {
		f.close()
	}
	l.fleets = nil
}

// send sends all feeds and waits for every acknowledgement; it returns how long each took.
func (l *load) send(ctx context.Context, fs []feed) ([]time.Duration, error) {
	next := make(chan feed)
	g, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	var all []time.Duration
	for _, f := range l.fleets {
		g.Go(func() error {
			for one := range next {
				got, err := f.send(ctx, []feed{one}, windowOf(streamsAtOnce))
				if err != nil {
					return err
				}
				mu.Lock()
				all = append(all, got.times...)
				mu.Unlock()
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(next)
		for _, f := range fs {
			select {
			case next <- f:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	err := g.Wait()
	return all, err
}
