package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// nodeFile is real node_exporter scrapes, where it is there.
const nodeFile = "../shared/data/ne_host1.ds.zst"

// Goals of chunks: bytes a sample with indexes, and CPU next to Prometheus' chunks of the same samples.
const (
	chunkBytesGoal = 0.58
	chunkCPUGoal   = 1.0
)

// benchChunk encodes and decodes the samples as the raw resolution of (shard, hour) chunks with
// their indexes, next to a Prometheus block (bytes) and its XOR chunks (CPU) of the same samples.
func benchChunk(ctx context.Context, e *env) ([]Result, error) {
	data, note, err := tsbsData(e)
	if err != nil {
		return nil, err
	}
	sets := []struct {
		name, note string
		data       *tsbs.Dataset
		shards     uint32
	}{
		{"devops", note, data, shard.Default},
		{"devops-4-shards", note, data, 4},
	}
	if node, err := tsbs.Load(nodeFile); err == nil && !e.quick {
		sets = append(sets, struct {
			name, note string
			data       *tsbs.Dataset
			shards     uint32
		}{"node_exporter", "720 scrapes of node_exporter, one host", node, shard.Default})
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var rs []Result
	for _, s := range sets {
		w, err := newChunkWork(s.data, s.shards)
		if err != nil {
			return rs, err
		}
		block, err := prometheusBlock(ctx, s.data, filepath.Join(e.dir, "block-"+s.name))
		if err != nil {
			return rs, err
		}
		name := "chunk/" + s.name + "/"
		bytes := Result{Name: name + "bytes", Value: float64(w.bytes+w.indexBytes) / float64(w.samples), Unit: "B/sample", Baseline: "Prometheus block",
			BaselineValue: float64(block) / float64(w.samples), Goal: fmt.Sprintf("<= %g B/sample", chunkBytesGoal),
			Note: fmt.Sprintf("%s, %d chunks; indexes are %.3f of it", s.note, len(w.files), float64(w.indexBytes)/float64(w.samples))}
		bytes.Ratio = bytes.Value / bytes.BaselineValue
		bytes.Pass = bytes.Value <= chunkBytesGoal
		rs = append(rs, bytes)
		for _, m := range []struct {
			name           string
			ours, baseline func() error
		}{
			{"encode", w.encode, w.encodeXOR},
			{"decode", w.decode, w.decodeXOR},
		} {
			ours, base, ratio, pairs, err := paired(ctx, e.pairs, w.rate(m.ours), w.rate(m.baseline))
			if err != nil {
				return rs, err
			}
			rs = append(rs, Result{Name: name + m.name, Value: ours / 1e6, Unit: "M samples/CPU-s", Baseline: "Prometheus XOR chunks", BaselineValue: base / 1e6,
				Ratio: ratio, Goal: fmt.Sprintf(">= %g", chunkCPUGoal), Pass: ratio >= chunkCPUGoal, Note: "indexes included; " + pairs})
		}
	}
	return rs, nil
}

// chunkWork is the same samples as series of chunks, as chunks, and as XOR chunks.
type chunkWork struct {
	samples, bytes, indexBytes int
	sets                       [][]*chunk.Series // of a (shard, hour)
	files                      []chunk.Files
	xor                        []*chunkenc.XORChunk

	w    *chunk.Writer
	d    *chunk.Decoder
	into chunk.Columns
}

func newChunkWork(d *tsbs.Dataset, shards uint32) (*chunkWork, error) {
	w := &chunkWork{w: chunk.NewWriter(chunk.Options{}), d: chunk.NewDecoder(nil, chunk.Limits{}), samples: d.Samples()}
	type key struct {
		shard shard.ID
		hour  timegrid.Hour
	}
	sets := map[key][]*chunk.Series{}
	for _, h := range d.Hosts() {
		agent := cmp.Or(h.Name, "node")
		times := map[timegrid.Hour][]int64{} // a host's series share their times
		for i := range h.Series {
			for hour, s := range hours(&h.Series[i]) {
				s.Agent = agent
				if t := times[hour]; slices.Equal(t, s.T) {
					s.T = t
				}
				times[hour] = s.T
				k := key{shard.Of(agent, shards), hour}
				sets[k] = append(sets[k], s)
			}
		}
	}
	for _, series := range sets {
		w.sets = append(w.sets, series)
	}
	if err := w.encode(); err != nil {
		return nil, err
	}
	for _, f := range w.files {
		w.bytes += len(f.Chunk)
		w.indexBytes += len(f.Index)
	}
	return w, errors.Join(w.encodeXOR(), w.check())
}

// hours cuts a series at hours.
func hours(s *tsbs.Series) map[timegrid.Hour]*chunk.Series {
	var ls []series.Label
	for _, l := range s.Labels {
		if l.Value != "" {
			ls = append(ls, series.Label(l))
		}
	}
	out := map[timegrid.Hour]*chunk.Series{}
	for i, ms := range s.Timestamps {
		h := timegrid.HourOf(ms)
		c := out[h]
		if c == nil {
			c = &chunk.Series{ID: series.ID{Labels: ls, Type: series.Gauge}}
			out[h] = c
		}
		c.T, c.V = append(c.T, ms*1e6), append(c.V, s.Values[i])
	}
	return out
}

func (w *chunkWork) encode() error {
	keep := w.files == nil
	for _, series := range w.sets {
		w.w.Reset()
		for _, s := range series {
			if err := w.w.Add(s); err != nil {
				return err
			}
		}
		f, err := w.w.Finish()
		if err != nil {
			return err
		}
		if keep {
			kept := *f
			kept.Chunk, kept.Index = slices.Clone(f.Chunk), slices.Clone(f.Index)
			w.files = append(w.files, kept)
		}
	}
	return nil
}

// each decodes all series, index first.
func (w *chunkWork) each(fn func(set, i int, x *chunk.Index) error) error {
	for k, f := range w.files {
		x, err := chunk.ReadIndex(f.Index, chunk.Limits{})
		if err != nil {
			return err
		}
		w.d.Reset(x)
		w.d.Put(0, f.Chunk)
		for i := range x.Len() {
			if _, err := w.d.Series(i, math.MinInt64, math.MaxInt64, chunk.AllColumns, &w.into); err != nil {
				return err
			}
			if err := fn(k, i, x); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *chunkWork) decode() error {
	return w.each(func(int, int, *chunk.Index) error { return nil })
}

// check reads everything back and compares it with what was written, bit by bit.
func (w *chunkWork) check() error {
	seen := 0
	err := w.each(func(set, i int, x *chunk.Index) error {
		ref := x.Series(i)
		k := slices.IndexFunc(w.sets[set], func(s *chunk.Series) bool { return s.Agent == ref.Agent && slices.Equal(s.Labels, ref.Labels) })
		if k < 0 {
			return fmt.Errorf("chunk: %v was not written", ref.Labels)
		}
		want := w.sets[set][k]
		same := slices.EqualFunc(want.V, w.into.V, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) })
		if !same || !slices.Equal(want.T, w.into.T) {
			return fmt.Errorf("chunk: %v differs from what was written", ref.Labels)
		}
		seen += len(want.T)
		return nil
	})
	if err == nil && seen != w.samples {
		err = fmt.Errorf("chunk: %d of %d samples read back", seen, w.samples)
	}
	return err
}

// xorSamples is what a chunk of Prometheus holds.
const xorSamples = 120

func (w *chunkWork) encodeXOR() error {
	keep := w.xor == nil
	for _, series := range w.sets {
		for _, s := range series {
			for from := 0; from < len(s.T); from += xorSamples {
				c := chunkenc.NewXORChunk()
				a, err := c.Appender()
				if err != nil {
					return err
				}
				for i := from; i < min(from+xorSamples, len(s.T)); i++ {
					a.Append(0, s.T[i]/1e6, s.V[i])
				}
				if keep {
					w.xor = append(w.xor, c)
				}
			}
		}
	}
	return nil
}

func (w *chunkWork) decodeXOR() error {
	var it chunkenc.Iterator
	for _, c := range w.xor {
		it = c.Iterator(it)
		w.into.T, w.into.V = w.into.T[:0], w.into.V[:0]
		for it.Next() != chunkenc.ValNone {
			t, v := it.At()
			w.into.T, w.into.V = append(w.into.T, t), append(w.into.V, v)
		}
		if it.Err() != nil {
			return it.Err()
		}
	}
	return nil
}

// rate repeats pass for a while and gives samples per CPU-second of this process.
func (w *chunkWork) rate(pass func() error) func(context.Context) (float64, error) {
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

// blockRange in milliseconds: twice what the samples span, so that they may come series by series.
const blockRange = 3 * tsdb.DefaultBlockDuration

// prometheusBlock writes a block of the samples and gives the bytes of its files.
func prometheusBlock(ctx context.Context, d *tsbs.Dataset, dir string) (size int64, err error) {
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, blockRange)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Close(), os.RemoveAll(dir)) }()
	for i := range d.Series {
		s := &d.Series[i]
		b := labels.NewScratchBuilder(len(s.Labels))
		for _, l := range s.Labels {
			if l.Value != "" {
				b.Add(l.Name, l.Value)
			}
		}
		b.Sort()
		app, ls := w.Appender(ctx), b.Labels()
		for k, ms := range s.Timestamps {
			if _, err := app.Append(0, ls, ms, s.Values[k]); err != nil {
				return 0, err
			}
		}
		if err := app.Commit(); err != nil {
			return 0, err
		}
	}
	if _, err := w.Flush(ctx); err != nil {
		return 0, err
	}
	return size, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		size += info.Size()
		return err
	})
}
