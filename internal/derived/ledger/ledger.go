// Package ledger keeps the accepted identities of one (agent, boot): what is
// accepted through, what is missing, what overlaps. It is pure: no store, no clock.
//
// # What is remembered
//
// Accepted ranges merge into intervals, so memory follows the number of gaps (32
// bytes each) and not the number of batches. The identities with the greatest
// sequence numbers stay known one by one (Window of them), and so do those that
// overlap (MaxOverlapping of them); all others are folded: only their union is kept.
//
// An identity that lies wholly in what is folded is therefore either a repeat or a
// late overlap, and the ledger alone can't tell. Add answers Covered and changes
// nothing. A caller that knows that the identity was never added (its derived keys
// were missing until now) calls AddNew, which reports the overlap. An identity
// that is only partly covered is new without doubt. A ledger that is built from a
// listing of all keys, in key order, is exact.
package ledger

import (
	"cmp"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Bounds of what is known one by one.
const (
	// Window is how many identities, those with the greatest sequence numbers, are not folded.
	Window = 256
	// MaxOverlapping is how many overlapping identities, and overlap ranges, are kept.
	MaxOverlapping = 1000
)

// Entry is one accepted identity of the ledger's boot.
type Entry struct {
	Start, End uint64
	AcceptedAt int64 // Unix nanoseconds, by the collector's clock
}

// Range of the entry.
func (e Entry) Range() Range { return Range{e.Start, e.End} }

// Claim of the entry, without the boot that all entries of a ledger have in common.
func (e Entry) Claim() accepted.Claim {
	return accepted.Claim{Identity: identity.Batch{SeqStart: e.Start, SeqEnd: e.End}, AcceptedAt: e.AcceptedAt}
}

func (e Entry) compare(o Entry) int {
	return cmp.Or(cmp.Compare(e.Start, o.Start), cmp.Compare(e.End, o.End))
}

// Kind says what Add did.
type Kind uint8

// Kinds of changes.
const (
	Known   Kind = iota + 1 // the same identity was added before; nothing changed
	Added                   // counted
	Covered                 // a repeat or an overlap with folded identities; nothing changed
	Invalid                 // End is less than Start; nothing changed
)

// Change is the effect of one Add.
type Change struct {
	Kind Kind
	// New are the sequence numbers that no identity covered before.
	New []Range
	// Overlap are those that another identity covers too.
	Overlap []Range
}

// Ledger of one boot. Not safe for concurrent use.
type Ledger struct {
	boot        identity.Boot
	all         intervals // union of everything
	folded      intervals // union of the identities that are no longer in recent
	recent      []Entry   // by (Start, End), at most Window
	overlapping []Entry   // by (Start, End), at most MaxOverlapping
	overlaps    intervals // at most MaxOverlapping
	batches     uint64
	lastAt      int64
	dropped     uint64 // overlapping identities or ranges that found no room
	inexact     bool   // batches is a lower bound
	window      int    // Window, smaller in tests
}

// New returns an empty ledger.
func New(boot identity.Boot) *Ledger { return &Ledger{boot: boot, window: Window} }

// Add counts an identity once. Adding the same identity again is harmless; its
// first AcceptedAt stays.
func (l *Ledger) Add(e Entry) Change { return l.add(e, false) }

// AddNew is Add for an identity that is known not to have been added before:
// where Add would answer Covered, it is counted and its overlap reported.
func (l *Ledger) AddNew(e Entry) Change { return l.add(e, true) }

func (l *Ledger) add(e Entry, fresh bool) Change {
	if e.End < e.Start {
		return Change{Kind: Invalid}
	}
	if l.Has(e.Start, e.End) {
		return Change{Kind: Known}
	}
	if !fresh && l.folded.contains(e.Range()) {
		return Change{Kind: Covered}
	}
	c := Change{Kind: Added}
	c.Overlap, c.New = l.all.split(e.Range())
	l.batches++
	if l.batches == 1 || e.AcceptedAt > l.lastAt {
		l.lastAt = e.AcceptedAt
	}
	if len(c.Overlap) > 0 {
		l.noteOverlap(e, c.Overlap)
	}
	l.all.add(e.Range(), e.AcceptedAt)
	i, _ := slices.BinarySearchFunc(l.recent, e, Entry.compare)
	l.recent = slices.Insert(l.recent, i, e)
	l.fold()
	return c
}

func (l *Ledger) noteOverlap(e Entry, common []Range) {
	l.keepOverlapping(e)
	for _, o := range l.recent {
		if _, ok := o.Range().Intersect(e.Range()); ok {
			l.keepOverlapping(o)
		}
	}
	for _, r := range common {
		l.keepOverlap(r)
	}
}

func (l *Ledger) keepOverlapping(e Entry) {
	i, found := slices.BinarySearchFunc(l.overlapping, e, Entry.compare)
	switch {
	case found:
	case len(l.overlapping) >= MaxOverlapping:
		l.dropped++
	default:
		l.overlapping = slices.Insert(l.overlapping, i, e)
	}
}

func (l *Ledger) keepOverlap(r Range) {
	if i, j := l.overlaps.touching(r); i == j && len(l.overlaps) >= MaxOverlapping {
		l.dropped++
		return
	}
	l.overlaps.add(r, 0)
}

// fold forgets the identities with the smallest sequence numbers but for their union.
func (l *Ledger) fold() {
	n := len(l.recent) - l.window
	if n <= 0 {
		return
	}
	for _, e := range l.recent[:n] {
		l.folded.add(e.Range(), e.AcceptedAt)
	}
	l.recent = slices.Delete(l.recent, 0, n)
}

// Has reports whether the identity is known one by one. False says nothing about
// an identity that lies in what is folded.
func (l *Ledger) Has(start, end uint64) bool {
	e := Entry{Start: start, End: end}
	_, ok := slices.BinarySearchFunc(l.recent, e, Entry.compare)
	if !ok {
		_, ok = slices.BinarySearchFunc(l.overlapping, e, Entry.compare)
	}
	return ok
}

// Seen reports whether the identity is known, or lies wholly in what is folded:
// whether Add would change nothing.
func (l *Ledger) Seen(start, end uint64) bool {
	return l.Has(start, end) || l.folded.contains(Range{start, end})
}
