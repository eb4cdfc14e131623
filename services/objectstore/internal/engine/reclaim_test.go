package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
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
	if err := removeKey(ctx, e, "old/gone"); err != nil {
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
		opt.IndexFS = pebblevfs.NewMem() // rebuilt at each start
		e = openTest(t, opt)
		if _, err := e.body("old/gone"); !errors.Is(err, ErrNotFound) {
			t.Errorf("a deleted object came back: %v", err)
		}
		e.wantAll(want)
		e.done()
	}
}

// TestReclaimOfTombstonesEnds: many deletes behind segments that are mostly in use. Rewriting the
// tombstones again and again would free nothing.
func TestReclaimOfTombstonesEnds(t *testing.T) {
	ctx := context.Background()
	opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 8 << 10, ReclaimBelow: 0.4}
	e := openTest(t, opt)
	want := map[string][]byte{}
	gone := func(s, i int) string { return fmt.Sprintf("gone/%0200d/%d", s, i) }
	for s := range 20 {
		key := fmt.Sprintf("live/%d", s)
		want[key] = pattern(7500, byte(s))
		e.put(key, want[key])
		for i := range 30 {
			e.put(gone(s, i), []byte("x"))
		}
	}
	for s := range 20 {
		many := make([]Deletion, 30)
		for i := range many {
			many[i].Key = gone(s, i)
		}
		e.DeleteMany(ctx, "bkt", many)
	}
	before := e.Stats()
	for n := 0; ; n++ {
		freed, err := e.Reclaim(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if freed == 0 {
			t.Logf("%d segments were rewritten, %d bytes of the log are %d", n, before.LogBytes, e.Stats().LogBytes)
			break
		}
		if n == 3*before.Segments {
			t.Fatalf("no end after %d segments: %+v, before %+v", n, e.Stats(), before)
		}
	}
	if s := e.Stats(); float64(s.LiveBytes) < 0.6*float64(s.LogBytes) {
		t.Errorf("%d of %d bytes are in use", s.LiveBytes, s.LogBytes)
	}
	e.wantAll(want)
	e.done()
	opt.IndexFS = pebblevfs.NewMem()
	e = openTest(t, opt)
	e.wantAll(want)
}

// TestCopiesGiveWay: between the look at a record and its copy somebody else may have written the key.
func TestCopiesGiveWay(t *testing.T) {
	ctx := context.Background()
	e := openTest(t, Options{Dir: t.TempDir()})
	e.put("k", []byte("old"))
	old, err := e.idx.current("bkt", "k")
	if err != nil {
		t.Fatal(err)
	}
	copied := func() error {
		_, err := e.Engine.put(ctx, &op{cond: Cond{at: old.pos, atIsSet: true}}, sized("k", []byte("old")), []byte("old"), flagQuiet)
		return err
	}
	e.put("k", []byte("newer"))
	if err := copied(); !errors.Is(err, ErrPrecondition) {
		t.Errorf("a copy over a newer object: %v", err)
	}
	e.want("k", []byte("newer"))
	stone := &op{rec: record{kind: kindDelete, flags: flagQuiet, bucket: "bkt", key: "k"}, tombstone: true}
	if err := e.submit(ctx, stone); !errors.Is(err, ErrPrecondition) {
		t.Errorf("the copy of a tombstone over an object: %v", err)
	}
	e.want("k", []byte("newer"))
	if err := removeKey(ctx, e, "k"); err != nil {
		t.Fatal(err)
	}
	if err := copied(); !errors.Is(err, ErrPrecondition) {
		t.Errorf("a copy of a deleted object: %v", err)
	}
	if _, err := e.body("k"); !errors.Is(err, ErrNotFound) {
		t.Errorf("it came back: %v", err)
	}
}

func TestConditions(t *testing.T) {
	there := &Brief{ETag: "e", Seq: 7}
	for _, c := range []struct {
		cond          Cond
		absent, there error
	}{
		{Cond{}, nil, nil},
		{Cond{Absent: true}, nil, ErrPrecondition},
		{Cond{Match: "*"}, ErrNotFound, nil},
		{Cond{Match: "e"}, ErrNotFound, nil},
		{Cond{Match: "f"}, ErrNotFound, ErrPrecondition},
		{Cond{Seq: 7}, ErrNotFound, nil},
		{Cond{Seq: 6}, ErrNotFound, ErrPrecondition},
	} {
		if err := c.cond.Check(nil); !errors.Is(err, c.absent) {
			t.Errorf("%+v, absent: %v", c.cond, err)
		}
		if err := c.cond.Check(there); !errors.Is(err, c.there) {
			t.Errorf("%+v, there: %v", c.cond, err)
		}
	}
}

// TestReclaimSharesFsyncs: copies share their batches.
func TestReclaimSharesFsyncs(t *testing.T) {
	opt := Options{Dir: t.TempDir(), SegmentBytes: 256 << 10, ReclaimBelow: 0.6}
	e := openTest(t, opt)
	want := map[string][]byte{}
	many := make([]Deletion, 0, 600)
	for i := range 1200 {
		k := fmt.Sprintf("k/%04d", i)
		body := pattern(200, byte(i))
		e.put(k, body)
		if i%2 == 0 {
			many = append(many, Deletion{Key: k})
		} else {
			want[k] = body
		}
	}
	e.DeleteMany(context.Background(), "bkt", many)
	before := e.Stats()
	freed, err := e.Reclaim(context.Background())
	if err != nil || freed == 0 {
		t.Fatalf("freed %d, %v", freed, err)
	}
	after := e.Stats()
	copied := after.Records - before.Records
	t.Logf("%d records were copied with %d fsyncs", copied, after.Fsyncs-before.Fsyncs)
	if copied < 200 || after.Fsyncs-before.Fsyncs > copied/10 {
		t.Errorf("%d fsyncs for %d records", after.Fsyncs-before.Fsyncs, copied)
	}
	e.wantAll(want)
}

// TestOneDamagedRecordDoesNotStopReclaiming: the segment with it stays, the others go.
func TestOneDamagedRecordDoesNotStopReclaiming(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir, SegmentBytes: 16 << 10, InlineBytes: 8 << 10, ReclaimBelow: 0.9})
	want := map[string][]byte{}
	for i := range 12 { // three or so a segment, two of which are replaced
		k := fmt.Sprintf("keep/%d", i)
		want[k] = pattern(5<<10, byte(i))
		e.put(k, want[k])
		e.put("again", pattern(6<<10, byte(i)))
		e.put("again", pattern(6<<10, byte(i)))
	}
	want["again"] = pattern(6<<10, 11)
	x, err := e.idx.current("bkt", "keep/0")
	if err != nil {
		t.Fatal(err)
	}
	flipOnDisk(t, dir+"/"+segName(x.pos.seg), x.pos.off+int64(x.headLen)+100)
	segments := e.Stats().Segments
	for n := 0; ; n++ {
		freed, err := e.Reclaim(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if freed == 0 {
			break
		}
		if n > 100 {
			t.Fatal("no end")
		}
	}
	s := e.Stats()
	if s.Segments >= segments || e.segments[x.pos.seg] == nil || s.Damaged != 1 {
		t.Errorf("%d segments, before %d, %+v", s.Segments, segments, e.Damages())
	}
	if _, err := e.body("keep/0"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the damaged object: %v", err)
	}
	if err := removeKey(ctx, e, "keep/0"); err != nil {
		t.Fatal(err)
	}
	if freed, err := e.Reclaim(ctx); err != nil || freed == 0 || e.segments[x.pos.seg] != nil {
		t.Errorf("nothing needs the record any more: freed %d, %v", freed, err)
	}
	delete(want, "keep/0")
	e.wantAll(want)
}

// An object of which a lost write may have been a later version does not become its last
// version by being copied.
func TestNothingIsReclaimedWhileKeysAreUnknown(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	o := Options{Dir: dir, SegmentBytes: 16 << 10, InlineBytes: 8 << 10, ReclaimBelow: 0.9}
	e := openTest(t, o)
	place := func(key string) *entry {
		x, err := e.idx.current("bkt", key)
		if err != nil || x == nil {
			t.Fatal(key, err)
		}
		return x
	}
	e.put("stale", pattern(5<<10, 1))
	first := place("stale").pos.seg
	for i := 0; place("stale").pos.seg == first || i < 8; i++ { // the first version's segment is closed, and mostly garbage
		e.put("again", pattern(6<<10, byte(i)))
		if i == 4 {
			e.put("stale", pattern(5<<10, 2))
		}
	}
	lost := place("stale").pos.seg
	e.done()
	path := dir + "/" + segName(lost)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path, make([]byte, info.Size()), 0o600), os.RemoveAll(dir+"/index")); err != nil {
		t.Fatal(err)
	}
	e = openTest(t, o)
	if e.Uncertain() == nil || !e.MaybeOlder(place("stale").seq) {
		t.Fatalf("the test lost nothing: %+v", e.Damages())
	}
	for range 20 {
		if _, err := e.Reclaim(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if !e.MaybeOlder(place("stale").seq) {
		t.Error("an older version passes for the last one after it was copied")
	}
}
