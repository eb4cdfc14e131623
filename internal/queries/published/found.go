package published

import (
	"slices"
	"unsafe"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// A panel over days asks the same of the same blocks until an hour has passed. What was found in their many indexes, and
// decoded, is therefore kept together.

// foundKey is what rows were found by.
type foundKey struct {
	plan       uint64 // its number, so that a key keeps no plan in memory
	matchers   string
	want       chunk.Mask
	mint, maxt int64 // milliseconds
}

// foundBefore returns the rows of the blocks that stand in for samples, when all of them were found and decoded before; and
// the key to keep them by, nil where they are not kept. They must not be changed, but for Raw.
func (q *Query) foundBefore(r Rows, instead standIns, mint, maxt int64, ms []*labels.Matcher) ([]Rolled, *foundKey) {
	blocks := instead.blocks[r.Resolution]
	// Without a label for the agent, indexes are asked which agents have a series.
	if r.Resolution == timegrid.Raw || r.Nearly || len(instead.blocks) > 1 || len(blocks) == 0 || q.r.cfg.AgentLabel == "" {
		return nil, nil
	}
	key := &foundKey{q.r.plans.of(blocks).number, selectionKey(ms), r.Want, mint, maxt}
	found, ok := q.r.found.Get(*key)
	if !ok {
		return nil, key
	}
	out := slices.Clone(found)
	for i := range out {
		out[i].q = q
		q.stats.columnHits.Add(int64(len(out[i].rows)))
	}
	return out, key
}

// foundOverhead estimates the memory of a series, and of each of its parts, beside its columns.
const foundOverhead = int64(unsafe.Sizeof(Rolled{}) + unsafe.Sizeof(part{}))

// foundShare is the part of the cache, as a divisor, that one selection may take.
const foundShare = 2

// keepFound keeps the rows of a selection of which all columns are at hand or their blocks were cached, those of
// consecutive hours joined: columns of a few rows each would take more memory than the rows. It returns what it keeps; nil
// when that is nothing.
func (q *Query) keepFound(key *foundKey, found []Rolled) []Rolled {
	if key == nil {
		return nil
	}
	size, most := int64(len(key.matchers))+selectionOverhead, q.r.found.Limit()/foundShare
	kept := make([]Rolled, len(found))
	var into chunk.Columns
	for i := range found {
		kept[i] = Rolled{Labels: found[i].Labels}
		for _, p := range found[i].rows {
			cols, read := p.columns(&into)
			if cols == nil {
				return nil
			}
			before := len(kept[i].rows)
			kept[i].add(p, cols, read)
			if size += int64(8 * cols.Columns() * cols.Rows()); len(kept[i].rows) > before {
				size += foundOverhead + rolledOverhead
			}
			if size > most {
				return nil
			}
		}
		kept[i].rows = slices.Clip(kept[i].rows)
		size += foundOverhead
	}
	q.r.found.Put(*key, kept, size)
	out := slices.Clone(kept)
	for i := range out {
		out[i].q = q
	}
	return out
}

// columns are the rows of the part's hours, and how many were read for them: held ones, or decoded ones in the memory of
// into; nil when neither is to be had.
func (p *part) columns(into *chunk.Columns) (cols *chunk.Columns, read int) {
	h := p.ob.handle
	cols = h.rowsAtHand(p.i)
	if cols == nil {
		if h.kept == nil || !h.warm || h.broken.Load() {
			return nil, 0
		}
		h.mu.Lock()
		_, err := h.decoder().Series(p.i, h.kept.mint, h.kept.maxt, h.want, into)
		h.mu.Unlock()
		// Whoever reads the rows notes what is wrong with them. Histograms would share their buckets with the decoder.
		if err != nil || into.Has(chunk.HistogramColumns) {
			return nil, 0
		}
		cols = into
	}
	from, _ := slices.BinarySearch(cols.T, firstNS(p.from.StartMS()+1))
	to, _ := slices.BinarySearch(cols.T, lastNS(p.to.EndMS())+1)
	out := cols.Cut(from, to)
	return &out, cols.Rows()
}

// add appends a copy of a part's rows, to the part before if that ends where this one begins.
func (r *Rolled) add(p part, cols *chunk.Columns, read int) {
	if n := len(r.rows); n > 0 {
		last := &r.rows[n-1]
		// An error says that the columns are others; nothing was appended then.
		if last.to+1 == p.from && last.res == p.res && last.typ == p.typ && last.cols.Rows() > 0 && last.cols.AppendRows(cols, 0, cols.Rows()) == nil {
			last.to, last.read = p.to, last.read+read
			return
		}
	}
	p.piece, p.cols, p.read = piece{}, cols.Clone(), read // the piece is of this query
	r.rows = append(r.rows, p)
}

// takesAll reports whether takes accepts the types of all rows of a series.
func takesAll(s *Rolled, takes func(series.Type) bool) bool {
	return !slices.ContainsFunc(s.rows, func(p part) bool { return !takes(p.typ) })
}
