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
}

// Hide leaves out, from now on, the records whose sequence number is covered in the hour of their sample. Call it
// before the first read.
func (p *Snapshot) Hide(c Coverage) { p.coverage = c }

// published answers for one batch; it remembers the hour that was asked for last, as rows are asked for in time
// order.
type published struct {
	coverage Coverage
	boot     identity.Boot
	hour     timegrid.Hour
	asked    bool
	ranges   []ledger.Range
}

func (p *Snapshot) published(b *batch) published {
	return published{coverage: p.coverage, boot: b.Identity.BootOf()}
}

// holds reports whether the record seq at ms is published.
func (p *published) holds(ms int64, seq uint64) bool {
	if p.coverage == nil {
		return false
	}
	rs := p.of(timegrid.HourOf(ms))
	i := sort.Search(len(rs), func(i int) bool { return rs[i].End >= seq })
	return i < len(rs) && rs[i].Start <= seq
}

func (p *published) of(h timegrid.Hour) []ledger.Range {
	if !p.asked || p.hour != h {
		p.ranges, p.hour, p.asked = p.coverage.Covered(p.boot, h), h, true
	}
	return p.ranges
}

// share is how much of a segment is published.
type share uint8

const (
	nothing share = iota
	something
	everything
)

// publishedOf decides by hours of whole parts, so that for most segments no row has to be checked.
func (p *Snapshot) publishedOf(s *segment) share {
	if p.coverage == nil {
		return nothing
	}
	hidden, shown := false, false
	for _, pt := range s.parts {
		pub := p.published(pt.batch)
		id := pt.batch.Identity
		last := timegrid.HourOf(s.ms[pt.row+pt.rows-1])
		for h := timegrid.HourOf(s.ms[pt.row]); h <= last; h = s.hourAfter(pt, h) {
			rs := pub.of(h)
			i := sort.Search(len(rs), func(i int) bool { return rs[i].End >= id.SeqStart })
			switch {
			// No number of the batch is covered in this hour, or all are; between the two the rows decide.
			case i == len(rs) || rs[i].Start > id.SeqEnd:
				shown = true
			case rs[i].Start <= id.SeqStart && rs[i].End >= id.SeqEnd:
				hidden = true
			default:
				return something
			}
			if hidden && shown {
				return something
			}
		}
	}
	if hidden {
		return everything
	}
	return nothing
}

// hourAfter is the next hour in which the part has a row; past its last row any later hour will do.
func (s *segment) hourAfter(pt part, h timegrid.Hour) timegrid.Hour {
	rows := s.ms[pt.row : pt.row+pt.rows]
	i := sort.Search(len(rows), func(i int) bool { return rows[i] > h.EndMS() })
	if i == len(rows) {
		return h + 1
	}
	return timegrid.HourOf(rows[i])
}
