package published

import (
	"slices"
	"sort"
	"unsafe"

	"lightmetrics.dev/lightmetrics/pkg/chunk"
)

// columnKey is a stretch of a series' parts. Indexes have numbers of their own, so that a
// key is short and keeps no index in memory.
type columnKey struct {
	index       uint64
	series      int
	first, last int // parts, both included
}

// columns are decoded rows of a series of floats. They never change: readers copy.
type columns struct {
	first, last int // parts
	t           []int64
	v           []float64
	start       []int64 // or nil
}

// columnOverhead is about what an entry of the cache takes beside its rows.
const columnOverhead = 256 + int64(unsafe.Sizeof(columns{}))

func (c *columns) bytes() int64 {
	return 8*int64(cap(c.t)+cap(c.v)+cap(c.start)) + columnOverhead
}

// copyTo fills into, in its own memory, with the rows in [mint, maxt].
func (c *columns) copyTo(into *chunk.Columns, mint, maxt int64) {
	i := sort.Search(len(c.t), func(k int) bool { return c.t[k] >= mint })
	j := i + sort.Search(len(c.t)-i, func(k int) bool { return c.t[i+k] > maxt })
	*into = chunk.Columns{T: append(into.T[:0], c.t[i:j]...), V: append(into.V[:0], c.v[i:j]...), Start: into.Start}
	if c.start == nil {
		into.Start = nil
	} else {
		into.Start = append(into.Start[:0], c.start[i:j]...)
	}
}

// hold takes what the cache has of the handle's series, and gives the series that are to
// be decoded from blocks. What is held stays, whatever the cache drops.
func (q *Query) hold(h *handle, mint, maxt int64) (rest []int) {
	if !h.raw {
		return h.series
	}
	h.held = make([]*columns, len(h.series))
	for k, i := range h.series {
		first, last, ok := h.x.Parts(i, mint, maxt)
		if !ok {
			continue // no rows
		}
		if c, ok := q.r.columns.get(columnKey{h.x.id, i, first, last}); ok {
			h.held[k] = c
			q.stats.columnHits.Add(1)
			continue
		}
		rest = append(rest, i)
	}
	return rest
}

// rows fills c with the rows of series i in [mint, maxt], nanoseconds; rows outside may be
// among them. It gives the number of rows of the parts they stand in.
func (h *handle) rows(i int, mint, maxt int64, c *chunk.Columns) (int, error) {
	first, last, any := h.x.Parts(i, mint, maxt)
	if k, ok := slices.BinarySearch(h.series, i); ok && any && h.held != nil {
		if have := h.held[k]; have != nil && have.first <= first && last <= have.last {
			have.copyTo(c, mint, maxt)
			return len(have.t), nil
		}
	}
	h.mu.Lock()
	rows, err := h.decoder().Series(i, mint, maxt, chunk.ColV|chunk.ColH|chunk.ColStart, c)
	h.mu.Unlock()
	// What is read once is not worth a copy: only rows whose blocks were in memory are kept.
	if err == nil && any && h.warm && c.V != nil && c.H == nil {
		kept := &columns{first, last, slices.Clone(c.T), slices.Clone(c.V), slices.Clone(c.Start)}
		h.q.r.columns.put(columnKey{h.x.id, i, first, last}, kept, kept.bytes())
	}
	return rows, err
}
