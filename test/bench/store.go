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
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/test/peers"
)

// shape is what the clients ask for, one request after the other each.
type shape struct {
	get     bool
	bytes   int // of an object
	clients int
	most    int // puts a second for which requests are signed beforehand
}

// storeShapes are measured beside versitygw; the puts of 8 KiB beside the floors, too.
var storeShapes = []struct {
	name string
	shape
	goal float64 // of the ratio to versitygw; 0 is none
}{
	{"1-clients", shape{false, smallPut, 1, 12_000}, 0}, // waits for one fsync after the other
	{"32-clients", shape{false, smallPut, 32, 12_000}, 2.5},
	{"128-clients", shape{false, smallPut, 128, 12_000}, 2.5},
	{"get/32-clients", shape{true, smallPut, 32, 0}, 1},
	{"1-MiB/put", shape{false, 1 << 20, 8, 800}, 1},
	{"1-MiB/get", shape{true, 1 << 20, 8, 0}, 1},
}

const (
	smallPut   = 8 << 10
	getObjects = 64 << 20 // bytes of the objects that are read
)

func (s shape) unit() string {
	if s.get {
		return "GET"
	}
	return "PUT"
}

// peer is an S3 server under load.
type peer struct {
	name string
	cfg  s3.Config
	pid  int

	round int
	acked map[string]identity.Digest // every put that was answered 200
	gets  map[int]*requests          // by the size of the objects
	done  int
	cpu   float64
	times []time.Duration
}

func (p *peer) addr() string { return strings.TrimPrefix(p.cfg.Endpoint, "http://") }

// requests signs what a run sends.
func (p *peer) requests(ctx context.Context, s shape, d time.Duration) (*requests, error) {
	if s.get {
		return p.stored(ctx, s)
	}
	p.round++
	keys := make([]string, int(float64(s.most)*d.Seconds()))
	for i := range keys {
		keys[i] = fmt.Sprintf("puts/%d/%02d/%03d/%06d", s.bytes, s.clients, p.round, i)
	}
	return record(ctx, p.cfg, keys, s.bytes)
}

// stored puts the objects to read, once, and signs GETs of them.
func (p *peer) stored(ctx context.Context, s shape) (*requests, error) {
	if p.gets[s.bytes] != nil {
		return p.gets[s.bytes], nil
	}
	keys := make([]string, getObjects/s.bytes)
	for i := range keys {
		keys[i] = fmt.Sprintf("gets/%d/%06d", s.bytes, i)
	}
	ps, err := record(ctx, p.cfg, keys, s.bytes)
	if err != nil {
		return nil, err
	}
	if _, err := ps.replay(ctx, p.addr(), s.clients, time.Hour); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	if p.gets == nil {
		p.gets = map[int]*requests{}
	}
	p.gets[s.bytes], err = recordGets(ctx, p.cfg, keys)
	return p.gets[s.bytes], err
}

// rate is a benchmark of the peer: requests per second.
func (p *peer) rate(s shape, d time.Duration) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		ps, err := p.requests(ctx, s, d)
		if err != nil {
			return 0, err
		}
		// What a server left in the page cache is written back now, not by the next one's fsyncs.
		syscall.Sync()
		before, err := cpuSeconds(p.pid)
		if err != nil {
			return 0, err
		}
		r, err := ps.replay(ctx, p.addr(), s.clients, d)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", p.name, err)
		}
		after, err := cpuSeconds(p.pid)
		if err != nil {
			return 0, err
		}
		p.done, p.cpu, p.times = p.done+len(r.acked), p.cpu+after-before, append(p.times, r.times...)
		if p.acked != nil && !s.get {
			for _, i := range r.acked {
				p.acked[ps.keys[i]] = ps.sum(i)
			}
		}
		return r.rate(), nil
	}
}

// cost is the peer's CPU per request in microseconds, since the last call, and the p50 in ms.
func (p *peer) cost() (micros, p50 float64) {
	slices.Sort(p.times)
	micros, p50 = p.cpu/float64(max(p.done, 1))*1e6, ms(quantile(p.times, 0.5))
	p.done, p.cpu, p.times = 0, 0, nil
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
	ceiling, stopCeiling, err := startCeiling(ctx)
	if err != nil {
		return nil, err
	}
	defer stopCeiling()
	least, stopLeast, err := startLeast(ctx, e)
	if err != nil {
		return nil, err
	}
	defer stopLeast()
	var rs []Result
	for _, c := range storeShapes {
		name := "store/" + c.name + "/"
		if !e.cases.MatchString(name) {
			continue
		}
		got, err := benchShape(ctx, e, r, name, c.shape, c.goal, ours, versity)
		rs = append(rs, got...)
		if err == nil && c.bytes == smallPut && !c.get {
			got, err = benchFloors(ctx, e, r, name, c.shape, ours, ceiling, least)
			rs = append(rs, got...)
		}
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

func (e *env) storeRun() time.Duration {
	if e.quick {
		return 400 * time.Millisecond
	}
	return time.Second
}

// benchShape measures a shape beside versitygw.
func benchShape(ctx context.Context, e *env, r *rig, name string, s shape, goal float64, ours, versity *peer) ([]Result, error) {
	d := e.storeRun()
	for _, p := range []*peer{ours, versity} { // warm up
		if _, err := p.rate(s, d/3)(ctx); err != nil {
			return nil, err
		}
		p.cost()
	}
	stopProfile := e.profile(ctx, name+"store", r.storeAdmin)
	a, b, ratio, note, err := paired(ctx, e.pairs, ours.rate(s, d), versity.rate(s, d))
	if err != nil {
		return nil, err
	}
	stopProfile()
	ourCPU, ourP50 := ours.cost()
	theirCPU, theirP50 := versity.cost()
	durability := "fsync / page cache"
	if s.get {
		durability = ""
	}
	client := fmt.Sprintf("; both by the same replay of signed requests over %d bare connections", s.clients)
	rs := []Result{
		compare(name+strings.ToLower(s.unit())+"s", a, s.unit()+"/s", "versitygw, no fsync", b, durability, note+client),
		compare(name+"cpu", ourCPU, "us CPU/"+s.unit(), "versitygw, no fsync", theirCPU, durability, "server alone"),
		compare(name+"p50", ourP50, "ms", "versitygw, no fsync", theirP50, durability, ""),
	}
	if rs[0].Ratio = ratio; goal > 0 {
		rs[0].Goal, rs[0].Pass = fmt.Sprintf(">= %g", goal), ratio >= goal
	}
	return rs, nil
}

// benchFloors measures puts beside what bounds them: an HTTP server that does nothing with them, the fsyncs alone, and a
// server that does nothing but hash them and commit them in groups.
func benchFloors(ctx context.Context, e *env, r *rig, name string, s shape, ours, ceiling, least *peer) ([]Result, error) {
	d, pairs := e.storeRun(), max(2, e.pairs/2)
	if _, err := ceiling.rate(s, d/3)(ctx); err != nil {
		return nil, err
	}
	ceiling.cost()
	before, err := scrape(ctx, r.storeAdmin)
	if err != nil {
		return nil, err
	}
	a, b, ratio, note, err := paired(ctx, pairs, ours.rate(s, d), ceiling.rate(s, d))
	if err != nil {
		return nil, err
	}
	after, err := scrape(ctx, r.storeAdmin)
	if err != nil {
		return nil, err
	}
	ours.cost()
	ceilingCPU, _ := ceiling.cost()
	records := after.sum("lightmetrics_objectstore_writes_per_fsync_sum") - before.sum("lightmetrics_objectstore_writes_per_fsync_sum")
	commits := after.sum("lightmetrics_objectstore_writes_per_fsync_count") - before.sum("lightmetrics_objectstore_writes_per_fsync_count")
	syncs := after.sum("lightmetrics_objectstore_fsync_seconds_sum") - before.sum("lightmetrics_objectstore_fsync_seconds_sum")
	group := max(1, int(records/commits+0.5))
	rs := []Result{
		{Name: name + "ceiling", Value: a, Unit: "PUT/s", Baseline: "net/http that reads the body", BaselineValue: b, Ratio: ratio,
			Durability: "fsync / none", Note: fmt.Sprintf("%s; no authentication, no hash, nothing is kept; %.0f us CPU a PUT", note, ceilingCPU)},
		{Name: name + "puts-per-fsync", Value: records / commits, Unit: "PUTs", Durability: "fsync",
			Note: fmt.Sprintf("group commit; one fsync takes %.2f ms on average", syncs/commits*1e3)},
	}
	a, b, ratio, note, err = paired(ctx, pairs, ours.rate(s, d), groupedFsyncs(e.dir, group*s.bytes, group, d))
	if err != nil {
		return rs, err
	}
	ours.cost()
	rs = append(rs, Result{Name: name + "grouped-fsync", Value: a, Unit: "PUT/s", Baseline: "bare appends of as many bytes, each with an fdatasync", BaselineValue: b, Ratio: ratio,
		Goal: ">= 0.8", Pass: ratio >= 0.8, Durability: "fsync", Note: fmt.Sprintf("%s; groups of %d, no client and no CPU beside them", note, group)})
	a, b, ratio, note, err = paired(ctx, pairs, ours.rate(s, d), least.rate(s, d))
	if err != nil {
		return rs, err
	}
	ours.cost()
	leastCPU, _ := least.cost()
	return append(rs, Result{Name: name + "least-server", Value: a, Unit: "PUT/s", Baseline: "a server that only hashes, appends and fsyncs in groups", BaselineValue: b, Ratio: ratio,
		Durability: "fsync", Note: fmt.Sprintf("%s; the same client on the same cores; no signatures, no index, no conditions; %.0f us CPU a PUT", note, leastCPU)}), nil
}

// groupedFsyncs appends size bytes to a file and makes them durable, again and again: what fsyncs allow who
// commits so many puts with each.
func groupedFsyncs(dir string, size, group int, d time.Duration) func(context.Context) (float64, error) {
	return func(ctx context.Context) (rate float64, err error) {
		const name = "grouped-fsync"
		fsys := vfs.Dir(dir)
		f, err := fsys.Create(name)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, f.Close(), fsys.Remove(name)) }()
		syscall.Sync()
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(i*7) | 1
		}
		n, began := 0, time.Now()
		for ; ctx.Err() == nil && time.Since(began) < d; n++ {
			if _, err := f.WriteAt(b, int64(n*size)); err != nil {
				return 0, err
			}
			if err := f.Sync(); err != nil {
				return 0, err
			}
		}
		return float64(n*group) / time.Since(began).Seconds(), ctx.Err()
	}
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
