package ledger

import (
	"math"
)

// Own returns the sub-ranges of e that count for e. others are the identities that may
// intersect it: each sequence number counts for the identity whose claim wins over all
// others. An entry with the same range is e itself and ignored.
func Own(e Entry, others []Entry) []Range {
	var lost intervals
	for _, o := range others {
		if o.Range() == e.Range() || !o.Claim().Wins(e.Claim()) {
			continue
		}
		if c, ok := o.Range().Intersect(e.Range()); ok {
			lost.add(c)
		}
	}
	_, mine := lost.split(e.Range())
	return mine
}

// Own returns the sub-ranges of e that count for e, as far as the ledger knows.
//
// exact is false if e intersects folded identities. Those are assumed to have been accepted
// before e, unless e is kept itself and may be one of them. The exact answer needs their
// manifests: list the boot's keys and call the function Own.
func (l *Ledger) Own(e Entry) (mine []Range, exact bool) {
	var others []Entry
	for _, list := range [][]Entry{l.recent, l.overlapping} {
		for _, o := range list {
			if o.Start > e.End {
				break
			}
			others = append(others, o)
		}
	}
	forgotten, _ := l.folded.split(e.Range())
	if !l.Has(e.Start, e.End) {
		for _, r := range forgotten {
			// With the smallest time this entry wins over e in any case.
			others = append(others, Entry{Start: r.Start, End: r.End, AcceptedAt: math.MinInt64})
		}
		if l.folded.contains(e.Range()) {
			return nil, false
		}
	}
	return Own(e, others), len(forgotten) == 0
}
