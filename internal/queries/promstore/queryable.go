package promstore

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
)

// Limits of one query; 0 is no limit.
type Limits struct {
	// Series that all selectors of a query may find together.
	Series int
}

// LimitError says which limit a query met.
type LimitError = published.LimitError

// Queryable serves one query from one snapshot and, where there are blocks, from
// them. Safe for concurrent use.
type Queryable struct {
	snap   *live.Snapshot
	pub    *published.Query // nil: there are no blocks
	limits Limits
	guard  Guard // may be nil
	// parallel reads large selections; may be nil.
	parallel        Parallel
	parallelSamples int64
	// resolutions allows rolled rows to answer where there are samples, too.
	resolutions bool
	// others are asked as well; nil: there is one region. own is the name of this one.
	others  Others
	own     string
	without bool // what this region has is left out

	mu         sync.Mutex
	mint, maxt int64 // the touched range; empty while mint > maxt
	series     int
	prepared   [][]RolledSeries // by number: what Rolled gave
	merges     Merges
}

// Merges are series that have samples of several agents: their labels are equal, and no label
// tells the agents apart (agentlabel).
type Merges struct {
	// Series that selectors found; one that several of them found counts as often.
	Series int
	// First of them, and two of its agents.
	First  labels.Labels
	Agents agentlabel.Seen
}

// Merges that contributed to what was read so far.
func (q *Queryable) Merges() Merges {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.merges
}

// noteMerges finds the series among n that have samples of several agents; of gives one. A
// label with the agent tells all of them apart: nothing is searched then.
func (q *Queryable) noteMerges(n int, of func(i int) (labels.Labels, agentlabel.Seen)) {
	if q.snap.AgentLabel() != "" {
		return
	}
	var found Merges
	for i := range n {
		if ls, seen := of(i); seen.Several() {
			if found.Series++; found.Series == 1 {
				found.First, found.Agents = ls, seen
			}
		}
	}
	// The search above runs without the lock, as selectors of one query may run at the same time.
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.merges.Series == 0 {
		q.merges = found
	} else {
		q.merges.Series += found.Series
	}
}

var _ storage.Queryable = (*Queryable)(nil)

// New makes a Queryable; the caller closes the snapshot after the query.
func New(snap *live.Snapshot, limits Limits) *Queryable {
	return &Queryable{snap: snap, limits: limits, mint: math.MaxInt64, maxt: math.MinInt64}
}

// WithPublished reads from the blocks what they count, and only the rest from the snapshot.
// Call it before the first read.
func (q *Queryable) WithPublished(p *published.Query) *Queryable {
	q.pub = p
	q.snap.Hide(p)
	return q
}

// WithResolutions lets Rolled answer from rolled rows where there are samples, too; without it
// only where the samples have expired. Call it before the first read.
func (q *Queryable) WithResolutions(on bool) *Queryable {
	q.resolutions = on
	return q
}

// Querier reads [mint, maxt], milliseconds.
func (q *Queryable) Querier(mint, maxt int64) (storage.Querier, error) {
	return &querier{q: q, mint: mint, maxt: maxt}, nil
}

// Touched is the range that was asked for, milliseconds; false when nothing was.
func (q *Queryable) Touched() (mint, maxt int64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mint, q.maxt, q.mint <= q.maxt
}

func (q *Queryable) touch(mint, maxt int64, series int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mint, q.maxt = min(q.mint, mint), max(q.maxt, maxt)
	q.series += series
	if q.limits.Series > 0 && q.series > q.limits.Series {
		return &LimitError{Limit: "limits.series", Max: int64(q.limits.Series)}
	}
	return nil
}

type querier struct {
	q          *Queryable
	mint, maxt int64
}

// Close does nothing: the snapshot belongs to the caller of New.
func (*querier) Close() error { return nil }

// Select reads the series that match; hints narrow the time range. Other regions are asked, and not waited for before the
// first series is read, so that the selectors of an expression wait at the same time.
func (q *querier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	if set, ok := q.q.preparedSet(ms); ok {
		return set
	}
	w := Wanted{Matchers: ms, Mint: q.mint, Maxt: q.maxt, Hint: hintOf(hints)}
	limit := 0
	if hints != nil {
		if !hints.DisableTrimming {
			w.Mint, w.Maxt = max(w.Mint, hints.Start), min(w.Maxt, hints.End)
		}
		limit = hints.Limit
		w.List = hints.Func == "series"
	}
	asked := q.q.ask(w)
	// A limit leaves the same ones on each node only if they are sorted. So are those that others are joined to.
	found, err := q.q.ownSeries(ctx, w, sorted || limit > 0 || asked != nil)
	if err != nil {
		return storage.ErrSeriesSet(err)
	}
	read := reading{q: q.q, mint: w.Mint, maxt: w.Maxt}
	if hints != nil {
		read.step, read.span = hints.Step, hints.Range
		read.all = hints.Range > 0 && hints.Func == ""
	}
	set := &seriesSet{reading: read, found: found, at: -1}
	finish := func() error {
		if err := q.q.selected(w, set.found); err != nil {
			return err
		}
		if hints != nil && hints.ShardCount > 0 {
			set.found = slices.DeleteFunc(set.found, func(m merged) bool {
				return labels.StableHash(m.labels)%hints.ShardCount != hints.ShardIndex
			})
		}
		// The series are sorted, so every node keeps the same ones.
		if limit > 0 && len(set.found) > limit {
			set.found = set.found[:limit]
		}
		return nil
	}
	if asked != nil {
		set.join = func() error {
			parts, err := asked.Wait(ctx)
			if err != nil {
				return err
			}
			if set.found, err = q.q.withParts(set.found, parts); err != nil {
				return err
			}
			return finish()
		}
		return set
	}
	if err := finish(); err != nil {
		return storage.ErrSeriesSet(err)
	}
	return set
}

// ask asks the other regions; nil where there are none.
func (q *Queryable) ask(w Wanted) Asked {
	if q.others == nil {
		return nil
	}
	return q.others.Select(w)
}

// selected notes what a selector found, all regions together.
func (q *Queryable) selected(w Wanted, found []merged) error {
	q.noteMerges(len(found), func(i int) (labels.Labels, agentlabel.Seen) {
		return found[i].labels, found[i].agents(w.Mint, w.Maxt)
	})
	if err := q.touch(w.Mint, w.Maxt, len(found)); err != nil {
		return err
	}
	return q.Reserve(sizeOf(found))
}

// withParts joins what other regions answered.
func (q *Queryable) withParts(found []merged, parts []Part) ([]merged, error) {
	if err := q.Reserve(foreignSize(parts)); err != nil {
		return nil, err
	}
	return joinParts(q.own, found, parts), nil
}

// hintOf is what a selector's samples are for.
func hintOf(h *storage.SelectHints) published.Hint {
	if h == nil {
		return published.Hint{}
	}
	return published.Hint{Func: h.Func, Range: h.Range}
}

// find finds the series of all regions.
func (q *Queryable) find(ctx context.Context, w Wanted) ([]merged, error) {
	asked := q.ask(w)
	found, err := q.ownSeries(ctx, w, true)
	if err == nil && asked != nil {
		var parts []Part
		if parts, err = asked.Wait(ctx); err == nil {
			found, err = q.withParts(found, parts)
		}
	}
	if err == nil {
		err = q.selected(w, found)
	}
	return found, err
}

// ownSeries finds the series of this region. It asks the blocks first: they fix, for every hour of the range, what the
// snapshot leaves out.
func (q *Queryable) ownSeries(ctx context.Context, w Wanted, sorted bool) ([]merged, error) {
	switch {
	case q.without:
		return nil, nil
	case w.List:
		return q.list(ctx, w.Mint, w.Maxt, w.Matchers, sorted)
	}
	var ps []published.Series
	if q.pub != nil {
		var err error
		if ps, err = q.pub.SelectFor(ctx, w.Hint, w.Mint, w.Maxt, w.Matchers...); err != nil {
			return nil, err
		}
	}
	ls, err := q.snap.Select(ctx, w.Mint, w.Maxt, w.Matchers...)
	if err != nil {
		return nil, err
	}
	return join(ls, ps), nil
}

// list finds the series of this region that have a sample in the range. A segment that overlaps the range need not have one
// there.
func (q *Queryable) list(ctx context.Context, mint, maxt int64, ms []*labels.Matcher, sorted bool) ([]merged, error) {
	var ps []published.Series
	if q.pub != nil {
		var err error
		if ps, err = q.pub.Listed(ctx, mint, maxt, ms...); err != nil {
			return nil, err
		}
	}
	ls, err := q.liveList(ctx, mint, maxt, ms)
	if err != nil {
		return nil, err
	}
	if sorted {
		return join(ls, ps), nil
	}
	return joinUnsorted(ls, ps), nil
}

// liveList are the series in memory that have a sample in the range.
func (q *Queryable) liveList(ctx context.Context, mint, maxt int64, ms []*labels.Matcher) ([]live.Series, error) {
	// Only with a label for it is each series of one agent, and nothing to be found out about them.
	if q.snap.AgentLabel() != "" {
		return q.snap.Listed(ctx, mint, maxt, ms...)
	}
	ls, err := q.snap.Select(ctx, mint, maxt, ms...)
	if err != nil {
		return nil, err
	}
	n := 0
	for i := range ls {
		// Some series are read for it.
		if err := q.Check(); err != nil {
			return nil, err
		}
		if ls[i].Has() {
			ls[n] = ls[i]
			n++
		}
	}
	return ls[:n], nil
}

// sizeOf is about what the found series take while the query runs.
func sizeOf(found []merged) int64 {
	n := int64(len(found)) * seriesBytes
	for i := range found {
		if l := found[i].live; l != nil {
			n += l.Bytes()
		}
	}
	return n
}

// LabelValues gives the values of a label, sorted.
func (q *querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, ms ...*labels.Matcher) (vs []string, _ annotations.Annotations, err error) {
	if !q.q.without {
		if vs, err = q.q.snap.LabelValues(ctx, name, q.mint, q.maxt, ms...); err == nil && q.q.pub != nil {
			var more []string
			more, err = q.q.pub.LabelValues(ctx, name, q.mint, q.maxt, ms...)
			vs = union(vs, more)
		}
	}
	if err == nil && q.q.others != nil {
		var more []string
		more, err = q.q.others.LabelValues(ctx, name, q.mint, q.maxt, ms)
		vs = union(vs, more)
	}
	return q.limited(vs, hints, err)
}

// LabelNames gives the label names, sorted.
func (q *querier) LabelNames(ctx context.Context, hints *storage.LabelHints, ms ...*labels.Matcher) (vs []string, _ annotations.Annotations, err error) {
	if !q.q.without {
		if vs, err = q.q.snap.LabelNames(ctx, q.mint, q.maxt, ms...); err == nil && q.q.pub != nil {
			var more []string
			more, err = q.q.pub.LabelNames(ctx, q.mint, q.maxt, ms...)
			vs = union(vs, more)
		}
	}
	if err == nil && q.q.others != nil {
		var more []string
		more, err = q.q.others.LabelNames(ctx, q.mint, q.maxt, ms)
		vs = union(vs, more)
	}
	return q.limited(vs, hints, err)
}

func union(a, b []string) []string {
	a = append(a, b...)
	slices.Sort(a)
	return slices.Compact(a)
}

func (q *querier) limited(vs []string, hints *storage.LabelHints, err error) ([]string, annotations.Annotations, error) {
	if err == nil {
		err = q.q.touch(q.mint, q.maxt, 0)
	}
	if err != nil {
		return nil, nil, err
	}
	if hints != nil && hints.Limit > 0 && len(vs) > hints.Limit {
		vs = vs[:hints.Limit]
	}
	return vs, nil, nil
}
