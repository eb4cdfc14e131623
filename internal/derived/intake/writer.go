package intake

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// Writer writes the segments of one run of one process. Different shards may be written
// concurrently; calls for one shard may not overlap.
type Writer struct {
	Store objstore.Store
	// Run names the run, of lower-case letters and digits; random, so that no other process uses it.
	Run    string
	Shards uint32

	next []uint64 // by shard
}

// NewWriter makes a writer.
func NewWriter(s objstore.Store, run string, shards uint32) *Writer {
	return &Writer{Store: s, Run: run, Shards: shards, next: make([]uint64, shards)}
}

// Write writes one segment of at most MaxEntries. After an error the caller must call it again
// with the same entries, and may append to them: the segment may have been written, and the
// next call finds it under the same number.
func (w *Writer) Write(ctx context.Context, s shard.ID, entries []accepted.Batch) error {
	if uint32(s) >= w.Shards {
		return fmt.Errorf("write intake segment: shard %s of %d", s, w.Shards)
	}
	n := w.next[s]
	key := layout.IntakeSegment(s, w.Run, n)
	body, err := Segment{Shard: s, Shards: w.Shards, Entries: entries}.Marshal()
	if err != nil {
		return err
	}
	_, err = w.Store.Create(ctx, key, body, objstore.PutOptions{})
	if errors.Is(err, objstore.ErrExists) {
		// Nobody else writes under this run, so an earlier attempt of ours was applied late, with
		// these entries or with the first of them. Unless it is exactly this segment, the
		// entries are written again under the next number: an entry that a worker sees twice
		// is harmless, a missing one is not.
		old, _, gerr := w.Store.Get(ctx, key, objstore.GetOptions{Limit: int64(SegmentKind.MaxBytes)})
		if gerr != nil && !errors.Is(gerr, objstore.ErrNotFound) && !objstore.Unreadable(gerr) {
			return fmt.Errorf("write intake segment %q: %w", key, gerr)
		}
		w.next[s] = n + 1
		if gerr == nil && bytes.Equal(old, body) {
			return nil
		}
		return w.Write(ctx, s, entries)
	}
	if err != nil {
		return fmt.Errorf("write intake segment %q: %w", key, err)
	}
	w.next[s] = n + 1
	return nil
}
