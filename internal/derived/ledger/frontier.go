package ledger

// Frontier is the sequence number up to which nothing more is expected. It is the end of the
// last interval that has only closed gaps below it. A gap is closed when something above it
// was accepted before closedBefore (Unix nanoseconds): numbers that are still missing then
// were dropped, or dead-lettered, by the agent. The numbers below FirstSeq are a gap like any
// other, because the first identity that was seen need not be the boot's first. False when
// the lowest gap is open, or nothing was added.
func (l *Ledger) Frontier(closedBefore int64) (uint64, bool) {
	if l.Empty() || l.all[0].Start > 0 && l.all[0].since >= closedBefore {
		return 0, false
	}
	i := 0
	for i+1 < len(l.all) && l.all[i+1].since < closedBefore {
		i++
	}
	return l.all[i].End, true
}

// ListFrom is the sequence number from which the frontier audit lists a boot's keys: it
// sees every identity that starts there or later. It lies back identities before the
// frontier, so that the audit also sees overlaps with the newest ones. An identity that
// starts below it and was not added either overlaps accepted ones or fills a closed gap;
// only a full listing finds it. False: list from the start.
func (l *Ledger) ListFrom(closedBefore int64, back int) (uint64, bool) {
	f, ok := l.Frontier(closedBefore)
	if !ok {
		return 0, false
	}
	n := 0 // identities of recent that start at the frontier or before
	for n < len(l.recent) && l.recent[n].Start <= f {
		n++
	}
	if n == 0 || back <= 0 {
		// There is no number after the greatest one.
		if f == ^uint64(0) {
			return f, true
		}
		return f + 1, true
	}
	return l.recent[max(0, n-back)].Start, true
}
