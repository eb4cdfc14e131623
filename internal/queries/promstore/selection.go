package promstore

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// Hint says what the samples of a selector are for: the function around it, and its range in milliseconds.
type Hint = published.Hint

// Selection is the series that a selector found, for readers that take samples by columns and not, as the engine, one by
// one.
type Selection struct {
	reading
	found []merged
}

// FindAt is Find for an instant selector that is evaluated at these times alone: samples that are the last before none of them
// may be left out.
func (q *Queryable) FindAt(ctx context.Context, at Instants, hint Hint, mint, maxt int64, ms ...*labels.Matcher) (*Selection, error) {
	return q.selection(ctx, Wanted{Matchers: ms, Mint: mint, Maxt: maxt, Hint: hint, Instants: &at})
}

// Find returns the series that match and may have samples in [mint, maxt], milliseconds, sorted by their labels. Errors:
// *LimitError, an error of the guard, a context error.
func (q *Queryable) Find(ctx context.Context, hint Hint, mint, maxt int64, ms ...*labels.Matcher) (*Selection, error) {
	return q.selection(ctx, Wanted{Matchers: ms, Mint: mint, Maxt: maxt, Hint: hint})
}

func (q *Queryable) selection(ctx context.Context, w Wanted) (*Selection, error) {
	found, err := q.find(ctx, w)
	if err != nil {
		return nil, err
	}
	return &Selection{reading{q: q, mint: w.Mint, maxt: w.Maxt}, found}, nil
}

// Len is the number of series.
func (s *Selection) Len() int { return len(s.found) }

// Labels of series i.
func (s *Selection) Labels(i int) labels.Labels { return s.found[i].labels }

// Agents whose samples series i has; none where a label names its agent.
func (s *Selection) Agents(i int) agentlabel.Seen { return s.found[i].agents(s.mint, s.maxt) }

// List returns the labels of the series that match and have a sample in [mint, maxt], sorted. Errors are those of Find.
func (q *Queryable) List(ctx context.Context, mint, maxt int64, ms ...*labels.Matcher) (*Selection, error) {
	return q.selection(ctx, Wanted{Matchers: ms, Mint: mint, Maxt: maxt, List: true})
}

// Reader reads one series after the other, and uses its memory again.
type Reader struct{ runs runs }

// Reset begins series i of the selection.
func (r *Reader) Reset(s *Selection, i int) { r.runs.reset(&s.found[i], s.mint, s.maxt) }

// Next returns the next run of samples that is not empty; false at the end or on an error. It is good until the next call
// and must not be changed.
func (r *Reader) Next() (samples.Run, bool) { return r.runs.Next() }

// SkipTo lets Next leave out what ends before t.
func (r *Reader) SkipTo(t int64) { r.runs.SkipTo(t) }

// Err is a *LimitError, or nil.
func (r *Reader) Err() error { return r.runs.Err() }
