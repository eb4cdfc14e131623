package promstore

import (
	"math"
	"slices"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// merged is one label set with its samples in memory, in blocks, in other regions, or in several of these.
type merged struct {
	labels    labels.Labels
	live      *live.Series
	published *published.Series
	others    *elsewhere // nil: this region has all of it
}

// agents whose samples the series has in [mint, maxt]; none where a label names its agent.
func (m *merged) agents(mint, maxt int64) (seen agentlabel.Seen) {
	if m.live != nil {
		seen = m.live.Agents()
	}
	if m.published != nil {
		seen.Merge(m.published.Agents(mint, maxt))
	}
	if m.others != nil {
		for _, p := range m.others.parts {
			seen.Merge(p.series.Agents)
		}
	}
	return seen
}

// times are the first and the last that the series may have samples at.
func (m *merged) times() (first, last int64) {
	first, last = math.MaxInt64, math.MinInt64
	if m.live != nil {
		first, last = m.live.Times()
	}
	if m.published != nil {
		a, b := m.published.Times()
		first, last = min(first, a), max(last, b)
	}
	if m.others != nil {
		for _, p := range m.others.parts {
			if p.series.Samples() > 0 {
				a, b := p.series.Times()
				first, last = min(first, a), max(last, b)
			}
		}
	}
	return first, last
}

// join puts together series with equal labels, and sorts them.
func join(ls []live.Series, ps []published.Series) []merged {
	out := make([]merged, 0, len(ls)+len(ps))
	for i := range ls {
		out = append(out, merged{labels: ls[i].Labels, live: &ls[i]})
	}
	for i := range ps {
		out = append(out, merged{labels: ps[i].Labels, published: &ps[i]})
	}
	// Sorted even when the caller does not ask: sums then do not depend on the order of
	// arrival, so that two nodes give the same answer to the last bit.
	slices.SortFunc(out, func(a, b merged) int { return labels.Compare(a.labels, b.labels) })
	if len(ls) == 0 || len(ps) == 0 {
		return out
	}
	n := 0
	for i := range out {
		if n > 0 && labels.Equal(out[n-1].labels, out[i].labels) {
			if out[i].live != nil {
				out[n-1].live = out[i].live
			} else {
				out[n-1].published = out[i].published
			}
			continue
		}
		out[n] = out[i]
		n++
	}
	return out[:n]
}

// joinUnsorted puts together series with equal labels, those in memory first.
func joinUnsorted(ls []live.Series, ps []published.Series) []merged {
	out := make([]merged, 0, len(ls)+len(ps))
	for i := range ls {
		out = append(out, merged{labels: ls[i].Labels, live: &ls[i]})
	}
	var at map[uint64][]int32 // by hash of labels: different ones may have the same
	if len(ps) > 0 && len(ls) > 0 {
		at = make(map[uint64][]int32, len(ls))
		for i := range ls {
			h := ls[i].Labels.Hash()
			at[h] = append(at[h], int32(i))
		}
	}
next:
	for i := range ps {
		if at != nil {
			for _, k := range at[ps[i].Labels.Hash()] {
				if labels.Equal(out[k].labels, ps[i].Labels) {
					out[k].published = &ps[i]
					continue next
				}
			}
		}
		out = append(out, merged{labels: ps[i].Labels, published: &ps[i]})
	}
	return out
}

// runs reads all parts of a series as one, in time order.
type runs struct {
	own     ownRuns
	regions *regions // kept for its memory
	several bool     // regions are read
}

func (r *runs) reset(m *merged, mint, maxt int64) {
	if r.several = m.others != nil; !r.several {
		r.own.reset(m, mint, maxt)
		return
	}
	if r.regions == nil {
		r.regions = &regions{}
	}
	r.regions.reset(m, mint, maxt)
}

// Next returns the next run that is not empty; false at the end.
func (r *runs) Next() (samples.Run, bool) {
	if r.several {
		return r.regions.Next()
	}
	return r.own.Next()
}

// SkipTo lets Next leave out what ends before t.
func (r *runs) SkipTo(t int64) {
	if r.several {
		r.regions.SkipTo(t)
		return
	}
	r.own.SkipTo(t)
}

// Err is that of what was read.
func (r *runs) Err() error {
	if r.several {
		return r.regions.Err()
	}
	return r.own.Err()
}

// ownRuns reads both parts of a series in this region as one, in time order. Of two samples in one
// millisecond the published one is shown.
type ownRuns struct {
	live      live.Runs
	published published.Runs
	// both: two parts are merged; else only one of them is read.
	both, onlyPublished bool

	a, b   samples.Run // what is left of the current runs; a is published
	ended  [2]bool
	before *histogram.FloatHistogram
}

func (r *ownRuns) reset(m *merged, mint, maxt int64) {
	r.both, r.onlyPublished = m.live != nil && m.published != nil, m.live == nil
	r.a, r.b, r.ended, r.before = samples.Run{}, samples.Run{}, [2]bool{}, nil
	if m.live != nil {
		r.live.Reset(m.live, mint, maxt)
	}
	r.published.Reset(m.published, mint, maxt)
}

// Next returns the next run that is not empty; false at the end.
func (r *ownRuns) Next() (samples.Run, bool) {
	switch {
	case r.onlyPublished:
		return r.published.Next()
	case !r.both:
		return r.live.Next()
	}
	r.fill()
	// Blocks win a tie: the sample in memory is consumed without being returned.
	if len(r.a.T) > 0 && len(r.b.T) > 0 && r.a.T[0] == r.b.T[0] {
		r.b.Take(1)
		r.fill()
	}
	var run samples.Run
	switch {
	case len(r.a.T) == 0 && len(r.b.T) == 0:
		return samples.Run{}, false
	case len(r.a.T) == 0:
		run = r.b.Take(len(r.b.T))
	case len(r.b.T) == 0:
		run = r.a.Take(len(r.a.T))
	case r.a.T[0] < r.b.T[0]:
		run = r.a.Take(sort.Search(len(r.a.T), func(i int) bool { return r.a.T[i] >= r.b.T[0] }))
	default:
		run = r.b.Take(sort.Search(len(r.b.T), func(i int) bool { return r.b.T[i] >= r.a.T[0] }))
	}
	// The sample before it in its own part need not be the one before it here.
	run.Before, r.before = r.before, nil
	if n := len(run.H); n > 0 {
		r.before = run.H[n-1]
	}
	return run, true
}

// fill loads the next run of each part whose current run is used up.
func (r *ownRuns) fill() {
	if len(r.a.T) == 0 && !r.ended[0] {
		var ok bool
		r.a, ok = r.published.Next()
		r.ended[0] = !ok
	}
	if len(r.b.T) == 0 && !r.ended[1] {
		var ok bool
		r.b, ok = r.live.Next()
		r.ended[1] = !ok
	}
}

// SkipTo lets Next leave out what ends before t.
func (r *ownRuns) SkipTo(t int64) {
	if !r.onlyPublished {
		r.live.SkipTo(t)
	}
	r.published.SkipTo(t)
}

// Err is that of the published part.
func (r *ownRuns) Err() error { return r.published.Err() }
