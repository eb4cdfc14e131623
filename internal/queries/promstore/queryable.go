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

// Select reads the series that match; hints narrow the time range.
func (q *querier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	if set, ok := q.q.preparedSet(ms); ok {
		return set
	}
	mint, maxt := q.mint, q.maxt
	limit := 0
	if hints != nil {
		if !hints.DisableTrimming {
			mint, maxt = max(mint, hints.Start), min(maxt, hints.End)
		}
		limit = hints.Limit
	}
	find := q.q.find
	if hints != nil && hints.Func == "series" {
		// A limit leaves the same ones on each node only if they are sorted.
		find = q.list(sorted || limit > 0)
	}
	found, err := find(ctx, hintOf(hints), mint, maxt, ms)
	if err == nil {
		err = q.q.touch(mint, maxt, len(found))
	}
	if err == nil {
		err = q.q.Reserve(sizeOf(found))
	}
	if err != nil {
		return storage.ErrSeriesSet(err)
	}
	if hints != nil && hints.ShardCount > 0 {
		found = slices.DeleteFunc(found, func(m merged) bool {
			return labels.StableHash(m.labels)%hints.ShardCount != hints.ShardIndex
		})
	}
	// The series are sorted, so every node keeps the same ones.
	if limit > 0 && len(found) > limit {
		found = found[:limit]
	}
	read := reading{q: q.q, mint: mint, maxt: maxt}
	if hints != nil {
		read.step, read.span = hints.Step, hints.Range
		read.all = hints.Range > 0 && hints.Func == ""
	}
	return &seriesSet{reading: read, found: found, at: -1}
}

// hintOf is what a selector's samples are for.
func hintOf(h *storage.SelectHints) published.Hint {
	if h == nil {
		return published.Hint{}
	}
	return published.Hint{Func: h.Func, Range: h.Range}
}

// find asks the blocks first: they fix, for every hour of the range, what the
// snapshot leaves out.
func (q *Queryable) find(ctx context.Context, hint published.Hint, mint, maxt int64, ms []*labels.Matcher) ([]merged, error) {
	var ps []published.Series
	if q.pub != nil {
		var err error
		if ps, err = q.pub.SelectFor(ctx, hint, mint, maxt, ms...); err != nil {
			return nil, err
		}
	}
	ls, err := q.snap.Select(ctx, mint, maxt, ms...)
	if err != nil {
		return nil, err
	}
	found := join(ls, ps)
	q.noteMerges(len(found), func(i int) (labels.Labels, agentlabel.Seen) { return found[i].labels, found[i].agents(mint, maxt) })
	return found, nil
}

// list finds the series that have a sample in the range. A segment that overlaps the range need not have one there.
func (q *querier) list(sorted bool) func(ctx context.Context, hint published.Hint, mint, maxt int64, ms []*labels.Matcher) ([]merged, error) {
	return func(ctx context.Context, _ published.Hint, mint, maxt int64, ms []*labels.Matcher) ([]merged, error) {
		var ps []published.Series
		if q.q.pub != nil {
			var err error
			if ps, err = q.q.pub.Listed(ctx, mint, maxt, ms...); err != nil {
				return nil, err
			}
		}
		ls, err := q.q.liveList(ctx, mint, maxt, ms)
		if err != nil {
			return nil, err
		}
		put := joinUnsorted
		if sorted {
			put = join
		}
		found := put(ls, ps)
		q.q.noteMerges(len(found), func(i int) (labels.Labels, agentlabel.Seen) { return found[i].labels, found[i].agents(mint, maxt) })
		return found, nil
	}
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
func (q *querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	vs, err := q.q.snap.LabelValues(ctx, name, q.mint, q.maxt, ms...)
	if err == nil && q.q.pub != nil {
		var more []string
		more, err = q.q.pub.LabelValues(ctx, name, q.mint, q.maxt, ms...)
		vs = union(vs, more)
	}
	return q.limited(vs, hints, err)
}

// LabelNames gives the label names, sorted.
func (q *querier) LabelNames(ctx context.Context, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	vs, err := q.q.snap.LabelNames(ctx, q.mint, q.maxt, ms...)
	if err == nil && q.q.pub != nil {
		var more []string
		more, err = q.q.pub.LabelNames(ctx, q.mint, q.maxt, ms...)
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
