package compact

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sort"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Decisions of a merge.
var (
	// ErrSources: the sources are not as the plan names them, or can't be merged.
	ErrSources = errors.New("sources can not be merged")
	// ErrNotConserved: the number of merged rows is not what the sources' records say.
	ErrNotConserved = errors.New("rows are not conserved")
)

// Bounds of what is decoded at once.
const (
	groupSeries = 512
	groupValues = 1 << 20
	// maxTimes bounds the times that a chunk holds in memory until it is finished.
	maxTimes = 8 << 20
)

// Merged is what a plan's generation publishes; it depends on nothing but the plan.
type Merged struct {
	Outputs []publish.Output
	Samples uint64
}

// Merge reads the plan's sources, which are blocks in the plan's order, and makes the chunks of the compaction.
// Besides the outputs its memory holds the indexes of the sources and the rows of one group of series.
func Merge(ctx context.Context, g objstore.Getter, p *Plan, sources []*catalog.Block) (*Merged, error) {
	m := &merge{fetch: block.From(g), plan: p, dec: chunk.NewDecoder(&chunk.Index{}, chunk.Limits{}), counts: map[catalog.Name]uint64{}}
	if err := m.run(ctx, sources); err != nil {
		return nil, fmt.Errorf("merge %s: %w", p.Name.Key(), err)
	}
	return &Merged{m.outputs, m.samples}, nil
}

type merge struct {
	fetch   block.Fetch
	plan    *Plan
	cursors cursors
	dec     *chunk.Decoder
	counts  map[catalog.Name]uint64
	stream  *chunk.Stream
	metric  string
	outputs []publish.Output
	samples uint64
}

// source is a series of a cursor's chunk.
type source struct {
	c      *block.Cursor
	series int
}

// entry is one series with its sources in the order of time.
type entry struct {
	ref     chunk.SeriesRef
	sources []source
	cols    chunk.Columns
}

func (m *merge) run(ctx context.Context, sources []*catalog.Block) error {
	if err := m.open(ctx, sources); err != nil {
		return err
	}
	for len(m.cursors) > 0 {
		group := m.nextGroup()
		if err := m.load(ctx, group); err != nil {
			return err
		}
		for _, e := range group {
			if err := m.addSeries(e); err != nil {
				return err
			}
		}
	}
	if err := m.finishChunk(); err != nil {
		return err
	}
	// Counting per source instead of in total: a row that one source lost and another had twice must not cancel
	// out.
	for _, s := range sources {
		of := s.Name
		of.Generation = 0
		if got := m.counts[of]; got != s.Counts.Samples {
			return fmt.Errorf("%w: %d rows of %s, it has %d", ErrNotConserved, got, s.Name.Key(), s.Counts.Samples)
		}
		m.samples += s.Counts.Samples
		delete(m.counts, of)
	}
	if len(m.counts) > 0 {
		return fmt.Errorf("%w: rows of %d blocks that are no sources", ErrNotConserved, len(m.counts))
	}
	return nil
}

// open opens the chunks of all sources, and leaves out those in which no row counts.
func (m *merge) open(ctx context.Context, sources []*catalog.Block) error {
	if len(sources) != len(m.plan.Sources) {
		return fmt.Errorf("%w: %d, the plan has %d", ErrSources, len(sources), len(m.plan.Sources))
	}
	for i, s := range sources {
		if s.Name != m.plan.Sources[i] || s.Redirect != nil && s.Redirect.Block == nil {
			return fmt.Errorf("%w: %s", ErrSources, s.Name.Key())
		}
	}
	for _, p := range catalog.Pieces(sources) {
		for i := range p.Block.Objects {
			c, err := m.fetch.Open(ctx, p, &p.Block.Objects[i])
			if err != nil {
				return err
			}
			if !c.Done() {
				m.cursors = append(m.cursors, c)
			}
		}
	}
	heap.Init(&m.cursors)
	return nil
}

// nextGroup takes the next series off the cursors, as many as may be decoded at once.
func (m *merge) nextGroup() []*entry {
	var out []*entry
	values := 0
	for len(m.cursors) > 0 && len(out) < groupSeries && values < groupValues {
		e := &entry{ref: *m.cursors[0].Current()}
		for len(m.cursors) > 0 && m.cursors[0].Current().ID.Compare(&e.ref.ID) == 0 {
			c := m.cursors[0]
			e.sources = append(e.sources, source{c, c.At()})
			values += c.Current().Rows
			if c.Next() {
				heap.Fix(&m.cursors, 0)
			} else {
				heap.Pop(&m.cursors)
			}
		}
		out = append(out, e)
	}
	return out
}

// load decodes the rows of a group and joins those of each series; its sources are in the order of time.
func (m *merge) load(ctx context.Context, group []*entry) error {
	var order []*block.Cursor
	wanted := map[*block.Cursor][]int{}
	for _, e := range group {
		for _, s := range e.sources {
			if wanted[s.c] == nil {
				order = append(order, s.c)
			}
			wanted[s.c] = append(wanted[s.c], s.series)
		}
	}
	// Chunk by chunk, so that a block of a chunk that several series share is fetched once.
	rows := map[source]block.Rows{}
	for _, c := range order {
		if err := c.Load(ctx, m.dec, wanted[c]); err != nil {
			return err
		}
		for _, series := range wanted[c] {
			r, err := c.Rows(m.dec, series)
			if err != nil {
				return err
			}
			rows[source{c, series}] = r
		}
	}
	for _, e := range group {
		for _, s := range e.sources {
			if err := m.appendRows(e, s.c, rows[s]); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendRows appends the rows of one source to those of the sources before it.
func (m *merge) appendRows(e *entry, c *block.Cursor, r block.Rows) error {
	if r.From == r.To {
		return nil
	}
	// Two sources with rows of one time would be a record that counts twice. The plan's sources are of different
	// hours or shards, so one of them is wrong.
	if n := len(e.cols.T); n > 0 && e.cols.T[n-1] >= r.T[r.From] {
		return fmt.Errorf("%w: %v has two rows of one time", ErrSources, e.ref.Labels)
	}
	m.count(m.sourceOf(c.Piece(), &e.ref), r.T[r.From:r.To])
	if err := e.cols.AppendRows(r.Columns, r.From, r.To); err != nil {
		return fmt.Errorf("%w: %v: %w", ErrSources, e.ref.Labels, err)
	}
	return nil
}

// sourceOf is the name of the block that a series of p belongs to, without its hour.
func (m *merge) sourceOf(p *catalog.Piece, r *chunk.SeriesRef) catalog.Name {
	id := p.Block.Name.Shard
	if p.Shards != nil {
		id = shard.Of(r.Agent, p.Block.Shards)
	}
	// The generation is left 0: the plan has one source for each hour and shard.
	return catalog.Name{Shard: id, Resolution: m.plan.Name.Resolution}
}

// count adds rows at times t to the counts of the blocks that they belong to, hour by hour.
func (m *merge) count(of catalog.Name, t []int64) {
	for i := 0; i < len(t); {
		h := timegrid.HourOfNS(t[i])
		end := (h.EndMS() + 1) * 1_000_000
		n := sort.Search(len(t)-i, func(k int) bool { return t[i+k] >= end })
		of.Hour = h
		m.counts[of] += uint64(n)
		i += n
	}
}

// addSeries adds the next series to the chunk, and finishes the chunk when it is large enough.
func (m *merge) addSeries(e *entry) error {
	if len(e.cols.T) == 0 {
		return nil // all of its rows are masked
	}
	s := &chunk.Series{ID: e.ref.ID, Columns: e.cols}
	if m.stream == nil {
		m.stream, m.metric = chunk.NewStream(chunk.Options{Rows: int(m.plan.Rows), BlockSeries: int(m.plan.BlockSeries), BlockValues: int(m.plan.BlockValues)}), s.Name()
	}
	if err := m.stream.Add(s); err != nil {
		return err
	}
	if s.Name() != m.metric {
		m.metric = layout.MixedMetrics
	}
	if uint64(m.stream.Bytes()) >= m.plan.ObjectBytes || m.stream.TimeValues() >= maxTimes {
		return m.finishChunk()
	}
	return nil
}

// finishChunk finishes the chunk.
func (m *merge) finishChunk() error {
	if m.stream == nil {
		return nil
	}
	f, err := m.stream.Finish()
	if err != nil {
		return err
	}
	metric := m.metric
	if metric == "" || len(metric) > catalog.MaxMetricBytes {
		metric = layout.MixedMetrics
	}
	m.outputs = append(m.outputs, publish.Output{
		Metric: metric, Chunk: publish.Bytes(f.Chunk), Index: publish.Bytes(f.Index), FooterOffset: uint64(f.FooterOffset),
		Series: uint64(f.Series), Samples: f.Samples, MinTime: f.MinT, MaxTime: f.MaxT,
	})
	m.stream = nil // the output has taken over its memory
	return nil
}

// cursors is a heap, ordered by the series that they are at, then by time.
type cursors []*block.Cursor

func (h cursors) Len() int { return len(h) }

func (h cursors) Less(i, j int) bool { return h[i].Before(h[j]) }

func (h cursors) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push is of heap.Interface.
func (h *cursors) Push(x any) { *h = append(*h, x.(*block.Cursor)) }

// Pop is of heap.Interface.
func (h *cursors) Pop() any {
	old := *h
	l := old[len(old)-1]
	*h = old[:len(old)-1]
	return l
}
