package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

const (
	visibleRate = 500 // batches a second beside the probes
	probeRate   = 20  // probes a second
	probeMetric = "probe"
	askEvery    = 20 * time.Millisecond
	// pollInterval is the default of follow.poll_interval of query nodes.
	pollInterval = time.Second
)

// benchVisible sends batches at a steady rate and, beside them, probes of one sample each, and asks for the newest
// probe all the time.
func benchVisible(ctx context.Context, e *env) ([]Result, error) {
	var all []Result
	for _, c := range []struct {
		name  string
		watch bool
		goal  time.Duration
	}{{"with-watch", true, time.Second}, {"without-watch", false, 2 * pollInterval}} {
		if !e.cases.MatchString(c.name) {
			continue
		}
		lags, rate, err := probe(ctx, e, c.watch)
		if err != nil {
			return all, fmt.Errorf("%s: %w", c.name, err)
		}
		note := fmt.Sprintf("from the acknowledgement at the agent to a query's answer; %d probes beside %.0f batches/s of 500 samples, a query every %v; no rollup worker", len(lags), rate, askEvery)
		p50, p99 := quantile(lags, 0.5), quantile(lags, 0.99)
		all = append(all,
			Result{Name: "visible/" + c.name + "/p50", Value: ms(p50), Unit: "ms", Durability: "object store, fsync", Note: note},
			Result{Name: "visible/" + c.name + "/p99", Value: ms(p99), Unit: "ms", Goal: fmt.Sprintf("< %.0f", ms(c.goal)), Pass: p99 < c.goal, Durability: "object store, fsync",
				Note: fmt.Sprintf("longest %.0f ms", ms(lags[len(lags)-1]))})
	}
	return all, nil
}

// probe returns how long each probe took to be seen, in order of length, and the rate of the other batches.
func probe(ctx context.Context, e *env, watch bool) ([]time.Duration, float64, error) {
	span := time.Minute
	if e.quick {
		span = 10 * time.Second
	}
	dir, err := os.MkdirTemp(e.dir, "visible-")
	if err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(dir)
	c, err := cluster.New(cluster.Options{Bin: e.bin, Dir: dir, Collectors: 1, Adjust: func(process string, settings map[string]any) {
		if process == "query" && !watch {
			delete(settings, "follow")
		}
	}})
	if err != nil {
		return nil, 0, err
	}
	defer c.StopAll()
	if err := startAll(ctx, c); err != nil {
		return nil, 0, err
	}
	fs, err := feedsOfHour(requestCase{collectors: 1, boots: streamsAtOnce, samples: 500, batches: visibleRate * int(span.Seconds())}, time.Now().Truncate(time.Hour).Add(-time.Hour))
	if err != nil {
		return nil, 0, err
	}
	l, err := newLoad(c, visibleRate)
	if err != nil {
		return nil, 0, err
	}
	defer l.close()
	p := &probes{at: time.Now().Add(-time.Minute)}
	if err := p.make(int(span.Seconds()) * probeRate * 9 / 10); err != nil { // they end before the load does
		return nil, 0, err
	}
	began := time.Now()
	var took time.Duration
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := l.send(gctx, fs)
		took = time.Since(began)
		return err
	})
	g.Go(func() error { return p.send(gctx, c.Addr.Collectors[0].GRPC) })
	g.Go(func() error { return p.watch(gctx, c) })
	if err := g.Wait(); err != nil {
		return nil, 0, err
	}
	return p.lags(), float64(count(fs)) / took.Seconds(), nil
}

// probes are batches of one sample of one series: the sample of probe i has the value i, and is a millisecond newer
// than the one before. So the value of the newest sample says which ones are seen.
type probes struct {
	at   time.Time
	feed feed

	acked, seen []time.Time
}

func (p *probes) make(n int) error {
	boot := identity.Boot{Agent: probeMetric, Boot: nextBoot(probeMetric, 0)}
	enc := frame.NewEncoder(frame.Options{})
	for i := range n {
		fb := frame.NewBuilder()
		id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: probeMetric}}, series.Gauge, "", 0)
		if err != nil {
			return err
		}
		if err := fb.Append(id, p.at.Add(time.Duration(i)*time.Millisecond).UnixNano(), float64(i)); err != nil {
			return err
		}
		b, err := fb.Build(boot, uint64(i)+1)
		if err != nil {
			return err
		}
		next, err := encodeBatch(enc, b)
		if err != nil {
			return err
		}
		p.feed.batches = append(p.feed.batches, next)
	}
	p.feed.boot, p.acked, p.seen = boot, make([]time.Time, n), make([]time.Time, n)
	return nil
}

// send sends one probe after the other.
func (p *probes) send(ctx context.Context, addr string) error {
	f, err := newFleet(addr, 1)
	if err != nil {
		return err
	}
	defer f.close()
	f.pace = rate.NewLimiter(probeRate, 1)
	f.acked = func(i int) { p.acked[i] = time.Now() }
	_, err = f.send(ctx, []feed{p.feed}, 1)
	return err
}

// watch asks for the newest probe until all were seen.
func (p *probes) watch(ctx context.Context, c *cluster.Cluster) error {
	t := time.NewTicker(askEvery)
	defer t.Stop()
	n := len(p.seen)
	for next := 0; next < n; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		v, _, err := c.Instant(ctx, probeMetric, p.at.Add(time.Duration(n)*time.Millisecond))
		if err != nil {
			return err
		}
		if len(v) == 0 {
			continue // none is seen yet
		}
		now := time.Now()
		for ; next <= int(v[0].Value) && next < n; next++ {
			p.seen[next] = now
		}
	}
	return nil
}

// lags are the times from acknowledgement to being seen, sorted; a probe that was seen before its
// acknowledgement came took nothing.
func (p *probes) lags() []time.Duration {
	var out []time.Duration
	for i := range p.seen {
		out = append(out, max(0, p.seen[i].Sub(p.acked[i])))
	}
	slices.Sort(out)
	return out
}
