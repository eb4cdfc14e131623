package build

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
)

const benchHosts, benchSteps = 100, 360 // an hour of 10,100 series at 10 s

// benchHour is TSBS devops in frames of so many samples a series, in memory.
type benchHour struct {
	builder *Builder
	plan    *hour.Plan
	samples int
}

func newBenchHour(b *testing.B, rows int) *benchHour {
	store := mem.New(time.Now)
	h := &benchHour{plan: &hour.Plan{Plan: &rollup.Plan{AuthorityID: "bench", Shards: 1, Hour: timegrid.HourOf(tsbs.StartMS + 1), Generation: 1, Parts: 1}}}
	// Samples on the stroke are of the hour before; the first step stays out.
	for _, host := range tsbs.Generate(1, benchHosts, benchSteps+1).Hosts() {
		seq := uint64(0)
		for from := 1; from <= benchSteps; from += rows {
			fb := frame.NewBuilder()
			must(b, host.Fill(fb, from, rows))
			f, err := fb.Build(identity.Boot{Agent: host.Name, Boot: "b"}, seq)
			must(b, err)
			raw, err := frame.Encode(nil, f)
			must(b, err)
			d := identity.Sum(raw)
			lo, hi := frame.TimeRange(f)
			_, err = store.Create(b.Context(), layout.Blob(d, 0), raw, objstore.PutOptions{SHA256: d})
			must(b, err)
			h.plan.Inputs = append(h.plan.Inputs, accepted.Batch{Identity: f.Identity, FrameSHA256: d, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(d, 0), MinTime: lo, MaxTime: hi})
			h.samples += int(f.Identity.Count())
			seq = f.Identity.SeqEnd + 1
		}
	}
	h.builder = New(Config{
		Store: store, Frames: &frames.Reader{Store: store, MaxFrame: 16 << 20, AtOnce: 16}, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
		AuthorityID: "bench", Memory: 1 << 30, MetricRows: 4_000_000, MaxRows: 64_000_000, Learn: func(accepted.Batch, *frame.Batch) {}, MayUnroll: []timegrid.Resolution{timegrid.OneMinute},
	})
	return h
}

// BenchmarkHour makes the blocks of an hour of all resolutions from frames in memory, beside what no way of doing it can
// leave out: decoding the frames (with the hash that a reader checks), and encoding the samples alone.
// go test -run '^$' -bench Hour -benchtime 3x -benchmem.
func BenchmarkHour(b *testing.B) {
	for _, rows := range []int{6, 60} {
		b.Run(fmt.Sprintf("%d-samples-a-series", rows), func(b *testing.B) {
			h := newBenchHour(b, rows)
			run := func(name string, once func() error) {
				b.Run(name, func(b *testing.B) {
					b.ReportAllocs()
					before := cpuTime()
					for range b.N {
						must(b, once())
					}
					b.ReportMetric(float64(h.samples)*float64(b.N)/(cpuTime()-before).Seconds(), "samples/cpu-s")
				})
			}
			gather := func(add func(*rollup.Builder, int, *frame.Batch) error) (*rollup.Builder, error) {
				rb := rollup.NewBuilder(h.plan.Hour, h.plan.Order(), rollup.Part{})
				return rb, h.builder.decode(b.Context(), h.plan.Inputs, func(i int, f *frame.Batch) error { return add(rb, i, f) })
			}
			run("floor-decode", func() error {
				_, err := gather(func(*rollup.Builder, int, *frame.Batch) error { return nil })
				return err
			})
			rb, err := gather((*rollup.Builder).Add)
			must(b, err)
			raw, _, err := rb.Finish()
			must(b, err)
			run("floor-encode-samples", func() error {
				enc := newEncoder(h.builder.cfg.MetricRows, h.builder.cfg.MaxRows, nil)
				defer enc.free()
				_, err := enc.encode(raw)
				return err
			})
			run("encode-all", func() error {
				r := &Result{Outputs: map[timegrid.Resolution][]publish.Output{}}
				var err error
				if r.Unrolled, err = unrolled(raw, h.builder.cfg.MayUnroll); err != nil {
					return err
				}
				enc := newEncoder(h.builder.cfg.MetricRows, h.builder.cfg.MaxRows, nil)
				defer enc.free()
				return h.builder.encode(b.Context(), enc, raw, timegrid.Resolutions(), r)
			})
			raw = nil
			run("build", func() error {
				m, err := h.builder.Build(b.Context(), h.plan, nil, timegrid.Resolutions(), func() error { return nil })
				if err == nil {
					err = m.Close()
				}
				return err
			})
			b.Run("memory", func(b *testing.B) { h.memory(b) })
		})
	}
}

// memory reports the most heap that a build takes.
func (h *benchHour) memory(b *testing.B) {
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithCancel(b.Context())
	peak := make(chan uint64)
	go func() {
		var m runtime.MemStats
		top := uint64(0)
		for ctx.Err() == nil {
			runtime.ReadMemStats(&m)
			top = max(top, m.HeapInuse-min(before.HeapInuse, m.HeapInuse))
			time.Sleep(5 * time.Millisecond)
		}
		peak <- top
	}()
	for range b.N {
		m, err := h.builder.Build(b.Context(), h.plan, nil, timegrid.Resolutions(), func() error { return nil })
		must(b, err)
		for _, res := range timegrid.Resolutions() {
			n := 0
			for _, o := range m.Outputs[res] {
				n += int(o.Chunk.Size()) + int(o.Index.Size())
			}
			b.ReportMetric(float64(n)/float64(h.samples), res.String()+"-B/sample")
		}
	}
	cancel()
	b.ReportMetric(float64(<-peak)/(1<<20), "heap-MiB")
}

// cpuTime is what the process has used, the collector of garbage included.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
