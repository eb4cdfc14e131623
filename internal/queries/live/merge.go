package live

import (
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
)

// Segments of one batch each are merged, in two steps, into segments of some 64 rows: a series is then read along
// a column instead of across batches. Every sample is copied at most twice.
const (
	mergeFan  = 8
	mergeRows = 64
)

// tier of a segment: 0 and 1 are merged further.
func (s *segment) tier() int {
	switch {
	case len(s.ms) < mergeFan:
		return 0
	case len(s.ms) < mergeRows:
		return 1
	}
	return 2
}

// merge merges the last segments of the group, where new ones arrive.
func (s *Store) merge(g *shapeGroup) {
	end := len(g.segments)
	for tier := 0; tier < 2; tier++ {
		start := end
		for start > 0 && g.segments[start-1].tier() == tier {
			start--
		}
		if end-start < mergeFan {
			end = start
			continue
		}
		run := g.segments[start:end]
		// An open snapshot that sees only some of the rows needs the segments as they are; a later insert merges
		// them.
		oldest := s.oldestOpen()
		if !mergeable(run, oldest) {
			return
		}
		m := joinSegments(run, len(g.series))
		s.resize(run, m)
		// Readers may hold the old slice, so it is replaced and not changed.
		g.segments = append(append(slices.Clone(g.segments[:start]), m), g.segments[end:]...)
		end = start + 1
	}
}

// mergeable reports whether the rows are in time order, of one kind and with the same start times, and every open
// snapshot sees all of them.
func mergeable(run []*segment, oldest uint64) bool {
	rows := 0
	for i, seg := range run {
		rows += len(seg.ms)
		if (seg.hists == nil) != (run[0].hists == nil) || !slices.Equal(seg.starts, run[0].starts) {
			return false
		}
		if i > 0 && seg.minT() <= run[i-1].maxT() {
			return false
		}
		for _, p := range seg.parts {
			if p.batch.added > oldest || p.batch.removed.Load() != 0 {
				return false
			}
		}
	}
	return rows <= mergeFan*mergeRows
}

// joinSegments copies segments into one.
func joinSegments(run []*segment, series int) *segment {
	rows, parts := 0, 0
	repeats, sub := false, false
	for _, seg := range run {
		rows += len(seg.ms)
		parts += len(seg.parts)
		repeats = repeats || seg.repeats
		sub = sub || seg.sub != nil
	}
	m := &segment{
		ms: make([]int64, 0, rows), parts: make([]part, 0, parts),
		starts: run[0].starts, repeats: repeats,
	}
	if sub {
		m.sub = make([]int32, rows)
	}
	if run[0].hists != nil {
		m.hists = make([]*histogram.FloatHistogram, rows*series)
	} else {
		m.values = make([]float64, rows*series)
	}
	for _, seg := range run {
		at, n := len(m.ms), len(seg.ms)
		for _, p := range seg.parts {
			p.row += at
			m.parts = append(m.parts, p)
		}
		m.ms = append(m.ms, seg.ms...)
		// m.sub is nil when all times are whole milliseconds; then nothing is copied.
		copy(m.sub[min(at, len(m.sub)):], seg.sub)
		// Columns are series-major, so each series has its own place in the wider segment.
		for pos := range series {
			if m.hists != nil {
				copy(m.hists[pos*rows+at:], seg.hists[pos*n:(pos+1)*n])
			} else {
				copy(m.values[pos*rows+at:], seg.values[pos*n:(pos+1)*n])
			}
		}
	}
	return m
}

// resize charges the batches of run for the merged segment, each an equal part.
func (s *Store) resize(run []*segment, m *segment) {
	saved := -m.bytes()
	for _, seg := range run {
		saved += seg.bytes()
	}
	share := saved / int64(len(m.parts))
	for _, p := range m.parts {
		p.batch.bytes -= share
		s.charge(p.batch.agent, -share, 0)
	}
}
