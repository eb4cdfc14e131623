package ledger

import (
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Boot is the boot whose identities the ledger has.
func (l *Ledger) Boot() identity.Boot { return l.boot }

// Empty reports whether nothing was added.
func (l *Ledger) Empty() bool { return len(l.all) == 0 }

// BatchCount is the number of accepted identities.
func (l *Ledger) BatchCount() uint64 { return l.batches }

// RecordCount is the number of distinct accepted sequence numbers; MaxUint64 if it does not
// fit.
func (l *Ledger) RecordCount() uint64 { return l.all.count() }

// FirstSeq is the smallest accepted sequence number; false when empty.
func (l *Ledger) FirstSeq() (uint64, bool) {
	if l.Empty() {
		return 0, false
	}
	return l.all[0].Start, true
}

// LastSeq is the greatest accepted sequence number; false when empty.
func (l *Ledger) LastSeq() (uint64, bool) {
	if l.Empty() {
		return 0, false
	}
	return l.all[len(l.all)-1].End, true
}

// LastAcceptedAt is the newest acceptance, Unix nanoseconds; 0 when empty.
func (l *Ledger) LastAcceptedAt() int64 { return l.lastAt }

// FirstTime is the time of the boot's earliest sample, Unix nanoseconds; false when no time was added.
func (l *Ledger) FirstTime() (int64, bool) { return l.firstTime, l.timed }

// AcceptedThrough is the last sequence number such that all from FirstSeq to it are
// accepted; false when empty.
func (l *Ledger) AcceptedThrough() (uint64, bool) {
	if l.Empty() {
		return 0, false
	}
	return l.all[0].End, true
}

// Gaps are the missing ranges between FirstSeq and LastSeq, lowest first, at most
// limit; limit <= 0 is all.
func (l *Ledger) Gaps(limit int) []Range {
	if l.Empty() {
		return nil
	}
	return l.GapsFrom(l.all[0].Start, limit)
}

// GapsFrom are the missing ranges between seq and LastSeq, lowest first, at most
// limit; limit <= 0 is all.
func (l *Ledger) GapsFrom(seq uint64, limit int) []Range {
	var gaps []Range
	next := seq
	for i := l.all.from(seq); i < len(l.all); i++ {
		if limit > 0 && len(gaps) == limit {
			break
		}
		if s := l.all[i]; s.Start > next {
			gaps = append(gaps, Range{next, s.Start - 1})
		}
		next = l.all[i].End + 1 // wraps only after the last span
	}
	return gaps
}

// Uneven reports whether there are gaps or overlaps.
func (l *Ledger) Uneven() bool { return len(l.all) > 1 || len(l.overlaps) > 0 }

// Intervals are the accepted sequence numbers as merged ranges, lowest first.
func (l *Ledger) Intervals() []Range { return l.all.ranges(0) }

// Overlaps are the ranges that more than one identity covers, merged, lowest first,
// at most limit; limit <= 0 is all that are kept.
func (l *Ledger) Overlaps(limit int) []Range { return l.overlaps.ranges(limit) }

// Overlapping are the identities that are known to overlap others, sorted by (Start, End).
// Identities that were folded before their overlap was seen are missing.
func (l *Ledger) Overlapping() []Entry { return slices.Clone(l.overlapping) }

func (s intervals) ranges(limit int) []Range {
	if limit <= 0 || limit > len(s) {
		limit = len(s)
	}
	return append(make([]Range, 0, limit), s[:limit]...)
}

// Clone copies the ledger.
func (l *Ledger) Clone() *Ledger {
	c := *l
	c.all = append(intervals(nil), l.all...)
	c.folded = append(intervals(nil), l.folded...)
	c.overlaps = append(intervals(nil), l.overlaps...)
	c.recent = append([]Entry(nil), l.recent...)
	c.overlapping = append([]Entry(nil), l.overlapping...)
	return &c
}
