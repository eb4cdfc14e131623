package promeval

import (
	"math"
	"sync"
	"unsafe"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/schema"
	"github.com/prometheus/prometheus/util/kahansum"
)

// aggregates reports whether an aggregation is one of those below.
func aggregates(op parser.ItemType) bool {
	switch op {
	case parser.SUM, parser.AVG, parser.MIN, parser.MAX, parser.COUNT, parser.GROUP, parser.STDDEV, parser.STDVAR:
		return true
	}
	return false
}

// groups aggregates series as they come. For each step the engine goes through the series in their order; here each series
// goes through its steps. So every step of a group has the same values added in the same order.
type groups struct {
	*aggregation
	by    []string // see aggregation.grouped
	at    map[uint64]int
	all   []group
	buf   []byte
	build labels.Builder
	slabs []*slab // that have the cells of groups
	rest  []cell  // of the last one
}

type group struct {
	labels labels.Labels
	cells  []cell
}

// cell is a group at one step.
type cell struct {
	value, c, mean, count float64
	seen, incremental     bool
}

const cellBytes = int64(unsafe.Sizeof(cell{}))

// slab is the cells of several groups. Queries use it one after the other.
type slab [4096]cell

var slabs = sync.Pool{New: func() any { return new(slab) }}

// needs is how many cells take makes room for: a whole slab, whose rest may be too short for the next group.
func (g *groups) needs(steps int) int {
	switch {
	case steps > len(slab{}):
		return steps
	case steps > len(g.rest):
		return len(slab{})
	}
	return 0
}

// take returns so many cells without values.
func (g *groups) take(steps int) []cell {
	if steps > len(slab{}) {
		return make([]cell, steps)
	}
	if steps > len(g.rest) {
		s := slabs.Get().(*slab)
		g.slabs, g.rest = append(g.slabs, s), s[:]
	}
	cells := g.rest[:steps:steps]
	g.rest = g.rest[steps:]
	clear(cells)
	return cells
}

// release ends the use of all cells.
func (g *groups) release() {
	if g == nil {
		return
	}
	for _, s := range g.slabs {
		slabs.Put(s)
	}
	g.all, g.slabs, g.rest = nil, nil, nil
}

// of returns the group of a series; fresh when it is its first one.
func (g *groups) of(ls labels.Labels) (to *group, fresh bool) {
	var key uint64
	switch {
	case g.without:
		key, g.buf = ls.HashWithoutLabels(g.buf, g.by...)
	case len(g.by) > 0:
		key, g.buf = ls.HashForLabels(g.buf, g.by...)
	}
	if i, ok := g.at[key]; ok {
		return &g.all[i], false
	}
	g.build.Reset(ls)
	if g.without {
		g.build.Del(g.by...)
		g.build.Del(model.MetricNameLabel)
	} else {
		g.build.Keep(g.by...)
	}
	g.at[key] = len(g.all)
	g.all = append(g.all, group{labels: g.build.Labels()})
	return &g.all[len(g.all)-1], true
}

// meet reports whether groups have equal labels once they lose the reserved ones.
func (g *groups) meet() bool {
	seen := make(map[uint64]struct{}, len(g.all))
	for i := range g.all {
		seen[g.all[i].labels.DropReserved(schema.IsMetadataLabel).Hash()] = struct{}{}
	}
	return len(seen) < len(g.all)
}

// add is the step of promql's aggregation for floats.
func (g *groups) add(to *group, points []point) {
	switch g.op {
	case parser.SUM:
		for _, p := range points {
			if k := &to.cells[p.step]; !k.begins(p.v) {
				k.value, k.c = kahansum.Inc(p.v, k.value, k.c)
			}
		}
	case parser.AVG:
		for _, p := range points {
			if k := &to.cells[p.step]; !k.begins(p.v) {
				k.average(p.v)
			}
		}
	case parser.MAX:
		for _, p := range points {
			if k := &to.cells[p.step]; !k.begins(p.v) && (k.value < p.v || math.IsNaN(k.value)) {
				k.value = p.v
			}
		}
	case parser.MIN:
		for _, p := range points {
			if k := &to.cells[p.step]; !k.begins(p.v) && (k.value > p.v || math.IsNaN(k.value)) {
				k.value = p.v
			}
		}
	case parser.COUNT, parser.GROUP:
		for _, p := range points {
			if k := &to.cells[p.step]; !k.begins(1) {
				k.count++
			}
		}
	case parser.STDDEV, parser.STDVAR:
		for _, p := range points {
			k := &to.cells[p.step]
			if k.begins(p.v) {
				k.value = 0
				if math.IsNaN(p.v) || math.IsInf(p.v, 0) {
					k.value = math.NaN()
				}
				continue
			}
			k.count++
			delta := p.v - k.mean
			k.mean += delta / k.count
			k.value += delta * (p.v - k.mean)
		}
	}
}

// begins takes the first value of a cell.
func (k *cell) begins(v float64) bool {
	if k.seen {
		return false
	}
	*k = cell{value: v, mean: v, count: 1, seen: true}
	return true
}

func (k *cell) average(v float64) {
	k.count++
	if !k.incremental {
		sum, c := kahansum.Inc(v, k.value, k.c)
		if !math.IsInf(sum, 0) {
			k.value, k.c = sum, c
			return
		}
		// The sum overflows, but the mean need not.
		k.incremental = true
		k.mean = k.value / (k.count - 1)
		k.c /= k.count - 1
	}
	q := (k.count - 1) / k.count
	k.mean, k.c = kahansum.Inc(v/k.count, q*k.mean, q*k.c)
}

// points appends the results of a group.
func (g *groups) points(of *group, into []point) []point {
	for i := range of.cells {
		k := &of.cells[i]
		if !k.seen {
			continue
		}
		v := k.value
		switch g.op {
		case parser.SUM:
			v += k.c
		case parser.AVG:
			if k.incremental {
				v = k.mean + k.c
			} else {
				v = v/k.count + k.c/k.count
			}
		case parser.COUNT:
			v = k.count
		case parser.STDVAR:
			v /= k.count
		case parser.STDDEV:
			v = math.Sqrt(v / k.count)
		}
		into = append(into, point{int32(i), v})
	}
	return into
}
