package rollup

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
)

// BenchmarkHour makes everything that is published of an hour of 10,100 series at 10 s
// (TSBS devops, 100 hosts) of frames with 1, 6 and 60 samples a series, in memory, next
// to decoding the same frames: go test -run '^$' -bench Hour -benchtime 3x.
func BenchmarkHour(b *testing.B) {
	const hosts, steps = 100, 360
	ds := tsbs.Generate(1, hosts, steps)
	for _, rows := range []int{1, 6, 60} {
		w := newWorld(b, newMem())
		plan := &hour.Plan{Plan: &rollup.Plan{AuthorityID: testAuthority, Shards: testShards, Hour: timegrid.HourOf(tsbs.StartMS + 1), Generation: 1, Parts: 1}}
		samples := 0
		for i, h := range ds.Hosts() {
			agent := agentOf(0, i)
			seq := uint64(0)
			for from := 0; from < steps; from += rows {
				fb := frame.NewBuilder()
				must(b, h.Fill(fb, from, rows))
				f, err := fb.Build(identity.Boot{Agent: agent, Boot: "b"}, seq)
				must(b, err)
				raw, err := frame.Encode(nil, f)
				must(b, err)
				d := identity.Sum(raw)
				lo, hi := frame.TimeRange(f)
				_, err = w.store.Create(b.Context(), layout.Blob(d, 0), raw, objstore.PutOptions{SHA256: d})
				must(b, err)
				plan.Inputs = append(plan.Inputs, accepted.Batch{Identity: identity.Batch{Agent: agent, Boot: "b", SeqStart: seq, SeqEnd: f.Identity.SeqEnd}, FrameSHA256: d,
					FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(d, 0), MinTime: lo, MaxTime: hi})
				samples += int(f.Identity.Count())
				seq = f.Identity.SeqEnd + 1
			}
		}
		cfg := testConfigOf(1 << 30)
		cfg.Chunks = DefaultConfig().Chunks
		s, err := w.opened(w.worker(cfg, w.store))
		must(b, err)
		rate := func(b *testing.B, cpu time.Duration) {
			b.ReportMetric(float64(samples)*float64(b.N)/(cpuTime()-cpu).Seconds(), "samples/cpu-s")
		}
		b.Run(fmt.Sprintf("decode/%d", rows), func(b *testing.B) {
			cpu := cpuTime()
			for range b.N {
				dec := s.frames.Decoder()
				must(b, s.frames.Each(b.Context(), plan.Inputs, func(_ int, raw []byte) error { _, err := dec.Decode(raw); return err }))
			}
			rate(b, cpu)
		})
		b.Run(fmt.Sprintf("rollup/%d", rows), func(b *testing.B) {
			cpu := cpuTime()
			for range b.N {
				m, err := s.builder.Build(b.Context(), plan, nil, timegrid.Resolutions(), func() error { return nil })
				must(b, err)
				for _, res := range timegrid.Resolutions() {
					n := 0
					for _, o := range m.Outputs[res] {
						n += int(o.Chunk.Size()) + int(o.Index.Size())
					}
					b.ReportMetric(float64(n)/float64(samples), res.String()+"-B/sample")
				}
			}
			rate(b, cpu)
		})
		b.Run(fmt.Sprintf("memory/%d", rows), func(b *testing.B) {
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
				_, err := s.builder.Build(b.Context(), plan, nil, timegrid.Resolutions(), func() error { return nil })
				must(b, err)
			}
			cancel()
			b.ReportMetric(float64(<-peak)/(1<<20), "heap-MiB")
		})
	}
}

// cpuTime is what the process has used, the collector of garbage included.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func testConfigOf(memory int64) Config {
	c := testConfig()
	c.Jobs.Memory = config.Bytes(memory)
	return c
}
