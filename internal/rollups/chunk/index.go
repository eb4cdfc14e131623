package chunk

import (
	"slices"
	"sort"
	"sync"

	"github.com/RoaringBitmap/roaring/v2"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Index says which series a chunk has and where. Series are numbered from 0, ordered by
// metric name, other labels, agent, type and unit. It is safe for use by many goroutines.
type Index struct {
	Chunk        identity.Digest // SHA-256 of the chunk
	Size         int64           // of the chunk
	FooterOffset int64

	symbols    []string // sorted; the first is ""
	sets       labelSets
	series     []indexSeries
	parts      []part
	blocks     []Range
	timeBlocks []Range
	times      []timeInfo

	once     sync.Once // for those below
	postings map[string]*labelPostings
	// Series by their sets: numbers, and where each set's end.
	setSeries, setEnds []uint32
}

// labelSets are the labels of series but __name__, each combination once.
type labelSets struct {
	ends []uint32 // of each set in refs
	refs []labelRef
}

type labelRef struct{ name, value uint32 }

func (l *labelSets) of(i uint32) []labelRef {
	from := uint32(0)
	if i > 0 {
		from = l.ends[i-1]
	}
	return l.refs[from:l.ends[i]]
}

type indexSeries struct {
	name, set, agent, unit uint32
	typ                    series.Type
	parts                  uint32 // number of the first
}

// part is a series' rows in one block.
type part struct{ block, slot, times uint32 }

type timeInfo struct {
	block, slot, rows uint32
	minT, maxT        int64
}

// SeriesRef is a series of an index.
type SeriesRef struct {
	series.ID
	Rows       int
	MinT, MaxT int64 // of T, Unix nanoseconds
}

// Len is the number of series.
func (x *Index) Len() int { return len(x.series) }

// Samples counts the rows of all series.
func (x *Index) Samples() uint64 {
	var n uint64
	for i := range x.parts {
		n += uint64(x.times[x.parts[i].times].rows)
	}
	return n
}

// Series gives series i. Its strings share memory with the index.
func (x *Index) Series(i int) SeriesRef {
	s := &x.series[i]
	ref := SeriesRef{ID: series.ID{Agent: x.symbols[s.agent], Type: s.typ, Unit: x.symbols[s.unit]}}
	ref.Labels = x.AppendLabels(nil, i)
	for k, p := range x.partsOf(i) {
		t := &x.times[p.times]
		ref.Rows += int(t.rows)
		if k == 0 {
			ref.MinT = t.minT
		}
		ref.MaxT = t.maxT
	}
	return ref
}

// AppendLabels appends the labels of series i, sorted by name.
func (x *Index) AppendLabels(dst []series.Label, i int) []series.Label {
	s := &x.series[i]
	named := false
	for _, l := range x.sets.of(s.set) {
		// Label sets leave the name out, so it is put back at its sorted place.
		if n := x.symbols[l.name]; !named && n > nameLabel {
			dst = append(dst, series.Label{Name: nameLabel, Value: x.symbols[s.name]})
			named = true
		}
		dst = append(dst, series.Label{Name: x.symbols[l.name], Value: x.symbols[l.value]})
	}
	if !named {
		dst = append(dst, series.Label{Name: nameLabel, Value: x.symbols[s.name]})
	}
	return dst
}

// Metric is the name of series i.
func (x *Index) Metric(i int) string { return x.symbols[x.series[i].name] }

// Type of series i.
func (x *Index) Type(i int) series.Type { return x.series[i].typ }

// Agent of series i.
func (x *Index) Agent(i int) string { return x.symbols[x.series[i].agent] }

// Parts numbers the stretches of rows of series i, and gives the first and the last whose
// times overlap [mint, maxt] nanoseconds; false when none does. A series has the parts of
// its rows in the order of their times, so that equal parts have equal rows.
func (x *Index) Parts(i int, mint, maxt int64) (first, last int, ok bool) {
	for k, p := range x.partsOf(i) {
		if t := &x.times[p.times]; t.minT <= maxt && t.maxT >= mint {
			if !ok {
				first, ok = k, true
			}
			last = k
		}
	}
	return first, last, ok
}

// Rows counts the rows of parts of series i, both included.
func (x *Index) Rows(i, first, last int) (n int) {
	for _, p := range x.partsOf(i)[first : last+1] {
		n += int(x.times[p.times].rows)
	}
	return n
}

// HasRow reports whether series i has a row in [mint, maxt] nanoseconds, as far as the first and the last times of its
// parts tell; known is false where its rows must be read.
func (x *Index) HasRow(i int, mint, maxt int64) (has, known bool) {
	known = true
	for _, p := range x.partsOf(i) {
		switch t := &x.times[p.times]; {
		case t.minT >= mint && t.minT <= maxt, t.maxT >= mint && t.maxT <= maxt:
			return true, true
		case t.minT < mint && t.maxT > maxt:
			known = false
		}
	}
	return false, known
}

func (x *Index) partsOf(i int) []part {
	from, to := x.series[i].parts, uint32(len(x.parts))
	if i+1 < len(x.series) {
		to = x.series[i+1].parts
	}
	return x.parts[from:to]
}

// Plan gives the ranges of the chunk that hold rows with mint <= T <= maxt of the series
// (numbers in the index), ascending; ranges with at most gap bytes between them are one.
func (x *Index) Plan(series []int, mint, maxt, gap int64) []Range {
	values := make([]bool, len(x.blocks))
	times := make([]bool, len(x.timeBlocks))
	for _, i := range series {
		for _, p := range x.partsOf(i) {
			if t := &x.times[p.times]; t.minT <= maxt && t.maxT >= mint {
				values[p.block] = true
				times[t.block] = true
			}
		}
	}
	var out []Range
	for _, k := range [...]struct {
		want   []bool
		ranges []Range
	}{{values, x.blocks}, {times, x.timeBlocks}} {
		// Blocks are numbered in the order of their bytes, and those of times lie behind those of values,
		// so the ranges ascend.
		for i, want := range k.want {
			if !want {
				continue
			}
			r := k.ranges[i]
			// A few bytes too many cost less than another request.
			if n := len(out); n > 0 && r.Offset-out[n-1].End() <= gap {
				out[n-1].Length = r.End() - out[n-1].Offset
			} else {
				out = append(out, r)
			}
		}
	}
	return out
}

// Matcher selects series by one label. A series without the label has the value "".
type Matcher struct {
	Name string
	// Values that match; nil when Match decides.
	Values []string
	// Match decides for a value when Values is nil; called once a distinct value.
	Match func(value string) bool
	// Not turns the matcher around.
	Not bool
}

// Equal matches one value.
func Equal(name, value string) Matcher { return Matcher{Name: name, Values: []string{value}} }

// labelPostings are the sets that have a label, by value.
type labelPostings struct {
	values []uint32 // symbols, ascending
	sets   []*roaring.Bitmap
	all    *roaring.Bitmap
}

// seriesOf are the series of a set, ascending.
func (x *Index) seriesOf(set uint32) []uint32 {
	from := uint32(0)
	if set > 0 {
		from = x.setEnds[set-1]
	}
	return x.setSeries[from:x.setEnds[set]]
}

// matches reports whether the matcher takes a value.
func (m *Matcher) matches(value string) bool {
	if m.Values != nil {
		return slices.Contains(m.Values, value) != m.Not
	}
	return m.Match(value) != m.Not
}

// prepare builds the postings, once.
func (x *Index) prepare() {
	x.postings = map[string]*labelPostings{}
	x.setEnds = make([]uint32, len(x.sets.ends))
	for i := range x.series {
		x.setEnds[x.series[i].set]++
	}
	// A counting sort: setEnds holds the start of each set first, and moves to its end as the series are
	// put in.
	var end uint32
	for k, n := range x.setEnds {
		x.setEnds[k] = end // of the sets before, for now
		end += n
	}
	x.setSeries = make([]uint32, len(x.series))
	for i := range x.series {
		s := x.series[i].set
		x.setSeries[x.setEnds[s]] = uint32(i)
		x.setEnds[s]++
	}
	byLabel := map[uint32]map[uint32]*roaring.Bitmap{}
	// Postings hold label sets and not series: many series share a set.
	for i := range x.sets.ends {
		for _, l := range x.sets.of(uint32(i)) {
			values := byLabel[l.name]
			if values == nil {
				values = map[uint32]*roaring.Bitmap{}
				byLabel[l.name] = values
			}
			b := values[l.value]
			if b == nil {
				b = roaring.New()
				values[l.value] = b
			}
			b.Add(uint32(i))
		}
	}
	for name, values := range byLabel {
		p := &labelPostings{all: roaring.New()}
		for v := range values {
			p.values = append(p.values, v)
		}
		slices.Sort(p.values)
		for _, v := range p.values {
			p.sets = append(p.sets, values[v])
			p.all.Or(values[v])
		}
		x.postings[x.symbols[name]] = p
	}
}

// Select gives the numbers of the series that all matchers take, ascending.
func (x *Index) Select(matchers ...Matcher) []int {
	var sets *roaring.Bitmap // nil: all
	var names []*Matcher
	for i := range matchers {
		m := &matchers[i]
		// Series are sorted by name, so a name selects ranges and needs no postings; a query by name alone
		// never builds them.
		if m.Name == nameLabel {
			names = append(names, m)
			continue
		}
		x.once.Do(x.prepare)
		b := x.matching(m)
		if sets == nil {
			sets = b
		} else {
			sets.And(b)
		}
		if sets.IsEmpty() {
			return nil
		}
	}
	ranges := x.named(names)
	var out []int
	// Without a name it is cheaper to walk through the matching sets than through all series.
	if sets != nil && len(names) == 0 {
		it := sets.Iterator()
		for it.HasNext() {
			for _, i := range x.seriesOf(it.Next()) {
				out = append(out, int(i))
			}
		}
		slices.Sort(out)
		return out
	}
	for _, r := range ranges {
		for i := r[0]; i < r[1]; i++ {
			if sets == nil || sets.Contains(x.series[i].set) {
				out = append(out, i)
			}
		}
	}
	return out
}

// matching gives the sets that m takes, in a bitmap of the caller's.
func (x *Index) matching(m *Matcher) *roaring.Bitmap {
	out := roaring.New()
	p := x.postings[m.Name]
	if p != nil {
		for k, v := range p.values {
			if m.matches(x.symbols[v]) {
				out.Or(p.sets[k])
			}
		}
	}
	// As in PromQL, a matcher of the empty value also matches series without the label.
	if m.matches("") {
		without := roaring.New()
		without.AddRange(0, uint64(len(x.sets.ends)))
		if p != nil {
			without.AndNot(p.all)
		}
		out.Or(without)
	}
	return out
}

// named gives the ranges of series whose names all matchers take.
func (x *Index) named(matchers []*Matcher) [][2]int {
	if len(matchers) == 0 {
		return [][2]int{{0, len(x.series)}}
	}
	var out [][2]int
	for i := 0; i < len(x.series); {
		name := x.series[i].name
		// Series of one name are next to each other, so each name is matched once.
		end := i + sort.Search(len(x.series)-i, func(k int) bool { return x.series[i+k].name > name })
		take := true
		for _, m := range matchers {
			take = take && m.matches(x.symbols[name])
		}
		if take {
			out = append(out, [2]int{i, end})
		}
		i = end
	}
	return out
}

// LabelNames are the names of all labels, sorted.
func (x *Index) LabelNames() []string {
	x.once.Do(x.prepare)
	out := []string{nameLabel}
	for n := range x.postings {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// HasLabel reports whether a series has the label, other than __name__. It builds no postings.
func (x *Index) HasLabel(name string) bool {
	id, ok := slices.BinarySearch(x.symbols, name)
	return ok && slices.ContainsFunc(x.sets.refs, func(l labelRef) bool { return int(l.name) == id })
}

// LabelValues are the values of a label, sorted.
func (x *Index) LabelValues(name string) []string {
	var out []string
	if name == nameLabel {
		for i := range x.series {
			if i == 0 || x.series[i].name != x.series[i-1].name {
				out = append(out, x.symbols[x.series[i].name])
			}
		}
		return out
	}
	x.once.Do(x.prepare)
	if p := x.postings[name]; p != nil {
		for _, v := range p.values {
			out = append(out, x.symbols[v])
		}
	}
	return out
}
