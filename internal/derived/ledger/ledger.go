// Package ledger keeps the accepted identities of one (agent, boot): which sequence numbers
// are accepted, which are missing and which overlap. It is pure: no store, no clock.
//
// # What is kept
//
// Accepted ranges are merged into intervals, so memory grows with the number of gaps (32
// bytes each) and not with the number of batches. Two kinds of identities are also kept one
// by one: those with the greatest sequence numbers (Window of them), and those that overlap
// (MaxOverlapping of them). All others are folded: only their union is kept.
//
// An identity that lies wholly in the folded ranges is therefore either a repeat or a late
// overlap, and the ledger alone can't distinguish the two. Add returns Covered and changes
// nothing. A caller that knows that the identity was never added (its derived keys were
// missing until now) calls AddNew, which reports the overlap. An identity that is only
// partly covered is certainly new. A ledger that is built from a listing of all keys, in key
// order, is exact.
package ledger

import (
	"cmp"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Bounds of the identities that are kept one by one.
const (
	// Window is how many identities, those with the greatest sequence numbers, are not folded.
	Window = 256
	// CheckpointWindow is Window of the ledgers of all boots together, of which there may be 100,000.
	CheckpointWindow = 32
	// MaxOverlapping is how many overlapping identities, and overlap ranges, are kept.
	MaxOverlapping = 1000
	// maxRanges bounds the intervals of a ledger in a checkpoint.
	maxRanges = 1 << 20
)

// Entry is one accepted identity of the ledger's boot.
type Entry struct {
	Start, End uint64
	AcceptedAt int64 // Unix nanoseconds, by the collector's clock
}

// Range of the entry.
func (e Entry) Range() Range { return Range{e.Start, e.End} }

// Claim of the entry. It leaves out agent and boot, which all entries of a ledger share.
func (e Entry) Claim() accepted.Claim {
	return accepted.Claim{Identity: identity.Batch{SeqStart: e.Start, SeqEnd: e.End}, AcceptedAt: e.AcceptedAt}
}

func (e Entry) compare(o Entry) int {
	return cmp.Or(cmp.Compare(e.Start, o.Start), cmp.Compare(e.End, o.End))
}

// Kind is the effect of an Add.
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
	// Overlap are the numbers that another identity covers as well.
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
	dropped     uint64 // overlapping identities or ranges beyond MaxOverlapping
	inexact     bool   // batches is a lower bound, as stored ledgers of old may say
	window      int    // Window or CheckpointWindow, smaller in tests
	firstTime   int64  // of the samples, if timed
	timed       bool
}

// New returns an empty ledger.
func New(boot identity.Boot) *Ledger { return &Ledger{boot: boot, window: Window} }

// NewSmall is New with CheckpointWindow.
func NewSmall(boot identity.Boot) *Ledger { return &Ledger{boot: boot, window: CheckpointWindow} }

// AddTime notes the time of the first sample of a batch, Unix nanoseconds. It reports whether that is
// before all others of the boot.
func (l *Ledger) AddTime(first int64) bool {
	if l.timed && l.firstTime <= first {
		return false
	}
	l.firstTime, l.timed = first, true
	return true
}

// Add counts an identity once. Adding the same identity again is harmless; its
// first AcceptedAt stays.
func (l *Ledger) Add(e Entry) Change { return l.add(e, false) }

// AddNew is Add for an identity that is known not to have been added before: where Add
// would return Covered, AddNew counts it and reports its overlap.
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
		l.recordOverlap(e, c.Overlap)
	}
	l.all.add(e.Range())
	i, _ := slices.BinarySearchFunc(l.recent, e, Entry.compare)
	l.recent = slices.Insert(l.recent, i, e)
	l.fold()
	return c
}

// recordOverlap keeps e, the recent identities that it intersects, and the common ranges.
func (l *Ledger) recordOverlap(e Entry, common []Range) {
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
	// A range that touches kept ones only extends them, so it needs no room.
	if i, j := l.overlaps.touching(r); i == j && len(l.overlaps) >= MaxOverlapping {
		l.dropped++
		return
	}
	l.overlaps.add(r)
}

// fold removes the recent identities with the smallest sequence numbers and keeps only their union.
func (l *Ledger) fold() {
	n := len(l.recent) - l.window
	if n <= 0 {
		return
	}
	for _, e := range l.recent[:n] {
		l.folded.add(e.Range())
	}
	l.recent = slices.Delete(l.recent, 0, n)
}

// Has reports whether the identity is one of those kept one by one. False says nothing about
// an identity that lies in the folded ranges.
func (l *Ledger) Has(start, end uint64) bool {
	e := Entry{Start: start, End: end}
	_, ok := slices.BinarySearchFunc(l.recent, e, Entry.compare)
	if !ok {
		_, ok = slices.BinarySearchFunc(l.overlapping, e, Entry.compare)
	}
	return ok
}

// Seen reports whether Add would change nothing: the identity is kept one by one, or lies
// wholly in the folded ranges.
func (l *Ledger) Seen(start, end uint64) bool {
	return l.Has(start, end) || l.folded.contains(Range{start, end})
}
