package chunk

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/tsbs"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

const (
	devops       = "../../../shared/data/devops100_2h.ds.zst"
	nodeExporter = "../../../shared/data/ne_host1.ds.zst"
)

func load(t testing.TB, path string) *tsbs.Dataset {
	t.Helper()
	d, err := tsbs.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no data at %s", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// pieces cuts a data set into the series of its (shard, hour) chunks, as the product does.
func pieces(d *tsbs.Dataset, shards uint32) map[string][]*Series {
	out := map[string][]*Series{}
	for _, h := range d.Hosts() {
		agent := h.Name
		if agent == "" {
			agent = "node"
		}
		times := map[string][]int64{}
		for i := range h.Series {
			s := &h.Series[i]
			var labels []frame.Label
			for _, l := range s.Labels {
				if l.Value != "" {
					labels = append(labels, frame.Label(l))
				}
			}
			for from := 0; from < len(s.Timestamps); {
				hour := window.HourOf(s.Timestamps[from])
				to := from
				for to < len(s.Timestamps) && hour.Holds(s.Timestamps[to]) {
					to++
				}
				key := fmt.Sprintf("%04d %s", shard.Of(agent, shards), hour)
				c := Columns{V: s.Values[from:to]}
				if t := times[key]; len(t) == to-from && t[0] == s.Timestamps[from]*1e6 {
					c.T = t
				} else {
					for _, ms := range s.Timestamps[from:to] {
						c.T = append(c.T, ms*1e6)
					}
					times[key] = c.T
				}
				out[key] = append(out[key], &Series{Agent: agent, Labels: labels, Type: frame.Gauge, Columns: c})
				from = to
			}
		}
	}
	return out
}

func TestMeasure(t *testing.T) {
	if os.Getenv("CHUNK_MEASURE") == "" {
		t.Skip("set CHUNK_MEASURE=1: figures for the decision record")
	}
	for _, path := range []string{devops, nodeExporter} {
		for _, shards := range []uint32{32, 4} {
			ps := pieces(load(t, path), shards)
			w := NewWriter(Options{})
			var chunk, index, samples int
			for round := range 2 {
				chunk, index, samples = 0, 0, 0
				var enc, dec time.Duration
				for _, series := range ps {
					start := time.Now()
					w.Reset()
					for _, s := range series {
						if err := w.Add(s); err != nil {
							t.Fatal(err)
						}
					}
					f, err := w.Finish()
					if err != nil {
						t.Fatal(err)
					}
					enc += time.Since(start)
					chunk, index, samples = chunk+len(f.Chunk), index+len(f.Index), samples+int(f.Samples)
					start = time.Now()
					x, err := ReadIndex(f.Index, Limits{})
					if err != nil {
						t.Fatal(err)
					}
					d := NewDecoder(x, Limits{})
					d.Put(0, f.Chunk)
					var c Columns
					for i := range x.Len() {
						if _, err := d.Series(i, math.MinInt64, math.MaxInt64, AllColumns, &c); err != nil {
							t.Fatal(err)
						}
						if !sameBits(c.V, w.series[i].V) || !sameTimes(c.T, w.series[i].T) {
							t.Fatalf("%v differs", w.series[i].Labels)
						}
					}
					dec += time.Since(start)
				}
				if round == 1 {
					fmt.Printf("%s shards=%d: %d chunks, %d samples, chunk %.4f + index %.4f = %.4f B/sample; encode %.0f decode %.0f M/s\n", path, shards, len(ps), samples,
						float64(chunk)/float64(samples), float64(index)/float64(samples), float64(chunk+index)/float64(samples),
						float64(samples)/enc.Seconds()/1e6, float64(samples)/dec.Seconds()/1e6)
				}
			}
		}
	}
}
