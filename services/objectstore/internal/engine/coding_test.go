package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// somewhere is a store of bodies that can be out, and counts what it opens.
type somewhere struct {
	body.Store
	out    atomic.Bool
	opened atomic.Int64
}

func (s *somewhere) Open(id string) (body.Reader, error) {
	s.opened.Add(1)
	if s.out.Load() {
		return nil, fmt.Errorf("open %s: %w", id, body.ErrUnavailable)
	}
	r, err := s.Store.Open(id)
	if err != nil {
		return nil, err
	}
	return &somewhereReader{r, s}, nil
}

type somewhereReader struct {
	body.Reader
	s *somewhere
}

func (r *somewhereReader) ReadAt(p []byte, off int64) (int, error) {
	if r.s.out.Load() {
		return 0, body.ErrUnavailable
	}
	return r.Reader.ReadAt(p, off)
}

// codedStore is a store with bodies elsewhere, whose closed segments are all bodies, and what is in it.
func codedStore(t *testing.T, change func(*Options)) (*testEngine, *somewhere, map[string][]byte, Options) {
	t.Helper()
	dir := t.TempDir()
	places := &somewhere{Store: body.NewFiles(vfs.Dir(t.TempDir()), nil)}
	opt := Options{Dir: dir, SegmentBytes: 16 << 10, InlineBytes: 4 << 10, ReclaimBelow: 0.5, Bodies: places}
	if change != nil {
		change(&opt)
	}
	e := openTest(t, opt)
	want := history(e, 1, 150)
	closeAll(t, e)
	if err := codeAll(e.Engine); err != nil {
		t.Fatal(err)
	}
	if st := e.Stats(); st.CodedSegments < 5 || st.UncodedSegments != 0 || st.CodedBytes < 5*16<<10 {
		t.Fatalf("%+v", st)
	}
	return e, places, want, opt
}

func closeAll(t *testing.T, e *testEngine) {
	t.Helper()
	for more := true; more; {
		var err error
		if more, err = e.Seal(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSegmentsAreBodies: everything works on segments that are bodies: reads, checks, restarts, a lost index, events, reclaiming,
// which takes the bodies with it.
func TestSegmentsAreBodies(t *testing.T) {
	e, places, want, opt := codedStore(t, nil)
	e.wantAll(want)
	if v, err := e.Verify(context.Background()); err != nil || len(v.Damages)+len(v.Lost) > 0 || v.Records == 0 {
		t.Errorf("%v, %+v", err, v)
	}
	coded := e.Stats().CodedSegments
	e.done()

	// A lost index is built from footers and stubs. Bodies are not asked for.
	if err := os.RemoveAll(filepath.Join(opt.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	places.opened.Store(0)
	e = openTest(t, opt)
	if n := places.opened.Load(); n != 0 || e.Stats().CodedSegments != coded {
		t.Errorf("%d bodies were opened by the start, %+v", n, e.Stats())
	}
	e.wantAll(want)

	// Nothing but a body has what its segment had.
	ids, err := e.BodiesAfter("", 1000)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for id := range e.codedBy {
		if st, err := e.StateOf(id); st != BodyNamed || err != nil {
			t.Errorf("%s is not named: %v", id, err)
		}
		for _, have := range ids {
			if have == id {
				named++
			}
		}
	}
	if named != coded {
		t.Errorf("%d of %d bodies of segments are listed", named, coded)
	}

	// Footers can be made again from bodies.
	e.done()
	if err := errors.Join(os.RemoveAll(filepath.Join(opt.Dir, "index")), os.RemoveAll(filepath.Join(opt.Dir, "footers"))); err != nil {
		t.Fatal(err)
	}
	e = openTest(t, opt)
	e.wantAll(want)

	// What is written again empties the segments.
	for k := range want {
		want[k] = append(want[k], "again"...)[:min(len(want[k])+5, 4<<10)]
		e.put(k, want[k])
	}
	e.put("fill", pattern(4<<10, 1))
	want["fill"] = pattern(4<<10, 1)
	for n := int64(1); n > 0; {
		if n, err = e.Reclaim(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	e.wantAll(want)
	left := e.Stats().CodedSegments
	if left >= coded {
		t.Errorf("%d segments are bodies, and %d before", left, coded)
	}
	files := 0
	if err := e.bodies.List(func(id string) error {
		if e.namesSegment(id) {
			files++
		}
		return nil
	}); err != nil || files != left {
		t.Errorf("%d bodies of %d segments, %v", files, left, err)
	}
	if err := e.eachUnnamedBody(func(id string) error { return fmt.Errorf("body %s is left", id) }); err != nil {
		t.Error(err)
	}
}

// TestSegmentAway: while bodies cannot be read, records in them are an error that passes, and no damage; a start needs none of them,
// and fails, rather than report damage, where it does.
func TestSegmentAway(t *testing.T) {
	e, places, want, opt := codedStore(t, nil)
	places.out.Store(true)
	failed := 0
	for k := range want {
		if _, err := e.body(k); errors.Is(err, ErrUnavailable) {
			failed++
		} else if err != nil {
			t.Errorf("%s: %v", k, err)
		}
	}
	if failed == 0 || len(e.Damages()) > 0 {
		t.Errorf("%d reads failed; damages %+v", failed, e.Damages())
	}
	for c, more := e.Tail(1), true; more; {
		var err error
		if _, _, more, err = c.Read(10000, func(*Event) bool { return true }); err != nil {
			if !errors.Is(err, ErrUnavailable) {
				t.Error(err)
			}
			break
		}
		if !more {
			t.Error("the log is read to its end without its segments")
		}
	}
	if _, err := e.Verify(context.Background()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("verified without bodies: %v", err)
	}
	for k := range want { // so that there is something to reclaim
		want[k] = []byte("x")
		e.put(k, want[k])
	}
	for range 5 {
		if _, err := e.Reclaim(context.Background()); err != nil && !errors.Is(err, ErrUnavailable) {
			t.Errorf("reclaim: %v", err)
		}
	}
	e.done()
	if err := os.RemoveAll(filepath.Join(opt.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	e = openTest(t, opt) // from the footers
	e.wantAll(want)
	if len(e.Damages()) > 0 {
		t.Errorf("%+v", e.Damages())
	}
	e.done()
	if err := errors.Join(os.RemoveAll(filepath.Join(opt.Dir, "index")), os.RemoveAll(filepath.Join(opt.Dir, "footers"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(opt); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("opened without footers and bodies: %v", err)
	}
	places.out.Store(false)
	e = openTest(t, opt)
	e.wantAll(want)
}

// TestStartAfterAKillWithoutPlaces: what the index of a process that was killed lacks is replayed, and none of that is in a coded
// segment: a start that needed bodies would be refused while places are away.
func TestStartAfterAKillWithoutPlaces(t *testing.T) {
	places := &somewhere{Store: body.NewFiles(vfs.Dir(t.TempDir()), nil)}
	opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 4 << 10, ReclaimBelow: 0.5, Bodies: places}
	e := openTest(t, opt)
	want := map[string][]byte{}
	put := func(i int) {
		k := fmt.Sprintf("k/%02d", i)
		want[k] = pattern(1000, byte(i))
		e.put(k, want[k])
	}
	for i := range 5 {
		put(i)
	}
	// The index on its drive ends in the middle of a segment, which becomes a body afterwards.
	if err := e.submit(context.Background(), &op{flush: true}); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		put(5 + i)
	}
	closeAll(t, e)
	if err := codeAll(e.Engine); err != nil || e.Stats().CodedSegments < 2 {
		t.Fatalf("%v, %+v", err, e.Stats())
	}
	put(45)
	killed := t.TempDir()
	if err := os.CopyFS(killed, os.DirFS(opt.Dir)); err != nil {
		t.Fatal(err)
	}
	e.done()
	places.out.Store(true)
	opt.Dir = killed
	e = openTest(t, opt)
	if b, err := e.body("k/45"); err != nil || !bytes.Equal(b, want["k/45"]) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	places.out.Store(false)
	e.wantAll(want)
}

// TestLostBodyOfASegment: each object of a segment whose body is lost is damaged, all others are served, and a repair writes
// the losses down.
func TestLostBodyOfASegment(t *testing.T) {
	e, _, want, opt := codedStore(t, nil)
	lost := ""
	for id := range e.codedBy {
		lost = max(lost, id)
	}
	num := e.codedBy[lost]
	gone := map[string]bool{}
	if err := e.eachRecord(func(_, key string, x *entry) error {
		if x.pos.seg == num {
			gone[key] = true
		}
		return nil
	}); err != nil || len(gone) == 0 {
		t.Fatalf("%v, %d objects", err, len(gone))
	}
	of, err := e.ObjectsOf(context.Background(), map[string]bool{lost: true}, 1000)
	if err != nil || len(of) != len(gone) {
		t.Errorf("%d objects lie in the segment, and %d are said to: %v", len(gone), len(of), err)
	}
	for _, o := range of {
		if !gone[o.Key] {
			t.Errorf("%+v does not lie in the segment", o)
		}
	}
	e.coded.forget(lost, nil)
	if err := e.bodies.Remove(lost); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		for k, b := range want {
			got, err := e.body(k)
			if gone[k] != errors.Is(err, ErrCorrupt) || err == nil && !bytes.Equal(got, b) {
				t.Errorf("%s: lost %t, %v", k, gone[k], err)
			}
		}
	}
	check()
	e.done()
	r := repairTest(t, opt)
	if len(r.Lost) != len(gone) {
		t.Errorf("%d objects are lost, and a repair says %d", len(gone), len(r.Lost))
	}
	e = openTest(t, opt)
	check()
	if len(e.Damages()) > 0 {
		t.Errorf("%+v", e.Damages())
	}
}

// TestFlippedStub: a changed byte in one half of a stub costs nothing, and is put right. With both halves damaged all objects of
// the segment are, no other; and the body is kept for whoever can mend the stub.
func TestFlippedStub(t *testing.T) {
	e, _, want, opt := codedStore(t, nil)
	var st *stub
	for _, num := range e.closed() {
		if s := e.segments[num].coded(); s != nil && e.live[num] > 0 {
			st = s
		}
	}
	e.done()
	name := filepath.Join(opt.Dir, segName(st.number))
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(whole, st.encode()) || binary.LittleEndian.Uint32(whole[8:]) <= segVersion {
		t.Fatalf("%x", whole)
	}
	for at := 0; at < stubBytes; at += 3 {
		flipOnDisk(t, name, int64(at))
		e = openTest(t, opt)
		e.wantAll(want)
		if len(e.Damages()) > 0 {
			t.Fatalf("byte %d: %+v", at, e.Damages())
		}
		e.done()
		if now, err := os.ReadFile(name); err != nil || !bytes.Equal(now, whole) {
			t.Fatalf("byte %d is not put right, %v", at, err)
		}
	}
	for at := 0; at < stubSize-24; at += 11 { // the bytes before the checksum that are used
		flipOnDisk(t, name, int64(at))
		flipOnDisk(t, name, int64(stubSize+(at+40)%(stubSize-24)))
		e = openTest(t, opt)
		lost := 0
		for k, b := range want {
			got, err := e.body(k)
			if errors.Is(err, ErrCorrupt) {
				lost++
			} else if err != nil || !bytes.Equal(got, b) {
				t.Fatalf("byte %d: %s: %v", at, k, err)
			}
		}
		if is, err := e.StateOf(st.body); lost == 0 || len(e.Damages()) == 0 || is != BodyUnknown || !errors.Is(err, ErrUncertain) {
			t.Fatalf("byte %d: %d objects are lost, damages %+v; the body is %v, %v", at, lost, e.Damages(), is, err)
		}
		e.done()
		if err := os.WriteFile(name, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		e = openTest(t, opt)
		e.wantAll(want)
		e.done()
		if err := os.RemoveAll(filepath.Join(opt.Dir, "index")); err != nil { // with the list of damages
			t.Fatal(err)
		}
	}
}

// TestSettleReadsBack: a body that is not the segment takes nobody's place, its id is never named again, and the next offer has
// another. A segment that was reclaimed or is being settled cannot be settled.
func TestSettleReadsBack(t *testing.T) {
	opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 4 << 10}
	e := openTest(t, opt)
	want := history(e, 2, 100)
	closeAll(t, e)
	one := offerAll
	one.Most = 1
	offer := func() Offer {
		t.Helper()
		list, err := e.OfferSegments(context.Background(), one)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0]
	}
	first := offer()
	if list, err := e.OfferSegments(context.Background(), one); len(list) > 0 || err != nil {
		t.Errorf("a second offer: %+v, %v", list, err)
	}
	for id := first.Body; first.Body == id; first = offer() {
		if err := e.Settle(context.Background(), id); !errors.Is(err, body.ErrDamaged) {
			t.Errorf("settled without a body: %v", err)
		}
		if is, err := e.StateOf(id); is != BodyDead || err != nil {
			t.Fatalf("a body that is lost is still offered: %v, %v", is, err)
		}
	}
	if err := keepOffered(e.Engine, first); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{3, 60, first.Size - 1} {
		o := first
		flipOnDisk(t, filepath.Join(opt.Dir, body.Name(o.Body)), at)
		if err := e.Settle(context.Background(), o.Body); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("settled with a changed byte %d: %v", at, err)
		}
		if is, err := e.StateOf(o.Body); is != BodyDead || err != nil {
			t.Errorf("the wrong body is named: %v", err)
		}
		if err := e.Settle(context.Background(), o.Body); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("settled again: %v", err)
		}
		if first = offer(); first.Body == o.Body || first.Segment != o.Segment {
			t.Errorf("%+v after %+v", first, o)
		}
		if err := keepOffered(e.Engine, first); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Settle(context.Background(), first.Body); err != nil {
		t.Fatal(err)
	}
	e.wantAll(want)

	second := offer()
	if err := keepOffered(e.Engine, second); err != nil {
		t.Fatal(err)
	}
	// Places that are away are waited for, and not for ever: others could be offered meanwhile.
	places := &somewhere{Store: e.bodies}
	places.out.Store(true)
	e.bodies = places
	for range settleTries {
		if is, err := e.StateOf(second.Body); is != BodyNamed || err != nil {
			t.Fatalf("%v, %v", is, err)
		}
		if err := e.Settle(context.Background(), second.Body); !errors.Is(err, body.ErrUnavailable) {
			t.Fatalf("settled while the places are away: %v", err)
		}
	}
	if is, err := e.StateOf(second.Body); is != BodyDead || err != nil {
		t.Errorf("a body that nobody can read is still offered: %v, %v", is, err)
	}
	places.out.Store(false)
	second = offer()
	if err := keepOffered(e.Engine, second); err != nil {
		t.Fatal(err)
	}
	e.withdraw(second.Segment) // as reclaiming does
	if err := e.Settle(context.Background(), second.Body); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("settled what was withdrawn: %v", err)
	}
	e.wantAll(want)
}

// renamedAnyway is a file system whose renames are done, and fail.
type renamedAnyway struct {
	vfs.FS
	on atomic.Bool
}

func (r *renamedAnyway) Rename(from, to string) error {
	err := r.FS.Rename(from, to)
	if r.on.Load() {
		err = errors.Join(err, errInjected)
	}
	return err
}

// TestStubBehindAnError: after a rename that failed the segment is what has the name, and nothing is offered any more that others would
// wait for.
func TestStubBehindAnError(t *testing.T) {
	dir := t.TempDir()
	fsys := &renamedAnyway{FS: vfs.Dir(dir)}
	e := openTest(t, Options{Dir: dir, FS: fsys, SegmentBytes: 16 << 10, InlineBytes: 4 << 10})
	want := history(e, 6, 60)
	closeAll(t, e)
	one := offerAll
	one.Most = 1
	list, err := e.OfferSegments(context.Background(), one)
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := keepOffered(e.Engine, list[0]); err != nil {
		t.Fatal(err)
	}
	fsys.on.Store(true)
	if err := e.Settle(context.Background(), list[0].Body); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	fsys.on.Store(false)
	if is, err := e.StateOf(list[0].Body); is != BodyNamed || err != nil {
		t.Errorf("the body of the stub is %v, %v", is, err)
	}
	e.wantAll(want)
	if more, err := e.OfferSegments(context.Background(), one); err != nil || len(more) != 1 || more[0].Segment == list[0].Segment {
		t.Errorf("%+v after %+v, %v", more, list, err)
	}
}

// TestDamagedSegmentIsNotOffered: what is damaged stays where it can be seen.
func TestDamagedSegmentIsNotOffered(t *testing.T) {
	opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 4 << 10}
	e := openTest(t, opt)
	history(e, 3, 60)
	closeAll(t, e)
	first := e.closed()[0]
	flipOnDisk(t, filepath.Join(opt.Dir, segName(first)), 4000)
	list, err := e.OfferSegments(context.Background(), offerAll)
	if err != nil || len(list) == 0 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, o := range list {
		if o.Segment == first {
			t.Error("the damaged segment is offered")
		}
	}
}

// TestReadsDuringTheSwitch: readers meet segments that are replaced and reclaimed under them, and never an error.
func TestReadsDuringTheSwitch(t *testing.T) {
	opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 4 << 10, ReclaimBelow: 0.6}
	e := openTest(t, opt)
	want := history(e, 4, 100)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				for k, b := range want {
					if strings.HasPrefix(k, "moving") {
						continue
					}
					select {
					case <-stop:
						return
					default:
					}
					if got, err := e.body(k); err != nil || !bytes.Equal(got, b) {
						t.Errorf("%s: %v", k, err)
						return
					}
				}
			}
		})
	}
	for round := range 10 {
		for i := range 20 {
			e.put(fmt.Sprintf("moving/%d", i), pattern(2000, byte(round)))
		}
		closeAll(t, e)
		if err := codeAll(e.Engine); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Reclaim(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if e.Stats().CodedSegments == 0 {
		t.Error("no segment is a body")
	}
}

// TestStubOfALateDrive: of several drives some have a segment, others its stub, whole or damaged; one with a longer file that
// is no stub has missed the change. All get the stub.
func TestStubOfALateDrive(t *testing.T) {
	r, worlds := rotten(t)
	before := r.copyOf()
	e, err := r.open(all)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { _ = e.Run(ctx) }()
	if err := codeAll(e); err != nil {
		t.Fatal(err)
	}
	stop()
	segments, bodies := e.Stats().CodedSegments, map[string]uint64{}
	for id, num := range e.codedBy {
		bodies[id] = num
	}
	closeMirror(e)
	if segments == 0 {
		t.Fatalf("%d segments are bodies", segments)
	}
	last := len(worlds) - 1
	for id, num := range bodies {
		for _, c := range []struct {
			disk int
			half bool
		}{{0, false}, {1, false}, {0, true}, {1, true}} {
			late := r.copyOf()
			old, err := before.disks[c.disk].Open(segName(num))
			if err != nil {
				t.Fatal(err)
			}
			size, _ := old.Size()
			f, err := late.disks[c.disk].Open(segName(num))
			if err != nil {
				t.Fatal(err)
			}
			if err := overwrite(f, old, 0, size); err != nil {
				t.Fatal(err)
			}
			if c.half { // and of the other drive's stub a half is damaged
				flipOn(t, late.disks[1-c.disk], segName(num), 70)
			}
			_, e, err := late.check(worlds, last, last, all)
			if err != nil {
				t.Fatalf("segment %d, disk %d, half %t: %v", num, c.disk, c.half, err)
			}
			if e.codedBy[id] != num || len(e.Damages()) > 0 {
				t.Errorf("segment %d is not body %s; damages %+v", num, id, e.Damages())
			}
			closeMirror(e)
			for i, d := range late.disks {
				if b, size, err := vfs.ReadFile(d, segName(num), stubBytes); err != nil || size != stubBytes || !bothHalves(b, num) {
					t.Errorf("disk %d has no stub of segment %d: %d bytes, %v", i, num, size, err)
				}
			}
		}
	}
}
