package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// dataFile is TSBS devops data, 100 hosts by 2 h, where it is there.
const dataFile = "../shared/data/devops100_2h.ds.zst"

// benchFrame encodes and decodes one host per frame at 1, 6 and 60 samples a series, next
// to Prometheus remote write (protobuf and snappy) of the same samples.
func benchFrame(ctx context.Context, e *env) ([]Result, error) {
	data, note, err := tsbsData(e)
	if err != nil {
		return nil, err
	}
	var rs []Result
	for _, perSeries := range []int{1, 6, 60} {
		w, err := newWork(data, perSeries)
		if err != nil {
			return rs, err
		}
		name := fmt.Sprintf("frame/%d-per-series/", perSeries)
		bytes := Result{Name: name + "bytes", Value: w.bytesPerSample(w.frames), Unit: "B/sample", Baseline: "remote write",
			BaselineValue: w.bytesPerSample(w.remote), Goal: "<= 0.5", Note: note}
		bytes.Ratio = bytes.Value / bytes.BaselineValue
		bytes.Pass = bytes.Ratio <= 0.5
		rs = append(rs, bytes)
		for _, m := range []struct {
			name           string
			ours, baseline func() error
			goal           float64
		}{
			{"encode", w.encodeFrames, w.encodeRemote, 1},
			{"decode", w.decodeFrames, w.decodeRemote, 5},
		} {
			ours, base, ratio, pairs, err := paired(ctx, e.pairs, w.rate(m.ours), w.rate(m.baseline))
			if err != nil {
				return rs, err
			}
			rs = append(rs, Result{Name: name + m.name, Value: ours / 1e6, Unit: "M samples/CPU-s", Baseline: "remote write", BaselineValue: base / 1e6,
				Ratio: ratio, Goal: fmt.Sprintf(">= %g", m.goal), Pass: ratio >= m.goal, Note: pairs})
		}
	}
	return rs, nil
}

func tsbsData(e *env) (*tsbs.Dataset, string, error) {
	if !e.quick {
		d, err := tsbs.Load(dataFile)
		if err == nil {
			return d, "TSBS devops, 100 hosts, 2 h", nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, "", err
		}
	}
	return tsbs.Generate(1, 20, 120), "generated, 20 hosts, 20 min", nil
}

// minFrameRun is how long each run works at least.
const minFrameRun = 300 * time.Millisecond

// maxFrames bounds the frames of a run.
const maxFrames = 400

// work is the same samples as frames and as remote-write requests.
type work struct {
	samples int // of one pass over all frames
	batches []*frame.Batch
	frames  [][]byte
	writes  []*prompb.WriteRequest
	remote  [][]byte

	enc *frame.Encoder
	dec *frame.Decoder
	buf []byte
}

func newWork(d *tsbs.Dataset, rows int) (*work, error) {
	w := &work{enc: frame.NewEncoder(frame.Options{}), dec: frame.NewDecoder()}
	for _, h := range d.Hosts() {
		steps := len(h.Series[0].Values)
		seq := uint64(1)
		for from := 0; from+rows <= steps && len(w.batches) < maxFrames; from += max(rows, steps/12) {
			b := frame.NewBuilder()
			if err := h.Fill(b, from, rows); err != nil {
				return nil, err
			}
			batch, err := b.Build(identity.Boot{Agent: cmp.Or(h.Name, "node"), Boot: "01J9ZC3V7Q5W8KX2"}, seq)
			if err != nil {
				return nil, err
			}
			seq = batch.Identity.SeqEnd + 1
			w.samples += int(batch.Records())
			w.batches = append(w.batches, batch)
			w.writes = append(w.writes, remoteWrite(batch))
		}
	}
	if err := w.encodeFrames(); err != nil {
		return nil, err
	}
	return w, w.encodeRemote()
}

// remoteWrite is the same samples as a remote-write request.
func remoteWrite(b *frame.Batch) *prompb.WriteRequest {
	req := &prompb.WriteRequest{}
	for _, g := range b.Groups {
		for i := range g.Series {
			ts := prompb.TimeSeries{}
			for name, value := range b.Labels(&g.Series[i]) {
				ts.Labels = append(ts.Labels, prompb.Label{Name: name, Value: value})
			}
			for r, t := range g.Timestamps {
				ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: t / 1e6, Value: g.Values[i*len(g.Timestamps)+r]})
			}
			req.Timeseries = append(req.Timeseries, ts)
		}
	}
	return req
}

func (w *work) bytesPerSample(bodies [][]byte) float64 {
	n := 0
	for _, b := range bodies {
		n += len(b)
	}
	return float64(n) / float64(w.samples)
}

func (w *work) encodeFrames() error {
	keep := w.frames == nil
	for _, b := range w.batches {
		f, err := w.enc.Encode(w.buf[:0], b)
		if err != nil {
			return err
		}
		if w.buf = f; keep {
			w.frames = append(w.frames, slices.Clone(f))
		}
	}
	return nil
}

func (w *work) decodeFrames() error {
	var b frame.Batch
	for _, f := range w.frames {
		if err := w.dec.Decode(f, &b, frame.Limits{}); err != nil {
			return err
		}
	}
	return nil
}

func (w *work) encodeRemote() error {
	keep := w.remote == nil
	for _, r := range w.writes {
		raw, err := r.Marshal()
		if err != nil {
			return err
		}
		if body := snappy.Encode(nil, raw); keep {
			w.remote = append(w.remote, body)
		}
	}
	return nil
}

func (w *work) decodeRemote() error {
	for _, body := range w.remote {
		raw, err := snappy.Decode(nil, body)
		if err != nil {
			return err
		}
		var r prompb.WriteRequest
		if err := r.Unmarshal(raw); err != nil {
			return err
		}
	}
	return nil
}

// rate repeats pass for a while and gives samples per CPU-second of this process.
func (w *work) rate(pass func() error) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		start, began, passes := ownCPU(), time.Now(), 0
		for time.Since(began) < minFrameRun {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			if err := pass(); err != nil {
				return 0, err
			}
			passes++
		}
		return float64(passes*w.samples) / (ownCPU() - start).Seconds(), nil
	}
}

// ownCPU is the CPU time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
