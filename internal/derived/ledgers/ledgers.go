// Package ledgers keeps the ledgers of all boots, and their checkpoint: one root record that
// says through which positions of the journal they were applied, over parts that hold the
// ledgers. A restart reads the root, the parts, and what the journal has after the positions; so it costs
// requests for each part, and none for a boot.
//
// docs/format/ledgers.md has the bytes. The package is deterministic: no goroutines, no clock.
package ledgers

import (
	"hash/fnv"
	"maps"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	// bootsPerPart is how many boots a part has on average before the number of parts doubles.
	bootsPerPart = 2048
	// maxParts bounds the parts: 8 million boots.
	maxParts = 4096
)

// Set is the ledgers of all boots. It is safe for concurrent use.
type Set struct {
	mu    sync.Mutex
	parts []part // a power of two
	boots int
	// order is all boots in their order, for lists; nil after one was added.
	order []identity.Boot
	// uneven are the boots with gaps or overlaps. Every query asks for the first of them, and most boots never
	// have any.
	uneven map[identity.Boot]struct{}
	sorted []identity.Boot // of uneven; nil after it has changed
}

// part is the boots whose hash is its index.
type part struct {
	boots map[identity.Boot]*ledger.Ledger
	// stored is where the part stands in the store; its zero value, or changed, asks for a write.
	stored  Part
	changed bool
}

// NewSet makes an empty set.
func NewSet() *Set { return newSet(1) }

func newSet(parts int) *Set {
	return &Set{parts: newParts(parts), uneven: map[identity.Boot]struct{}{}}
}

func newParts(n int) []part {
	out := make([]part, n)
	for i := range out {
		out[i].boots = map[identity.Boot]*ledger.Ledger{}
	}
	return out
}

// indexOf is the part of a boot, of n.
func indexOf(b identity.Boot, n int) int {
	h := fnv.New64a()
	// An agent id has no zero byte, so the two ids can't run into each other.
	_, _ = h.Write([]byte(b.Agent))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(b.Boot))
	v := h.Sum64()
	return int((v ^ v>>32) & uint64(n-1))
}

// Change is what one entry changed.
type Change struct {
	Entry *journal.Entry
	ledger.Change
}

// Apply adds the accepted batches of entries; conflicts, and batches that another region counts, are left out. Entries that were applied before
// change nothing. each is called for every batch.
func (s *Set) Apply(entries []journal.Entry, each func(Change)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range entries {
		e := &entries[i]
		if !e.Outcome.Counts() {
			continue
		}
		boot := e.ID.BootOf()
		p := &s.parts[indexOf(boot, len(s.parts))]
		l := p.boots[boot]
		if l == nil {
			l = ledger.NewSmall(boot)
			p.boots[boot] = l
			s.boots++
			s.order = nil
		}
		c := l.Add(ledger.Entry{Start: e.ID.SeqStart, End: e.ID.SeqEnd, AcceptedAt: e.At})
		if earlier := l.AddTime(e.MinTime); earlier || c.Kind == ledger.Added {
			p.changed = true
		}
		if c.Kind == ledger.Added {
			s.sort(l)
		}
		if each != nil {
			each(Change{e, c})
		}
	}
	if s.boots > len(s.parts)*bootsPerPart && len(s.parts) < maxParts {
		s.grow()
	}
}

// sort puts a boot among those with gaps or overlaps, or takes it out. The caller holds mu.
func (s *Set) sort(l *ledger.Ledger) {
	_, was := s.uneven[l.Boot()]
	switch is := l.Uneven(); {
	case is && !was:
		s.uneven[l.Boot()] = struct{}{}
	case was && !is:
		delete(s.uneven, l.Boot())
	default:
		return
	}
	s.sorted = nil
}

// Uneven copies at most limit ledgers with gaps or overlaps, in the order of their boots, and counts all of them. It
// costs what it returns; after a boot got its first gap or lost its last one, once as much as there are such boots.
func (s *Set) Uneven(limit int) ([]*ledger.Ledger, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sorted == nil && len(s.uneven) > 0 {
		s.sorted = slices.SortedFunc(maps.Keys(s.uneven), identity.Boot.Compare)
	}
	var out []*ledger.Ledger
	for _, b := range s.sorted[:min(limit, len(s.sorted))] {
		out = append(out, s.parts[indexOf(b, len(s.parts))].boots[b].Clone())
	}
	return out, len(s.sorted)
}

// grow doubles the parts until they are small enough. All of them have to be written again.
func (s *Set) grow() {
	n := len(s.parts)
	for s.boots > n*bootsPerPart && n < maxParts {
		n *= 2
	}
	next := newParts(n)
	for _, p := range s.parts {
		for b, l := range p.boots {
			next[indexOf(b, n)].boots[b] = l
		}
	}
	for i := range next {
		next[i].changed = true
	}
	s.parts = next
}

// Boots is the number of boots.
func (s *Set) Boots() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boots
}

// Get copies the ledger of a boot; nil where there is none.
func (s *Set) Get(b identity.Boot) *ledger.Ledger {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.ledger(b); l != nil {
		return l.Clone()
	}
	return nil
}

// HasBoot reports whether there is a ledger of the boot.
func (s *Set) HasBoot(b identity.Boot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger(b) != nil
}

// Seen reports whether Apply would change nothing of the batch's ledger: it is kept one by one, or lies wholly
// in ranges of which the union alone is kept.
func (s *Set) Seen(id identity.Batch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.ledger(id.BootOf())
	return l != nil && l.Seen(id.SeqStart, id.SeqEnd)
}

// GapBefore is where the gap begins that ends right before seq; seq itself where none does.
func (s *Set) GapBefore(b identity.Boot, seq uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	gap := uint64(0)
	if l := s.ledger(b); l != nil {
		for _, r := range l.Intervals() {
			if r.Start >= seq {
				break
			}
			if r.End >= seq-1 {
				return seq
			}
			gap = r.End + 1
		}
	}
	return gap
}

func (s *Set) ledger(b identity.Boot) *ledger.Ledger {
	return s.parts[indexOf(b, len(s.parts))].boots[b]
}

// After copies at most limit ledgers of the boots after the given one, in their order; only those of
// agent if it is set. It costs what it returns; after new boots have come, once as much as there are boots.
func (s *Set) After(boot identity.Boot, agent string, limit int) []*ledger.Ledger {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.order == nil {
		s.order = make([]identity.Boot, 0, s.boots)
		for _, p := range s.parts {
			s.order = slices.AppendSeq(s.order, maps.Keys(p.boots))
		}
		slices.SortFunc(s.order, identity.Boot.Compare)
	}
	if first := (identity.Boot{Agent: agent}); first.Compare(boot) > 0 {
		boot = first
	}
	i, found := slices.BinarySearchFunc(s.order, boot, identity.Boot.Compare)
	if found {
		i++
	}
	var out []*ledger.Ledger
	for _, b := range s.order[i:] {
		if len(out) == limit || agent != "" && b.Agent != agent {
			break
		}
		out = append(out, s.parts[indexOf(b, len(s.parts))].boots[b].Clone())
	}
	return out
}

// Each calls fn with every ledger, in no order. fn must not keep the ledger, nor use the set.
func (s *Set) Each(fn func(*ledger.Ledger)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		for _, l := range p.boots {
			fn(l)
		}
	}
}
