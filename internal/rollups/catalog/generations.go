package catalog

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// Slot is what has generations: a shard's hour at one resolution, or the place of a compaction. Name is their
// common name, with Generation 0. Listed are the keys that a listing had, ascending by generation.
type Slot struct {
	Name   Name
	Listed []Listed
}

// Listed is the key of one generation with what the listing said about its object.
type Listed struct {
	Name Name
	Info objstore.Info
}

// Top is the highest generation that was listed, 0 for none; the next one is free.
func (s Slot) Top() uint64 {
	if n := len(s.Listed); n > 0 {
		return s.Listed[n-1].Name.Generation
	}
	return 0
}

// Slots lists the manifests that o selects, slot by slot in key order. It yields a slot when the listing has moved
// past it. Keys that are not manifests are skipped. An error is the last thing that it yields.
func Slots(ctx context.Context, l objstore.Lister, o objstore.ListOptions) iter.Seq2[Slot, error] {
	return slotsOf(objstore.List(ctx, l, o))
}

// slotsOf is Slots of a listing.
func slotsOf(listed iter.Seq2[objstore.Info, error]) iter.Seq2[Slot, error] {
	return func(yield func(Slot, error) bool) {
		var at Slot
		for info, err := range listed {
			if err != nil {
				yield(Slot{}, err)
				return
			}
			n, err := layout.ParseBlockManifest(info.Key)
			if err != nil {
				continue // a foreign key
			}
			of := n
			of.Generation = 0
			// Keys sort by slot first and by generation within it, so a change of the slot means that the previous
			// one is complete.
			if len(at.Listed) > 0 && at.Name != of {
				if !yield(at, nil) {
					return
				}
				at = Slot{}
			}
			at.Name = of
			at.Listed = append(at.Listed, Listed{n, info})
		}
		if len(at.Listed) > 0 {
			yield(at, nil)
		}
	}
}

// Generation is what the key of one generation holds: a Record, or the Err why it could not be read, for which
// Unreadable is true.
type Generation struct {
	Name   Name
	Record Record
	Err    error
}

// Committed reports whether the generation is known to have been committed: a Removed record only ever replaces a
// committed block.
func (g Generation) Committed() bool {
	return g.Err == nil && (g.Record.Block != nil || g.Record.Removed != nil)
}

// Unreadable reports whether err means that a listed record can't be used: it is damaged, of a newer release, or
// was deleted since.
func Unreadable(err error) bool { return record.Opaque(err) || errors.Is(err, objstore.ErrNotFound) }

// State says which generation of a slot counts: the highest one that was ever committed. It hides those below it,
// also when retention removed it; aborted ones above it are ignored.
//
// A record that can't be read may be of a committed generation, so every one above the highest that is
// known is listed in Unreadable. The caller decides what follows: a reader of samples takes Block and
// reports a partial answer, a repair replaces damaged records, everybody else waits. Records below
// Committed decide nothing, whatever they hold.
type State struct {
	// Top is the highest generation with a record of any kind, 0 for none. Generations above it are undecided.
	Top uint64
	// Committed is the highest generation that is known to have been committed, 0 for none. Block is its record,
	// or Removed is when the block was removed.
	Committed uint64
	Block     *Block
	Removed   *Removed
	// Unreadable are generations above Committed whose records can't be read, descending.
	Unreadable []Generation
}

// Fold says which of the generations of one slot counts. They come in any order, each once.
func Fold(of []Generation) State {
	var s State
	for _, g := range slices.SortedFunc(slices.Values(of), func(a, b Generation) int { return cmp.Compare(b.Name.Generation, a.Name.Generation) }) {
		if !s.add(g) {
			break
		}
	}
	return s
}

// add takes the next lower generation, and reports whether lower ones still matter.
func (s *State) add(g Generation) bool {
	s.Top = max(s.Top, g.Name.Generation)
	switch {
	case g.Err != nil:
		s.Unreadable = append(s.Unreadable, g)
	case g.Committed():
		s.Committed, s.Block, s.Removed = g.Name.Generation, g.Record.Block, g.Record.Removed
	}
	return s.Committed == 0
}

// Expired reports whether retention removed the block that counts.
func (s *State) Expired() bool { return s.Removed != nil && s.Removed.SupersededBy == 0 }

// Missing is the generation that replaced the highest known committed one but was not listed, else 0: the listing
// is older than the record, or the record of that generation was lost.
func (s *State) Missing() uint64 {
	if s.Removed != nil && s.Removed.SupersededBy > s.Top {
		return s.Removed.SupersededBy
	}
	return 0
}
