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

// covered are the numbers of the batch's boot that are to be read from blocks in an hour.
func (p *Snapshot) covered(b *batch, h timegrid.Hour) []ledger.Range {
	if p.coverage == nil {
		return nil
	}
	return p.coverage.Covered(b.Identity.BootOf(), h)
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
func (p *Snapshot) publishedOf(s *segment) share {
	if p.coverage == nil {
		return nothing
	}
	hidden, shown := false, false
	h := s.hour()
	for i := range s.parts {
		b := s.parts[i].batch
		switch hiddenOf(p.covered(b, h), b.Identity) {
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
