package chunk

import (
	"cmp"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// tableWriter builds the tables of an index from series.
type tableWriter struct {
	ids   map[string]uint32
	rank  []uint32 // of symbols, by id
	keys  []seriesKey
	refs  []labelRef
	order []uint32 // of keys by their sets
	parts []seriesPart
	last  []seenLabel // by place
	swap  []*Series
}

type seriesKey struct {
	at                     int // number in the order of adding
	typ                    series.Type
	name, agent, unit, set uint32
	from, to               int // labels but the name, in refs
}

// reuse is fill with the series of the last fill, in the same order of adding.
func (w *tableWriter) reuse(x *Index, series []*Series) {
	x.parts, x.blocks, x.timeBlocks, x.times = x.parts[:0], x.blocks[:0], x.timeBlocks[:0], x.times[:0]
	w.parts = w.parts[:0]
	w.arrange(series)
}

// arrange brings the series into the order of the keys.
func (w *tableWriter) arrange(series []*Series) {
	w.swap = append(w.swap[:0], series...)
	for i := range w.keys {
		series[i] = w.swap[w.keys[i].at]
	}
	// A writer that waits for its next hour must not keep the caller's series in memory.
	clear(w.swap)
}

type seenLabel struct {
	label series.Label
	ref   labelRef
}

type seriesPart struct {
	series int
	part
}

func (w *tableWriter) id(x *Index, s string) uint32 {
	id, ok := w.ids[s]
	if !ok {
		id = uint32(len(x.symbols))
		w.ids[s] = id
		x.symbols = append(x.symbols, s)
	}
	return id
}

// fill resets x, sorts the series and fills x's tables of symbols, sets and series.
func (w *tableWriter) fill(x *Index, series []*Series) error {
	*x = Index{symbols: x.symbols[:0], sets: labelSets{x.sets.ends[:0], x.sets.refs[:0]}, series: x.series[:0],
		parts: x.parts[:0], blocks: x.blocks[:0], timeBlocks: x.timeBlocks[:0], times: x.times[:0]}
	if w.ids == nil {
		w.ids = map[string]uint32{}
	}
	clear(w.ids)
	clear(w.last[:cap(w.last)])
	w.keys, w.refs, w.order, w.parts = w.keys[:0], w.refs[:0], w.order[:0], w.parts[:0]
	labels := 0
	for _, s := range series {
		labels += len(s.Labels)
	}
	w.keys, w.refs, w.order = slices.Grow(w.keys, len(series)), slices.Grow(w.refs, labels), slices.Grow(w.order, len(series))
	x.series = slices.Grow(x.series, len(series))
	// The format has the empty string as symbol 0 even when no series uses it.
	w.id(x, "")
	for i, s := range series {
		k := seriesKey{at: i, typ: s.Type, from: len(w.refs), agent: w.id(x, s.Agent), unit: w.id(x, s.Unit)}
		for i, l := range s.Labels {
			if l.Name == nameLabel {
				k.name = w.id(x, l.Value)
				continue
			}
			// Neighbours mostly have the same label at the same place.
			if w.last = grow(w.last, len(s.Labels)); w.last[i].label != l {
				w.last[i] = seenLabel{l, labelRef{w.id(x, l.Name), w.id(x, l.Value)}}
			}
			w.refs = append(w.refs, w.last[i].ref)
		}
		k.to = len(w.refs)
		w.keys = append(w.keys, k)
	}
	// From here on ids are ranks, so comparing numbers compares strings.
	w.sortSymbols(x)
	w.numberSets(x)
	slices.SortFunc(w.keys, compareKeys)
	for i := range w.keys {
		k := &w.keys[i]
		if i > 0 && compareKeys(w.keys[i-1], *k) == 0 {
			return refuse(BadSeries, "%q of agent %q stands twice", series[k.at].Labels, series[k.at].Agent)
		}
		x.series = append(x.series, indexSeries{name: k.name, set: k.set, agent: k.agent, unit: k.unit, typ: k.typ})
	}
	w.arrange(series)
	return nil
}

func compareKeys(a, b seriesKey) int {
	return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.set, b.set), cmp.Compare(a.agent, b.agent),
		cmp.Compare(a.typ, b.typ), cmp.Compare(a.unit, b.unit))
}

// sortSymbols replaces ids in the order of seeing by ranks.
func (w *tableWriter) sortSymbols(x *Index) {
	slices.Sort(x.symbols)
	w.rank = grow(w.rank, len(x.symbols))
	for r, s := range x.symbols {
		w.rank[w.ids[s]] = uint32(r)
	}
	for i := range w.refs {
		w.refs[i] = labelRef{w.rank[w.refs[i].name], w.rank[w.refs[i].value]}
	}
	for i := range w.keys {
		k := &w.keys[i]
		k.name, k.agent, k.unit = w.rank[k.name], w.rank[k.agent], w.rank[k.unit]
	}
}

func (w *tableWriter) numberSets(x *Index) {
	for i := range w.keys {
		w.order = append(w.order, uint32(i))
	}
	labels := func(i uint32) []labelRef { return w.refs[w.keys[i].from:w.keys[i].to] }
	slices.SortFunc(w.order, func(a, b uint32) int { return compareRefs(labels(a), labels(b)) })
	for n, i := range w.order {
		if n == 0 || compareRefs(labels(w.order[n-1]), labels(i)) != 0 {
			x.sets.refs = append(x.sets.refs, labels(i)...)
			x.sets.ends = append(x.sets.ends, uint32(len(x.sets.refs)))
		}
		w.keys[i].set = uint32(len(x.sets.ends) - 1)
	}
}

func compareRefs(a, b []labelRef) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return cmp.Or(cmp.Compare(a[i].name, b[i].name), cmp.Compare(a[i].value, b[i].value))
		}
	}
	return cmp.Compare(len(a), len(b))
}

func (w *tableWriter) addPart(series int, p part) {
	w.parts = append(w.parts, seriesPart{series, p})
}

// sortParts brings the parts into the order of their series.
func (w *tableWriter) sortParts(x *Index) {
	// Stable, since the parts of one series were added in the order of time and must stay so.
	slices.SortStableFunc(w.parts, func(a, b seriesPart) int { return cmp.Compare(a.series, b.series) })
	for i := range w.parts {
		if i == 0 || w.parts[i].series != w.parts[i-1].series {
			x.series[w.parts[i].series].parts = uint32(i)
		}
		x.parts = append(x.parts, w.parts[i].part)
	}
}
