package rollup_test

import (
	"syscall"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// BenchmarkBuilder gathers an hour of 10 hosts with 101 series, six rows a batch, into raw
// series.
func BenchmarkBuilder(b *testing.B) {
	const rows, batches = 6, 50
	d := tsbs.Generate(1, 10, rows*batches)
	var frames []*frame.Batch
	var inputs []accepted.Claim
	for _, h := range d.Hosts() {
		seq := uint64(1)
		for k := range batches {
			fb := frame.NewBuilder()
			if err := h.Fill(fb, k*rows, rows); err != nil {
				b.Fatal(err)
			}
			f, err := fb.Build(identity.Boot{Agent: h.Name, Boot: "b"}, seq)
			if err != nil {
				b.Fatal(err)
			}
			seq = f.Identity.SeqEnd + 1
			frames = append(frames, f)
			inputs = append(inputs, accepted.Claim{Identity: f.Identity, AcceptedAt: int64(k)})
		}
	}
	hour := timegrid.HourOfNS(frames[1].Groups[0].Timestamps[0])
	cpu := func() float64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	}
	b.ReportAllocs()
	records := uint64(0)
	start := cpu()
	for b.Loop() {
		builder := rollup.NewBuilder(hour, inputs, rollup.Part{})
		for i, f := range frames {
			if err := builder.Add(i, f); err != nil {
				b.Fatal(err)
			}
		}
		_, counts, err := builder.Finish()
		if err != nil {
			b.Fatal(err)
		}
		records += counts.Published
	}
	b.ReportMetric(float64(records)/(cpu()-start)/1e6, "Msamples/cpu-s")
}
