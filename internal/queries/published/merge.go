package published

import (
	"slices"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// merge joins the rows of several sources in the order of their times. Where sources do not overlap whole stretches are
// copied, column by column. Its memory is used again for the next run.
type merge struct {
	sources []source
	heap    []head
	// Columns of the result that are there.
	floats, hists, starts bool

	t, st []int64
	v     []float64
	h     []*histogram.FloatHistogram
}

// head is the next row of a source.
type head struct{ source, row int }

// run returns the rows of all sources with one row for each millisecond.
func (m *merge) run(sources []source) samples.Run {
	m.sources, m.heap = sources, m.heap[:0]
	m.floats, m.hists, m.starts = false, false, false
	for k := range sources {
		a := &sources[k]
		if len(a.t) == 0 {
			continue
		}
		m.heap = append(m.heap, head{source: k})
		m.hists, m.floats, m.starts = m.hists || a.h != nil, m.floats || a.h == nil, m.starts || a.st != nil
	}
	switch {
	case len(m.heap) == 0:
		return samples.Run{}
	case len(m.heap) == 1 && !sources[m.heap[0].source].doubles:
		// Nearly always: then the columns are used as they are, without being copied.
		a := &sources[m.heap[0].source]
		return samples.Run{T: a.t, V: a.v, H: a.h, STs: a.st}
	}
	m.t, m.st, m.v, m.h = m.t[:0], m.st[:0], m.v[:0], m.h[:0]
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.sink(i)
	}
	for len(m.heap) > 0 {
		m.step()
	}
	run := samples.Run{T: m.t}
	if m.floats {
		run.V = m.v
	}
	if m.hists {
		run.H = m.h
	}
	if m.starts {
		run.STs = m.st
	}
	return run
}

// step takes all rows of the first source that come before those of the others.
func (m *merge) step() {
	first := m.heap[0]
	a := &m.sources[first.source]
	to := len(a.t)
	if len(m.heap) > 1 {
		second := m.heap[1]
		if len(m.heap) > 2 && m.before(m.heap[2], second) {
			second = m.heap[2]
		}
		if !m.before(head{first.source, to - 1}, second) {
			for to = first.row + 1; m.before(head{first.source, to}, second); {
				to++
			}
		}
	}
	m.take(a, first.row, to)
	if m.heap[0].row = to; to == len(a.t) {
		last := len(m.heap) - 1
		m.heap[0] = m.heap[last]
		m.heap = m.heap[:last]
	}
	m.sink(0)
}

// take appends rows of a source; of those in one millisecond the last one stays.
func (m *merge) take(a *source, from, to int) {
	for from < to {
		n := to
		if a.doubles {
			for n = from + 1; n < to && a.t[n] != a.t[n-1]; {
				n++
			}
		}
		if last := len(m.t) - 1; last >= 0 && m.t[last] == a.t[from] {
			m.t = m.t[:last]
			m.v, m.h, m.st = m.v[:min(last, len(m.v))], m.h[:min(last, len(m.h))], m.st[:min(last, len(m.st))]
		}
		m.t = append(m.t, a.t[from:n]...)
		if m.floats {
			m.v = appendOr(m.v, a.v, from, n)
		}
		if m.hists {
			m.h = appendOr(m.h, a.h, from, n)
		}
		if m.starts {
			m.st = appendOr(m.st, a.st, from, n)
		}
		from = n
	}
}

// appendOr appends rows of a column, or zeros where a source does not have it.
func appendOr[E any](dst, column []E, from, to int) []E {
	if column != nil {
		return append(dst, column[from:to]...)
	}
	at := len(dst)
	dst = slices.Grow(dst, to-from)[:at+to-from]
	clear(dst[at:])
	return dst
}

// before is the order of rows: by nanoseconds and then by piece, so that the last row of a millisecond is the one that
// counts.
func (m *merge) before(x, y head) bool {
	a, b := m.sources[x.source].nanoseconds(x.row), m.sources[y.source].nanoseconds(y.row)
	return a < b || a == b && x.source < y.source
}

func (r *rows) nanoseconds(row int) int64 {
	if r.ns != nil {
		return r.ns[row]
	}
	return r.t[row] * nsPerMS
}

// sink moves entry i of the heap down to its place.
func (m *merge) sink(i int) {
	for {
		least := i
		for _, c := range [...]int{2*i + 1, 2*i + 2} {
			if c < len(m.heap) && m.before(m.heap[c], m.heap[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		m.heap[i], m.heap[least] = m.heap[least], m.heap[i]
		i = least
	}
}
