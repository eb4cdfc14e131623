package rollup

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Finish returns the hour's raw series, sorted by metric, agent, labels, type and unit, and where the records
// went. Series with the same times share T, so that equal columns can be recognized by the address of their first
// element. The builder is empty afterwards. Every input must have been added, else ErrInput. Counts that do not
// add up are a *ConservationError.
func (b *Builder) Finish() ([]chunk.Series, Counts, error) {
	for i, seen := range b.seen {
		if !seen {
			return nil, b.counts, fmt.Errorf("%w: %s was not read", ErrInput, b.inputs[i].Identity)
		}
	}
	b.sort()
	out := make([]chunk.Series, 0, len(b.series))
	lines := map[string]*timeline{}
	var all []*timeline
	var key []byte
	// Series that are in the same groups have the same segments, so their times are sorted and merged once for all
	// of them.
	for _, s := range b.series {
		if len(s.places) > 1 {
			slices.SortFunc(s.places, func(x, y place) int {
				return cmp.Or(cmp.Compare(x.Group.id, y.Group.id), cmp.Compare(x.At, y.At))
			})
		}
		key = key[:0]
		for _, p := range s.places {
			key = binary.AppendUvarint(key, uint64(p.Group.id))
		}
		l := lines[string(key)]
		if l == nil {
			l = b.timeline(s.places)
			lines[string(key)] = l
			all = append(all, l)
		}
		l.series = append(l.series, s)
	}
	for _, l := range all {
		if l.plain {
			l.fill()
			continue
		}
		for _, s := range l.series {
			b.gather(s)
		}
	}
	for _, s := range b.series {
		// A series whose records all lost or lie in other hours has no rows.
		if s.Rows() > 0 {
			b.counts.Published += uint64(s.Rows())
			out = append(out, s.Series)
		}
	}
	// What the series returned do not refer to is freed before they are encoded.
	b.shapes, b.series, b.byKey = nil, nil, nil
	return out, b.counts, b.counts.Conserved()
}

// sort orders the series. Names and agents decide nearly always, and there are few of both: they are sorted once each, and
// series by their numbers.
func (b *Builder) sort() {
	names, agents := map[string]uint32{}, map[string]uint32{}
	for _, s := range b.series {
		names[s.name], agents[s.Agent] = 0, 0
	}
	for _, m := range []map[string]uint32{names, agents} {
		for i, text := range slices.Sorted(maps.Keys(m)) {
			m[text] = uint32(i)
		}
	}
	type ranked struct {
		rank uint64
		s    *rawSeries
	}
	order := make([]ranked, len(b.series))
	for i, s := range b.series {
		order[i] = ranked{uint64(names[s.name])<<32 | uint64(agents[s.Agent]), s}
	}
	slices.SortFunc(order, func(x, y ranked) int {
		if c := cmp.Compare(x.rank, y.rank); c != 0 {
			return c
		}
		return CompareSeries(&x.s.Series, &y.s.Series)
	})
	for i := range order {
		b.series[i] = order[i].s
	}
}

// CompareSeries orders series of one metric: by agent, labels, type and unit.
func CompareSeries(x, y *chunk.Series) int {
	return cmp.Or(
		cmp.Compare(x.Agent, y.Agent),
		slices.CompareFunc(x.Labels, y.Labels, func(a, b series.Label) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
		}),
		cmp.Compare(x.Type, y.Type), cmp.Compare(x.Unit, y.Unit))
}

// timeline is what series with the same places share: their segments in time order.
type timeline struct {
	cells []cell
	t     []int64
	// plain: no two segments overlap in time and every record counts.
	plain  bool
	series []*rawSeries
}

type cell struct {
	*segment
	place int // index into the series' places
}

func (b *Builder) timeline(places []place) *timeline {
	l := &timeline{plain: true}
	n := 0
	for i, p := range places {
		for _, s := range p.Group.segments {
			l.cells = append(l.cells, cell{s, i})
			n += len(s.t)
			l.plain = l.plain && b.lost[s.input] == nil
		}
	}
	slices.SortFunc(l.cells, func(x, y cell) int {
		return cmp.Or(cmp.Compare(x.t[0], y.t[0]), cmp.Compare(x.input, y.input), cmp.Compare(x.first, y.first))
	})
	for i := 1; i < len(l.cells); i++ {
		before := l.cells[i-1].t
		// Equal times are an overlap, too: one of the two records is a duplicate.
		l.plain = l.plain && before[len(before)-1] < l.cells[i].t[0]
	}
	if l.plain {
		l.t = make([]int64, 0, n)
		for _, c := range l.cells {
			l.t = append(l.t, c.t...)
		}
	}
	return l
}

// fill copies the columns of all series without looking at single records, segment by segment.
func (l *timeline) fill() {
	n := len(l.t)
	if n == 0 {
		return
	}
	// Either all segments of a series have histograms or none, as the type is part of its identity.
	floats := l.cells[0].h == nil
	if floats {
		// One allocation for all series; each slice is capped, so that an append can't run into its neighbour.
		values := make([]float64, n*len(l.series))
		for k, s := range l.series {
			s.V = values[k*n : (k+1)*n : (k+1)*n]
		}
	} else {
		for _, s := range l.series {
			s.H = make([]series.Histogram, n)
		}
	}
	row := 0
	for _, c := range l.cells {
		rows := len(c.t)
		for _, s := range l.series {
			at := int(s.places[c.place].At)
			switch {
			case !floats:
				copy(s.H[row:row+rows], c.h[at*rows:])
			// Most batches have one row in a segment, and copy costs more than an assignment.
			case rows == 1:
				s.V[row] = c.v[at]
			default:
				copy(s.V[row:row+rows], c.v[at*rows:])
			}
			// The column is made at the first known start, since most series have none.
			if c.starts != nil && c.starts[at] != 0 {
				if s.Start == nil {
					s.Start = make([]int64, n)
				}
				for i := range rows {
					s.Start[row+i] = c.starts[at]
				}
			}
		}
		row += rows
	}
	for _, s := range l.series {
		s.T = l.t
	}
}

// occurrence is one sample with everything that decides between samples of one time.
type occurrence struct {
	t, start int64
	input    int
	seq      uint64
	v        float64
	h        *series.Histogram
}

// gather merges the overlapping segments of one series, record by record.
func (b *Builder) gather(s *rawSeries) {
	recs := b.records(s)
	slices.SortFunc(recs, func(x, y occurrence) int {
		if c := cmp.Compare(x.t, y.t); c != 0 {
			return c
		}
		return cmp.Or(b.inputs[x.input].Compare(b.inputs[y.input]), cmp.Compare(x.seq, y.seq))
	})
	// Of samples with one time the earliest accepted counts, which the order has put first.
	kept := slices.CompactFunc(recs, func(x, y occurrence) bool { return x.t == y.t })
	b.counts.Duplicates += uint64(len(recs) - len(kept))
	if len(kept) > 0 {
		s.fill(kept)
	}
}

// records returns the records of the series that no other input has won.
func (b *Builder) records(s *rawSeries) (recs []occurrence) {
	for _, p := range s.places {
		at, number := int(p.At), p.Group.kept[p.At]
		for _, seg := range p.Group.segments {
			lost := b.lost[seg.input]
			rows := len(seg.t)
			for row, t := range seg.t {
				rec := occurrence{t: t, input: seg.input, seq: seg.seq(number, row)}
				if lost != nil && within(lost, rec.seq) {
					continue
				}
				if seg.starts != nil {
					rec.start = seg.starts[at]
				}
				if seg.h != nil {
					rec.h = &seg.h[at*rows+row]
				} else {
					rec.v = seg.v[at*rows+row]
				}
				recs = append(recs, rec)
			}
		}
	}
	return recs
}

// fill makes the columns of the series from its records.
func (s *rawSeries) fill(recs []occurrence) {
	s.T = make([]int64, len(recs))
	histograms := slices.ContainsFunc(recs, func(r occurrence) bool { return r.h != nil })
	if histograms {
		s.H = make([]series.Histogram, len(recs))
	} else {
		s.V = make([]float64, len(recs))
	}
	if slices.ContainsFunc(recs, func(r occurrence) bool { return r.start != 0 }) {
		s.Start = make([]int64, len(recs))
	}
	for i := range recs {
		r := &recs[i]
		s.T[i] = r.t
		if histograms {
			s.H[i] = *r.h
		} else {
			s.V[i] = r.v
		}
		if s.Start != nil {
			s.Start[i] = r.start
		}
	}
}
