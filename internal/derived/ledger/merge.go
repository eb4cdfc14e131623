package ledger

// Merge adds to l what only o has; o may be a snapshot of another process. The union of
// sequence numbers is exact. BatchCount is exact if each side has seen everything that the
// other folded, else it is a lower bound (see Exact). It reports whether l changed.
func (l *Ledger) Merge(o *Ledger) bool {
	if o.batches <= l.batches {
		return l.Rebase(o)
	}
	// Start from the side that counted more: its folded ranges can't be counted from outside.
	mine := l.Clone()
	*l = *o.Clone()
	l.boot = mine.boot
	l.Rebase(mine)
	return true
}

// Rebase adds to l, which was just built from a listing, what o learned during the listing.
// It reports whether l changed.
func (l *Ledger) Rebase(o *Ledger) bool {
	changed := false
	for _, list := range [][]Entry{o.recent, o.overlapping} {
		for _, e := range list {
			changed = l.Add(e).Kind == Added || changed
		}
	}
	for _, s := range o.folded {
		// How many batches o folded into the missing ranges is not known, so the count is a lower bound.
		_, missing := l.all.split(s)
		for _, m := range missing {
			l.all.add(m)
			l.folded.add(m)
			l.inexact, changed = true, true
		}
	}
	for _, e := range o.overlapping {
		n := len(l.overlapping)
		l.keepOverlapping(e)
		changed = changed || len(l.overlapping) != n
	}
	for _, r := range o.overlaps {
		if !l.overlaps.contains(r) {
			l.keepOverlap(r)
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
