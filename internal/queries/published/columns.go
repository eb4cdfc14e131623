package published

import (
	"slices"
	"unsafe"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// columnKey is a range of a series' parts. It names the index by its digest and keeps none in memory.
type columnKey struct {
	index       identity.Digest
	series      int
	first, last int // parts, both included
}

// columns are decoded rows of a series of floats. They never change, so queries read them without copying.
type columns struct {
	first, last int // parts
	v           []float64
	// ms and st are times and starts in milliseconds, as queries need them; ms is nil when two rows lie in one
	// millisecond.
	ms, st []int64
	// t and start are those of the chunk in nanoseconds; nil when ms and st are exact.
	t, start []int64
}

func newColumns(first, last int, c *chunk.Columns) *columns {
	k := &columns{first: first, last: last, v: slices.Clone(c.V), ms: make([]int64, len(c.T))}
	whole := true
	for i, ns := range c.T {
		k.ms[i] = timegrid.Millisecond(ns)
		whole = whole && ns == k.ms[i]*nsPerMS
		// Two rows in one millisecond: queries need only the last, which Runs decides; then the nanoseconds are
		// kept.
		if i > 0 && k.ms[i] == k.ms[i-1] {
			k.ms, k.t, k.start = nil, slices.Clone(c.T), slices.Clone(c.Start)
			return k
		}
	}
	if c.Start != nil {
		k.st = make([]int64, len(c.Start))
		for i, ns := range c.Start {
			k.st[i] = startMS(ns)
			whole = whole && ns == k.st[i]*nsPerMS
		}
	}
	// Most samples are in whole milliseconds; then the nanoseconds follow from these, and no second copy is kept.
	if !whole {
		k.t, k.start = slices.Clone(c.T), slices.Clone(c.Start)
	}
	return k
}

// columnOverhead estimates the memory of a cache entry besides its rows.
const columnOverhead = 256 + int64(unsafe.Sizeof(columns{}))

func (c *columns) bytes() int64 {
	return 8*int64(cap(c.ms)+cap(c.t)+cap(c.v)+cap(c.st)+cap(c.start)) + columnOverhead
}

// rows returns the rows of the hours from..to; the columns must have one row for each millisecond. They share memory with the
// cache and must not be changed.
func (c *columns) rows(from, to timegrid.Hour) rows {
	i, j := samples.Between(c.ms, from.StartMS()+1, to.EndMS())
	r := rows{t: c.ms[i:j:j], v: c.v[i:j:j]}
	if c.t != nil {
		r.ns = c.t[i:j:j]
	}
	if c.st != nil {
		r.st = c.st[i:j:j]
	}
	return r
}

// copyTo copies the rows in [mint, maxt], nanoseconds, to the memory of into.
func (c *columns) copyTo(into *chunk.Columns, mint, maxt int64) {
	if c.t == nil {
		first, last := timegrid.Millisecond(mint), timegrid.Millisecond(maxt)
		if first*nsPerMS < mint {
			first++
		}
		i, j := samples.Between(c.ms, first, last)
		*into = chunk.Columns{T: nanoseconds(into.T[:0], c.ms[i:j]), V: append(into.V[:0], c.v[i:j]...), Start: into.Start}
		if c.st == nil {
			into.Start = nil
		} else {
			into.Start = nanoseconds(into.Start[:0], c.st[i:j])
		}
		return
	}
	i, j := samples.Between(c.t, mint, maxt)
	*into = chunk.Columns{T: append(into.T[:0], c.t[i:j]...), V: append(into.V[:0], c.v[i:j]...), Start: into.Start}
	if c.start == nil {
		into.Start = nil
	} else {
		into.Start = append(into.Start[:0], c.start[i:j]...)
	}
}

func nanoseconds(into, ms []int64) []int64 {
	for _, t := range ms {
		into = append(into, t*nsPerMS)
	}
	return into
}

// hold takes the columns of the handle's series that are cached, and returns the series that must be decoded from
// blocks. What it took stays with the query, whatever the cache evicts.
func (q *Query) hold(h *handle, mint, maxt int64) (rest []int) {
	switch {
	case h.raw:
	case h.as == nil:
		return q.holdRows(h, mint, maxt)
	default: // rows that stand in for samples
		return h.series
	}
	h.held = make([]*columns, len(h.series))
	for k, i := range h.series {
		first, last, ok := h.x.Parts(i, mint, maxt)
		if !ok {
			continue // no rows
		}
		if c, ok := q.r.columns.Get(columnKey{h.x.id, h.x.number(i), first, last}); ok {
			h.held[k] = c
			q.stats.columnHits.Add(1)
			continue
		}
		rest = append(rest, i)
		h.rest += rowBytes * int64(h.x.Rows(i, first, last))
	}
	return rest
}

// decodedShare is the part of the cache of decoded rows, as a divisor, that what one selection decodes may take.
const decodedShare = 2

// keepDecoded decides whether what handles have to decode is kept. The rows of a selection that takes most of a cache
// would drive out each other before they are read again, and everything else with them. Queries that run hold what they
// have put there, so several of them would take many times the cache.
func (r *Reader) keepDecoded(of []*object) {
	var samples, rows int64
	for _, ob := range of {
		if ob.raw {
			samples += ob.rest
		} else {
			rows += ob.rest
		}
	}
	manySamples, manyRows := samples > r.columns.Limit()/decodedShare, rows > r.rolled.Limit()/decodedShare
	for _, ob := range of {
		ob.once = ob.raw && manySamples || !ob.raw && manyRows
	}
}

// rowBytes is the least memory of a sample in columns: its time and its value.
const rowBytes = 16

// have returns the decoded rows of series i if they cover all of [mint, maxt]; else nil.
func (h *handle) have(i int, mint, maxt int64) *columns {
	if h.held == nil {
		return nil
	}
	k, ok := slices.BinarySearch(h.series, i)
	if !ok || h.held[k] == nil {
		return nil
	}
	first, last, any := h.x.Parts(i, mint, maxt)
	// A shorter range of the same query needs fewer parts, which the longer one has too.
	if c := h.held[k]; any && c.first <= first && last <= c.last {
		return c
	}
	return nil
}

// samples fills c with the samples of series i in [mint, maxt], milliseconds, or with what stands in for them; c
// may get others as well. It returns the number of rows of the parts that were read.
func (h *handle) samples(i int, mint, maxt int64, c *chunk.Columns) (int, error) {
	if h.as == nil {
		return h.rows(i, firstNS(mint), lastNS(maxt), c)
	}
	// A bucket that ends after the range may stand for times within it.
	mint, maxt = widen(mint, maxt)
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := h.decoder().Series(i, firstNS(mint), lastNS(maxt), reducedColumns, c)
	if err == nil {
		*c = h.as.samples(c, h.x.meta(i).typ, h.res)
	}
	return n, err
}

// rows fills c with the rows of series i in [mint, maxt], nanoseconds; c may get others as well. It returns the
// number of rows of the parts that were read.
func (h *handle) rows(i int, mint, maxt int64, c *chunk.Columns) (int, error) {
	if have := h.have(i, mint, maxt); have != nil {
		have.copyTo(c, mint, maxt)
		return len(have.v), nil
	}
	first, last, any := h.x.Parts(i, mint, maxt)
	// The decoder is for one reader at a time.
	h.mu.Lock()
	rows, err := h.decoder().Series(i, mint, maxt, chunk.ColV|chunk.ColH|chunk.ColStart, c)
	h.mu.Unlock()
	// Rows that are read only once are not worth a copy, so only those are kept whose blocks were cached already.
	if err == nil && any && h.warm && !h.once && c.V != nil && c.H == nil {
		kept := newColumns(first, last, c)
		h.q.r.columns.Put(columnKey{h.x.id, h.x.number(i), first, last}, kept, kept.bytes())
	}
	return rows, err
}
