package ledger

// Frontier is the sequence number through which nothing more is expected: the end
// of the first interval that has no open gap below it, moved over every gap that is
// settled. What lies below FirstSeq is a gap like any other: the first identity that
// was seen need not be the boot's first. A gap is settled when something above it was
// accepted before settledBefore (Unix nanoseconds): whatever is still missing then
// was dropped, or dead-lettered, by the agent. False when there is no such interval.
func (l *Ledger) Frontier(settledBefore int64) (uint64, bool) {
	if l.Empty() || l.all[0].Start > 0 && l.all[0].since >= settledBefore {
		return 0, false
	}
	i := 0
	for i+1 < len(l.all) && l.all[i+1].since < settledBefore {
		i++
	}
	return l.all[i].End, true
}

// ListFrom is the sequence number from which the frontier audit lists a boot's
// keys: every identity that starts at it or later is seen. It lies back identities
// before the frontier, so that overlaps with the newest ones are seen too. An
// identity that starts below it and was not added overlaps accepted ones or fills a
// settled gap; only a full listing finds it. False: list from the start.
func (l *Ledger) ListFrom(settledBefore int64, back int) (uint64, bool) {
	f, ok := l.Frontier(settledBefore)
	if !ok {
		return 0, false
	}
	n := 0 // identities of recent that start at the frontier or before
	for n < len(l.recent) && l.recent[n].Start <= f {
		n++
	}
	if n == 0 || back <= 0 {
		if f == ^uint64(0) {
			return f, true
		}
		return f + 1, true
	}
	return l.recent[max(0, n-back)].Start, true
}
