package main

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/test/peers"
)

const (
	prometheus = "prometheus"
	victoria   = "victoriametrics"
	// liveSpan is in memory while the rest is rolled up; its samples are tsbs.StepMS apart, those before coarseStep.
	liveSpan   = 2 * time.Hour
	coarseStep = 5 * time.Minute
	liveRows   = 6 // of a batch
	// mergedAfter is the rollup service's default of compact.after.
	mergedAfter = 3 * time.Hour
)

// queriedData is devops data whose last two hours have a sample each 10 s, and the days before one each 5 min.
type queriedData struct {
	hosts     []tsbs.Host
	end       time.Time
	span      time.Duration
	old, rows int // rows before the last two hours, and in all
}

func newQueriedData(e *env) *queriedData {
	hosts, span := 100, time.Duration(e.days)*24*time.Hour
	if e.quick {
		hosts, span = 20, 26*time.Hour
	}
	w := &queriedData{end: time.Now().Truncate(time.Hour), span: span, old: int((span - liveSpan) / coarseStep)}
	var times []int64
	from := w.end.Add(-span)
	for k := range w.old {
		times = append(times, from.Add(time.Duration(k+1)*coarseStep).UnixMilli())
	}
	for at := w.end.Add(-liveSpan).UnixMilli() + tsbs.StepMS; at <= w.end.UnixMilli(); at += tsbs.StepMS {
		times = append(times, at)
	}
	w.rows = len(times)
	w.hosts = tsbs.Generate(1, hosts, w.rows).Hosts()
	for _, h := range w.hosts {
		for i := range h.Series {
			h.Series[i].Timestamps = times
		}
	}
	return w
}

// matcher is of some hosts.
func (w *queriedData) matcher(n int) string {
	text := ""
	for i, h := range w.hosts[:n] {
		if i > 0 {
			text += "|"
		}
		text += h.Name
	}
	return "hostname=~" + strconv.Quote(text)
}

// feeds are frames of rows from from to to, each rows of every series of a host.
func (w *queriedData) feeds(from, to, each int) ([]feed, error) {
	out := make([]feed, len(w.hosts))
	enc := frame.NewEncoder(frame.Options{})
	for i := range w.hosts {
		out[i].boot = identity.Boot{Agent: w.hosts[i].Name, Boot: nextBoot("queried", i)}
		seq := uint64(1)
		for k := from; k < to; k += each {
			fb := frame.NewBuilder()
			if err := w.hosts[i].Fill(fb, k, min(each, to-k)); err != nil {
				return nil, err
			}
			b, err := fb.Build(out[i].boot, seq)
			if err != nil {
				return nil, err
			}
			seq = b.Identity.SeqEnd + 1
			next, err := encodeBatch(enc, b)
			if err != nil {
				return nil, err
			}
			out[i].batches = append(out[i].batches, next)
		}
	}
	return out, nil
}

// peerSystem is a peer that can be started again.
type peerSystem struct {
	*system
	monitor *peers.Monitor
}

// start gives all samples to both peers, in order of time, and to ours those that are rolled up.
func (b *httpBench) start(ctx context.Context, dir string) error {
	for _, p := range []struct {
		name string
		open func(string) (*peers.Monitor, error)
	}{{prometheus, peers.NewPrometheus}, {victoria, peers.NewVictoriaMetrics}} {
		m, err := p.open(filepath.Join(dir, p.name))
		if err != nil {
			return err
		}
		if err := m.Start(ctx); err != nil {
			return err
		}
		b.peers = append(b.peers, &peerSystem{ofMonitor(m), m})
		if err := b.w.fill(ctx, m); err != nil {
			return err
		}
	}
	o, err := newOurs(b.e, dir, "6h", plain)
	if err != nil {
		return err
	}
	b.o = o
	if err := startAll(ctx, o.c); err != nil {
		return err
	}
	old, err := b.w.feeds(0, b.w.old, int(time.Hour/coarseStep))
	if err != nil {
		return err
	}
	if err := b.send(ctx, old); err != nil {
		return err
	}
	// Hours are due so long after their end that the last two are not.
	due := time.Since(b.w.end) + liveSpan
	if err := o.rollUp(ctx, due, b.w.samples(b.w.old)); err != nil {
		return err
	}
	// Whole days are merged some hours after their end, as by a worker with its defaults; those of today are not.
	if err := o.merge(ctx, mergedAfter); err != nil {
		return err
	}
	for _, p := range b.peers {
		if err := p.quiet(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *httpBench) close() error {
	var errs []error
	if b.o != nil {
		b.o.c.StopAll()
	}
	for _, p := range b.peers {
		errs = append(errs, p.monitor.Stop())
	}
	return errors.Join(errs...)
}

func (b *httpBench) send(ctx context.Context, fs []feed) error {
	l, err := newLoad(b.o.c, 0)
	if err != nil {
		return err
	}
	defer l.close()
	_, err = l.send(ctx, fs)
	return err
}

func (w *queriedData) samples(rows int) int { return len(w.hosts) * tsbs.SeriesPerHost * rows }

// fill sends everything to a peer, all hosts an hour or so at a time: Prometheus wants samples in order.
func (w *queriedData) fill(ctx context.Context, m *peers.Monitor) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: len(w.hosts)}}
	defer client.CloseIdleConnections()
	var writers []*remoteWriter
	for _, h := range w.hosts {
		writers = append(writers, newRemoteWriter(m, client, h))
	}
	const rows, atOnce = 12, 8
	for from := 0; from < w.rows; from += rows {
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(atOnce)
		for _, one := range writers {
			g.Go(func() error { return one.send(gctx, from, min(rows, w.rows-from)) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// live sends the last two hours, each agent's batches in no order.
func (b *httpBench) live(ctx context.Context) error {
	fs, err := b.w.feeds(b.w.old, b.w.rows, liveRows)
	if err != nil {
		return err
	}
	scrambled(fs)
	if err := b.send(ctx, fs); err != nil {
		return err
	}
	return b.complete(ctx)
}

// published rolls the last two hours up, too, and merges everything. The query node is started again, as nothing
// would make it read hours that it has in memory.
func (b *httpBench) published(ctx context.Context) error {
	if err := b.o.rollUp(ctx, 0, b.w.samples(b.w.rows-b.w.old)); err != nil {
		return err
	}
	if err := b.o.merge(ctx, 0); err != nil {
		return err
	}
	if err := errors.Join(cluster.Stop(&b.o.c.Query), b.o.c.StartQuery(ctx)); err != nil {
		return err
	}
	return b.complete(ctx)
}

// complete waits until every system has all samples of a metric.
func (b *httpBench) complete(ctx context.Context) error {
	for _, s := range b.systems() {
		if err := s.await(ctx, chainMetric, b.w.end.Add(-b.w.span), b.w.end, len(b.w.hosts)*b.w.rows); err != nil {
			return err
		}
	}
	return nil
}
