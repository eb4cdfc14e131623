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

// Slot is a shard's hour at one resolution, or a compaction's place: what has generations. Name is that
// of all of them, with Generation 0. Listed are the keys that a listing had, ascending by generation.
type Slot struct {
	Name   Name
	Listed []Listed
}

// Listed is the key of one generation, and what the listing said of its object.
type Listed struct {
	Name Name
	Info objstore.Info
}

// Top is the highest generation that was listed, 0 for none: the next one is free.
func (s Slot) Top() uint64 {
	if n := len(s.Listed); n > 0 {
		return s.Listed[n-1].Name.Generation
	}
	return 0
}

// Slots lists the manifests that o selects, slot by slot in key order; a slot is read when the listing is
// behind it. Keys that are not of a generation are passed over. An error is the last that it yields.
func Slots(ctx context.Context, l objstore.Lister, o objstore.ListOptions) iter.Seq2[Slot, error] {
	return func(yield func(Slot, error) bool) {
		var at Slot
		for info, err := range objstore.List(ctx, l, o) {
			if err != nil {
				yield(Slot{}, err)
				return
			}
			n, err := layout.ParseBlockManifest(info.Key)
			if err != nil {
				continue
			}
			of := n
			of.Generation = 0
			// The keys of a slot stand together, its generations in their order.
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

// Generation is what the key of one generation holds: a Record, or Err where it can't be had, which is
// one of those that Doubtful reports.
type Generation struct {
	Name   Name
	Record Record
	Err    error
}

// Committed reports whether the generation is known to have been committed: a Removed record stands only
// where a committed set stood.
func (g Generation) Committed() bool {
	return g.Err == nil && (g.Record.Block != nil || g.Record.Removed != nil)
}

// Doubtful reports whether a record that was listed can't be had: it is damaged, of a newer release, or gone since.
func Doubtful(err error) bool { return record.Opaque(err) || errors.Is(err, objstore.ErrNotFound) }

// State says which generation of a slot counts: the highest one that was ever committed. It hides those
// below it, also when retention removed it, and aborted ones above it are nothing.
//
// A record that can't be had may be of a committed generation, so every one above the highest that is
// known is in Doubt. What follows from doubt is for the caller to say: who answers queries takes Set and
// reports the doubt, who repairs replaces damaged records, everybody else waits. Records below
// Committed decide nothing, whatever they hold.
type State struct {
	// Top is the highest generation with a record of any kind, 0 for none. What is above it is undecided.
	Top uint64
	// Committed is the highest generation that is known to have been committed, 0 for none. Set is its
	// record, or Removed is where the set is not there any more.
	Committed uint64
	Block     *Block
	Removed   *Removed
	// Doubt are generations above Committed whose records can't be had, descending.
	Doubt []Generation
}

// Fold says which of the generations of one slot counts. They may come in any order, each once.
func Fold(of []Generation) State {
	var s State
	for _, g := range slices.SortedFunc(slices.Values(of), func(a, b Generation) int { return cmp.Compare(b.Name.Generation, a.Name.Generation) }) {
		if !s.add(g) {
			break
		}
	}
	return s
}

// add takes the next lower generation, and reports whether those below it matter.
func (s *State) add(g Generation) bool {
	s.Top = max(s.Top, g.Name.Generation)
	switch {
	case g.Err != nil:
		s.Doubt = append(s.Doubt, g)
	case g.Committed():
		s.Committed, s.Block, s.Removed = g.Name.Generation, g.Record.Block, g.Record.Removed
	}
	return s.Committed == 0
}

// Expired reports whether retention removed the set that counts.
func (s *State) Expired() bool { return s.Removed != nil && s.Removed.SupersededBy == 0 }

// Missing is the generation that replaced the highest one that is known to have been committed, where it
// is not listed; else 0. The listing is older than the record, or the record of that generation is lost.
func (s *State) Missing() uint64 {
	if s.Removed != nil && s.Removed.SupersededBy > s.Top {
		return s.Removed.SupersededBy
	}
	return 0
}
