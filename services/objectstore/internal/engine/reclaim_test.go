package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestDeletedStaysDeletedWithoutTheIndex: the segment with the delete is reclaimed while the one with the
// put is still there. Nothing but the copied tombstone hides the put from an index that is built anew.
func TestDeletedStaysDeletedWithoutTheIndex(t *testing.T) {
	ctx := context.Background()
	opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 8 << 10, ReclaimBelow: 0.5}
	e := openTest(t, opt)
	fill := func(key string) { e.put(key, pattern(6<<10, 1)) }
	fill("old/gone")
	fill("old/1")
	fill("old/2") // the first segment: 2 of 3 live
	if err := e.Delete(ctx, "bkt", "old/gone", Cond{}); err != nil {
		t.Fatal(err)
	}
	for range 4 { // the second one: the tombstone, and what is replaced
		fill("again")
	}
	freed, err := e.Reclaim(ctx)
	if err != nil || freed == 0 {
		t.Fatalf("freed %d: %v", freed, err)
	}
	if e.segments[1] == nil || e.segments[2] != nil {
		t.Fatal("the test is of the second segment's removal, and the first must stay")
	}
	want := map[string][]byte{"old/1": pattern(6<<10, 1), "old/2": pattern(6<<10, 1), "again": pattern(6<<10, 1)}
	e.wantAll(want)
	e.done()
	for range 2 {
		opt.IndexFS = vfs.NewMem() // built anew, each time
		e = openTest(t, opt)
		if _, err := e.body("old/gone"); !errors.Is(err, ErrNotFound) {
			t.Errorf("a deleted object came back: %v", err)
		}
		e.wantAll(want)
		e.done()
	}
}
