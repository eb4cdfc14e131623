package live

import (
	"sort"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Coverage says which records are to be read from blocks instead.
type Coverage interface {
	// Covered returns the sequence numbers of the boot that the block of the hour counts, ascending and disjoint.
	// The answer must not change during the life of the coverage.
	Covered(boot identity.Boot, h timegrid.Hour) []ledger.Range
	// CoversHour is false if Covered is empty for all boots.
	CoversHour(h timegrid.Hour) bool
}

// Hide leaves out, from now on, the records whose sequence number is covered in the hour of their sample. Call it
// before the first read.
func (p *Snapshot) Hide(c Coverage) { p.coverage = c }

// covering gives the numbers that are to be read from blocks in the hour of a segment. The batches of a segment are
// mostly of one boot, so it is asked for once and not for each of them.
type covering struct {
	from   Coverage
	hour   timegrid.Hour
	boot   identity.Boot
	ranges []ledger.Range
	asked  bool
}

func (p *Snapshot) covering(s *segment) covering {
	c := covering{from: p.coverage, hour: s.hour()}
	// Most of what is in memory is of hours that have no blocks.
	if c.from != nil && !c.from.CoversHour(c.hour) {
		c.from = nil
	}
	return c
}

// coveringHours is covering for many segments: whether an hour has blocks at all is asked once.
type coveringHours struct {
	snap  *Snapshot
	none  map[timegrid.Hour]bool // hours that were asked for: true if they have no blocks
	hour  timegrid.Hour          // the last one
	known bool
	empty bool
}

// of is the covering of the next segment.
func (k *coveringHours) of(s *segment) covering {
	if k.snap.coverage == nil {
		return covering{}
	}
	h := s.hour()
	if !k.known || k.hour != h {
		empty, asked := k.none[h]
		if !asked {
			if k.none == nil {
				k.none = map[timegrid.Hour]bool{}
			}
			empty = !k.snap.coverage.CoversHour(h)
			k.none[h] = empty
		}
		k.hour, k.known, k.empty = h, true, empty
	}
	if k.empty {
		return covering{}
	}
	return covering{from: k.snap.coverage, hour: h}
}

// of are the numbers of the batch's boot.
func (c *covering) of(b *batch) []ledger.Range {
	if c.from == nil {
		return nil
	}
	if boot := b.Identity.BootOf(); !c.asked || boot != c.boot {
		c.boot, c.ranges, c.asked = boot, c.from.Covered(boot, c.hour), true
	}
	return c.ranges
}

// holds reports whether ranges, which ascend and are disjoint, have seq.
func holds(rs []ledger.Range, seq uint64) bool {
	i := sort.Search(len(rs), func(i int) bool { return rs[i].End >= seq })
	return i < len(rs) && rs[i].Start <= seq
}

// share is how much of a segment is published.
type share uint8

const (
	nothing share = iota
	something
	everything
)

// publishedOf decides by whole parts, so that for most segments no row has to be checked.
func (c *covering) publishedOf(s *segment) share {
	if c.from == nil {
		return nothing
	}
	hidden, shown := false, false
	// Blocks mostly have all batches of a boot or none of them. What counts for all numbers of a segment counts for each
	// part.
	if of := s.parts[0].batch; s.oneBoot {
		whole := of.Identity
		whole.SeqStart, whole.SeqEnd = s.first, s.last
		if all := hiddenOf(c.of(of), whole); all != something {
			return all
		}
	}
	for i := range s.parts {
		b := s.parts[i].batch
		switch hiddenOf(c.of(b), b.Identity) {
		case nothing:
			shown = true
		case everything:
			hidden = true
		default:
			return something
		}
		if hidden && shown {
			return something
		}
	}
	if hidden {
		return everything
	}
	return nothing
}

// hiddenOf says how much of the numbers of a batch is in ranges, which ascend and are disjoint.
func hiddenOf(rs []ledger.Range, id identity.Batch) share {
	i := sort.Search(len(rs), func(i int) bool { return rs[i].End >= id.SeqStart })
	switch {
	// No number of the batch is covered in this hour, or all are; between the two the rows decide.
	case i == len(rs) || rs[i].Start > id.SeqEnd:
		return nothing
	case rs[i].Start <= id.SeqStart && rs[i].End >= id.SeqEnd:
		return everything
	}
	return something
}
