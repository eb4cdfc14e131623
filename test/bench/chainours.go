package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/client"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/layout"
)

// ours is every service as a process of its own, and the CPU of workers that were stopped.
type ours struct {
	*system
	c     *cluster.Cluster
	ended use
}

// worker is the rollup worker's name.
var worker = cluster.RollupName(0)

// variant is what is not by default.
type variant string

const (
	plain         variant = ""
	carried       variant = "-inline" // manifests carry the frames
	sparesMarkers variant = "-epochs" // no markers are read
)

// newOurs prepares all services with default settings, but for pprof, followers that watch collectors, a window of live
// samples, and a worker whose hours are not due before rollUp sets when.
func newOurs(e *env, dir, window string, v variant) (*ours, error) {
	adjust := func(process string, settings map[string]any) {
		if process != "agent" {
			settings["pprof"] = true
		}
		if v == carried && strings.HasPrefix(process, "collector-") {
			settings["inline_below"] = inlineBelow
		}
		switch process {
		case worker:
			follow := settings["follow"].(map[string]any)
			delete(follow, "interval")
			delete(follow, "idle")
			settings["schedule"] = map[string]any{"first_after": "10000h"}
			settings["snapshot"] = map[string]any{"window": window}
		case "query":
			delete(settings, "rollup")
			settings["history"] = map[string]any{"window": window}
		}
	}
	if v == sparesMarkers {
		adjust = sparing(adjust)
	}
	c, err := cluster.New(cluster.Options{Bin: e.bin, Dir: dir, Collectors: 1, Rollups: 1, Shards: requestShards, Adjust: adjust})
	if err != nil {
		return nil, err
	}
	o := &ours{c: c, ended: use{}}
	o.system = newSystem("ours", c.Addr.QueryHTTP, o.running)
	return o, nil
}

func (o *ours) running() map[string]*proc.Process {
	out := map[string]*proc.Process{}
	for name, p := range map[string]*proc.Process{
		"store": o.c.Store, "collector": o.c.Collectors[0], "reconciler": o.c.Reconciler, "query": o.c.Query, "coordinator": o.c.Coordinator, "rollup": o.c.Rollups[0],
	} {
		if p != nil {
			out[name] = p
		}
	}
	return out
}

// admins are the addresses that have /metrics and profiles.
func (o *ours) admins() map[string]string {
	a := o.c.Addr
	return map[string]string{"store": a.StoreAdmin, "collector": a.Collectors[0].HTTP, "reconciler": a.ReconcilerHTTP, "query": a.QueryHTTP,
		"coordinator": a.CoordinatorHTTP, "rollup": a.Rollups[0]}
}

// total is what all processes used since they were first started.
func (o *ours) total() (use, error) {
	u, err := o.used()
	return u.plus(o.ended), err
}

// profileAll profiles some services for a while.
func (o *ours) profileAll(ctx context.Context, e *env, name string, services ...string) func() {
	var wait []func()
	for _, s := range services {
		wait = append(wait, e.profile(ctx, name+"-"+s, o.admins()[s]))
	}
	return func() {
		for _, w := range wait {
			w()
		}
	}
}

// restartWorker starts the worker again with other settings.
func (o *ours) restartWorker(ctx context.Context, settings section) error {
	if p := o.c.Rollups[0]; p != nil {
		u, err := o.used()
		if err != nil {
			return err
		}
		o.ended = o.ended.plus(use{"rollup": u["rollup"]})
		if err := cluster.Stop(&o.c.Rollups[0]); err != nil {
			return err
		}
	}
	file := filepath.Join(o.c.Dir(), worker+".yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var all map[string]section
	if err := yaml.Unmarshal(b, &all); err != nil {
		return err
	}
	for k, v := range settings {
		all["rollup"][k] = v
	}
	if b, err = yaml.Marshal(all); err != nil {
		return err
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return err
	}
	return o.c.StartRollup(ctx, 0)
}

// rollUp has the worker roll up hours that ended so long ago, until it has published so many samples and nothing is left.
func (o *ours) rollUp(ctx context.Context, firstAfter time.Duration, samples int) error {
	err := o.restartWorker(ctx, section{"schedule": section{"first_after": firstAfter.String()}, "compact": section{"interval": "0s"}})
	if err != nil {
		return err
	}
	return await(ctx, func() (bool, error) {
		m, err := scrape(ctx, o.c.Addr.Rollups[0])
		if err != nil {
			return false, err
		}
		published, pending := m.sum("lightmetrics_rollup_samples_published_total", `resolution="raw"`), m.sum("lightmetrics_rollup_pending_batches")
		return published >= float64(samples) && pending == 0, fmt.Errorf("%.0f of %d samples, %.0f batches are pending", published, samples, pending)
	})
}

// merge has the worker merge blocks of spans that ended that long ago, and collect what they supersede at once. The first
// scan for blocks comes soon after a start, and there are few, as they would be in as many hours.
func (o *ours) merge(ctx context.Context, after time.Duration) error {
	err := o.restartWorker(ctx, section{
		"schedule": section{"first_after": "10000h"},
		"compact":  section{"interval": "10s", "after": after.String(), "back": 10},
		"collect":  section{"interval": "5s", "grace": "1s"},
	})
	if err != nil {
		return err
	}
	last, same := 0.0, 0
	return await(ctx, func() (bool, error) {
		m, err := scrape(ctx, o.c.Addr.Rollups[0])
		if err != nil {
			return false, err
		}
		merged := m.sum("lightmetrics_rollup_compactions_total")
		done := merged + m.sum("lightmetrics_rollup_collected_total")
		if same++; done != last || merged == 0 {
			last, same = done, 0
		}
		return same >= unchanged, fmt.Errorf("%.0f merges, %.0f with what was collected", merged, done)
	})
}

// unchanged is how often in a row the worker's counters must say the same.
const unchanged = int(12 * time.Second / awaitEvery)

// ours runs all services.
func (w *chainWork) ours(ctx context.Context, e *env, dir string) (chainRun, error) {
	return w.runOurs(ctx, e, dir, plain)
}

// inline is ours with frames in their manifests.
func (w *chainWork) inline(ctx context.Context, e *env, dir string) (chainRun, error) {
	return w.runOurs(ctx, e, dir, carried)
}

// sparing is ours without marker reads.
func (w *chainWork) sparing(ctx context.Context, e *env, dir string) (chainRun, error) {
	return w.runOurs(ctx, e, dir, sparesMarkers)
}

func (w *chainWork) runOurs(ctx context.Context, e *env, dir string, v variant) (r chainRun, err error) {
	o, err := newOurs(e, dir, chainWindow, v)
	if err != nil {
		return r, err
	}
	defer o.c.StopAll()
	var begins []func(context.Context, *cluster.Cluster) error
	if v == sparesMarkers {
		begins = append(begins, beginEpochs)
	}
	if err := startAll(ctx, o.c, begins...); err != nil {
		return r, err
	}
	write, end, err := w.writers(o.c.Addr.Collectors[0].GRPC)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, end()) }()
	before, err := o.total()
	if err != nil {
		return r, err
	}
	name := fmt.Sprintf("chain-%d", w.rows*tsbs.SeriesPerHost)
	name += string(v)
	profiled := o.profileAll(ctx, e, name+"-sending", "store", "collector", "reconciler", "query", "coordinator", "rollup")
	if r.senders, r.sending, err = w.send(ctx, write); err != nil {
		return r, err
	}
	if err := o.await(ctx, chainMetric, w.from, w.to, len(w.hosts)*w.steps); err != nil {
		return r, err
	}
	if r.queryable, err = o.total(); err != nil {
		return r, err
	}
	profiled()
	// later profiles what runs once the worker has been started again.
	later := func(phase string, after time.Duration) <-chan func() {
		end := make(chan func(), 1)
		if e.profiles == "" {
			end <- func() {}
			return end
		}
		go func() {
			time.Sleep(after)
			end <- o.profileAll(ctx, e, name+phase, "store", "rollup", "coordinator")
		}()
		return end
	}
	rolled := later("-rollup", 2*time.Second)
	if err := o.rollUp(ctx, 0, w.samples()); err != nil {
		return r, err
	}
	if r.rolled, err = o.total(); err != nil {
		return r, err
	}
	(<-rolled)()
	merged := later("-merge", 9*time.Second) // the first scan for blocks comes after 10 s
	if err := o.merge(ctx, 0); err != nil {
		return r, err
	}
	(<-merged)()
	if r.used, err = o.total(); err != nil {
		return r, err
	}
	const idle = 5 * time.Second
	time.Sleep(idle)
	last, err := o.total()
	if err != nil {
		return r, err
	}
	r.idle = last.minus(r.used).cpu() / idle.Seconds()
	r.queryable, r.rolled, r.used = r.queryable.minus(before), r.rolled.minus(before), r.used.minus(before)
	if err := w.check(ctx, o.system); err != nil {
		return r, err
	}
	bytes, err := storedBytes(ctx, o.c)
	if err != nil {
		return r, err
	}
	packs := familyOf(layout.LivePacksPrefix)
	for family, n := range bytes {
		if family != packs {
			r.bytes += n
		}
	}
	r.families = bytes.largest(float64(w.samples())) + " (B/sample)"
	return r, nil
}

// writers are clients, one for each host, that wait for the acknowledgement of each batch.
func (w *chainWork) writers(collector string) (write []func(context.Context, int, int) error, end func() error, err error) {
	var open []*client.Writer
	end = func() error {
		var errs []error
		for _, one := range open {
			errs = append(errs, one.Close())
		}
		return errors.Join(errs...)
	}
	for i := range w.hosts {
		h := &w.hosts[i]
		shared, series := clientSeries(h)
		one, err := client.Open(client.Memory, client.Options{Agent: h.Name, Collectors: []string{collector}, Labels: shared, MaxBytes: 64 << 20, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		open = append(open, one)
		var samples []client.Sample
		write = append(write, func(ctx context.Context, from, rows int) error {
			samples = samples[:0]
			for k := from; k < from+rows; k++ {
				at := time.UnixMilli(h.Series[0].Timestamps[k])
				for i := range series {
					samples = append(samples, series[i].At(at, h.Series[i].Values[k]))
				}
			}
			if err := one.Append(ctx, samples...); err != nil {
				return err
			}
			return one.Flush(ctx)
		})
	}
	return write, end, nil
}

// clientSeries are a host's series as a program has them, without the labels that all of them share.
func clientSeries(h *tsbs.Host) (shared client.Labels, all []*client.Series) {
	count := map[tsbs.Label]int{}
	for i := range h.Series {
		for _, l := range h.Series[i].Labels {
			count[l]++
		}
	}
	shared = client.Labels{}
	for i := range h.Series {
		s := &client.Series{Type: client.Gauge, Labels: client.Labels{}}
		for _, l := range h.Series[i].Labels {
			switch {
			case l.Name == "__name__":
				s.Name = l.Value
			case count[l] == len(h.Series):
				shared[l.Name] = l.Value
			case l.Value != "":
				s.Labels[l.Name] = l.Value
			}
		}
		all = append(all, s)
	}
	return shared, all
}
