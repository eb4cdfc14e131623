package ledger

// Merge adds what o knows and l does not: for a snapshot that another process
// wrote. The union of sequence numbers is exact. BatchCount is exact when all that
// either side folded was known to the other, else a lower bound (Exact says so).
// It reports whether l changed.
func (l *Ledger) Merge(o *Ledger) bool {
	if o.batches <= l.batches {
		return l.Rebase(o)
	}
	// The side that has counted more is the better base.
	mine := l.Clone()
	*l = *o.Clone()
	l.boot = mine.boot
	l.Rebase(mine)
	return true
}

// Rebase adds to l, which was just built from a listing, what o has learned since.
// It reports whether l changed.
func (l *Ledger) Rebase(o *Ledger) bool {
	changed := false
	for _, list := range [][]Entry{o.recent, o.overlapping} {
		for _, e := range list {
			changed = l.Add(e).Kind == Added || changed
		}
	}
	for _, s := range o.folded {
		_, missing := l.all.split(s.Range)
		for _, m := range missing {
			l.all.add(m, s.since)
			l.folded.add(m, s.since)
			l.inexact, changed = true, true
		}
	}
	for _, e := range o.overlapping {
		n := len(l.overlapping)
		l.keepOverlapping(e)
		changed = changed || len(l.overlapping) != n
	}
	for _, r := range o.overlaps {
		if !l.overlaps.contains(r.Range) {
			l.keepOverlap(r.Range)
			changed = true
		}
	}
	if o.lastAt > l.lastAt {
		l.lastAt, changed = o.lastAt, true
	}
	return changed
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
