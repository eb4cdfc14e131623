package live

import (
	"cmp"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
)

// span is rows [row, row+n) of a segment, which is one of several.
type span struct {
	seg    int
	row, n int
}

// addSpan appends a row, to the last span if it is the next one of it.
func appendRow(spans []span, seg, row int) []span {
	if n := len(spans); n > 0 && spans[n-1].seg == seg && spans[n-1].row+spans[n-1].n == row {
		spans[n-1].n++
		return spans
	}
	return append(spans, span{seg, row, 1})
}

// joinSegments copies segments into one, in the order of time, without the rows of batches that were evicted before the
// version oldest: nobody sees these any more. It returns nil if no row is left.
func joinSegments(run []*segment, series int, oldest uint64) *segment {
	m := &segment{starts: run[0].starts}
	rows, sub := 0, false
	// numbers of the parts in m, by segment and part; -1 for one that is left out.
	numbers := make([][]int, len(run))
	for i, seg := range run {
		sub = sub || seg.sub != nil
		numbers[i] = make([]int, len(seg.parts))
		for k, p := range seg.parts {
			numbers[i][k] = -1
			if r := p.batch.removed.Load(); r != 0 && r <= oldest {
				continue
			}
			numbers[i][k] = len(m.parts)
			m.parts = append(m.parts, p)
			rows += int(p.rows)
		}
	}
	if rows == 0 {
		return nil
	}
	order := rowsInOrder(run, numbers, rows)
	var spans []span
	m.ms = make([]int64, 0, rows)
	if sub {
		m.sub = make([]int32, rows)
	}
	m.origins = make([]origin, rows)
	for i, r := range order {
		spans = appendRow(spans, r.seg, r.row)
		if i > 0 && m.ms[i-1] == r.ms {
			m.repeats = true
		}
		m.ms = append(m.ms, r.ms)
		if sub {
			m.sub[i] = run[r.seg].subOf(r.row)
		}
		m.origins[i] = r.origin
	}
	m.placeParts()
	m.summarize()
	if run[0].hists != nil {
		m.hists = make([]*histogram.FloatHistogram, 0, rows*series)
	} else {
		m.values = make([]float64, 0, rows*series)
	}
	columns, buffers := make([][]float64, len(run)), make([][]float64, len(run))
	// Columns are series-major, so each series has its own place in the wider segment.
	for pos := range series {
		for i, seg := range run {
			if seg.hists == nil {
				columns[i] = seg.column(uint32(pos), &buffers[i])
			}
		}
		for _, sp := range spans {
			if seg := run[sp.seg]; m.hists != nil {
				from := pos*len(seg.ms) + sp.row
				m.hists = append(m.hists, seg.hists[from:from+sp.n]...)
			} else {
				m.values = append(m.values, columns[sp.seg][sp.row:sp.row+sp.n]...)
			}
		}
	}
	return m
}

// joinedRow is a row of a segment on its way into another one, with its origin there.
type joinedRow struct {
	ms       int64
	seg, row int
	origin   origin
}

func rowsInOrder(run []*segment, numbers [][]int, rows int) []joinedRow {
	order := make([]joinedRow, 0, rows)
	sorted := true
	for i, seg := range run {
		at := origin{}
		for row, ms := range seg.ms {
			at = seg.origin(row, at.part)
			n := numbers[i][at.part]
			if n < 0 {
				continue
			}
			sorted = sorted && (len(order) == 0 || order[len(order)-1].ms <= ms)
			order = append(order, joinedRow{ms, i, row, origin{uint32(n), at.k}})
		}
	}
	// Mostly batches come in the order of time.
	if !sorted {
		slices.SortFunc(order, func(a, b joinedRow) int {
			return cmp.Or(cmp.Compare(a.ms, b.ms), cmp.Compare(a.seg, b.seg), cmp.Compare(a.row, b.row))
		})
	}
	return order
}

// placeParts finds the rows of each part from the origins, and drops these if they say no more than that.
func (s *segment) placeParts() {
	for i := range s.parts {
		s.parts[i].from = uint32(len(s.ms))
	}
	together := true
	for row, o := range s.origins {
		p := &s.parts[o.part]
		p.from, p.to = min(p.from, uint32(row)), uint32(row)+1
		together = together && (row == 0 || s.origins[row-1].part <= o.part)
	}
	if together {
		s.origins = nil
	}
}
