package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Goals of a rollup worker.
const (
	rollupCPUGoal    = 0.3 // of decoding alone
	rollupMemoryGoal = 512
)

// benchRollup lets a worker of its own process roll up an hour of 10,100 series at 10 s
// (TSBS devops, 100 hosts, one shard) that lies in the embedded store as accepted frames,
// and then one late batch.
func benchRollup(ctx context.Context, e *env) ([]Result, error) {
	hosts, steps := 100, 360
	if e.quick {
		hosts, steps = 10, 120
	}
	var rs []Result
	for _, rows := range []int{6, 60} {
		name := fmt.Sprintf("rollup/%d-samples-a-series", rows)
		if !e.cases.MatchString(name) {
			continue
		}
		got, err := rollupHour(ctx, e, name, hosts, steps, rows)
		rs = append(rs, got...)
		if err != nil {
			return rs, err
		}
	}
	return rs, nil
}

// hourOfFrames is what is accepted of the hour.
type hourOfFrames struct {
	hour    timegrid.Hour
	entries []accepted.Batch
	frames  [][]byte
	samples uint64
}

func makeHour(hosts, steps, rows int) (*hourOfFrames, error) {
	h := &hourOfFrames{hour: timegrid.HourOf(tsbs.StartMS + 1)}
	// Samples on the stroke are of the hour before; the first step stays out.
	for i, host := range tsbs.Generate(1, hosts, steps+1).Hosts() {
		seq := uint64(0)
		for from := 1; from <= steps; from += rows {
			fb := frame.NewBuilder()
			if err := host.Fill(fb, from, min(rows, steps+1-from)); err != nil {
				return nil, err
			}
			b, err := fb.Build(identity.Boot{Agent: fmt.Sprintf("host-%d", i), Boot: "bench"}, seq)
			if err != nil {
				return nil, err
			}
			raw, err := frame.Encode(nil, b)
			if err != nil {
				return nil, err
			}
			lo, hi := frame.TimeRange(b)
			d := identity.Sum(raw)
			h.entries = append(h.entries, accepted.Batch{
				Identity: b.Identity, FrameSHA256: d, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(d, 0), AcceptedAt: hi, MinTime: lo, MaxTime: hi,
			})
			h.frames = append(h.frames, raw)
			h.samples += b.Identity.Count()
			seq = b.Identity.SeqEnd + 1
		}
	}
	return h, nil
}

// store writes frames, manifests and journal of some batches.
func (h *hourOfFrames) store(ctx context.Context, s objstore.Store, from, to int) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for i := from; i < to; i++ {
		g.Go(func() error {
			_, err := s.Create(gctx, h.entries[i].RawBlobKey, h.frames[i], objstore.PutOptions{SHA256: h.entries[i].FrameSHA256})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	entries := make([]journal.Entry, 0, to-from)
	for _, e := range h.entries[from:to] {
		entries = append(entries, journal.Entry{ID: e.Identity, Outcome: journal.Accepted, SHA256: e.FrameSHA256, Bytes: e.FrameBytes, At: e.AcceptedAt, MinTime: e.MinTime, MaxTime: e.MaxTime})
	}
	return errors.Join(journaltest.Append(ctx, s, authority, entries...), journaltest.Complete(ctx, s, authority))
}

// decode gives samples per CPU-second of decoding every frame once.
func (h *hourOfFrames) decode() (float64, error) {
	before := ownCPU()
	n := uint64(0)
	dec := frame.NewDecoder()
	var b frame.Batch
	for ownCPU()-before < minFrameRun || n == 0 {
		for _, raw := range h.frames {
			if err := dec.Decode(raw, &b, frame.Limits{}); err != nil {
				return 0, err
			}
		}
		n += h.samples
	}
	return float64(n) / (ownCPU() - before).Seconds(), nil
}

func rollupHour(ctx context.Context, e *env, name string, hosts, steps, rows int) ([]Result, error) {
	h, err := makeHour(hosts, steps, rows)
	if err != nil {
		return nil, err
	}
	late := len(h.entries) - 1
	var cpus, ratios, latencies []float64
	var memory float64
	var blocks []*catalog.Block
	pairs := min(e.pairs, 3) // each takes a store and a worker of its own
	decoding := 0.0
	for range pairs {
		if decoding, err = h.decode(); err != nil {
			return nil, err
		}
		one, err := rollOnce(ctx, e, name, h, late)
		if err != nil {
			return nil, err
		}
		blocks = one.blocks
		cpus = append(cpus, one.cpu)
		ratios = append(ratios, float64(h.samples)/one.cpu/decoding)
		latencies = append(latencies, ms(one.late))
		memory = max(memory, one.memory)
	}
	note := fmt.Sprintf("%d series, %d samples in %d frames, one shard; frames read over HTTP, four windows encoded and published; %d runs, ratio %.2f..%.2f",
		hosts*tsbs.SeriesPerHost, h.samples, len(h.entries), pairs, minOf(ratios), maxOf(ratios))
	rs := []Result{
		{Name: name + "/cpu", Value: float64(h.samples) / median(cpus) / 1e6, Unit: "M samples/CPU-s", Baseline: "decoding the frames alone", BaselineValue: decoding / 1e6,
			Ratio: median(ratios), Goal: fmt.Sprintf(">= %g", rollupCPUGoal), Pass: median(ratios) >= rollupCPUGoal, Durability: "object store, fsync", Note: note},
		peak(name+"/memory", memory, rollupMemoryGoal, "object store, fsync", "worker process, the hour and a late batch"),
		{Name: name + "/late", Value: median(latencies), Unit: "ms", Durability: "object store, fsync", Note: "from a late batch's segment of the journal to the next generation in all windows; late_after is 1 s, the journal is polled every 500 ms"},
	}
	for _, s := range blocks {
		bytes := uint64(0)
		for _, o := range s.Objects {
			bytes += o.ChunkBytes + o.IndexBytes
		}
		rs = append(rs, Result{Name: name + "/bytes/" + s.Name.Resolution.String(), Value: float64(bytes) / float64(h.samples), Unit: "B/raw sample",
			Durability: "object store, fsync", Note: fmt.Sprintf("%d rows in %d chunks, indexes included", s.Counts.Samples, len(s.Objects))})
	}
	return rs, nil
}

// rolled is one run of a worker.
type rolled struct {
	cpu    float64 // seconds, of all but the late batch
	memory float64
	late   time.Duration
	blocks []*catalog.Block
}

func rollOnce(ctx context.Context, e *env, name string, h *hourOfFrames, late int) (*rolled, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.startStore(ctx); err != nil {
		return nil, err
	}
	s, err := r.client(ctx, "", oursPrefix)
	if err != nil {
		return nil, err
	}
	if _, err := accept.EnsureAuthority(ctx, s, authority, true); err != nil {
		return nil, err
	}
	if err := h.store(ctx, s, 0, late); err != nil {
		return nil, err
	}
	addr, err := proc.FreePort(0)
	if err != nil {
		return nil, err
	}
	p, err := r.start(ctx, "rollup", "http://"+addr+"/-/ready", section{
		"http": section{"listen": addr}, "pprof": true, "authority_id": authority, "shards": 1,
		"schedule": section{"first_after": "0s", "late_after": "1s", "fold_after": "0s"}, "follow": section{"interval": "500ms", "idle": "500ms"},
		"store": section{"endpoint": "http://" + r.storeAddr, "bucket": bucket, "prefix": oursPrefix, "path_style": true,
			"access_key_id": r.accessKey, "secret_access_key": r.secret},
	})
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	profiled := e.profile(ctx, name, addr)
	one := &rolled{}
	if one.blocks, err = publishedSets(ctx, s, h.hour, 1, p); err != nil {
		return nil, err
	}
	if one.cpu, err = cpuSeconds(p.Pid()); err != nil {
		return nil, err
	}
	profiled()
	if err := h.store(ctx, s, late, late+1); err != nil {
		return nil, err
	}
	start := time.Now()
	blocks, err := publishedSets(ctx, s, h.hour, 2, p)
	if err != nil {
		return nil, err
	}
	one.late = time.Since(start)
	for _, block := range blocks {
		if block.Counts.Published != h.samples {
			return nil, fmt.Errorf("%s has %d of %d samples", block.Name.Key(), block.Counts.Published, h.samples)
		}
	}
	one.memory, err = residentPeak(p.Pid())
	return one, err
}

// publishedSets waits for a generation in all resolutions.
func publishedSets(ctx context.Context, s objstore.Reader, h timegrid.Hour, gen uint64, p *proc.Process) ([]*catalog.Block, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		var blocks []*catalog.Block
		for _, res := range timegrid.Resolutions() {
			rec, _, err := catalog.Read(ctx, s, authority, layout.BlockManifest(h, shard.ID(0), res, gen))
			if err != nil && !errors.Is(err, objstore.ErrNotFound) {
				return nil, err
			}
			if rec.Block != nil {
				blocks = append(blocks, rec.Block)
			}
		}
		if len(blocks) == len(timegrid.Resolutions()) {
			return blocks, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("generation %d was not published in time\n%s", gen, p.Tail(20))
		case <-p.Exited():
			return nil, fmt.Errorf("the worker ended\n%s", p.Tail(20))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func minOf(v []float64) float64 {
	m := v[0]
	for _, x := range v {
		m = min(m, x)
	}
	return m
}

func maxOf(v []float64) float64 {
	m := v[0]
	for _, x := range v {
		m = max(m, x)
	}
	return m
}
