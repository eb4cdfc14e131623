package promstore

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/foreign"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// Others are the other regions of a query. What they have is merged with what this one has, so that an expression is
// evaluated over all of it.
type Others interface {
	// Select asks every other region, without waiting. An equal question is asked once in a query.
	Select(w Wanted) Asked
	// LabelNames and LabelValues wait for the answers. Those of a region that gives none are left out.
	LabelNames(ctx context.Context, mint, maxt int64, ms []*labels.Matcher) ([]string, error)
	LabelValues(ctx context.Context, name string, mint, maxt int64, ms []*labels.Matcher) ([]string, error)
}

// Wanted is what a selector wants of other regions.
type Wanted struct {
	Matchers []*labels.Matcher
	// Mint and Maxt are milliseconds.
	Mint, Maxt int64
	Hint       Hint
	// List wants labels only, of series that have a sample in the range.
	List bool
	// Call lets a region that can evaluate it from rolled rows send the values in place of samples; nil wants samples.
	Call *RangeCall
	// Instants lets a region leave out all samples but the last at or before each of these times; nil wants all.
	Instants *Instants
}

// Instants are times of evaluation, milliseconds: from Start by Step to End; Step is 0 for one time.
type Instants struct{ Start, End, Step int64 }

// Thin leaves the samples of a run that are the last at or before one of the times, as far as the run tells: its last sample
// stays, as the next run may begin behind the time.
func (in *Instants) Thin(run *samples.Run) samples.Run {
	out := samples.Run{ST: run.ST}
	for i, t := range run.T {
		if i+1 < len(run.T) && !in.between(t, run.T[i+1]) {
			continue
		}
		out.T, out.V = append(out.T, t), append(out.V, run.V[i])
		if run.H != nil {
			out.H = append(out.H, run.H[i])
		}
		if run.STs != nil {
			out.STs = append(out.STs, run.STs[i])
		}
	}
	return out
}

// between reports whether a time lies at or after t and before next.
func (in *Instants) between(t, next int64) bool {
	switch {
	case t >= in.End:
		return t == in.End
	case next <= in.Start:
		return false
	case t <= in.Start || in.Step <= 0:
		return in.Step > 0 || in.Start >= t && in.Start < next
	}
	// The first time at or after t.
	first := in.Start + (t-in.Start+in.Step-1)/in.Step*in.Step
	return first < next && first <= in.End
}

// Asked is a question to other regions.
type Asked interface {
	// Wait returns the answers, of the regions that gave one. A region that gave none is no error. Errors: a
	// *LimitError that the query met, one of its guard, a context error.
	Wait(ctx context.Context) ([]Part, error)
}

// Part is the answer of one region.
type Part struct {
	// Region decides between samples of one time: that of the lesser name is shown.
	Region string
	// Series sorted by their labels.
	Series []foreign.Series
	// Values: the samples are the values of Wanted.Call, and series without a value are there, too.
	Values bool
}

// WithOthers reads other regions, too; own is the name of this one. Call it before the first read.
func (q *Queryable) WithOthers(own string, o Others) *Queryable {
	q.own, q.others = own, o
	return q
}

// WithoutOwn leaves out what this region has: only others are asked for. Call it before the first read.
func (q *Queryable) WithoutOwn() *Queryable {
	q.without = true
	return q
}

// elsewhere is what other regions have of a series.
type elsewhere struct {
	own   string // the name of this region
	parts []part
}

type part struct {
	region string
	series *foreign.Series
}

// joinParts puts what other regions have to the series of this one, whose name is own. found must be sorted, and so is the
// result.
func joinParts(own string, found []merged, parts []Part) []merged {
	for _, p := range parts {
		if len(p.Series) == 0 {
			continue
		}
		out := make([]merged, 0, len(found)+len(p.Series))
		i := 0
		for k := range p.Series {
			s := &p.Series[k]
			for i < len(found) && labels.Compare(found[i].labels, s.Labels) < 0 {
				out = append(out, found[i])
				i++
			}
			m := merged{labels: s.Labels}
			if i < len(found) && labels.Equal(found[i].labels, s.Labels) {
				m = found[i]
				i++
			}
			if m.others == nil {
				m.others = &elsewhere{own: own}
			}
			m.others.parts = append(m.others.parts, part{p.Region, s})
			out = append(out, m)
		}
		found = append(out, found[i:]...)
	}
	return found
}

// foreignSize is about what the series of other regions take beside their samples, which are reserved as they come.
func foreignSize(parts []Part) int64 {
	n := int64(0)
	for i := range parts {
		n += int64(len(parts[i].Series)) * seriesBytes
	}
	return n
}

// source of a series' samples, in time order.
type source interface {
	Next() (samples.Run, bool)
	SkipTo(t int64)
	Err() error
}

// regions merges what several regions have of one series. Of two samples in one millisecond that of the region with the
// lesser name is shown: an identity has one home, so there should be none, and all nodes have to show the same.
type regions struct {
	own     ownRuns
	foreign []foreign.Runs
	heads   []head // by the names of their regions
}

type head struct {
	region string
	of     source
	run    samples.Run
	ended  bool
}

func (r *regions) reset(m *merged, mint, maxt int64) {
	r.heads = r.heads[:0]
	// All at once, since the heads point at them.
	if n := len(m.others.parts); cap(r.foreign) < n {
		r.foreign = make([]foreign.Runs, n)
	} else {
		r.foreign = r.foreign[:n]
	}
	if m.live != nil || m.published != nil {
		r.own.reset(m, mint, maxt)
		r.add(m.others.own, &r.own)
	}
	for i, p := range m.others.parts {
		r.foreign[i].Reset(p.series, mint, maxt)
		r.add(p.region, &r.foreign[i])
	}
}

// add keeps the heads sorted; there are few.
func (r *regions) add(region string, of source) {
	r.heads = append(r.heads, head{region: region, of: of})
	for i := len(r.heads) - 1; i > 0 && r.heads[i].region < r.heads[i-1].region; i-- {
		r.heads[i], r.heads[i-1] = r.heads[i-1], r.heads[i]
	}
}

// Next returns the next run that is not empty; false at the end or on an error.
func (r *regions) Next() (samples.Run, bool) {
	first, next := -1, int64(0) // the earliest head, and the earliest time of the others
	others := false
	for i := range r.heads {
		h := &r.heads[i]
		h.fill()
		if len(h.run.T) == 0 {
			if h.of.Err() != nil {
				return samples.Run{}, false
			}
			continue
		}
		switch t := h.run.T[0]; {
		case first < 0:
			first = i
		case t < r.heads[first].run.T[0]:
			next, others, first = r.heads[first].run.T[0], true, i
		case !others || t < next:
			next, others = t, true
		}
	}
	if first < 0 {
		return samples.Run{}, false
	}
	h := &r.heads[first]
	if !others {
		return h.run.Take(len(h.run.T)), true
	}
	n, _ := samples.Between(h.run.T, next, next)
	if n == 0 {
		// Another region has a sample at the same time. This one is shown, and the others' are not.
		n = 1
		for i := range r.heads {
			if o := &r.heads[i]; i != first && len(o.run.T) > 0 && o.run.T[0] == next {
				o.run.Take(1)
			}
		}
	}
	run := h.run.Take(n)
	// The histogram before it in its own region need not be the one before it here.
	run.Before, h.run.Before = nil, nil
	return run, true
}

// fill loads the next run when the current one is used up.
func (h *head) fill() {
	if len(h.run.T) > 0 || h.ended {
		return
	}
	var ok bool
	h.run, ok = h.of.Next()
	h.ended = !ok
}

// SkipTo lets Next leave out what ends before t.
func (r *regions) SkipTo(t int64) {
	for i := range r.heads {
		r.heads[i].of.SkipTo(t)
	}
}

// Err is that of the first source that has one.
func (r *regions) Err() error {
	for i := range r.heads {
		if err := r.heads[i].of.Err(); err != nil {
			return err
		}
	}
	return nil
}
