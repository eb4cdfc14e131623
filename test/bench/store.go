package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/test/peers"
)

const putBytes = 8 << 10

// peer is an S3 server under load.
type peer struct {
	name string
	cfg  s3.Config
	pid  int

	round int
	acked map[string]identity.Digest // every put that was answered 200
	puts  int
	cpu   float64
	times []time.Duration
}

// rate is a benchmark of the peer: puts per second of so many clients.
func (p *peer) rate(clients int, d time.Duration) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		p.round++
		keys := make([]string, int(12_000*d.Seconds()))
		for i := range keys {
			keys[i] = fmt.Sprintf("puts/%02d/%03d/%06d", clients, p.round, i)
		}
		ps, err := record(ctx, p.cfg, keys, putBytes)
		if err != nil {
			return 0, err
		}
		// What a server left in the page cache is written back now, not by the next one's fsyncs.
		syscall.Sync()
		before, err := cpuSeconds(p.pid)
		if err != nil {
			return 0, err
		}
		r, err := ps.replay(ctx, strings.TrimPrefix(p.cfg.Endpoint, "http://"), clients, d)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", p.name, err)
		}
		after, err := cpuSeconds(p.pid)
		if err != nil {
			return 0, err
		}
		p.puts, p.cpu, p.times = p.puts+len(r.acked), p.cpu+after-before, append(p.times, r.times...)
		if p.acked != nil {
			for _, i := range r.acked {
				p.acked[keys[i]] = ps.sum(i)
			}
		}
		return r.rate(), nil
	}
}

// cost is the peer's CPU per put in microseconds, since the last call, and the p50 in ms.
func (p *peer) cost() (micros, p50 float64) {
	slices.Sort(p.times)
	micros, p50 = p.cpu/float64(max(p.puts, 1))*1e6, ms(quantile(p.times, 0.5))
	p.puts, p.cpu, p.times = 0, 0, nil
	return micros, p50
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func benchStore(ctx context.Context, e *env) ([]Result, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.startStore(ctx); err != nil {
		return nil, err
	}
	ours := &peer{name: "embedded store", pid: r.store.Pid(), acked: map[string]identity.Digest{},
		cfg: bucketAt("http://"+r.storeAddr, bucket, "", r.accessKey, r.secret)}
	versity, stop, err := startVersity(e)
	if err != nil {
		return nil, err
	}
	defer stop()
	ceiling, stopCeiling, err := startCeiling(ctx, e)
	if err != nil {
		return nil, err
	}
	defer stopCeiling()
	var rs []Result
	for _, clients := range []int{1, 32} {
		got, err := benchPuts(ctx, e, r, clients, ours, versity, ceiling)
		rs = append(rs, got...)
		if err != nil {
			return rs, err
		}
	}
	lost, err := readBack(ctx, r, ours)
	rs = append(rs, Result{Name: "store/lost-after-kill", Value: float64(lost), Unit: "objects", Baseline: "acknowledged", BaselineValue: float64(len(ours.acked)),
		Goal: "== 0", Pass: lost == 0 && err == nil, Durability: "fsync", Note: "kill -9, start, read every acknowledged object and compare its hash"})
	return rs, err
}

func startVersity(e *env) (*peer, func(), error) {
	dir := filepath.Join(e.dir, "versitygw")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	gw, stop, err := peers.ServeVersityGW(dir)
	if err != nil {
		return nil, nil, err
	}
	return &peer{name: "versitygw", pid: gw.Pid, cfg: bucketAt(gw.Endpoint, peers.Bucket, "", gw.AccessKeyID, gw.SecretAccessKey)},
		func() { stop(); os.RemoveAll(dir) }, nil
}

func benchPuts(ctx context.Context, e *env, r *rig, clients int, ours, versity, ceiling *peer) ([]Result, error) {
	d := time.Second
	if e.quick {
		d = 400 * time.Millisecond
	}
	for _, p := range []*peer{ours, versity, ceiling} { // warm up
		if _, err := p.rate(clients, d/3)(ctx); err != nil {
			return nil, err
		}
		p.cost()
	}
	before, err := scrape(ctx, r.storeAdmin)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("store/%d-clients/", clients)
	stopProfile := e.profile(ctx, name+"store", r.storeAdmin)
	a, b, ratio, note, err := paired(ctx, e.pairs, ours.rate(clients, d), versity.rate(clients, d))
	if err != nil {
		return nil, err
	}
	stopProfile()
	after, err := scrape(ctx, r.storeAdmin)
	if err != nil {
		return nil, err
	}
	ourCPU, ourP50 := ours.cost()
	theirCPU, theirP50 := versity.cost()
	client := "; both by the same replay of signed requests over bare connections"
	rs := []Result{
		compare(name+"puts", a, "PUT/s", "versitygw, no fsync", b, "fsync / page cache", note+client),
		compare(name+"cpu", ourCPU, "us CPU/PUT", "versitygw, no fsync", theirCPU, "fsync / page cache", "server alone"),
		compare(name+"p50", ourP50, "ms", "versitygw, no fsync", theirP50, "fsync / page cache", ""),
	}
	if rs[0].Ratio = ratio; clients > 1 { // one client waits for one fsync after the other
		rs[0].Goal, rs[0].Pass = ">= 2.5", ratio >= 2.5
	}
	records := after.sum("lightmetrics_objectstore_writes_per_fsync_sum") - before.sum("lightmetrics_objectstore_writes_per_fsync_sum")
	commits := after.sum("lightmetrics_objectstore_writes_per_fsync_count") - before.sum("lightmetrics_objectstore_writes_per_fsync_count")
	syncs := after.sum("lightmetrics_objectstore_fsync_seconds_sum") - before.sum("lightmetrics_objectstore_fsync_seconds_sum")
	rs = append(rs, Result{Name: name + "puts-per-fsync", Value: records / commits, Unit: "PUTs", Durability: "fsync",
		Note: fmt.Sprintf("group commit; one fsync takes %.2f ms on average", syncs/commits*1e3)})
	pairs := max(2, e.pairs/2)
	a, b, ratio, note, err = paired(ctx, pairs, ours.rate(clients, d), ceiling.rate(clients, d))
	if err != nil {
		return rs, err
	}
	ours.cost()
	ceilingCPU, _ := ceiling.cost()
	return append(rs, Result{Name: name + "ceiling", Value: a, Unit: "PUT/s", Baseline: "net/http that reads the body", BaselineValue: b, Ratio: ratio,
		Durability: "fsync / none", Note: fmt.Sprintf("%s; no authentication, no hash, nothing is kept; %.0f us CPU a PUT", note, ceilingCPU)}), nil
}

// compare is a figure beside another, without a goal.
func compare(name string, v float64, unit, baseline string, b float64, durability, note string) Result {
	return Result{Name: name, Value: v, Unit: unit, Baseline: baseline, BaselineValue: b, Ratio: v / b, Durability: durability, Note: note}
}

// readBack kills the store, starts it again, and reads every acknowledged object.
func readBack(ctx context.Context, r *rig, p *peer) (lost int, err error) {
	if err := r.crash(ctx); err != nil {
		return 0, err
	}
	store, err := s3.New(ctx, p.cfg, s3.Options{})
	if err != nil {
		return 0, err
	}
	defer store.Close()
	keys := make(chan string)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for k := range keys {
				b, _, gerr := store.Get(ctx, k, objstore.GetOptions{})
				if gerr == nil && identity.Sum(b) == p.acked[k] {
					continue
				}
				mu.Lock()
				lost++
				if gerr != nil && !errors.Is(gerr, objstore.ErrNotFound) {
					err = gerr
				}
				mu.Unlock()
			}
		})
	}
	for k := range p.acked {
		keys <- k
	}
	close(keys)
	wg.Wait()
	return lost, err
}
