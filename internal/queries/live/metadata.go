package live

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// meaning is the type and unit that a shape gives a series. A series is identified by its labels alone, so two
// shapes may give it two meanings: a target was updated, or two targets disagree.
type meaning struct {
	typ  series.Type
	unit string
}

func (a meaning) compare(b meaning) int {
	return cmp.Or(cmp.Compare(a.typ, b.typ), cmp.Compare(a.unit, b.unit))
}

// maxMeanings bounds the table; further units are stored as unknown.
const maxMeanings = 1_000

func (s *Store) meaningOf(t series.Type, unit string) uint32 {
	m := meaning{t, unit}
	id, ok := s.meanIDs[m]
	if !ok && len(s.means) >= maxMeanings {
		m.unit = ""
		id, ok = s.meanIDs[m]
	}
	if !ok {
		m.unit = strings.Clone(m.unit) // a substring would keep the frame's buffer in memory
		id = uint32(len(s.means))
		s.means = append(s.means, m)
		s.meanIDs[m] = id
	}
	return id
}

// Metadata is type, unit and help of a metric. Its series may differ in type and unit; the help is the same for
// all.
type Metadata struct {
	Name string
	Type series.Type
	Unit string
	Help string
}

// Metadata lists the distinct (name, type, unit), sorted, with the newest help of each name; if name is not empty,
// those of one metric. Of a series that changed its type or unit it lists those of the newest samples.
func (p *Snapshot) Metadata(ctx context.Context, name string) ([]Metadata, error) {
	var ms []*labels.Matcher
	if name != "" {
		ms = append(ms, labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, name))
	}
	all, err := p.find(ctx, ms)
	if err != nil {
		return nil, err
	}
	p.store.mu.RLock()
	// means only grows. Taken after find, it has all meanings that the series found refer to, and stays
	// valid without the lock.
	means := p.store.means
	p.store.mu.RUnlock()
	newest := map[*shapeGroup]int64{}
	set := map[Metadata]struct{}{}
	for i := range all {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		m := p.newestMeaning(&all[i], means, newest)
		set[Metadata{Name: all[i].labels.Get(model.MetricNameLabel), Type: m.typ, Unit: m.unit}] = struct{}{}
	}
	out := make([]Metadata, 0, len(set))
	for m := range set {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Metadata) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), meaning{a.Type, a.Unit}.compare(meaning{b.Type, b.Unit}))
	})
	p.store.helpsOf(out)
	return out, nil
}

// newestMeaning is the meaning by the shape with the latest sample; newest caches the times of shapes.
func (p *Snapshot) newestMeaning(f *found, means []meaning, newest map[*shapeGroup]int64) (out meaning) {
	if len(f.places) == 1 {
		return means[f.places[0].group.means[f.places[0].pos]]
	}
	best := int64(math.MinInt64)
	for i, pl := range f.places {
		at, ok := newest[pl.group]
		if !ok {
			at = p.newestSample(pl.segments)
			newest[pl.group] = at
		}
		m := means[pl.group.means[pl.pos]]
		// A tie is decided by the values, so that the answer does not depend on the order of shapes.
		if i == 0 || at > best || at == best && m.compare(out) > 0 {
			best, out = at, m
		}
	}
	return out
}

// newestSample is the time of the last sample that the snapshot sees, milliseconds.
func (p *Snapshot) newestSample(segs []*segment) int64 {
	at := int64(math.MinInt64)
	for _, seg := range segs {
		for i := range seg.parts {
			// The last row of a part is the one before to, whatever lies between its rows.
			if pt := &seg.parts[i]; pt.batch.visible(p.version) {
				at = max(at, seg.ms[pt.to-1])
			}
		}
	}
	return at
}
