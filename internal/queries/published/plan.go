package published

import (
	"slices"
	"sync"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

// plan is which objects have the rows of some blocks, and which of them have nothing for matchers that were asked
// before. Blocks never change, so a plan is valid as long as the same blocks count.
type plan struct {
	number uint64 // of no other plan
	blocks []*catalog.Block
	units  []unit

	mu   sync.Mutex
	used int64
	none map[string]*nothing // by selectionKey
}

// unit is a chunk with its index. That of a compaction has rows of many hours.
type unit struct {
	o    *catalog.Object
	uses []catalog.Piece // at least one
}

// nothing are the units that are known to have no series for some matchers, one bit each.
type nothing struct{ bits []atomic.Uint64 }

func (n *nothing) has(unit int) bool {
	return n.bits[unit>>6].Load()&(1<<(unit&63)) != 0
}

func (n *nothing) add(unit int) { n.bits[unit>>6].Or(1 << (unit & 63)) }

// planBytes bounds what a plan keeps about matchers, in addition to a byte for each unit.
const planBytes = 128 << 10

// unitKey identifies a unit. A chunk has values and no labels, so blocks of different agents name the same chunk
// if these measured the same; the index has the labels and agents of its series.
type unitKey struct{ chunk, index string }

func newPlan(blocks []*catalog.Block) *plan {
	p := &plan{blocks: slices.Clone(blocks)}
	at := map[unitKey]int{}
	pieces := catalog.Pieces(blocks)
	for k := range pieces {
		piece := pieces[k]
		for i := range piece.Block.Objects {
			o := &piece.Block.Objects[i]
			key := unitKey{o.ChunkKey, o.IndexKey}
			if n, ok := at[key]; ok {
				// A compaction has one chunk for many hours: one unit, so that its index is asked once.
				p.units[n].uses = append(p.units[n].uses, piece)
				continue
			}
			at[key] = len(p.units)
			// A part of the slice that exists, since most units have one piece. The capacity makes a second piece
			// allocate instead of overwriting the next.
			p.units = append(p.units, unit{o, pieces[k : k+1 : k+1]})
		}
	}
	return p
}

// nothing returns what is known for matchers.
func (p *plan) nothing(key string) *nothing {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.none[key]; n != nil {
		return n
	}
	n := &nothing{make([]atomic.Uint64, (len(p.units)+63)/64)}
	size := int64(len(key)+8*len(n.bits)) + selectionOverhead
	most := planBytes + int64(len(p.units))
	// Too large to be kept, but of use to this query.
	if size > most {
		return n
	}
	// When the bound is reached everything is dropped: queries repeat, so what is needed comes back soon.
	if p.used += size; p.used > most || p.none == nil {
		p.none, p.used = map[string]*nothing{}, size
	}
	p.none[key] = n
	return n
}

// plans caches the last few plans. It is safe for concurrent use.
type plans struct {
	mu    sync.Mutex
	last  []*plan // newest first
	count atomic.Uint64
}

const (
	maxPlans = 16
	// maxPlanned bounds the units of a plan that is cached.
	maxPlanned = 200_000
)

func (c *plans) of(blocks []*catalog.Block) *plan {
	if p := c.find(blocks); p != nil {
		return p
	}
	p := newPlan(blocks)
	p.number = c.count.Add(1)
	// A query over so much is rare, and its plan would take the memory of all others.
	if len(p.units) > maxPlanned {
		return p
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = slices.Insert(c.last, 0, p)
	if len(c.last) > maxPlans {
		// Cleared, or the array behind the slice would keep the dropped plan in memory.
		clear(c.last[maxPlans:])
		c.last = c.last[:maxPlans]
	}
	return p
}

func (c *plans) find(blocks []*catalog.Block) *plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.last {
		if slices.Equal(p.blocks, blocks) {
			// To the front, so that the plan that was not used for longest is dropped first.
			copy(c.last[1:i+1], c.last[:i])
			c.last[0] = p
			return p
		}
	}
	return nil
}
