// Package hour says what is published of a shard's hour, and what that means for the worker
// that owns the shard: which generation is to be made, which batches are done, and which
// block the next generation replaces.
//
// It decides and reads, and starts nothing: no goroutines, no clock. State is a value that
// its methods are questions about; Records fills one from a store that is handed in.
package hour

import (
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// State is what the block manifests of one shard's hour say, resolution by resolution. The
// zero value is an hour of which nothing is published.
type State struct {
	// Top is the highest decided generation of each resolution, 0 for none.
	Top map[timegrid.Resolution]uint64
	// Blocks has the block of the highest committed generation; no entry where there is none.
	Blocks map[timegrid.Resolution]*catalog.Block
	// Expired are the inputs of the highest committed generation where retention removed it.
	// It still covers them: a batch that stands in the journal again needs no new block.
	Expired map[timegrid.Resolution]catalog.Inputs
	// Damaged are keys of manifests that can't be read and that a repair request passes over.
	Damaged []string
}

// With is the state after blocks of later generations were committed.
func (s *State) With(blocks []*catalog.Block) *State {
	n := &State{Top: maps.Clone(s.Top), Blocks: maps.Clone(s.Blocks), Expired: maps.Clone(s.Expired), Damaged: s.Damaged}
	for _, b := range blocks {
		res := b.Name.Resolution
		n.Top[res], n.Blocks[res] = b.Name.Generation, b
		delete(n.Expired, res)
	}
	return n
}

// Next is the generation to make, or to finish: the first one that some resolution has not
// decided.
func (s *State) Next() uint64 {
	first := s.Top[timegrid.Raw]
	for _, res := range timegrid.Resolutions() {
		first = min(first, s.Top[res])
	}
	return first + 1
}

// Unfinished reports whether a generation is decided at some resolutions and not at others.
func (s *State) Unfinished() bool {
	for _, res := range timegrid.Resolutions() {
		if s.Top[res] != s.Top[timegrid.Raw] {
			return true
		}
	}
	return false
}

// Undecided are the resolutions at which nothing is decided about the generation.
func (s *State) Undecided(gen uint64) (open []timegrid.Resolution) {
	for _, res := range timegrid.Resolutions() {
		if s.Top[res] < gen {
			open = append(open, res)
		}
	}
	return open
}

// MayBeCommitted reports whether the generation is, or may have been, committed at a
// resolution that is not open. A generation of which this is false is aborted wherever it is
// decided, so that it may be aborted at the open resolutions too without losing a record.
func (s *State) MayBeCommitted(gen uint64, open []timegrid.Resolution) bool {
	for _, res := range timegrid.Resolutions() {
		if slices.Contains(open, res) {
			continue
		}
		if _, expired := s.Expired[res]; expired || s.Blocks[res] != nil && s.Blocks[res].Name.Generation >= gen {
			return true
		}
	}
	// A manifest that can't be read may be that of this generation, committed.
	return len(s.Damaged) > 0
}

// Covers reports whether the committed blocks of all resolutions have the batch as an input,
// or had it when they expired.
func (s *State) Covers(id identity.Batch) bool {
	var last *catalog.Block
	for _, res := range timegrid.Resolutions() {
		b := s.Blocks[res]
		if b == nil {
			if in, ok := s.Expired[res]; !ok || !in.Covers(id) {
				return false
			}
			continue
		}
		// Blocks of one plan have the same inputs. Nearly all hours have one plan, and this
		// is asked for each of their batches, so the inputs are searched only once.
		if last != nil && b.PlanSHA256 == last.PlanSHA256 {
			continue
		}
		if !b.Inputs.Covers(id) {
			return false
		}
		last = b
	}
	return true
}

// Before is the highest committed generation of the resolution below gen, 0 for none. Blocks
// has the highest of all: where that is not below gen, gen was decided long ago.
func (s *State) Before(res timegrid.Resolution, gen uint64) uint64 {
	if b := s.Blocks[res]; b != nil && b.Name.Generation < gen {
		return b.Name.Generation
	}
	return 0
}

// Newest is the block of the highest committed generation of any resolution, nil for none. It
// need not be the raw one: raw blocks may expire first, and the next generation has to have
// the inputs of all of them.
func (s *State) Newest() *catalog.Block {
	var newest *catalog.Block
	for _, res := range timegrid.Resolutions() {
		if b := s.Blocks[res]; b != nil && (newest == nil || b.Name.Generation > newest.Name.Generation) {
			newest = b
		}
	}
	return newest
}

// Holds reports whether the newest block has the batch as an input. Then a generation
// without the batch would lose records that queries see today.
func (s *State) Holds(e accepted.Batch) bool {
	b := s.Newest()
	return b != nil && b.Inputs.Covers(e.Identity)
}

// CommittedAbove reports whether every resolution has a committed generation above gen.
func (s *State) CommittedAbove(gen uint64) bool {
	for _, res := range timegrid.Resolutions() {
		if b := s.Blocks[res]; b == nil || b.Name.Generation <= gen {
			return false
		}
	}
	return true
}
