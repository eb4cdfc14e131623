package frame_test

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

const (
	devops       = "../../../shared/data/devops100_2h.ds.zst"
	nodeExporter = "../../../shared/data/ne_host1.ds.zst"
)

// batchesOf lays series out in batches of one host and rows samples a series:
// about a dozen batches of each host, spread over its time, up to limit.
func batchesOf(tb testing.TB, d *tsbs.Dataset, rows, limit int) []*frame.Batch {
	tb.Helper()
	var out []*frame.Batch
	for _, h := range d.Hosts() {
		seq := uint64(1)
		steps := len(h.Series[0].Values)
		for from := 0; from+rows <= steps && len(out) < limit; from += max(rows, steps/12) {
			b := frame.NewBuilder()
			if err := h.Fill(b, from, rows); err != nil {
				tb.Fatal(err)
			}
			batch, err := b.Build(identity.Boot{Agent: cmp.Or(h.Name, "node"), Boot: "01J9ZC3V7Q5W8KX2"}, seq)
			if err != nil {
				tb.Fatal(err)
			}
			seq = batch.Identity.SeqEnd + 1
			out = append(out, batch)
		}
	}
	return out
}

func load(b *testing.B, path string) *tsbs.Dataset {
	d, err := tsbs.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		b.Skipf("no data set at %s", path)
	}
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// cpu is the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func report(b *testing.B, samples int, start time.Duration) {
	b.ReportMetric(float64(samples)/(cpu(b)-start).Seconds()/1e6, "Msamples/cpu-s")
}

func BenchmarkEncode(b *testing.B)             { benchmarkEncode(b, devops) }
func BenchmarkEncodeNodeExporter(b *testing.B) { benchmarkEncode(b, nodeExporter) }

func benchmarkEncode(b *testing.B, path string) {
	d := load(b, path)
	for _, rows := range []int{1, 6, 60} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			batches := batchesOf(b, d, rows, 400)
			e := frame.NewEncoder(frame.Options{})
			var buf []byte
			var err error
			samples, bytes, i := 0, 0, 0
			start := cpu(b)
			b.ReportAllocs()
			for b.Loop() {
				batch := batches[i%len(batches)]
				i++
				if buf, err = e.Encode(buf[:0], batch); err != nil {
					b.Fatal(err)
				}
				samples += int(batch.Identity.Count())
				bytes += len(buf)
			}
			report(b, samples, start)
			b.ReportMetric(float64(bytes)/float64(samples), "B/sample")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	d := load(b, devops)
	for _, rows := range []int{1, 6, 60} {
		frames := [][]byte{}
		for _, batch := range batchesOf(b, d, rows, 400) {
			f, err := frame.Encode(nil, batch)
			if err != nil {
				b.Fatal(err)
			}
			frames = append(frames, f)
		}
		// Frames of one agent in a row, as in a stream, and of all agents in turn.
		for _, order := range []string{"agent", "mixed"} {
			b.Run(fmt.Sprintf("rows=%d/%s", rows, order), func(b *testing.B) {
				frames := slices.Clone(frames)
				if order == "mixed" {
					for i := range frames {
						j := i * 131 % len(frames)
						frames[i], frames[j] = frames[j], frames[i]
					}
				}
				dec := frame.NewDecoder()
				var batch frame.Batch
				samples, i := 0, 0
				start := cpu(b)
				b.ReportAllocs()
				for b.Loop() {
					if err := dec.Decode(frames[i%len(frames)], &batch, frame.Limits{}); err != nil {
						b.Fatal(err)
					}
					i++
					samples += int(batch.Identity.Count())
				}
				report(b, samples, start)
			})
		}
	}
}

func BenchmarkBuilder(b *testing.B) {
	h := tsbs.Generate(1, 1, 6).Hosts()[0]
	builder := frame.NewBuilder()
	samples := 0
	start := cpu(b)
	b.ReportAllocs()
	labels := []series.Label{{Name: series.MetricName}}
	for b.Loop() {
		builder.Reset()
		for i := range h.Series {
			labels[0].Value = h.Series[i].Label("__name__")
			id, err := builder.AddSeries(labels, series.Gauge, "", 0)
			if err != nil {
				b.Fatal(err)
			}
			for k, v := range h.Series[i].Values {
				if err := builder.Append(id, h.Series[i].Timestamps[k]*1e6, v); err != nil {
					b.Fatal(err)
				}
			}
		}
		batch, err := builder.Build(identity.Boot{Agent: "host_0", Boot: "1"}, 1)
		if err != nil {
			b.Fatal(err)
		}
		samples += int(batch.Identity.Count())
	}
	report(b, samples, start)
}
