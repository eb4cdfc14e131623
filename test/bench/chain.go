package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/test/peers"
)

// Goals of the whole chain, by rows a request: CPU beside VictoriaMetrics' and bytes of everything in the bucket.
var (
	goalChainCPU   = map[int]float64{6: 2, 60: 0.7}
	goalChainBytes = map[int]float64{6: 4.5}
)

// chainWindow of live samples reaches back to the data.
const chainWindow = "40h"

// chainRounds bounds how often each system runs, in the order A B C C B A.
const chainRounds = 2

// benchChain sends TSBS devops data to all services with default settings, until it is queryable, rolled up and
// merged; and the same samples to Prometheus and VictoriaMetrics by remote write, as many in a request.
func benchChain(ctx context.Context, e *env) ([]Result, error) {
	var all []Result
	for _, rows := range []int{1, 6, 60} {
		name := fmt.Sprintf("chain/%d-samples", rows*tsbs.SeriesPerHost)
		if !e.cases.MatchString(name) {
			continue
		}
		d, note, err := chainData(e, rows)
		if err != nil {
			return all, err
		}
		runs, err := d.rounds(ctx, e)
		if err != nil {
			return all, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, d.results(name, note, runs)...)
	}
	return all, nil
}

// chainWork is the samples that every system gets, rows of each series in a request.
type chainWork struct {
	hosts    []tsbs.Host
	rows     int
	from, to time.Time // no sample at from
	steps    int
}

// chainData is devops data of two hours of yesterday, around 13:00, so that whatever is due for such data is due at whatever
// time of the day this runs: all spans of compaction of a day, and the live state of chainWindow.
func chainData(e *env, rows int) (*chainWork, string, error) {
	d, note, err := tsbsData(e)
	if err != nil {
		return nil, "", err
	}
	w := &chainWork{rows: rows, to: time.Now().Truncate(24 * time.Hour).Add(-10 * time.Hour)}
	w.from = w.to.Add(-2 * time.Hour)
	w.hosts = d.Hosts()
	w.steps = len(w.hosts[0].Series[0].Values)
	if rows == 1 { // else it takes many minutes
		w.steps = min(w.steps, 360)
	}
	w.steps -= w.steps % rows
	// Around the middle, so that both hours have samples.
	start := w.from.Add(time.Hour).UnixMilli() - int64(w.steps/2-1)*tsbs.StepMS
	times := make([]int64, w.steps)
	for k := range times {
		times[k] = start + int64(k)*tsbs.StepMS
	}
	for _, h := range w.hosts {
		for i := range h.Series {
			h.Series[i].Timestamps, h.Series[i].Values = times, h.Series[i].Values[:w.steps]
		}
	}
	return w, note, nil
}

func (w *chainWork) samples() int { return len(w.hosts) * len(w.hosts[0].Series) * w.steps }

// metric is one that every host has once.
const chainMetric = "cpu_usage_user"

// send has every host send its requests one after the other, all hosts at the same time, with write.
func (w *chainWork) send(ctx context.Context, write []func(ctx context.Context, from, rows int) error) (senders, took float64, err error) {
	cpu, began := ownCPU(), time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for _, one := range write {
		g.Go(func() error {
			for from := 0; from < w.steps; from += w.rows {
				if err := one(gctx, from, w.rows); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return (ownCPU() - cpu).Seconds(), time.Since(began).Seconds(), err
}

// check counts every metric.
func (w *chainWork) check(ctx context.Context, s *system) error {
	for _, series := range w.hosts[0].Series {
		if err := s.await(ctx, series.Label("__name__"), w.from, w.to, len(w.hosts)*w.steps); err != nil {
			return err
		}
	}
	return nil
}

// chainRun is one system's run.
type chainRun struct {
	senders   float64 // CPU-seconds
	sending   float64 // seconds
	queryable use     // until the last sample was queryable
	rolled    use     // until both hours were published
	used      use     // until nothing was left to do
	idle      float64 // cores of all processes afterwards
	bytes     float64
	families  string
}

// rounds runs all systems, and keeps the runs by system.
func (w *chainWork) rounds(ctx context.Context, e *env) (map[string][]chainRun, error) {
	systems := []struct {
		name string
		run  func(context.Context, *env, string) (chainRun, error)
	}{
		{"ours", w.ours},
		{"inline", w.inline},
		{"epochs", w.sparing},
		{"victoriametrics", w.peer(peers.NewVictoriaMetrics)},
		{"prometheus", w.peer(peers.NewPrometheus)},
	}
	if e.alone {
		systems = systems[:3]
	}
	out := map[string][]chainRun{}
	for round := range min(e.pairs, chainRounds) {
		for _, s := range systems {
			dir, err := os.MkdirTemp(e.dir, "chain-")
			if err != nil {
				return nil, err
			}
			r, err := s.run(ctx, e, dir)
			if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", s.name, round+1, err)
			}
			out[s.name] = append(out[s.name], r)
		}
		slices.Reverse(systems)
	}
	return out, nil
}

// peer runs a system that takes remote write.
func (w *chainWork) peer(open func(string) (*peers.Monitor, error)) func(context.Context, *env, string) (chainRun, error) {
	return func(ctx context.Context, e *env, dir string) (r chainRun, err error) {
		m, err := open(dir)
		if err != nil {
			return r, err
		}
		if err := m.Start(ctx); err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, m.Stop()) }()
		s := ofMonitor(m)
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: len(w.hosts)}}
		defer client.CloseIdleConnections()
		var write []func(context.Context, int, int) error
		for _, h := range w.hosts {
			write = append(write, newRemoteWriter(m, client, h).send)
		}
		before, err := s.used()
		if err != nil {
			return r, err
		}
		profiled := e.profile(ctx, fmt.Sprintf("chain-%d-%s", w.rows*tsbs.SeriesPerHost, m.Name), m.Addr)
		defer profiled()
		if r.senders, r.sending, err = w.send(ctx, write); err != nil {
			return r, err
		}
		if err := s.await(ctx, chainMetric, w.from, w.to, len(w.hosts)*w.steps); err != nil {
			return r, err
		}
		if r.queryable, err = s.used(); err != nil {
			return r, err
		}
		if err := s.quiet(ctx); err != nil {
			return r, err
		}
		if r.used, err = s.used(); err != nil {
			return r, err
		}
		r.queryable, r.used = r.queryable.minus(before), r.used.minus(before)
		if err := w.check(ctx, s); err != nil {
			return r, err
		}
		r.bytes, err = settledBytes(ctx, s, m)
		return r, err
	}
}

// settledBytes is what a peer has on disk when it has merged what it has. What that costs is not in its CPU.
func settledBytes(ctx context.Context, s *system, m *peers.Monitor) (float64, error) {
	dir := m.Data()
	if strings.HasPrefix(m.Name, "prom") {
		// A snapshot has the head as a block.
		if err := post(ctx, s.client, s.api+"/api/v1/admin/tsdb/snapshot", nil, nil); err != nil {
			return 0, err
		}
		return dirBytes(filepath.Join(dir, "snapshots"))
	}
	for _, path := range []string{"/internal/force_flush", "/internal/force_merge"} {
		if _, err := s.get(ctx, path, nil); err != nil {
			return 0, err
		}
	}
	if err := s.quiet(ctx); err != nil {
		return 0, err
	}
	return dirBytes(dir)
}

// results of all runs; medians.
func (w *chainWork) results(name, note string, runs map[string][]chainRun) []Result {
	m := float64(w.samples()) / 1e6
	of := func(system string, f func(chainRun) float64) float64 {
		var v []float64
		for _, r := range runs[system] {
			v = append(v, f(r))
		}
		if len(v) == 0 {
			return 0
		}
		return median(v)
	}
	cpu := func(r chainRun) float64 { return r.used.cpu() / m }
	queryable := func(r chainRun) float64 { return r.queryable.cpu() / m }
	senders := func(r chainRun) float64 { return r.senders / m }
	bytes := func(r chainRun) float64 { return r.bytes / m / 1e6 }
	const unit, durability = "CPU-s/M samples", "object store, fsync / page cache"
	ours := runs["ours"]
	what := fmt.Sprintf("%s; %d samples in requests of %d, %d senders with one request in flight each; %d runs of each; ours idles at %.3f cores",
		note, w.samples(), w.rows*tsbs.SeriesPerHost, len(w.hosts), len(ours), of("ours", func(r chainRun) float64 { return r.idle }))
	beside := func(figure, peer string, f func(chainRun) float64, unit, note string) Result {
		if len(runs[peer]) == 0 {
			return Result{Name: name + "/" + figure, Value: of("ours", f), Unit: unit, Durability: durability, Note: note}
		}
		return compare(name+"/"+figure, of("ours", f), unit, peer, of(peer, f), durability, note)
	}
	total := beside("cpu", "victoriametrics", cpu, unit, "all servers, until queryable, rolled up, merged and quiet; "+what)
	if g, ok := goalChainCPU[w.rows]; ok && total.Baseline != "" {
		total.Goal, total.Pass = goalOf(true, g), total.Ratio <= g
	}
	size := beside("bytes", "victoriametrics", bytes, "B/sample", "everything in the bucket, merged, but the packs of live state, which go with their window: "+ours[0].families)
	if g, ok := goalChainBytes[w.rows]; ok {
		size.Goal, size.Pass = goalOf(true, g), size.Value <= g
	}
	rs := []Result{
		total,
		beside("cpu-beside-prometheus", "prometheus", cpu, unit, ""),
		beside("cpu-until-queryable", "victoriametrics", queryable, unit, ""),
		beside("senders", "victoriametrics", senders, unit, "the Go client with its queue in memory; remote write"),
		size,
		beside("bytes-beside-prometheus", "prometheus", bytes, "B/sample", "its head as a block"),
	}
	inline := func(figure string, f func(chainRun) float64, unit, note string) Result {
		return compare(name+"/inline/"+figure, of("inline", f), unit, "ours with blobs", of("ours", f), durability, note)
	}
	sparing := func(figure string, f func(chainRun) float64, note string) Result {
		return compare(name+"/marker-reads-epochs/"+figure, of("epochs", f), unit, "ours with marker reads", of("ours", f), durability, note)
	}
	store := func(r chainRun) float64 { return r.used["store"].cpu / m }
	collector := func(r chainRun) float64 { return r.used["collector"].cpu / m }
	rs = append(rs,
		inline("cpu", cpu, unit, "ours with ingest.inline_below "+inlineBelow+": the manifest carries the frame"),
		inline("cpu-until-queryable", queryable, unit, ""), inline("cpu-of-collector", collector, unit, ""), inline("cpu-of-store", store, unit, ""),
		inline("bytes", bytes, "B/sample", runs["inline"][0].families),
		sparing("cpu", cpu, "ours with gc.epochs and ingest.marker_reads: epochs"),
		sparing("cpu-until-queryable", queryable, ""), sparing("cpu-of-collector", collector, ""), sparing("cpu-of-store", store, ""))
	var names []string
	for process := range ours[0].used {
		names = append(names, process)
	}
	slices.Sort(names)
	for _, p := range names {
		peak := of("ours", func(r chainRun) float64 { return r.used[p].peak }) / (1 << 20)
		rs = append(rs, Result{Name: name + "/cpu/" + p, Value: of("ours", func(r chainRun) float64 { return r.used[p].cpu / m }), Unit: unit, Durability: durability,
			Note: fmt.Sprintf("%.0f %% of all; %.2f until queryable, %.2f until published, the rest until merged and collected; peak %.0f MiB",
				100*of("ours", func(r chainRun) float64 { return r.used[p].cpu / r.used.cpu() }),
				of("ours", func(r chainRun) float64 { return r.queryable[p].cpu / m }), of("ours", func(r chainRun) float64 { return r.rolled[p].cpu / m }), peak)})
	}
	peaks := func(r chainRun) (n float64) {
		for _, x := range r.used {
			n += x.peak / (1 << 20)
		}
		return n
	}
	var each []string
	for _, p := range slices.Sorted(maps.Keys(ours[0].used)) {
		each = append(each, fmt.Sprintf("%s %.0f", p, of("ours", func(r chainRun) float64 { return r.used[p].peak })/(1<<20)))
	}
	return append(rs, beside("peak", "victoriametrics", peaks, "MiB", "resident, all servers: "+strings.Join(each, ", ")+
		fmt.Sprintf("; prometheus %.0f", of("prometheus", peaks))))
}
