package published

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Views returns the blocks of the hours from..to, both included. With an error the view may lack some of them.
type Views interface {
	View(ctx context.Context, from, to timegrid.Hour) (*catalog.View, error)
}

// Limits of one query; 0 is no limit. A *LimitError names the one that was exceeded.
type Limits struct {
	Series  int   // limits.series: found by all selectors of a query together
	Objects int   // limits.objects: requests for parts of objects
	Bytes   int64 // limits.bytes: read by these requests
	Samples int64 // limits.chunk_samples: decoded
	// Reserve is called before bytes are read that the query holds to its end; its error ends the query. nil
	// reserves nothing. It is called from any goroutine.
	Reserve func(bytes int64) error
}

// LimitError says which limit a query exceeded.
type LimitError struct {
	Limit string // the setting, such as "limits.series"
	Max   int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("query exceeds %s of %d", e.Limit, e.Max)
}

// Stats of a query.
type Stats struct {
	Gets      int64 `json:"gets"`
	Bytes     int64 `json:"bytes"`
	IndexHits int64 `json:"indexCacheHits"`
	BlockHits int64 `json:"blockCacheHits"`
	// ColumnHits are series whose decoded rows were cached.
	ColumnHits int64 `json:"columnCacheHits"`
	// Samples decoded, or taken from the cache: a sample that is read twice counts twice.
	Samples int64 `json:"samples"`
	// Resolutions has the selectors that were answered from rolled rows, by resolution.
	Resolutions map[string]int `json:"resolutions,omitempty"`
}

type counters struct{ gets, bytes, indexHits, blockHits, columnHits, samples atomic.Int64 }

// Problem is a part of a block that can't be read: an answer that needs it is partial.
type Problem struct {
	Hour timegrid.Hour
	Key  string
	Err  error
	view bool // about the list of blocks, not an object
}

// Query reads for one query, which sees each hour in one view only. It is safe for concurrent use.
type Query struct {
	r      *Reader
	views  Views
	shards uint32
	within Span
	limits Limits
	stats  counters

	mu          sync.Mutex
	hours       map[timegrid.Hour]*catalog.View
	problems    []Problem
	more        int             // problems beyond the bound
	gone        []timegrid.Hour // of objects that did not exist
	resolutions map[string]int
	reduced     map[timegrid.Hour]timegrid.Resolution // what stood in for samples; Raw when nothing did
	late        map[timegrid.Hour][]*late             // what deltas have of pinned hours
	ranges      coverage
}

// maxProblems bounds the problems that are listed.
const maxProblems = 100

// Span is the hours that queries read, both included.
type Span struct{ Oldest, Newest timegrid.Hour }

// Query begins a query. shards is the authority's number of shards.
//
// For exact answers open the live snapshot before: what leaves memory afterwards is in the views from then on.
func (r *Reader) Query(v Views, shards uint32, within Span, l Limits) *Query {
	return &Query{r: r, views: v, shards: shards, within: within, limits: l, hours: map[timegrid.Hour]*catalog.View{}}
}

// span returns the hours of [mint, maxt], milliseconds, that may be read; false when there are none.
func (q *Query) span(mint, maxt int64) (from, to timegrid.Hour, ok bool) {
	from, to = max(timegrid.HourOf(mint), q.within.Oldest), min(timegrid.HourOf(maxt), q.within.Newest)
	return from, to, from <= to
}

// Pin fixes what the query sees of the hours of [mint, maxt], milliseconds.
func (q *Query) Pin(ctx context.Context, mint, maxt int64) error {
	from, to, ok := q.span(mint, maxt)
	if !ok {
		return nil
	}
	return q.pin(ctx, from, to)
}

// pin fixes the view of hours that have none yet.
func (q *Query) pin(ctx context.Context, from, to timegrid.Hour) error {
	q.mu.Lock()
	// The lock is held while the store is listed: a second selector of the query must see the same view.
	defer q.mu.Unlock()
	// One listing for all hours that are missing; those in between that are pinned keep the view that they have.
	first, last, any := from, to, false
	for h := from; h <= to; h++ {
		if _, ok := q.hours[h]; !ok {
			if !any {
				first, any = h, true
			}
			last = h
		}
	}
	if !any {
		return nil
	}
	v, err := q.views.View(ctx, first, last)
	// A query that has ended must not pin hours as unreadable; any other error makes the answer partial.
	if err != nil && (ctx.Err() != nil || isContext(err)) {
		return err
	}
	var fresh []timegrid.Hour
	for h := first; h <= last; h++ {
		if _, ok := q.hours[h]; ok {
			continue
		}
		q.hours[h] = v
		fresh = append(fresh, h)
		for _, p := range v.Problems(h) {
			q.problem(Problem{h, p.Key, p.Err, true})
		}
		if err != nil {
			q.problem(Problem{h, "list", err, true})
		}
	}
	return q.pinLate(ctx, v, fresh)
}

func (q *Query) problem(p Problem) {
	if len(q.problems) == maxProblems {
		q.more++
		return
	}
	q.problems = append(q.problems, p)
}

// failed handles an error of an object: nil when the answer can do without it, as a partial one.
func (q *Query) failed(ctx context.Context, h timegrid.Hour, key string, err error) error {
	var limit *LimitError
	var refused *refusedError
	if err == nil || errors.As(err, &limit) || errors.As(err, &refused) || ctx.Err() != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.objectFailed(h, key, err)
	return nil
}

// objectFailed notes that an object can't be read. The caller holds q.mu.
func (q *Query) objectFailed(h timegrid.Hour, key string, err error) {
	// Noted as well as a problem: if a second attempt finds the next generation, the answer is whole.
	if errors.Is(err, objstore.ErrNotFound) && !slices.Contains(q.gone, h) {
		q.gone = append(q.gone, h)
	}
	q.problem(Problem{Hour: h, Key: key, Err: err})
}

// Problems returns the problems so far, and how many more there were.
func (q *Query) Problems() ([]Problem, int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]Problem(nil), q.problems...), q.more
}

// Span returns the hours that the query reads.
func (q *Query) Span() Span { return q.within }

// Gone reports that an object did not exist: perhaps its generation was superseded, and a query over a new view
// finds the next one.
func (q *Query) Gone() bool {
	_, _, ok := q.GoneHours()
	return ok
}

// GoneHours returns the first and the last hour of such objects; false when there are none.
func (q *Query) GoneHours() (first, last timegrid.Hour, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, h := range q.gone {
		if !ok {
			first, last, ok = h, h, true
		}
		first, last = min(first, h), max(last, h)
	}
	return first, last, ok
}

// Pinned reports that the query has read something of the hour.
func (q *Query) Pinned(h timegrid.Hour) bool { return q.view(h) != nil }

// Blocks of an hour that was pinned, in a resolution.
func (q *Query) Blocks(h timegrid.Hour, res timegrid.Resolution) []*catalog.Block {
	return q.view(h).Blocks(h, res)
}

func (q *Query) view(h timegrid.Hour) *catalog.View {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.hours[h]
}

// spend counts a request; it returns a *LimitError when that is one too many.
func (q *Query) spend(bytes int64) error {
	// Counted before the request, so that parallel requests can't exceed the limit together.
	gets, total := q.stats.gets.Add(1), q.stats.bytes.Add(bytes)
	if l := q.limits.Objects; l > 0 && gets > int64(l) {
		return &LimitError{"limits.objects", int64(l)}
	}
	if l := q.limits.Bytes; l > 0 && total > l {
		return &LimitError{"limits.bytes", l}
	}
	if q.limits.Reserve != nil {
		if err := q.limits.Reserve(bytes); err != nil {
			// Wrapped, so that failed does not take it for a damaged object and answer without it.
			return &refusedError{err}
		}
	}
	return nil
}

// refusedError is an error of Limits.Reserve: it ends the query and is no Problem.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

func (q *Query) decoded(rows int) error {
	if n, l := q.stats.samples.Add(int64(rows)), q.limits.Samples; l > 0 && n > l {
		return &LimitError{"limits.chunk_samples", l}
	}
	return nil
}

// Stats so far.
func (q *Query) Stats() Stats {
	c := &q.stats
	q.mu.Lock()
	defer q.mu.Unlock()
	return Stats{Resolutions: maps.Clone(q.resolutions), Gets: c.gets.Load(), Bytes: c.bytes.Load(), IndexHits: c.indexHits.Load(), BlockHits: c.blockHits.Load(), ColumnHits: c.columnHits.Load(), Samples: c.samples.Load()}
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
