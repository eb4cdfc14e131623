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

// Reader follows the segments of one shard. A Reader returns each segment once; a new
// Reader starts with all segments that exist. Not for concurrent use.
//
// Each run is listed from the last segment that was read of it, so a poll costs one request
// plus one for each run that has segments. A writer creates number n+1 only after n is known
// to exist, so no segment can appear before one that was read.
type Reader struct {
	store    objstore.Reader
	shard    shard.ID
	last     map[string]string // run prefix -> last key that was passed to fn
	deferred []string          // keys that fn wants later, the longest waiting first
	more     bool              // runs above the bound are not followed yet
}

// MaxRuns bounds the runs that are followed at one time. Further runs are read when the
// segments of others have been deleted.
const MaxRuns = 10_000

// MaxDeferred bounds the segments that are deferred at one time. A poll stops trying deferred
// segments after maxFailedRetries failures.
const (
	MaxDeferred      = 1000
	maxFailedRetries = 10
)

// ErrLater is wrapped by the error of Poll's fn for a segment that can't be processed now
// and must not delay those after it.
var ErrLater = errors.New("later")

// NewReader makes a reader of a shard.
func NewReader(s objstore.Reader, id shard.ID) *Reader {
	return &Reader{store: s, shard: id, last: map[string]string{}}
}

// Poll calls fn with the key of each new segment, run by run in the order of writing, for at
// most limit segments (0 is no limit); more reports whether some may be left. An error of fn
// ends the poll, and the next poll begins with the same segment. An error that wraps ErrLater
// does not end it: the segment is deferred, and later polls try it again. When MaxDeferred
// segments are deferred already, ErrLater ends the poll like any other error.
func (r *Reader) Poll(ctx context.Context, limit int, fn func(key string) error) (more bool, err error) {
	if err := r.retryDeferred(fn); err != nil {
		return false, err
	}
	runs, err := r.runs(ctx)
	if err != nil {
		return false, err
	}
	calls := 0
	for _, run := range runs {
		for o, err := range objstore.List(ctx, r.store, objstore.ListOptions{Prefix: run, StartAfter: r.last[run]}) {
			if err != nil {
				return false, fmt.Errorf("list %q: %w", run, err)
			}
			if limit > 0 && calls == limit {
				return true, nil
			}
			if _, _, _, err := layout.ParseIntakeSegment(o.Key); err == nil {
				err := fn(o.Key)
				if errors.Is(err, ErrLater) && len(r.deferred) < MaxDeferred {
					r.deferred = append(r.deferred, o.Key)
				} else if err != nil {
					return false, err
				}
				calls++
			}
			// Also for a key that is no segment: nothing else would ever move past it.
			r.last[run] = o.Key
		}
	}
	return false, nil
}

// Deferred is the number of segments that are deferred.
func (r *Reader) Deferred() int { return len(r.deferred) }

// Crowded reports whether the last poll saw more runs than MaxRuns.
func (r *Reader) Crowded() bool { return r.more }

// retryDeferred calls fn with the deferred segments, oldest first, until a few have failed
// again: the rest has its turn in later polls, so that a poll does not repeat a thousand failures.
func (r *Reader) retryDeferred(fn func(key string) error) error {
	failed := 0
	for range len(r.deferred) {
		key := r.deferred[0]
		err := fn(key)
		if err != nil && !errors.Is(err, ErrLater) {
			return err
		}
		r.deferred = slices.Delete(r.deferred, 0, 1)
		if err == nil {
			continue
		}
		r.deferred = append(r.deferred, key)
		if failed++; failed == maxFailedRetries {
			break
		}
	}
	return nil
}

// runs lists the prefixes of the runs that have segments, and forgets the position in others: those are deleted, and r.last would grow with every restart of a writer.
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

// ReadSegment reads one segment. A segment of another shard than its key's is record.ErrCorrupt.
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
