package chunk

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

const (
	devops       = "../../../../shared/data/devops100_2h.ds.zst"
	nodeExporter = "../../../../shared/data/ne_host1.ds.zst"
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
			var labels []series.Label
			for _, l := range s.Labels {
				if l.Value != "" {
					labels = append(labels, series.Label(l))
				}
			}
			for from := 0; from < len(s.Timestamps); {
				hour := timegrid.HourOf(s.Timestamps[from])
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
				out[key] = append(out[key], &Series{ID: series.ID{Agent: agent, Labels: labels, Type: series.Gauge}, Columns: c})
				from = to
			}
		}
	}
	return out
}

// cpu is the processor time of this process so far.
func cpu(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// figures of a data set cut into chunks.
type figures struct {
	chunks, chunk, index, samples int
	encode, decode                time.Duration // CPU time, the best of some rounds
}

func (f figures) String() string {
	n := float64(f.samples)
	return fmt.Sprintf("%d chunks, %d samples: chunk %.4f + index %.4f = %.4f B/sample, encode %.0f M/s, decode %.0f M/s", f.chunks, f.samples,
		float64(f.chunk)/n, float64(f.index)/n, float64(f.chunk+f.index)/n, n/f.encode.Seconds()/1e6, n/f.decode.Seconds()/1e6)
}

func measure(t testing.TB, ps map[string][]*Series, opt Options, rounds int) figures {
	w := NewWriter(opt)
	best := figures{}
	var c Columns
	d := NewDecoder(nil, Limits{})
	for round := range rounds {
		f := figures{chunks: len(ps)}
		for _, series := range ps {
			start := cpu(t)
			w.Reset()
			for _, s := range series {
				if err := w.Add(s); err != nil {
					t.Fatal(err)
				}
			}
			files, err := w.Finish()
			if err != nil {
				t.Fatal(err)
			}
			encoded := cpu(t)
			x, err := ReadIndex(files.Index, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			d.Reset(x)
			d.Put(0, files.Chunk)
			for i := range x.Len() {
				if _, err := d.Series(i, math.MinInt64, math.MaxInt64, AllColumns, &c); err != nil {
					t.Fatal(err)
				}
				if round == 0 && (!sameBits(c.V, w.series[i].V) || !sameTimes(c.T, w.series[i].T)) {
					t.Fatalf("%v differs", w.series[i].Labels)
				}
			}
			f.encode += encoded - start
			f.decode += cpu(t) - encoded
			f.chunk, f.index, f.samples = f.chunk+len(files.Chunk), f.index+len(files.Index), f.samples+int(files.Samples)
		}
		if round == 0 {
			best = f
			best.encode, best.decode = math.MaxInt64, math.MaxInt64
			continue
		}
		best.encode, best.decode = min(best.encode, f.encode), min(best.decode, f.decode)
	}
	return best
}

// TestMeasure prints figures for the decision record: CHUNK_MEASURE=rounds.
func TestMeasure(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("CHUNK_MEASURE"))
	if err != nil {
		t.Skip("prints figures only: set CHUNK_MEASURE to the number of rounds, 2 or more")
	}
	for _, path := range []string{devops, nodeExporter} {
		d := load(t, path)
		for _, shards := range []uint32{32, 4} {
			ps := pieces(d, shards)
			for _, opt := range []Options{{}, {codec: integerCodec{noReferences: true}}, {BlockSeries: 64}, {BlockSeries: 1024, BlockValues: 1 << 20}} {
				if os.Getenv("CHUNK_ONLY") != "" && opt != (Options{}) {
					continue
				}
				t.Logf("%s, %d shards, %+v: %v", filepath.Base(path), shards, opt, measure(t, ps, opt, rounds))
			}
		}
	}
}
