package engine

import (
	"context"
	"errors"
	"os"
	"testing"
)

// deadStore has a first segment of an object that stays, one that is replaced and one that is deleted, and further segments. It
// gives where their records are.
func deadStore(t *testing.T, opt Options) (e *testEngine, at map[string]position, want map[string][]byte) {
	t.Helper()
	e = openTest(t, opt)
	at, want = map[string]position{}, map[string][]byte{"stays": pattern(5<<10, 1), "again": pattern(6<<10, 9)}
	e.put("stays", want["stays"])
	e.put("gone", pattern(4<<10, 2))
	e.put("again", pattern(4<<10, 3))
	for _, k := range []string{"stays", "gone", "again"} {
		x, err := e.idx.current("bkt", k)
		if err != nil || x == nil {
			t.Fatal(k, err)
		}
		at[k] = x.pos
	}
	e.mu.RLock()
	at["tombstone"] = e.end
	e.mu.RUnlock()
	if err := removeKey(context.Background(), e, "gone"); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		e.put("again", want["again"])
	}
	return e, at, want
}

func reclaimAll(t *testing.T, e *testEngine) {
	t.Helper()
	for n := 0; ; n++ {
		freed, err := e.Reclaim(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if freed == 0 {
			return
		}
		if n > 100 {
			t.Fatal("no end")
		}
	}
}

// TestDeadDamageIsReclaimed: damage of a record that nothing needs is listed by a check, and goes with its segment when that is
// reclaimed, whether its key can be read or not. A restart does not bring the list back.
func TestDeadDamageIsReclaimed(t *testing.T) {
	for name, off := range map[string]int64{"key": headSize + 600, "head": 6} {
		for _, verify := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 8 << 10, ReclaimBelow: 0.9}
				e, at, want := deadStore(t, opt)
				dead := at["again"]
				flipOnDisk(t, opt.Dir+"/"+segName(dead.seg), dead.off+off)
				if verify {
					v, err := e.Verify(context.Background())
					if err != nil || len(v.Damages) != 1 || len(v.Lost) != 0 || v.Uncertain {
						t.Fatalf("%+v, %v", v, err)
					}
				}
				reclaimAll(t, e)
				if e.segments[dead.seg] != nil || len(e.Damages()) != 0 {
					t.Errorf("the segment is there: %t, %+v", e.segments[dead.seg] != nil, e.Damages())
				}
				e.wantAll(want)
				e.done()
				for range 2 { // with the index, and without
					e = openTest(t, opt)
					if len(e.Damages()) != 0 || e.Uncertain() != nil {
						t.Errorf("%+v", e.Damages())
					}
					e.wantAll(want)
					e.done()
					if err := os.RemoveAll(opt.Dir + "/index"); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// TestNeededDamageStays: a record of which the head is damaged stays while its object does, without Reclaim trying for ever, and goes
// with its segment when the object is written again.
func TestNeededDamageStays(t *testing.T) {
	opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 8 << 10, ReclaimBelow: 0.9}
	e, at, want := deadStore(t, opt)
	is := at["stays"]
	flipOnDisk(t, opt.Dir+"/"+segName(is.seg), is.off+6)
	reclaimAll(t, e)
	if e.segments[is.seg] == nil || len(e.Damages()) == 0 {
		t.Fatalf("the segment is there: %t, %+v", e.segments[is.seg] != nil, e.Damages())
	}
	if _, err := e.body("stays"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("read: %v", err)
	}
	want["stays"] = pattern(100, 7)
	e.put("stays", want["stays"])
	reclaimAll(t, e)
	if e.segments[is.seg] != nil || len(e.Damages()) != 0 {
		t.Errorf("the segment is there: %t, %+v", e.segments[is.seg] != nil, e.Damages())
	}
	e.wantAll(want)
	e.done()
}

// TestDamagedTombstoneStays: what cannot be read may be the tombstone that hides an older record from an index that is built anew, so
// its segment stays while there are older ones, and goes when it is the oldest.
func TestDamagedTombstoneStays(t *testing.T) {
	ctx := context.Background()
	opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 8 << 10, ReclaimBelow: 0.5}
	e := openTest(t, opt)
	fill := func(key string) { e.put(key, pattern(6<<10, 1)) }
	fill("old/gone")
	fill("old/1")
	fill("old/2") // the first segment: 2 of 3 live
	fill("again") // begins the second segment
	e.mu.RLock()
	tomb := e.end
	e.mu.RUnlock()
	if err := removeKey(ctx, e, "old/gone"); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		fill("again")
	}
	if tomb.seg != 2 {
		t.Fatalf("the tombstone is in segment %d", tomb.seg)
	}
	flipOnDisk(t, opt.Dir+"/"+segName(tomb.seg), tomb.off+6)
	reclaimAll(t, e)
	if e.segments[1] == nil || e.segments[2] == nil || len(e.Damages()) == 0 {
		t.Fatalf("dropped, and the deleted object would come back: %+v", e.Damages())
	}
	for _, k := range []string{"old/1", "old/2"} { // the first segment empties
		if err := removeKey(ctx, e, k); err != nil {
			t.Fatal(err)
		}
	}
	reclaimAll(t, e)
	if e.segments[1] != nil || e.segments[2] != nil || len(e.Damages()) != 0 {
		t.Errorf("%+v", e.Damages())
	}
	e.done()
	if err := os.RemoveAll(opt.Dir + "/index"); err != nil {
		t.Fatal(err)
	}
	e = openTest(t, opt)
	if _, err := e.body("old/gone"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a deleted object came back: %v", err)
	}
	e.wantAll(map[string][]byte{"again": pattern(6<<10, 1)})
	e.done()
}
