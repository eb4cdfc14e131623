package published

// ColumnBytes is what the cache of decoded columns holds, and may hold.
func (r *Reader) ColumnBytes() (held, bound int64) { return r.columns.Weight(), r.columns.Limit() }

// SelectionBytes is the most that an index holds of answers to matchers, as a part of what
// it may hold; 0 when no index does.
func (r *Reader) SelectionBytes() (most float64) {
	for _, x := range r.indexes.Values() {
		s := &x.selections
		s.mu.Lock()
		var held int64
		for k, v := range s.at {
			held += int64(len(k)+8*cap(v)) + selectionOverhead
		}
		most = max(most, float64(held)/float64(s.max))
		s.mu.Unlock()
	}
	return most
}

// PlanBytes is the most that a plan holds about matchers, as a part of what it may hold;
// and how many plans there are.
func (r *Reader) PlanBytes() (most float64, plans int) {
	r.plans.mu.Lock()
	defer r.plans.mu.Unlock()
	for _, p := range r.plans.last {
		p.mu.Lock()
		var held int64
		for k, v := range p.none {
			held += int64(len(k)+8*len(v.bits)) + selectionOverhead
		}
		most = max(most, float64(held)/float64(planBytes+len(p.units)))
		p.mu.Unlock()
	}
	return most, len(r.plans.last)
}
