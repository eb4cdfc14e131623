package ledger

// Merge adds what o knows and l does not: for a snapshot that another process
// wrote. The union of sequence numbers is exact. BatchCount is exact when all that o
// folded was known to l, else a lower bound (Exact says so).
// It reports whether l changed.
func (l *Ledger) Merge(o *Ledger) bool {
	before := *l
	changed := false
	// The side that has folded more is the better base of the count.
	if o.batches > l.batches {
		o, *l = &before, *o.Clone()
		l.boot = before.boot
		changed = true
	}
	for _, s := range o.folded {
		if _, missing := l.all.split(s.Range); len(missing) > 0 {
			l.inexact, changed = true, true
			for _, m := range missing {
				l.all.add(m, s.since)
				l.folded.add(m, s.since)
			}
		}
	}
	for _, list := range [][]Entry{o.recent, o.overlapping} {
		for _, e := range list {
			if l.Add(e).Kind == Added {
				changed = true
			}
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
	if o.inexact && !l.inexact && o.batches == l.batches {
		l.inexact, changed = true, true
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
