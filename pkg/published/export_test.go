package published

// ColumnBytes is what the cache of decoded columns holds, and may hold.
func (r *Reader) ColumnBytes() (held, bound int64) { return r.columns.bytes(), r.columns.max }

// SelectionBytes is the most that an index holds of answers to matchers, as a part of what
// it may hold; 0 when no index does.
func (r *Reader) SelectionBytes() (most float64) {
	r.indexes.mu.Lock()
	defer r.indexes.mu.Unlock()
	for _, e := range r.indexes.at {
		s := &e.Value.(*lruEntry[string, *index]).v.selections
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
