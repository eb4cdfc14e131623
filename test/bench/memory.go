package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

const mib = 1 << 20

func benchMemory(ctx context.Context, e *env) ([]Result, error) {
	var rs []Result
	for _, m := range []struct {
		name string
		run  func(context.Context, *env) ([]Result, error)
	}{{"ingest", ingestMemory}, {"agent", agentMemory}, {"store", storeMemory}} {
		if !e.cases.MatchString(m.name) {
			continue
		}
		got, err := m.run(ctx, e)
		rs = append(rs, got...)
		if err != nil {
			return rs, err
		}
	}
	return rs, nil
}

func peak(name string, bytes, limit float64, durability, note string) Result {
	return Result{Name: name, Value: bytes / mib, Unit: "MiB", Goal: fmt.Sprintf("< %.0f", limit), Pass: bytes < limit*mib, Durability: durability, Note: "peak resident (VmHWM); " + note}
}

// ingestMemory has 64 agents with a frame of nearly 4 MiB each on its way.
func ingestMemory(ctx context.Context, e *env) ([]Result, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.startBoth(ctx); err != nil {
		return nil, err
	}
	const agents = 64
	rounds := 3
	if e.quick {
		rounds = 1
	}
	fl, err := newFleet(r.grpcAddr, agents)
	if err != nil {
		return nil, err
	}
	defer fl.close()
	retries := 0
	for round := range rounds {
		fs, err := largeFeeds(agents, round)
		if err != nil {
			return nil, err
		}
		got, err := fl.send(ctx, fs, 1)
		if err != nil {
			return nil, err
		}
		retries += got.retries
	}
	bytes, err := residentPeak(r.collector.Pid())
	if err != nil {
		return nil, err
	}
	store, err := residentPeak(r.store.Pid())
	if err != nil {
		return nil, err
	}
	note := fmt.Sprintf("%d agents at once, %d frames of 4 MiB each of random values, %d answers were RETRY; the store beside it peaked at %.0f MiB", agents, rounds, retries, store/mib)
	return []Result{peak("memory/ingest", bytes, 256, "object store, fsync", note)}, nil
}

// largeFeeds makes one frame of 4 MiB less 64 KiB for each agent, of values that do not compress.
func largeFeeds(agents, round int) ([]feed, error) {
	const n = 64
	rows := (4*mib - 64<<10) / 8 / n
	rng := rand.New(rand.NewPCG(4, uint64(round)))
	fb := frame.NewBuilder()
	for s := range n {
		id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: fmt.Sprintf("random_%d", s)}}, series.Gauge, "", 0)
		if err != nil {
			return nil, err
		}
		for row := range rows {
			if err := fb.Append(id, int64(row+1)*1e9, rng.Float64()); err != nil {
				return nil, err
			}
		}
	}
	b, err := fb.Build(identity.Boot{Agent: "a", Boot: "b"}, 1)
	if err != nil {
		return nil, err
	}
	enc := frame.NewEncoder(frame.Options{})
	fs := make([]feed, agents)
	for i := range fs {
		fs[i].boot = identity.Boot{Agent: fmt.Sprintf("large-%02d", i), Boot: nextBoot("large", i)}
		b.Identity.Agent, b.Identity.Boot = fs[i].boot.Agent, fs[i].boot.Boot
		next, err := encodeBatch(enc, b)
		if err != nil {
			return nil, err
		}
		if n := len(next.frame); n < 3*mib || n > 4*mib {
			return nil, fmt.Errorf("a large frame has %d bytes", n)
		}
		fs[i].batches = []batch{next}
	}
	return fs, nil
}

// agentMemory scrapes 1,000 series a second and sends them.
func agentMemory(ctx context.Context, e *env) ([]Result, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.startBoth(ctx); err != nil {
		return nil, err
	}
	scrapes := 0
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		scrapes++
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		for i := range 1000 {
			fmt.Fprintf(w, "requests_total{method=\"GET\",path=\"/v1/things/%d\",instance_group=\"blue\",status=\"200\"} %d\n", i, scrapes*(i+1))
		}
	}))
	defer target.Close()
	run := 30 * time.Second
	if e.quick {
		run = 6 * time.Second
	}
	addr, err := proc.FreePort(0)
	if err != nil {
		return nil, err
	}
	b, err := yaml.Marshal(section{"agent": section{
		"agent_id": "bench", "data_dir": filepath.Join(r.dir, "agent"), "interval": "1s", "http": section{"listen": addr},
		"host": section{"enabled": false}, "scrape": []section{{"job": "bench", "url": target.URL + "/metrics"}},
		"batch": section{"max_age": "2s"}, "send": section{"collectors": []string{r.grpcAddr}},
	}})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(r.dir, "agent.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return nil, err
	}
	p, err := proc.Start(proc.Spec{Name: "agent", Bin: e.bin, Dir: r.dir, Args: []string{"agent", "--config", file}})
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	select {
	case <-time.After(run):
	case <-p.Exited():
		return nil, fmt.Errorf("the agent ended:\n%s", p.Tail(20))
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	bytes, err := residentPeak(p.Pid())
	if err != nil {
		return nil, err
	}
	cpu, err := cpuSeconds(p.Pid())
	if err != nil {
		return nil, err
	}
	m, err := scrape(ctx, r.httpAddr)
	if err != nil {
		return nil, err
	}
	records := m.sum("lightmetrics_ingest_records_total", `outcome="accepted"`)
	if records < 1000 {
		return nil, errors.Join(fmt.Errorf("only %.0f records of the agent were accepted", records), errors.New(p.Tail(20)))
	}
	return []Result{peak("memory/agent", bytes, 64, "fsync", fmt.Sprintf("1,000 series scraped every second for %v, %.0f records accepted, %.1f %% of a core", run, records, cpu/run.Seconds()*100))}, nil
}

// storeMemory fills the embedded store with small objects under keys as long as manifests'.
func storeMemory(ctx context.Context, e *env) ([]Result, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.startStore(ctx); err != nil {
		return nil, err
	}
	const part, clients, size = 25_000, 64, 256
	cfg := bucketAt("http://"+r.storeAddr, bucket, "", r.accessKey, r.secret)
	stored, putting := 0, time.Duration(0)
	for stored < e.objects {
		keys := make([]string, min(part, e.objects-stored))
		for i := range keys {
			n := uint64(stored + i)
			keys[i] = layout.Accepted(identity.Batch{Agent: fmt.Sprintf("host-%04d", n%1000), Boot: "01J9ZC3V7Q5W8KX2", SeqStart: n * 500, SeqEnd: n*500 + 499})
		}
		ps, err := record(ctx, cfg, keys, size)
		if err != nil {
			return nil, err
		}
		got, err := ps.replay(ctx, r.storeAddr, clients, time.Hour)
		if err != nil {
			return nil, err
		}
		stored, putting = stored+len(got.acked), putting+got.took
	}
	bytes, err := residentPeak(r.store.Pid())
	if err != nil {
		return nil, err
	}
	m, err := scrape(ctx, r.storeAdmin)
	if err != nil {
		return nil, err
	}
	if have := m.sum("lightmetrics_objectstore_objects"); int(have) < stored {
		return nil, fmt.Errorf("the store counts %.0f objects of %d", have, stored)
	}
	r.store.Kill()
	start := time.Now()
	if err := r.startStore(ctx); err != nil {
		return nil, err
	}
	restart := time.Since(start)
	after, err := residentPeak(r.store.Pid())
	if err != nil {
		return nil, err
	}
	name := strings.ReplaceAll(fmt.Sprintf("memory/store/%d-objects", stored), " ", "")
	note := fmt.Sprintf("%d creates of %d bytes by %d clients at %.0f/s", stored, size, clients, float64(stored)/putting.Seconds())
	return []Result{
		peak(name, bytes, 256, "fsync", note),
		peak(name+"/restarted", after, 256, "fsync", "right after a start that follows kill -9"),
		{Name: name + "/start", Value: ms(restart), Unit: "ms", Durability: "fsync", Note: "from the start after kill -9 to ready"},
	}, nil
}
