package promstore

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"lightmetrics.dev/lightmetrics/pkg/live"
)

// Limits of one query; 0 is no limit.
type Limits struct {
	// Series that all selectors of a query may find together.
	Series int
}

// LimitError says which limit a query met.
type LimitError struct {
	Limit string // the setting, such as "limits.series"
	Max   int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("query exceeds %s of %d", e.Limit, e.Max)
}

// Queryable serves one query from one snapshot. Safe for concurrent use.
type Queryable struct {
	snap   *live.Snapshot
	limits Limits

	mu         sync.Mutex
	mint, maxt int64 // the touched range; empty while mint > maxt
	series     int
}

var _ storage.Queryable = (*Queryable)(nil)

// New makes a Queryable; the caller closes the snapshot after the query.
func New(snap *live.Snapshot, limits Limits) *Queryable {
	return &Queryable{snap: snap, limits: limits, mint: math.MaxInt64, maxt: math.MinInt64}
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
func (q *querier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	mint, maxt := q.mint, q.maxt
	limit := 0
	if hints != nil {
		if !hints.DisableTrimming {
			mint, maxt = max(mint, hints.Start), min(maxt, hints.End)
		}
		limit = hints.Limit
	}
	found, err := q.q.snap.Select(ctx, mint, maxt, ms...)
	if err == nil {
		err = q.q.touch(mint, maxt, len(found))
	}
	if err != nil {
		return storage.ErrSeriesSet(err)
	}
	if hints != nil && hints.Func == "series" {
		found = slices.DeleteFunc(found, func(s live.Series) bool {
			runs := s.Runs(mint, maxt)
			_, ok := runs.Next()
			return !ok
		})
	}
	if hints != nil && hints.ShardCount > 0 {
		found = slices.DeleteFunc(found, func(s live.Series) bool {
			return labels.StableHash(s.Labels)%hints.ShardCount != hints.ShardIndex
		})
	}
	// Sorted even when the caller does not ask: sums then do not depend on the order of
	// arrival, so that two nodes give the same answer to the last bit.
	slices.SortFunc(found, func(a, b live.Series) int { return labels.Compare(a.Labels, b.Labels) })
	if limit > 0 && len(found) > limit {
		found = found[:limit]
	}
	return &seriesSet{found: found, at: -1, mint: mint, maxt: maxt}
}

// LabelValues gives the values of a label, sorted.
func (q *querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	vs, err := q.q.snap.LabelValues(ctx, name, q.mint, q.maxt, ms...)
	return q.limited(vs, hints, err)
}

// LabelNames gives the label names, sorted.
func (q *querier) LabelNames(ctx context.Context, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	vs, err := q.q.snap.LabelNames(ctx, q.mint, q.maxt, ms...)
	return q.limited(vs, hints, err)
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
