package live

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
)

// Snapshot is one version of a store. It must be closed.
type Snapshot struct {
	store   *Store
	version uint64
	nextID  uint32
	closed  bool

	// From is the oldest sample time of the history window, in milliseconds.
	From int64
	lost []Span // see Lost

	coverage Coverage // nil: nothing is published
}

// Snapshot opens the store's version at now.
func (s *Store) Snapshot(now time.Time) *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Counted under the lock, so that vacuum can't free in between what this version sees.
	s.open[s.version]++
	return &Snapshot{store: s, version: s.version, nextID: s.nextID, From: s.Horizon(now), lost: s.lost.spans()}
}

// AgentLabel is the store's Config.AgentLabel.
func (p *Snapshot) AgentLabel() agentlabel.Name { return p.store.cfg.AgentLabel }

// Close lets the store free what only this snapshot could see. It must not run concurrently with reads.
func (p *Snapshot) Close() {
	if p.closed {
		return
	}
	p.closed = true
	s := p.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[p.version]--; s.open[p.version] == 0 {
		delete(s.open, p.version)
		s.vacuum()
	}
}

// Series is one label set with its columns in a time range.
type Series struct {
	Labels labels.Labels
	snap   *Snapshot
	first  column
	more   []column // further ones of a series that is in several shapes
}

// column is where a series stands in a view.
type column struct {
	view *view
	pos  uint32
}

func (s *Series) column(i int) column {
	if i == 0 {
		return s.first
	}
	return s.more[i-1]
}

// Bytes estimates the memory of the series without its labels, which the store owns.
func (s *Series) Bytes() int64 { return int64(1+cap(s.more)) * 16 }

// Times returns those of its first and last row in memory, in the range or shortly outside.
func (s *Series) Times() (first, last int64) {
	first, last = math.MaxInt64, math.MinInt64
	for i := range 1 + len(s.more) {
		cs := s.column(i).view.clusters
		first, last = min(first, cs[0].minT), max(last, cs[len(cs)-1].maxT)
	}
	return first, last
}

// Has reports whether the series has a sample in the range for which it was selected. Mostly that is known of all series
// of a batch at once, and no sample is read.
func (s *Series) Has() bool {
	unknown := false
	for i := range 1 + len(s.more) {
		switch s.column(i).view.has() {
		case yes:
			return true
		case bySeq:
			unknown = true
		}
	}
	if !unknown {
		return false
	}
	runs := s.Runs(s.first.view.mint, s.first.view.maxt)
	_, ok := runs.Next()
	return ok
}

// checkEvery bounds how many series are processed between two checks of the context.
const checkEvery = 1024

// Select returns the series that match all matchers and have a segment in [mint, maxt] (milliseconds, inclusive),
// in no order. A segment may turn out to have no sample in the range.
func (p *Snapshot) Select(ctx context.Context, mint, maxt int64, ms ...*labels.Matcher) ([]Series, error) {
	return p.selected(ctx, mint, maxt, false, ms)
}

// Listed is Select for lists of series: it returns those that have a sample in [mint, maxt] (milliseconds, inclusive). Only
// their labels may be used.
func (p *Snapshot) Listed(ctx context.Context, mint, maxt int64, ms ...*labels.Matcher) ([]Series, error) {
	return p.selected(ctx, mint, maxt, true, ms)
}

// certain is the view of a group whose series are known to have samples in the range, for those who ask no more.
func (p *Snapshot) certain(mint, maxt int64) *view {
	return &view{snap: p, mint: mint, maxt: maxt, asked: true, within: yes}
}

func (p *Snapshot) selected(ctx context.Context, mint, maxt int64, list bool, ms []*labels.Matcher) ([]Series, error) {
	found, err := p.find(ctx, ms)
	if err != nil {
		return nil, err
	}
	views, hours := map[*shapeGroup]*view{}, coveringHours{snap: p}
	out := make([]Series, 0, len(found))
	var sure *view
	if list {
		sure = p.certain(mint, maxt)
	}
	for i := range found {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		series := Series{Labels: found[i].labels, snap: p}
		for _, pl := range found[i].places {
			// The series of a group share its view.
			v, ok := views[pl.group]
			if !ok && list && p.shows(pl.group, pl.segments, mint, maxt, &hours) {
				v, ok = sure, true
				views[pl.group] = v
			}
			if !ok {
				v = p.view(pl.group, pl.segments, mint, maxt, &hours)
				views[pl.group] = v
			}
			switch {
			case v == nil:
			case series.first.view == nil:
				series.first = column{v, pl.pos}
			default:
				series.more = append(series.more, column{v, pl.pos})
			}
		}
		if series.first.view == nil {
			continue
		}
		if list && series.first.view != sure {
			// Some series are read for it.
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if !series.Has() {
				continue
			}
		}
		out = append(out, series)
	}
	return out, nil
}

// found is a series as it was under the lock, with the segments of that moment.
type found struct {
	labels labels.Labels
	places []foundPlace
}

type foundPlace struct {
	group    *shapeGroup
	segments []*segment
	pos      uint32
}

func (p *Snapshot) find(ctx context.Context, ms []*labels.Matcher) ([]found, error) {
	s := p.store
	sc, err := p.scan(ctx, ms)
	if err != nil {
		return nil, err
	}
	// Expressions were tried on the values before the lock was taken; under it only lists are combined.
	s.mu.RLock()
	defer s.mu.RUnlock()
	ids := s.index.match(ms, sc)
	out := make([]found, 0, len(ids))
	total := 0
	for _, id := range ids {
		if ser := s.series[id]; ser != nil && id < p.nextID {
			total += len(ser.places)
		}
	}
	// One allocation for the places of all series; counting first is cheaper than growing.
	places := make([]foundPlace, 0, total)
	for i, id := range ids {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		ser := s.series[id]
		// Either removed and still in the lists, or added after the snapshot.
		if ser == nil || id >= p.nextID {
			continue
		}
		at := len(places)
		for _, pl := range ser.places {
			places = append(places, foundPlace{pl.Group, pl.Group.segments, pl.At})
		}
		out = append(out, found{ser.labels, places[at:len(places):len(places)]})
	}
	return out, nil
}

// scan tries matchers that need it on the values that exist now. Values that are added later belong to series that
// the snapshot does not see.
func (p *Snapshot) scan(ctx context.Context, ms []*labels.Matcher) (scanned, error) {
	out := scanned{}
	for _, m := range ms {
		if !scans(m) {
			continue
		}
		p.store.mu.RLock()
		values := p.store.index.valuesOf(m.Name)
		p.store.mu.RUnlock()
		var err error
		if out[m], err = scan(ctx, m, values); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// LabelNames returns the names on series that match, sorted. Without matchers it returns those of the whole
// window.
func (p *Snapshot) LabelNames(ctx context.Context, mint, maxt int64, ms ...*labels.Matcher) ([]string, error) {
	if len(ms) == 0 {
		s := p.store
		s.mu.RLock()
		defer s.mu.RUnlock()
		names := make([]string, 0, len(s.index.values))
		for n, vs := range s.index.values {
			for _, ids := range vs {
				if s.index.alive(ids, p.nextID) {
					names = append(names, n)
					break
				}
			}
		}
		slices.Sort(names)
		return names, nil
	}
	set := map[string]struct{}{}
	series, err := p.Select(ctx, mint, maxt, ms...)
	for i := range series {
		series[i].Labels.Range(func(l labels.Label) { set[l.Name] = struct{}{} })
	}
	return sortedKeys(set), err
}

// LabelValues returns the values of a label on series that match, sorted. Without matchers it returns those of the
// whole window.
func (p *Snapshot) LabelValues(ctx context.Context, name string, mint, maxt int64, ms ...*labels.Matcher) ([]string, error) {
	if len(ms) == 0 {
		s := p.store
		s.mu.RLock()
		defer s.mu.RUnlock()
		vs := s.index.values[name]
		out := make([]string, 0, len(vs))
		for v, ids := range vs {
			if s.index.alive(ids, p.nextID) {
				out = append(out, v)
			}
		}
		slices.Sort(out)
		return out, nil
	}
	set := map[string]struct{}{}
	series, err := p.Select(ctx, mint, maxt, ms...)
	for i := range series {
		if v := series[i].Labels.Get(name); v != "" {
			set[v] = struct{}{}
		}
	}
	return sortedKeys(set), err
}

func sortedKeys(set map[string]struct{}) []string {
	out := make([]string, 0, len(set))
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
