package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var boots atomic.Int64

// nextBoot is a boot id that was never used.
func nextBoot(kind string, agent int) string {
	return fmt.Sprintf("%s%02d-%06d", kind, agent, boots.Add(1))
}

// windowOf is each agent's window: the agent's default of 16 batches, less where very
// many agents share two cores.
func windowOf(agents int) int { return max(1, min(16, 256/agents)) }

func benchAccept(ctx context.Context, e *env) ([]Result, error) {
	var rs []Result
	for _, samples := range []int{500, 10_000} {
		for _, agents := range []int{1, 8, 64} {
			if !e.cases.MatchString(fmt.Sprintf("%d-agents/%d-samples", agents, samples)) {
				continue
			}
			got, err := benchAcceptOne(ctx, e, agents, samples)
			rs = append(rs, got...)
			if err != nil {
				return rs, fmt.Errorf("%d agents, %d samples: %w", agents, samples, err)
			}
		}
	}
	return rs, nil
}

// acceptRun measures one number of agents and one size of batches over a store of its own.
type acceptRun struct {
	r                      *rig
	fleet                  *fleet
	agents, samples, total int

	acked   map[identity.Batch]identity.Digest
	times   []time.Duration
	cpu     float64 // of the collector, s
	ourCPU  float64 // of senders, collector and store
	bareCPU float64 // of the bare client
	allBare float64 // of the bare client and the store
	bared   int
	retries int
	rounds  int
}

func benchAcceptOne(ctx context.Context, e *env, agents, samples int) ([]Result, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.startBoth(ctx); err != nil {
		return nil, err
	}
	a := &acceptRun{r: r, agents: agents, samples: samples, total: 768, acked: map[identity.Batch]identity.Digest{}}
	if e.quick {
		a.total = 128
	}
	if a.fleet, err = newFleet(r.grpcAddr, agents); err != nil {
		return nil, err
	}
	defer a.fleet.close()
	for range 2 { // warm up: connections, pools, caches of both
		if _, err := a.ours(ctx); err != nil {
			return nil, err
		}
		if _, err := a.bare(ctx); err != nil {
			return nil, err
		}
	}
	a.times, a.cpu, a.ourCPU, a.bareCPU, a.allBare, a.bared, a.retries, a.rounds = nil, 0, 0, 0, 0, 0, 0, 0
	warm := len(a.acked)
	before, err := scrape(ctx, r.httpAddr)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("accept/%d-agents/%d-samples/", agents, samples)
	stopCollector, stopStore := e.profile(ctx, name+"ingest", r.httpAddr), e.profile(ctx, name+"store", r.storeAdmin)
	ours, floor, ratio, note, err := paired(ctx, e.pairs, a.ours, a.bare)
	if err != nil {
		return nil, err
	}
	stopCollector()
	stopStore()
	after, err := scrape(ctx, r.httpAddr)
	if err != nil {
		return nil, err
	}
	n := float64(len(a.acked) - warm)
	requests := func(labels ...string) float64 {
		const name = "lightmetrics_store_requests_total"
		return after.sum(name, labels...) - before.sum(name, labels...)
	}
	greetings := requests(`family="boots"`) + requests(`op="list"`) // of new streams
	perBatch := (requests() - greetings) / n * 1000
	slices.Sort(a.times)
	shape := fmt.Sprintf("%d in flight", agents*windowOf(agents))
	if a.retries > 0 {
		shape += fmt.Sprintf(", %d were told to retry", a.retries)
	}
	cpuMicros, bareMicros := a.cpu/n*1e6, a.bareCPU/float64(a.bared)*1e6
	rs := []Result{
		{Name: name + "batches", Value: ours, Unit: "batches/s", Baseline: "bare requests", BaselineValue: floor, Ratio: ratio,
			Goal: ">= 0.80", Pass: ratio >= 0.80, Durability: "object store, fsync", Note: note + ", " + shape},
		{Name: name + "ack-p50", Value: ms(quantile(a.times, 0.50)), Unit: "ms", Durability: "object store, fsync", Note: "at full load, queueing included; " + shape},
		{Name: name + "ack-p99", Value: ms(quantile(a.times, 0.99)), Unit: "ms", Durability: "object store, fsync", Note: "at full load"},
		{Name: name + "samples-per-cpu", Value: n * float64(samples) / a.cpu / 1e6, Unit: "M samples/CPU-s", Durability: "object store, fsync", Note: "CPU of the ingest process"},
		compare(name+"cpu", cpuMicros, "us CPU/batch", "bare requests, client", bareMicros, "object store, fsync", "ingest process beside the bare client; the store's own CPU is in neither"),
		compare(name+"cpu-of-all", a.ourCPU/n*1e6, "us CPU/batch", "bare requests", a.allBare/float64(a.bared)*1e6, "object store, fsync",
			"senders, ingest and store beside bare client and store: its inverse is what the throughput's ratio tends to when CPU is all that is short"),
		{Name: name + "s3-requests", Value: perBatch, Unit: "per 1,000 accepted", Baseline: "two PUTs and a GET", BaselineValue: 3000, Ratio: perBatch / 3000,
			Goal: "<= 3010", Pass: perBatch <= 3010, Durability: "object store",
			Note: fmt.Sprintf("by the ingest service, from its metrics; %.1f more for each new stream of a new boot", greetings/float64(a.agents*a.rounds))},
	}
	lost, err := a.readBack(ctx)
	return append(rs, Result{Name: name + "lost-after-kill", Value: float64(lost), Unit: "batches", Baseline: "acknowledged", BaselineValue: float64(len(a.acked)),
		Goal: "== 0", Pass: lost == 0 && err == nil, Durability: "object store, fsync", Note: "kill -9 of store and collector, start, internal/derived/fsck over all"}), err
}

// ours sends a run of new batches through the collector: batches/s.
func (a *acceptRun) ours(ctx context.Context) (float64, error) {
	fs, err := feeds("agent", a.agents, a.total/a.agents, a.samples)
	if err != nil {
		return 0, err
	}
	before, err := a.r.cpu()
	if err != nil {
		return 0, err
	}
	got, err := a.fleet.send(ctx, fs, windowOf(a.agents))
	if err != nil {
		return 0, err
	}
	after, err := a.r.cpu()
	if err != nil {
		return 0, err
	}
	for id, sum := range got.acked {
		a.acked[id] = sum
	}
	a.times, a.retries, a.rounds = append(a.times, got.times...), a.retries+got.retries, a.rounds+1
	a.cpu += after.collector - before.collector
	a.ourCPU += after.all() - before.all()
	return float64(len(got.acked)) / got.took.Seconds(), nil
}

// bare makes the same requests for as many new batches: batches/s.
func (a *acceptRun) bare(ctx context.Context) (float64, error) {
	fs, err := feeds("plain", a.agents, a.total/a.agents, a.samples)
	if err != nil {
		return 0, err
	}
	store, err := a.r.client(ctx, "", floorPrefix)
	if err != nil {
		return 0, err
	}
	defer store.Close()
	b := newBare(store, fs)
	// Its connections are open before the time begins, like the collector's.
	warm := &bare{store: store}
	if fs, err = feeds("early", a.agents, windowOf(a.agents), seriesPerBatch); err != nil {
		return 0, err
	}
	*warm = *newBare(store, fs)
	if _, _, err := warm.run(ctx, a.agents*windowOf(a.agents)); err != nil {
		return 0, err
	}
	before, err := a.r.cpu()
	if err != nil {
		return 0, err
	}
	times, took, err := b.run(ctx, a.agents*windowOf(a.agents))
	if err != nil {
		return 0, err
	}
	after, err := a.r.cpu()
	a.bareCPU += after.own - before.own
	a.allBare += after.all() - before.all()
	a.bared += len(times)
	return float64(len(times)) / took.Seconds(), err
}

// readBack kills both processes and checks every acknowledged batch, byte for byte.
func (a *acceptRun) readBack(ctx context.Context) (lost int, err error) {
	if err := a.r.crash(ctx); err != nil {
		return 0, err
	}
	store, err := a.r.client(ctx, "", oursPrefix)
	if err != nil {
		return 0, err
	}
	defer store.Close()
	missing := a.acked
	found := 0
	report, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: authority, OnBatch: func(m accept.Manifest, _ *frame.Batch) {
		if missing[m.Identity] == m.FrameSHA256 {
			found++
		}
	}})
	if err != nil {
		return 0, err
	}
	if !report.Healthy() {
		return len(missing) - found, fmt.Errorf("the bucket does not hold together: %v", report.Findings[0])
	}
	return len(missing) - found, nil
}

// usage is the CPU seconds of every process of a rig.
type usage struct{ own, collector, store float64 }

func (u usage) all() float64 { return u.own + u.collector + u.store }

func (r *rig) cpu() (u usage, err error) {
	u.own = ownCPU().Seconds()
	if u.collector, err = cpuSeconds(r.collector.Pid()); err != nil {
		return u, err
	}
	u.store, err = cpuSeconds(r.store.Pid())
	return u, err
}
