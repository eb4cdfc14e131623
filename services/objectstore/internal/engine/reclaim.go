package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/failpoint"
)

const defaultReclaimBelow = 0.4

// tombstoneShare of the closed segments: beyond it the oldest segment is rewritten, however
// full. Tombstones go only when nothing is older, so copying them alone would never end.
const tombstoneShare = 0.25

// Hold sets the function that gives the first record that readers of the log still
// need; segments from there on are not dropped. Call it before Reclaim is used.
func (e *Engine) Hold(floor func() uint64) { e.floor = floor }

// Reclaim rewrites the emptiest closed segment below the threshold and drops it. It
// gives the bytes freed; 0 when there is nothing to do. One call at a time.
//
// Order: what is live is copied to the end of the log and fsynced (as ordinary writes
// that hold only while the index still names the old place), the index is flushed, so
// that no replay begins in the old segment, and then the file goes.
func (e *Engine) Reclaim(ctx context.Context) (int64, error) {
	seg, oldest := e.victim()
	if seg == nil {
		return 0, nil
	}
	defer seg.release()
	failpoint.Hit("objectstore.reclaim.begin.before")
	size := e.segmentLength(seg.number)
	sc := newScanner(seg, segHeaderSize, size)
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		r, at, err := sc.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("reclaim: %w", err)
		}
		if err := e.relocate(ctx, r, position{seg.number, at}, oldest); err != nil && !errors.Is(err, ErrPrecondition) {
			return 0, fmt.Errorf("reclaim %s: %w", segName(seg.number), err)
		}
	}
	failpoint.Hit("objectstore.reclaim.copy.after")
	keep := func(map[string]Bucket) error { return nil }
	if err := e.submit(ctx, &op{rec: record{kind: kindBuckets, flags: flagQuiet}, change: keep}); err != nil {
		return 0, fmt.Errorf("reclaim: %w", err)
	}
	if err := e.submit(ctx, &op{flush: true}); err != nil {
		return 0, fmt.Errorf("reclaim: %w", err)
	}
	failpoint.Hit("objectstore.reclaim.drop.before")
	return size, e.drop(seg)
}

func (e *Engine) segmentLength(n uint64) int64 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.length[n]
}

// victim takes a reference to the segment to rewrite; oldest says that no older one is left.
func (e *Engine) victim() (best *segment, oldest bool) {
	floor := ^uint64(0)
	if e.floor != nil {
		floor = e.floor()
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	share := e.opt.ReclaimBelow
	numbers := []uint64{}
	for n := range e.segments {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var tombs, total int64
	for i, n := range numbers[:max(0, len(numbers)-1)] {
		if e.segments[numbers[i+1]].firstSeq > floor {
			break
		}
		tombs, total = tombs+e.tombs[n], total+e.length[n]
		kept := e.live[n]
		if i > 0 { // those of the oldest hide nothing
			kept += e.tombs[n]
		}
		if f := float64(kept) / float64(max(1, e.length[n])); f < share {
			best, oldest, share = e.segments[n], i == 0, f
		}
	}
	if best == nil && share > 0 && float64(tombs) > tombstoneShare*float64(total) {
		best, oldest = e.segments[numbers[0]], true
	}
	if best == nil || !best.acquire() {
		return nil, false
	}
	return best, oldest
}

// relocate copies one record if it is still needed.
func (e *Engine) relocate(ctx context.Context, r record, at position, oldest bool) error {
	switch r.kind {
	case kindPut:
		x, err := e.idx.object(r.bucket, r.key)
		if err != nil || x == nil || x.pos != at {
			return err
		}
		o, err := objectOf(&r)
		if err != nil {
			return err
		}
		failpoint.Hit("objectstore.reclaim.copy.before")
		_, err = e.put(ctx, o, append([]byte(nil), r.body...), Cond{at: at, atIsSet: true}, flagQuiet)
		return err
	case kindDelete:
		// A tombstone hides puts of older segments from a rebuild of the index.
		if oldest {
			return nil
		}
		x, err := e.idx.object(r.bucket, r.key)
		if err != nil || x != nil {
			return err
		}
		r.flags |= flagQuiet
		return e.submit(ctx, &op{rec: r, stone: true})
	}
	return nil
}

// drop removes a segment that holds nothing live.
func (e *Engine) drop(seg *segment) error {
	e.mu.Lock()
	live := e.live[seg.number]
	if live != 0 {
		e.mu.Unlock()
		return fmt.Errorf("reclaim %s: %d bytes are still in use", segName(seg.number), live)
	}
	delete(e.segments, seg.number)
	delete(e.live, seg.number)
	delete(e.tombs, seg.number)
	delete(e.length, seg.number)
	e.mu.Unlock()
	seg.release()
	failpoint.Hit("objectstore.reclaim.remove.before")
	if err := errors.Join(e.fs.Remove(segName(seg.number)), e.fs.SyncDir(logDir)); err != nil {
		return fmt.Errorf("reclaim %s: %w", segName(seg.number), err)
	}
	return nil
}
