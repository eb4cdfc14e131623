package live

import (
	"context"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
)

// postings maps labels to series ids, ascending. Ids only grow, so adding is appending.
type postings struct {
	all    []uint32
	values map[string]map[string][]uint32
	dead   map[uint32]struct{} // removed from the table, still in the lists
}

func newPostings() postings {
	return postings{values: map[string]map[string][]uint32{}, dead: map[uint32]struct{}{}}
}

// Estimates of the heap bytes of a name or a value that is new to the index.
const (
	nameOverhead  = 400
	valueOverhead = 168
)

// add returns an estimate of the heap bytes of the names and values that are new.
func (p *postings) add(id uint32, ls labels.Labels) (bytes int64) {
	p.all = append(p.all, id)
	ls.Range(func(l labels.Label) {
		vs := p.values[l.Name]
		if vs == nil {
			vs = map[string][]uint32{}
			p.values[l.Name] = vs
			bytes += nameOverhead
		}
		ids, ok := vs[l.Value]
		if !ok {
			bytes += valueOverhead
		}
		vs[l.Value] = append(ids, id)
	})
	return bytes
}

// remove marks an id as dead. The lists are swept once a sixteenth of the ids is dead, as dead ids are not in the
// estimate of the heap any more. It reports whether it swept.
func (p *postings) remove(id uint32) (swept bool) {
	p.dead[id] = struct{}{}
	if swept = 16*len(p.dead) > len(p.all); swept {
		p.sweep()
	}
	return swept
}

func (p *postings) sweep() {
	gone := func(id uint32) bool { _, ok := p.dead[id]; return ok }
	p.all = slices.DeleteFunc(p.all, gone)
	for name, vs := range p.values {
		for v, ids := range vs {
			if ids = slices.DeleteFunc(ids, gone); len(ids) == 0 {
				delete(vs, v)
			} else {
				vs[v] = slices.Clip(ids)
			}
		}
		if len(vs) == 0 {
			delete(p.values, name)
		}
	}
	clear(p.dead)
}

// alive reports whether one of ids is below next and was not removed.
func (p *postings) alive(ids []uint32, next uint32) bool {
	for _, id := range ids {
		if id >= next {
			return false
		}
		if _, dead := p.dead[id]; !dead {
			return true
		}
	}
	return false
}

// scanned are the values that a matcher accepts; for a matcher that also accepts series without the label, those
// that it refuses.
type scanned map[*labels.Matcher][]string

// scans reports whether the values for m are found by trying all of them.
func scans(m *labels.Matcher) bool {
	switch m.Type {
	case labels.MatchEqual, labels.MatchNotEqual:
		return m.Value == "" // asks for series with or without the label at all
	}
	return len(m.SetMatches()) == 0 || m.Matches("") == (m.Type == labels.MatchRegexp)
}

// valuesOf returns all values of a label, in no order.
func (p *postings) valuesOf(name string) []string {
	vs := p.values[name]
	out := make([]string, 0, len(vs))
	for v := range vs {
		out = append(out, v)
	}
	return out
}

// scan tries m on values. It runs without the lock: an expression over many values may take long.
func scan(ctx context.Context, m *labels.Matcher, values []string) ([]string, error) {
	want := !m.Matches("") // otherwise collect the values that it refuses
	out := values[:0]
	for _, v := range values {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if m.Matches(v) == want {
			out = append(out, v)
		}
	}
	return out, nil
}

// match returns the ids that satisfy all matchers, ascending; sc has what was scanned. The result may share memory
// with the index: it is valid only under the lock.
func (p *postings) match(ms []*labels.Matcher, sc scanned) []uint32 {
	var ids []uint32
	started := false
	var filters []*labels.Matcher
	// Matchers that require the label come first: they start from few series.
	for _, m := range ms {
		if m.Matches("") {
			filters = append(filters, m)
			continue
		}
		got := p.lists(m, sc)
		if started {
			got = intersect(ids, got)
		}
		if ids, started = got, true; len(ids) == 0 {
			return nil
		}
	}
	if !started {
		ids = p.all
	}
	for _, m := range filters {
		// Such a matcher accepts series without the label, so the series with a value that it refuses are taken
		// away.
		ids = without(ids, p.lists(m, sc))
	}
	return ids
}

// lists returns the series whose label has a value that m accepts; for a matcher that also accepts series without
// the label, one that it refuses.
func (p *postings) lists(m *labels.Matcher, sc scanned) []uint32 {
	vs := p.values[m.Name]
	values, ok := sc[m]
	if !ok {
		// A single value needs no union: the list of the index is returned without a copy.
		if m.Type == labels.MatchEqual || m.Type == labels.MatchNotEqual {
			return vs[m.Value]
		}
		values = m.SetMatches()
	}
	lists := make([][]uint32, 0, len(values))
	for _, v := range values {
		if ids := vs[v]; ids != nil {
			lists = append(lists, ids)
		}
	}
	return union(lists)
}

func union(lists [][]uint32) []uint32 {
	switch len(lists) {
	case 0:
		return nil
	case 1:
		return lists[0]
	}
	n := 0
	for _, l := range lists {
		n += len(l)
	}
	out := make([]uint32, 0, n)
	for _, l := range lists {
		out = append(out, l...)
	}
	slices.Sort(out)
	return slices.Compact(out) // a matcher's set may name a value twice
}

func intersect(a, b []uint32) []uint32 {
	if len(a) > len(b) {
		a, b = b, a
	}
	var out []uint32
	if len(b) > 16*len(a) { // far fewer on one side: search in the other instead of walking through it
		for _, id := range a {
			i, ok := slices.BinarySearch(b, id)
			if ok {
				out = append(out, id)
			}
			b = b[i:]
		}
		return out
	}
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0] < b[0]:
			a = a[1:]
		case a[0] > b[0]:
			b = b[1:]
		default:
			out = append(out, a[0])
			a, b = a[1:], b[1:]
		}
	}
	return out
}

func without(a, b []uint32) []uint32 {
	if len(b) == 0 {
		return a
	}
	out := make([]uint32, 0, len(a))
	for _, id := range a {
		for len(b) > 0 && b[0] < id {
			b = b[1:]
		}
		if len(b) == 0 || b[0] != id {
			out = append(out, id)
		}
	}
	return out
}
