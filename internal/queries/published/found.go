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

// keepFound keeps rows of which all columns are at hand.
func (q *Query) keepFound(key *foundKey, found []Rolled) {
	if key == nil {
		return
	}
	size := int64(len(key.matchers)) + selectionOverhead
	kept := make([]Rolled, len(found))
	for i := range found {
		kept[i] = Rolled{Labels: found[i].Labels, rows: slices.Clone(found[i].rows)}
		size += foundOverhead
		for k := range kept[i].rows {
			p := &kept[i].rows[k]
			if p.cols = p.ob.rowsAtHand(p.i); p.cols == nil {
				return
			}
			p.piece = piece{} // of this query
			size += int64(8*p.cols.Columns()*p.cols.Rows()) + foundOverhead
		}
	}
	q.r.found.Put(*key, kept, size)
}

// takesAll reports whether takes accepts the types of all rows of a series.
func takesAll(s *Rolled, takes func(series.Type) bool) bool {
	return !slices.ContainsFunc(s.rows, func(p part) bool { return !takes(p.typ) })
}
