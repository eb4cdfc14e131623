package intake

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
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
	last  map[string]string // run prefix -> last key that was given or put aside
	aside []string          // keys that fn wants later, the longest waiting first
	more  bool              // runs above the bound are not followed yet
}

// MaxRuns bounds the runs that are followed at one time. Those above it have their turn
// when the segments of others are deleted.
const MaxRuns = 10_000

// MaxAside bounds the segments that are put aside at one time, asideAtOnce those that a
// poll tries again in vain.
const (
	MaxAside    = 1000
	asideAtOnce = 10
)

// ErrLater is wrapped by what the fn of Poll says of a segment that can't be taken now
// and must not hold up those behind it.
var ErrLater = errors.New("later")

// NewReader makes a reader of a shard.
func NewReader(s objstore.Reader, id shard.ID) *Reader {
	return &Reader{store: s, shard: id, last: map[string]string{}}
}

// Poll calls fn with the key of each new segment, run by run in the order of writing,
// until limit were given (0 is all); more says that some may be left. An error of fn ends
// the poll, and the segment is given again by the next. One that wraps ErrLater does not
// end it: the segment is put aside and is given again by later polls.
// While MaxAside are, it is an error like any other.
func (r *Reader) Poll(ctx context.Context, limit int, fn func(key string) error) (more bool, err error) {
	if err := r.again(fn); err != nil {
		return false, err
	}
	runs, err := r.runs(ctx)
	if err != nil {
		return false, err
	}
	given := 0
	for _, run := range runs {
		for o, err := range objstore.List(ctx, r.store, objstore.ListOptions{Prefix: run, StartAfter: r.last[run]}) {
			if err != nil {
				return false, fmt.Errorf("list %q: %w", run, err)
			}
			if limit > 0 && given == limit {
				return true, nil
			}
			if _, _, _, err := layout.ParseIntakeSegment(o.Key); err == nil {
				err := fn(o.Key)
				if errors.Is(err, ErrLater) && len(r.aside) < MaxAside {
					r.aside = append(r.aside, o.Key)
				} else if err != nil {
					return false, err
				}
				given++
			}
			r.last[run] = o.Key
		}
	}
	return false, nil
}

// Aside is the number of segments that are put aside.
func (r *Reader) Aside() int { return len(r.aside) }

// Crowded reports that the last poll saw more runs than MaxRuns.
func (r *Reader) Crowded() bool { return r.more }

// again gives the segments that were put aside, until a few of them are so again.
func (r *Reader) again(fn func(key string) error) error {
	failed := 0
	for range len(r.aside) {
		key := r.aside[0]
		err := fn(key)
		if err != nil && !errors.Is(err, ErrLater) {
			return err
		}
		r.aside = slices.Delete(r.aside, 0, 1)
		if err == nil {
			continue
		}
		r.aside = append(r.aside, key)
		if failed++; failed == asideAtOnce {
			break
		}
	}
	return nil
}

// runs lists the prefixes of runs that have segments, and forgets the others.
func (r *Reader) runs(ctx context.Context) ([]string, error) {
	prefix := layout.IntakeShard(r.shard)
	var runs []string
	for run, err := range objstore.Groups(ctx, r.store, objstore.ListOptions{Prefix: prefix, Delimiter: "/"}) {
		if err != nil {
			return nil, fmt.Errorf("list %q: %w", prefix, err)
		}
		if runs = append(runs, run); len(runs) > MaxRuns {
			break
		}
	}
	if r.more = len(runs) > MaxRuns; r.more {
		runs = runs[:MaxRuns]
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

// ReadSegment reads one segment. record.ErrCorrupt: it is there and is none of the key's shard.
func ReadSegment(ctx context.Context, s objstore.Reader, key string) (Segment, error) {
	id, _, _, err := layout.ParseIntakeSegment(key)
	if err != nil {
		return Segment{}, SegmentKind.Wrap(key, err)
	}
	seg, _, err := record.Read(ctx, s, key, SegmentKind, ParseSegment)
	if err != nil {
		return Segment{}, err
	}
	if seg.Shard != id {
		return Segment{}, SegmentKind.Corrupt(key, "it is of shard %s", seg.Shard)
	}
	return seg, nil
}
