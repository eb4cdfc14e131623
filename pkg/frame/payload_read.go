package frame

import "lightmetrics.dev/lightmetrics/pkg/series"

// Memory of table entries in a reader, in bytes, counted against Limits.DecodedBytes. The
// payload can describe an entry in a byte or two, so its length does not bound the memory.
const (
	stringCost    = 16
	labelCost     = 8
	seriesCost    = 48
	histogramCost = 192
	groupCost     = 256
)

// reader builds a Batch from its payload.
type reader struct {
	b       *Batch
	lim     *Limits
	budget  int    // memory left for tables
	records uint64 // records of the identity that are not read yet
	next    uint32 // the string that reference 0 stands for: the first that no label has used
	same    bool   // all tables so far are those of the batch before
}

// spend subtracts n entries of cost bytes from the budget, before their memory is allocated.
func (r *reader) spend(n, cost int) error {
	if r.budget -= n * cost; r.budget < 0 {
		return refuse(DecodedTooLarge, "tables need more than %d bytes of memory", r.lim.DecodedBytes)
	}
	return nil
}

// read fills b, whose Identity is the header's, from payload.
func (b *Batch) read(payload []byte, lim *Limits) error {
	r := reader{b: b, lim: lim, budget: lim.DecodedBytes, records: b.Identity.Count(), next: 1}
	kept := &b.arena.kept
	// Under other limits the tables have to be checked again.
	if r.same = kept.lim == *lim; !r.same {
		r.differ(true, 0)
		kept.lim = *lim
	}
	// From here on the parts of the batch before, which share this memory, are invalid.
	b.arena.refs, b.arena.floats, b.arena.spans = b.arena.refs[:0], b.arena.floats[:0], b.arena.spans[:0]
	f := fields{b: payload}
	if err := r.identity(f.bytes(1)); err != nil {
		return err
	}
	if err := r.strings(f.bytes(2), f.bytes(3), f.bytes(4)); err != nil {
		return err
	}
	if err := r.resource(f.bytes(5)); err != nil {
		return err
	}
	n := 0
	for {
		start := f.pos
		body := f.bytes(6)
		if f.pos == start {
			break
		}
		if err := r.spend(1, groupCost); err != nil {
			return err
		}
		if n == cap(b.Groups) {
			b.Groups = append(b.Groups[:n], Group{})
		}
		b.Groups = b.Groups[:n+1] // reuses the memory of a group of an earlier batch
		if n == len(kept.groups) {
			kept.groups = append(kept.groups, keptTable{})
		}
		if err := r.group(n, body); err != nil {
			return err
		}
		n++
	}
	b.Groups = b.Groups[:n]
	names, lengths, texts := f.bytes(9), f.bytes(10), f.bytes(11)
	if err := f.end("batch"); err != nil {
		return err
	}
	if err := r.helps(names, lengths, texts); err != nil {
		return err
	}
	if r.records != 0 {
		return refuse(RecordCountMismatch, "%d records fewer than the identity's %d", r.records, b.Identity.Count())
	}
	r.number(n)
	return nil
}

func (r *reader) identity(body []byte) error {
	f := fields{b: body}
	agent, boot := f.bytes(1), f.bytes(2)
	start, end := f.uvarint(3), f.uvarint(4)
	if err := f.end("identity"); err != nil {
		return err
	}
	id := &r.b.Identity
	if string(agent) != id.Agent || string(boot) != id.Boot || start != id.SeqStart || end != id.SeqEnd {
		return refuse(IdentityMismatch, "payload is of %q/%q/%d-%d, header of %v", clip(string(agent)), clip(string(boot)), start, end, *id)
	}
	return nil
}

// takeRefs returns n label references of arena memory.
func (r *reader) takeRefs(n int) ([]series.LabelRef, error) {
	if err := r.spend(n, labelCost); err != nil {
		return nil, err
	}
	a := &r.b.arena.refs
	if cap(*a)-len(*a) < n {
		*a = make([]series.LabelRef, 0, max(n, 2*cap(*a))) // series that were read keep the old array
	}
	l := len(*a)
	*a = (*a)[:l+n]
	return (*a)[l : l+n : l+n], nil
}

func (r *reader) resource(col []byte) error {
	kept := &r.b.arena.kept.resource
	if hit, err := r.hit(kept, col); hit {
		return err
	}
	r.differ(true, 0)
	n := countVarints(col)
	if n%2 != 0 || n > 2*r.lim.SeriesLabels {
		return refuse(BadLabels, "resource of %d references", n)
	}
	refs, err := r.takeRefs(n / 2)
	if err != nil {
		return err
	}
	pos := 0
	for i := range refs {
		var name, value uint64
		if name, pos = uvarint(col, pos); pos >= 0 {
			value, pos = uvarint(col, pos)
		}
		if pos < 0 || max(name, value) >= uint64(len(r.b.Strings)) {
			return refuse(BadLabels, "resource label %d refers to no string", i)
		}
		refs[i] = series.LabelRef{Name: uint32(name), Value: uint32(value)}
	}
	r.b.Resource = refs
	r.next = nextRef(refs, r.next)
	if err := r.b.validateLabels(refs, false, r.lim); err != nil {
		return err
	}
	r.keep(kept, col, len(refs), false)
	return nil
}

// countVarints is the number of varints in a packed column: of the bytes without the continuation bit.
func countVarints(col []byte) int {
	n := 0
	for _, c := range col {
		n += int(c>>7 ^ 1)
	}
	return n
}

func (r *reader) group(i int, body []byte) error {
	g, kept := &r.b.Groups[i], &r.b.arena.kept.groups[i]
	f := fields{b: body}
	rows, ts := f.uvarint(1), f.bytes(2)
	table := f.pos
	counts := f.bytes(3)
	series := uint64(countVarints(counts))
	switch {
	case f.err != nil:
		return f.err
	case rows == 0 || series == 0:
		return refuse(BadPayload, "group of %d series and %d rows", series, rows)
	// Each timestamp takes at least a byte, so the frame's length bounds the allocation.
	case rows > uint64(len(ts)):
		return refuse(BadColumn, "timestamps: %d bytes for %d rows", len(ts), rows)
	case rows > r.records || series > r.records/rows: // as series*rows > records, without overflow
		return refuse(RecordCountMismatch, "group of %d series and %d rows, the identity has %d records left", series, rows, r.records)
	}
	n := int(rows * series)
	r.records -= uint64(n)
	g.Timestamps = resize(g.Timestamps, int(rows))
	if err := decodeTimestamps(g.Timestamps, ts); err != nil {
		return err
	}
	if err := r.spend(int(series), seriesCost); err != nil {
		return err
	}
	columns := seriesColumns{f.bytes(4), f.bytes(5), f.bytes(6), f.bytes(7), f.bytes(8)}
	if f.err != nil {
		return f.err
	}
	encoded := f.b[table:f.pos]
	hit, err := r.hit(kept, encoded)
	if err != nil {
		return err
	}
	refs := kept.refs
	if !hit {
		r.differ(false, i)
		g.Series = resize(g.Series, int(series))
		if refs, err = r.series(g.Series, counts, &columns); err != nil {
			return err
		}
	}
	modes, values := f.bytes(9), f.bytes(10)
	// Only groups of samples have modes.
	if modes == nil {
		g.Values = nil
		if err := r.histograms(g, n, &f); err != nil {
			return err
		}
	} else {
		g.Histograms = nil
		if uint64(len(modes)) != series || n > len(values) {
			return refuse(BadColumn, "values: %d modes and %d bytes for %d series and %d records", len(modes), len(values), series, n)
		}
		g.Values = resize(g.Values, n)
		if err := decodeValues(g.Values, int(rows), modes, values); err != nil {
			return err
		}
	}
	if err := f.end("group"); err != nil {
		return err
	}
	if hit && kept.histograms == (modes == nil) {
		return nil
	}
	r.differ(false, i)
	for i := range g.Series {
		if err := r.b.validateSeries(&g.Series[i], modes == nil, r.lim); err != nil {
			return err
		}
	}
	r.keep(kept, encoded, refs, modes == nil)
	return nil
}

// seriesColumns are the encoded columns of a group's series that follow the counts of their labels.
type seriesColumns struct{ names, values, types, units, starts []byte }

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// series reads the series table and returns the number of its labels.
func (r *reader) series(out []series.Ref, counts []byte, col *seriesColumns) (labels int, err error) {
	total := countVarints(col.names)
	if len(col.types) != len(out) {
		return 0, refuse(BadColumn, "types: %d bytes for %d series", len(col.types), len(out))
	}
	refs, err := r.takeRefs(total)
	if err != nil {
		return 0, err
	}
	if err := r.references(refs, col.names, col.values); err != nil {
		return 0, err
	}
	var at, unitAt, startAt int
	var start int64
	for i := range out {
		var n, unit, delta uint64
		if n, at = uvarint(counts, at); at < 0 || n > uint64(len(refs)) {
			return 0, refuse(BadColumn, "label counts: series %d has more labels than there are", i)
		}
		if len(col.units) > 0 {
			if unit, unitAt = uvarint(col.units, unitAt); unitAt < 0 || unit >= uint64(len(r.b.Strings)) {
				return 0, refuse(BadColumn, "units: series %d has none or one beyond the string table", i)
			}
		}
		if len(col.starts) > 0 {
			if delta, startAt = uvarint(col.starts, startAt); startAt < 0 {
				return 0, refuse(BadColumn, "start times: column ends in series %d", i)
			}
			start += unzigzag(delta)
		}
		out[i] = series.Ref{Labels: refs[:n:n], Type: series.Type(col.types[i]), Unit: uint32(unit), StartTime: start}
		refs = refs[n:]
	}
	if len(refs) > 0 || at != len(counts) || unitAt != len(col.units) || startAt != len(col.starts) {
		return 0, refuse(BadColumn, "series columns have more entries than there are series")
	}
	return total, nil
}

// references reads the columns of label names and values. Reference 0 is the next string that was not used yet, which compresses well in a first batch.
func (r *reader) references(refs []series.LabelRef, names, values []byte) error {
	next, limit := r.next, uint64(len(r.b.Strings))
	var nameAt, valueAt int
	for i := range refs {
		var u uint64
		if u, nameAt = uvarint(names, nameAt); nameAt < 0 {
			return refuse(BadColumn, "label names: column ends in label %d", i)
		}
		if u == 0 {
			u = uint64(next)
		}
		if u >= limit {
			return refuse(BadLabels, "label %d refers to string %d of %d", i, u, limit)
		}
		refs[i].Name, next = uint32(u), max(next, uint32(u)+1)
		if u, valueAt = uvarint(values, valueAt); valueAt < 0 {
			return refuse(BadColumn, "label values: column ends in label %d", i)
		}
		if u == 0 {
			u = uint64(next)
		}
		if u >= limit {
			return refuse(BadLabels, "label %d refers to string %d of %d", i, u, limit)
		}
		refs[i].Value, next = uint32(u), max(next, uint32(u)+1)
	}
	if nameAt != len(names) || valueAt != len(values) {
		return refuse(BadColumn, "label names and values differ in length")
	}
	r.next = next
	return nil
}
