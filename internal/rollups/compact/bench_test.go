package compact_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// dataFile is TSBS devops data, 100 hosts by 2 h, where it is there.
const dataFile = "../../../../shared/data/devops100_2h.ds.zst"

// BenchmarkMerge merges the blocks of hours of 4 shards: objects and bytes a sample before
// and after, samples merged a second, and the most heap meanwhile.
func BenchmarkMerge(b *testing.B) {
	two, err := tsbs.Load(dataFile)
	if err != nil {
		two = tsbs.Generate(1, 20, 720)
	}
	b.Run("raw/2h", func(b *testing.B) { benchmarkMerge(b, two, timegrid.Raw, 2) })
	day := tsbs.Generate(1, 10, 24*360)
	b.Run("raw/24h", func(b *testing.B) { benchmarkMerge(b, day, timegrid.Raw, 24) })
	b.Run("1m/24h", func(b *testing.B) { benchmarkMerge(b, day, timegrid.OneMinute, 24) })
	b.Run("5m/24h", func(b *testing.B) { benchmarkMerge(b, day, timegrid.FiveMinutes, 24) })
	b.Run("1h/24h", func(b *testing.B) { benchmarkMerge(b, day, timegrid.OneHour, 24) })
}

func benchmarkMerge(b *testing.B, d *tsbs.Dataset, res timegrid.Resolution, span uint16) {
	w := newWorld(b)
	blocks := w.load(d, res, span)
	var objects, before, samples uint64
	p := &compact.Plan{AuthorityID: authority, Shards: shards, ObjectBytes: 128 << 20, Rows: 16 << 10, BlockSeries: 2048, BlockValues: 1 << 20,
		Name: catalog.Name{Hour: blocks[0].Name.Hour, Resolution: res, Generation: 1, Span: span}}
	for _, s := range blocks {
		p.Sources = append(p.Sources, s.Name)
		samples += s.Counts.Samples
		for _, o := range s.Objects {
			objects++
			before += o.ChunkBytes + o.IndexBytes
		}
	}
	var m *compact.Merged
	heap := peak(func() {
		for b.Loop() {
			var err error
			if m, err = compact.Merge(b.Context(), w.store, p, blocks); err != nil {
				b.Fatal(err)
			}
		}
	})
	after := 0
	for _, o := range m.Outputs {
		after += int(o.Chunk.Size()) + int(o.Index.Size())
	}
	b.ReportMetric(float64(objects), "chunks-before")
	b.ReportMetric(float64(len(m.Outputs)), "chunks-after")
	b.ReportMetric(float64(before)/float64(samples), "B/row-before")
	b.ReportMetric(float64(after)/float64(samples), "B/row-after")
	b.ReportMetric(float64(samples)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(heap)/(1<<20), "peak-MiB")
}

// peak is about the most heap that fn takes beyond what there was.
func peak(fn func()) uint64 {
	runtime.GC()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	base := ms.HeapAlloc
	var most atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var ms runtime.MemStats
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				runtime.ReadMemStats(&ms)
				most.Store(max(most.Load(), ms.HeapAlloc))
			}
		}
	}()
	fn()
	close(stop)
	<-done
	return most.Load() - min(base, most.Load())
}

// load publishes the data's whole hours, each host an agent.
func (w *world) load(d *tsbs.Dataset, res timegrid.Resolution, span uint16) []*catalog.Block {
	w.t.Helper()
	first := timegrid.HourOf(d.Series[0].Timestamps[0] + 1)
	type at struct {
		h timegrid.Hour
		s shard.ID
	}
	hours := map[at][]chunk.Series{}
	for i := range d.Series {
		agent := d.Series[i].Label("hostname")
		var ls []series.Label
		for _, l := range d.Series[i].Labels {
			if l.Value != "" {
				ls = append(ls, series.Label{Name: l.Name, Value: l.Value})
			}
		}
		slices.SortFunc(ls, func(a, b series.Label) int { return strings.Compare(a.Name, b.Name) })
		id := shard.Of(agent, shards)
		byHour := map[timegrid.Hour]*chunk.Columns{}
		for k, t := range d.Series[i].Timestamps {
			h := timegrid.HourOf(t)
			if h < first || h >= first+timegrid.Hour(span) {
				continue
			}
			c := byHour[h]
			if c == nil {
				c = &chunk.Columns{}
				byHour[h] = c
			}
			c.T, c.V = append(c.T, t*1_000_000), append(c.V, d.Series[i].Values[k])
		}
		for h, c := range byHour {
			s := chunk.Series{ID: series.ID{Agent: agent, Labels: ls, Type: series.Gauge}, Columns: *c}
			if res != timegrid.Raw {
				s = rollup.NewRoller(res).Roll(&s)
			}
			hours[at{h, id}] = append(hours[at{h, id}], s)
		}
	}
	var blocks []*catalog.Block
	for h := first; h < first+timegrid.Hour(span); h++ {
		for id := range shard.ID(shards) {
			if series := hours[at{h, id}]; len(series) > 0 {
				blocks = append(blocks, w.publish(h, id, res, series))
			}
		}
	}
	return blocks
}

func (w *world) publish(h timegrid.Hour, id shard.ID, res timegrid.Resolution, series []chunk.Series) *catalog.Block {
	w.t.Helper()
	plan := fmt.Appendf(nil, "plan %d %d", h, id)
	w.must1(w.store.Create(w.t.Context(), layout.RollupPlan(h, id, 1), plan, objstore.PutOptions{}))
	cw := chunk.NewWriter(chunk.Options{})
	for i := range series {
		w.must(cw.Add(&series[i]))
	}
	f, err := cw.Finish()
	w.must(err)
	in, err := catalog.NewInputs([]identity.Batch{{Agent: "a", Boot: "b", SeqStart: 0, SeqEnd: 9}})
	w.must(err)
	r, err := w.publisher().Publish(w.t.Context(), publish.Publication{
		Name: catalog.Name{Hour: h, Shard: id, Resolution: res, Generation: 1}, Shards: shards, Fence: 7, PlanSHA256: identity.Sum(plan),
		Inputs: in, Counts: catalog.Counts{Records: in.Records(), Published: in.Records()},
		Outputs: []publish.Output{{Metric: layout.MixedMetrics, Chunk: publish.Bytes(f.Chunk), Index: publish.Bytes(f.Index), FooterOffset: uint64(f.FooterOffset),
			Series: uint64(f.Series), Samples: f.Samples, MinTime: f.MinT, MaxTime: f.MaxT}},
	})
	w.must(err)
	return r.Block
}
