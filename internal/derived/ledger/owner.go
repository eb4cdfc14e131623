package ledger

import (
	"math"
)

// Own gives the sub-ranges of e that count for e, where others are the identities
// that may intersect it: each sequence number counts for the one whose claim
// wins over all others. An entry equal in range to e is e itself and ignored.
func Own(e Entry, others []Entry) []Range {
	var lost intervals
	for _, o := range others {
		if o.Range() == e.Range() || !o.Claim().Wins(e.Claim()) {
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
// Exact is false where e intersects folded identities. Those are taken to have been
// accepted before e, unless e itself is known and may be one of them. The exact
// answer needs their manifests: list the boot's keys and use the function Own.
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
			// MinInt64 is before every e, whatever its time.
			others = append(others, Entry{Start: r.Start, End: r.End, AcceptedAt: math.MinInt64})
		}
		if l.folded.contains(e.Range()) {
			return nil, false
		}
	}
	return Own(e, others), len(forgotten) == 0
}
