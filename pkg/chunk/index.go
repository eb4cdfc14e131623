package chunk

import (
	"sync"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
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
	typ                    frame.MetricType
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
	Agent string
	// Labels sorted by name, __name__ among them.
	Labels     []frame.Label
	Type       frame.MetricType
	Unit       string
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
	ref := SeriesRef{Agent: x.symbols[s.agent], Type: s.typ, Unit: x.symbols[s.unit]}
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
func (x *Index) AppendLabels(dst []frame.Label, i int) []frame.Label {
	s := &x.series[i]
	named := false
	for _, l := range x.sets.of(s.set) {
		if n := x.symbols[l.name]; !named && n > nameLabel {
			dst = append(dst, frame.Label{Name: nameLabel, Value: x.symbols[s.name]})
			named = true
		}
		dst = append(dst, frame.Label{Name: x.symbols[l.name], Value: x.symbols[l.value]})
	}
	if !named {
		dst = append(dst, frame.Label{Name: nameLabel, Value: x.symbols[s.name]})
	}
	return dst
}

// Metric is the name of series i.
func (x *Index) Metric(i int) string { return x.symbols[x.series[i].name] }

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

func (x *Index) partsOf(i int) []part {
	from, to := x.series[i].parts, uint32(len(x.parts))
	if i+1 < len(x.series) {
		to = x.series[i+1].parts
	}
	return x.parts[from:to]
}
