package ledger

// Own gives the sub-ranges of e that count for e, where others are the identities
// that may intersect it: each sequence number counts for the one that is Before all
// others. An entry equal in range to e is e itself and ignored.
func Own(e Entry, others []Entry) []Range {
	var lost intervals
	for _, o := range others {
		if o.Range() == e.Range() || !o.Before(e) {
			continue
		}
		if c, ok := o.Range().Intersect(e.Range()); ok {
			lost.add(c, 0)
		}
	}
	_, mine := lost.split(e.Range())
	return mine
}

// Own gives the sub-ranges of e that count for e, by what the ledger knows.
//
// Exact is false where e intersects identities that are folded: those are taken to
// have been accepted before e. The exact answer needs their manifests: list the
// boot's keys and use the function Own.
func (l *Ledger) Own(e Entry) (mine []Range, exact bool) {
	var others []Entry
	var known intervals
	for _, list := range [][]Entry{l.recent, l.overlapping} {
		for _, o := range list {
			if o.Start > e.End {
				break
			}
			if _, ok := o.Range().Intersect(e.Range()); ok {
				others = append(others, o)
				known.add(o.Range(), 0)
			}
		}
	}
	exact = true
	if !l.Has(e.Start, e.End) {
		// Folded identities that intersect e are known by their union alone.
		forgotten, _ := l.folded.split(e.Range())
		for _, r := range forgotten {
			_, unknown := known.split(r)
			for _, u := range unknown {
				exact = false
				others = append(others, Entry{Start: u.Start, End: u.End, AcceptedAt: e.AcceptedAt - 1})
			}
		}
	}
	return Own(e, others), exact
}
