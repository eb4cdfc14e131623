package compact

import (
	"container/heap"
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/chunk"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/publish"
	"lightmetrics.dev/lightmetrics/pkg/shard"
)

// Decisions of a merge.
var (
	// ErrSources: the sources are not there as the plan names them, or can't be merged.
	ErrSources = errors.New("sources can not be merged")
	// ErrNotConserved: the rows that were merged are not those that the sources count.
	ErrNotConserved = errors.New("rows are not conserved")
)

// Bounds of what is decoded at once.
const (
	groupSeries = 512
	groupValues = 1 << 20
	// maxTimes bounds the times that a chunk keeps until its end.
	maxTimes = 8 << 20
)

// Merged is what a plan's generation publishes: a function of the plan.
type Merged struct {
	Outputs []publish.Output
	Samples uint64
}

// Merge reads the plan's sources, which are sets in the plan's order, and makes the chunks
// of the compaction. Beside the outputs it keeps the sources' indexes, and of their rows
// one group of series.
func Merge(ctx context.Context, g Getter, p *Plan, sources []*catalog.Set) (*Merged, error) {
	m := &merge{store: g, plan: p, dec: chunk.NewDecoder(&chunk.Index{}, chunk.Limits{}), counts: map[catalog.Name]uint64{}}
	if err := m.run(ctx, sources); err != nil {
		return nil, fmt.Errorf("merge %s: %w", p.Name.Key(), err)
	}
	return &Merged{m.outputs, m.samples}, nil
}

type merge struct {
	store   Getter
	plan    *Plan
	lanes   lanes
	dec     *chunk.Decoder
	counts  map[catalog.Name]uint64
	stream  *chunk.Stream
	metric  string
	outputs []publish.Output
	samples uint64
}

// place is a series of a lane.
type place struct {
	l      *lane
	series int
}

// entry is one series with its places, by time.
type entry struct {
	ref    chunk.SeriesRef
	places []place
	cols   chunk.Columns
}

func (m *merge) run(ctx context.Context, sources []*catalog.Set) error {
	if err := m.open(ctx, sources); err != nil {
		return err
	}
	for len(m.lanes) > 0 {
		group := m.group()
		if err := m.load(ctx, group); err != nil {
			return err
		}
		for _, e := range group {
			if err := m.add(e); err != nil {
				return err
			}
		}
	}
	if err := m.end(); err != nil {
		return err
	}
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
		return fmt.Errorf("%w: rows of %d sets that are no sources", ErrNotConserved, len(m.counts))
	}
	return nil
}

// open opens the chunks of all sources.
func (m *merge) open(ctx context.Context, sources []*catalog.Set) error {
	if len(sources) != len(m.plan.Sources) {
		return fmt.Errorf("%w: %d, the plan has %d", ErrSources, len(sources), len(m.plan.Sources))
	}
	for i, s := range sources {
		if s.Name != m.plan.Sources[i] || s.Into != nil && s.Into.Set == nil {
			return fmt.Errorf("%w: %s", ErrSources, s.Name.Key())
		}
	}
	for _, p := range catalog.Pieces(sources) {
		for i := range p.Set.Objects {
			l, err := openLane(ctx, m.store, p, &p.Set.Objects[i])
			if err != nil {
				return err
			}
			if len(l.series) > 0 {
				m.lanes = append(m.lanes, l)
			}
		}
	}
	heap.Init(&m.lanes)
	return nil
}

// group takes the next series off the lanes.
func (m *merge) group() []*entry {
	var out []*entry
	values := 0
	for len(m.lanes) > 0 && len(out) < groupSeries && values < groupValues {
		e := &entry{ref: m.lanes[0].ref}
		for len(m.lanes) > 0 && chunk.Compare(&m.lanes[0].ref, &e.ref) == 0 {
			l := m.lanes[0]
			e.places = append(e.places, place{l, l.series[l.at]})
			values += l.ref.Rows
			l.at++
			if l.enter() {
				heap.Fix(&m.lanes, 0)
			} else {
				heap.Pop(&m.lanes)
			}
		}
		out = append(out, e)
	}
	return out
}

// load decodes the rows of a group, lane by lane: a series' lanes are in the order of time.
func (m *merge) load(ctx context.Context, group []*entry) error {
	var order []*lane
	wanted := map[*lane][]int{}
	for _, e := range group {
		for _, p := range e.places {
			if wanted[p.l] == nil {
				order = append(order, p.l)
			}
			wanted[p.l] = append(wanted[p.l], p.series)
		}
	}
	rows := map[place]rowsOf{}
	for _, l := range order {
		if err := l.load(ctx, wanted[l]); err != nil {
			return err
		}
		m.dec.Reset(l.x)
		for r, raw := range l.held {
			m.dec.Put(r.Offset, raw)
		}
		for _, series := range wanted[l] {
			c, from, to, err := l.read(m.dec, series)
			if err != nil {
				return err
			}
			rows[place{l, series}] = rowsOf{c, from, to}
		}
	}
	for _, e := range group {
		for _, p := range e.places {
			r := rows[p]
			if r.from == r.to {
				continue
			}
			if n := len(e.cols.T); n > 0 && e.cols.T[n-1] >= r.c.T[r.from] {
				return fmt.Errorf("%w: %v stands twice at one time", ErrSources, e.ref.Labels)
			}
			count(m.counts, m.source(p.l, &e.ref), r.c.T[r.from:r.to])
			if err := e.cols.AppendRows(r.c, r.from, r.to); err != nil {
				return fmt.Errorf("%w: %v: %w", ErrSources, e.ref.Labels, err)
			}
		}
	}
	return nil
}

type rowsOf struct {
	c        *chunk.Columns
	from, to int
}

// source is the name of the source but for its hour.
func (m *merge) source(l *lane, r *chunk.SeriesRef) catalog.Name {
	id := l.p.Set.Name.Shard
	if l.p.Shards != nil {
		id = shard.Of(r.Agent, l.p.Set.Shards)
	}
	// The generation is the plan's; there is one for each hour and shard.
	return catalog.Name{Shard: id, Window: m.plan.Name.Window}
}

// add gives the next series to the chunk.
func (m *merge) add(e *entry) error {
	if len(e.cols.T) == 0 {
		return nil // its rows are all masked
	}
	s := &chunk.Series{Agent: e.ref.Agent, Labels: e.ref.Labels, Type: e.ref.Type, Unit: e.ref.Unit, Columns: e.cols}
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
		return m.end()
	}
	return nil
}

// end ends the chunk.
func (m *merge) end() error {
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
	m.stream = nil // its memory is the output's
	return nil
}

// lanes is a heap by the series that they are at, then by time.
type lanes []*lane

func (h lanes) Len() int { return len(h) }

func (h lanes) Less(i, j int) bool {
	if c := chunk.Compare(&h[i].ref, &h[j].ref); c != 0 {
		return c < 0
	}
	return h[i].from < h[j].from
}

func (h lanes) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push is of heap.Interface.
func (h *lanes) Push(x any) { *h = append(*h, x.(*lane)) }

// Pop is of heap.Interface.
func (h *lanes) Pop() any {
	old := *h
	l := old[len(old)-1]
	*h = old[:len(old)-1]
	return l
}
