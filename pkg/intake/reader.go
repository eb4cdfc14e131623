package intake

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/shard"
)

// Reader follows the segments of one shard. Each segment is given once in the life of
// a Reader; a new one gives all that are there. Not for concurrent use.
//
// Runs are listed one by one behind what was read of each, so a poll costs one request and
// one more for each run that has segments. A writer's number n+1 is created after n is
// known to be there; so nothing appears behind what was read.
type Reader struct {
	store objstore.Reader
	shard shard.ID
	last  map[string]string // run prefix -> last key that was given
}

// MaxRuns bounds the runs with segments at one time.
const MaxRuns = 10_000

// ErrTooManyRuns: more runs have unread or undeleted segments than a reader keeps apart.
var ErrTooManyRuns = errors.New("too many intake runs")

// NewReader makes a reader of a shard.
func NewReader(s objstore.Reader, id shard.ID) *Reader {
	return &Reader{store: s, shard: id, last: map[string]string{}}
}

// Poll calls fn with the key of each new segment, run by run in the order of writing,
// until limit were given (0 is all); more says that some may be left. An error of fn ends
// the poll, and the segment is given again by the next.
func (r *Reader) Poll(ctx context.Context, limit int, fn func(key string) error) (more bool, err error) {
	runs, err := r.runs(ctx)
	if err != nil {
		return false, err
	}
	given := 0
	for _, run := range runs {
		for {
			page, err := r.store.List(ctx, objstore.ListOptions{Prefix: run, StartAfter: r.last[run]})
			if err != nil {
				return false, fmt.Errorf("list %q: %w", run, err)
			}
			for _, o := range page.Objects {
				if limit > 0 && given == limit {
					return true, nil
				}
				if _, _, _, err := layout.ParseIntakeSegment(o.Key); err == nil {
					if err := fn(o.Key); err != nil {
						return false, err
					}
					given++
				}
				r.last[run] = o.Key
			}
			if page.Next == "" {
				break
			}
		}
	}
	return false, nil
}

// runs lists the prefixes of runs that have segments, and forgets the others.
func (r *Reader) runs(ctx context.Context) ([]string, error) {
	prefix := layout.IntakeShard(r.shard)
	var runs []string
	after := ""
	for {
		page, err := r.store.List(ctx, objstore.ListOptions{Prefix: prefix, Delimiter: "/", StartAfter: after})
		if err != nil {
			return nil, fmt.Errorf("list %q: %w", prefix, err)
		}
		runs = append(runs, page.CommonPrefixes...)
		if len(runs) > MaxRuns {
			return nil, fmt.Errorf("list %q: %w", prefix, ErrTooManyRuns)
		}
		if page.Next == "" {
			break
		}
		after = page.Next
	}
	here := make(map[string]bool, len(runs))
	for _, run := range runs {
		here[run] = true
	}
	for run := range r.last {
		if !here[run] {
			delete(r.last, run)
		}
	}
	return runs, nil
}

// ReadSegment reads one segment. ErrSegment: it is there and is none.
func ReadSegment(ctx context.Context, s objstore.Reader, key string) (Segment, error) {
	body, _, err := s.Get(ctx, key, objstore.GetOptions{Limit: MaxSegmentBytes})
	if objstore.Unreadable(err) {
		return Segment{}, fmt.Errorf("read %q: %w: %w", key, ErrSegment, err)
	}
	if err != nil {
		return Segment{}, fmt.Errorf("read %q: %w", key, err)
	}
	seg, err := ParseSegment(body)
	if err != nil {
		return Segment{}, fmt.Errorf("read %q: %w", key, err)
	}
	return seg, nil
}
