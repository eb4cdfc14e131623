package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// damageHistory fills a store with every kind of record in several segments: bodies in
// the log and in files, replaced, deleted, tagged, and copied by reclaiming. The last
// records are not in the index yet, when flushed is false.
func damageHistory(t *testing.T, flushed, versioned bool) *session {
	t.Helper()
	s, err := openSession(crashfs.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	must := func(calls ...call) {
		t.Helper()
		if err := errors.Join(s.together(calls...)...); err != nil {
			t.Fatal(err)
		}
	}
	must(bucketCall())
	must(policyCall("p1"))
	for i, k := range crashKeys {
		must(putCall(k, pattern(300*i, byte(i)), "a-"+k, Cond{}))
	}
	must(putCall("k/00", pattern(5000, 3), "file-0", Cond{}), putCall("k/01", pattern(2500, 4), "file-1", Cond{}))
	must(deleteCall("k/02"), deleteCall("k/03"))
	if versioned {
		must(versioningCall(Enabled))
		must(putCall("k/04", pattern(3000, 5), "v-4", Cond{}), putCall("k/09", pattern(400, 5), "v-9", Cond{}), deleteCall("k/10"))
		must(putCall("k/09", pattern(500, 5), "w-9", Cond{}), deleteVersionCall("k/08", NullVersion))
	}
	must(flushCall())
	must(policyCall("p2"))
	must(putCall("k/04", pattern(900, 9), "b-4", Cond{}), tagCall("k/05", "x"))
	must(reclaimCall())
	if versioned {
		must(versioningCall(Suspended))
		must(deleteCall("k/11"), putCall("k/10", pattern(200, 6), "null-10", Cond{}))
		must(deleteVersionCall("k/09", s.now().history("k/09")[0].ID), tagVersionCall("k/04", NullVersion, "y"))
	}
	must(putCall("k/06", pattern(800, 8), "b-6", Cond{}), putCall("k/03", pattern(10, 8), "b-3", Cond{}))
	must(deleteCall("k/07"))
	must(putCall("k/08", pattern(700, 7), "last", Cond{}))
	if flushed {
		must(flushCall())
	}
	return s
}

// damaged is a disk with one damage.
type damaged struct {
	what string
	fs   *crashfs.FS
	// most is how many objects may be lost by it at most.
	most int
}

// disk copies what a killed process leaves.
func (s *session) disk() *crashfs.FS {
	w := s.fs.Walk()
	for w.Step() {
	}
	return w.Kill()
}

func flipByte(t *testing.T, f *crashfs.FS, name string, at int64, by byte) {
	t.Helper()
	x, err := f.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := x.ReadAt(b[:], at); err != nil {
		t.Fatalf("%s at %d: %v", name, at, err)
	}
	b[0] ^= by
	if _, err := x.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// places gives the offsets to damage in a record: one of each field.
func places(r *record) (offs []int64) {
	for _, o := range []int{0, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 16, 18, 21, 24, 30, 33, 39} {
		offs = append(offs, int64(o))
	}
	offs = append(offs, headSize, headSize+int64(len(r.bucket)), int64(r.headLen())-1)
	if len(r.meta) > 0 {
		offs = append(offs, headSize+int64(len(r.bucket)+len(r.key)), int64(r.headLen())-int64(len(r.meta)/2))
	}
	if r.bodyLen > 0 {
		offs = append(offs, int64(r.headLen()), int64(r.headLen())+int64(r.bodyLen)/2, r.size()-1)
	}
	for i := range offs {
		offs[i] = min(offs[i], r.size()-1)
	}
	return offs
}

// damages gives disks with a flipped byte in every kind of record, header and file, and
// with segments that are missing, cut and zeroed. every selects one of so many.
func (s *session) damages(t *testing.T, every int) (list []damaged) {
	t.Helper()
	n := 0
	add := func(what string, most int, change func(f *crashfs.FS)) {
		if n++; n%every != 0 {
			return
		}
		f := s.disk()
		change(f)
		list = append(list, damaged{what, f, most})
	}
	for _, num := range slices.Sorted(func(yield func(uint64) bool) {
		for n := range s.e.segments {
			if !yield(n) {
				return
			}
		}
	}) {
		seg, name := s.e.segments[num], segName(num)
		size := s.e.segmentEnd(num)
		for at := int64(0); at < 36; at += 3 {
			add(fmt.Sprintf("byte %d of the header of %s", at, name), 0, func(f *crashfs.FS) { flipByte(t, f, name, at, 0x21) })
		}
		inIt := 0
		sc := newScanner(seg, 0, size)
		var offs []int64
		for {
			r, at, err := sc.next()
			if err != nil {
				break
			}
			inIt++
			offs = append(offs, at)
			for _, o := range places(&r) {
				add(fmt.Sprintf("byte %d of the record at %d of %s, kind %d, %q", o, at, name, r.kind, r.key), 1,
					func(f *crashfs.FS) { flipByte(t, f, name, at+o, 0x10) })
			}
		}
		add(name+" is missing", inIt, func(f *crashfs.FS) { _ = f.Remove(name) })
		for _, at := range append(offs, size-1, 20, 0) {
			add(fmt.Sprintf("%s is cut at %d", name, at), inIt, func(f *crashfs.FS) {
				x, err := f.Open(name)
				if err == nil {
					err = x.Truncate(at)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
		}
		for _, at := range offs {
			add(fmt.Sprintf("%s is zero from %d on", name, at), inIt, func(f *crashfs.FS) {
				x, err := f.Open(name)
				if err == nil {
					_, err = x.WriteAt(make([]byte, min(512, size-at)), at)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	for at := int64(0); at < markSize; at += 5 {
		add(fmt.Sprintf("byte %d of %s", at, markName), 0, func(f *crashfs.FS) { flipByte(t, f, markName, at, 1) })
	}
	dirs, _ := vfs.Names(s.fs, body.Dir)
	for _, d := range dirs {
		names, _ := vfs.Names(s.fs, body.Dir+"/"+d)
		for _, n := range names {
			add("byte 77 of body file "+n, 1, func(f *crashfs.FS) { flipByte(t, f, body.Name(n), 77, 4) })
			add("body file "+n+" is missing", 1, func(f *crashfs.FS) { _ = f.Remove(body.Name(n)) })
		}
	}
	return list
}

// survey reads every key. Each must give the right bytes or say that it cannot: damaged,
// or not known. It gives the keys that failed.
func survey(e *Engine, want world) (failed []string, err error) {
	bad := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }
	for _, k := range crashKeys {
		w, there := want[k]
		h, gerr := e.Get("bkt", k)
		var body bytes.Buffer
		if gerr == nil {
			gerr = h.Copy(&body, 0, h.Object.Size)
			h.Close()
		}
		switch {
		case errors.Is(gerr, ErrCorrupt) && there:
			failed = append(failed, k)
			if _, serr := e.Stat("bkt", k); !errors.Is(serr, ErrCorrupt) {
				bad("GET of %q says that it is damaged, HEAD says %v", k, serr)
			}
		case errors.Is(gerr, ErrUncertain):
			if there {
				failed = append(failed, k)
			}
		case errors.Is(gerr, ErrNotFound) && !there:
		case errors.Is(gerr, ErrCorrupt) && e.Uncertain() != nil: // a lost write may have deleted it
		case gerr == nil && there && h.Object.ETag == w.etag && body.String() == w.body:
		case gerr == nil && e.Uncertain() != nil: // an earlier version: a lost write may have replaced it
			failed = append(failed, k)
		default:
			bad("GET of %q: %v; there: %t, right: %t", k, gerr, there, body.String() == w.body)
		}
	}
	page, lerr := e.List("bkt", ListQuery{Max: 1000})
	if lerr != nil {
		bad("list: %v", lerr)
	}
	if page.Uncertain != (e.Uncertain() != nil) {
		bad("the listing does not say that keys may be missing")
	}
	for _, o := range page.Objects {
		if o.Damaged != slices.Contains(failed, o.Key) && e.Uncertain() == nil {
			bad("the listing says of %q damaged: %t, and %v failed", o.Key, o.Damaged, failed)
		}
	}
	return failed, err
}

// contained opens a damaged disk, and checks that the damage stays where it is: the store
// starts, answers right or says that it can't, decides no condition wrongly, takes writes
// and deletes, reclaims, and finds the same again after a restart.
func contained(d damaged, want world, indexLost bool) error {
	e, err := Open(crashOptions(d.fs))
	if err != nil {
		return fmt.Errorf("does not start: %w", err)
	}
	s := &session{fs: d.fs, e: e, worlds: []world{want}}
	defer func() { s.e.abandon() }()
	if _, err := e.Bucket("bkt"); err != nil {
		if e.Uncertain() == nil {
			return fmt.Errorf("the bucket is gone: %w", err)
		}
		return nil
	}
	failed, err := survey(e, want)
	if err != nil {
		return err
	}
	if len(failed) > d.most && (d.most > 1 || e.Uncertain() == nil) {
		return fmt.Errorf("%d objects are lost by it: %v", len(failed), failed)
	}
	if len(failed) > 0 && len(e.Damages()) == 0 {
		return fmt.Errorf("%v failed, and no damage is known", failed)
	}
	if !indexLost && e.Uncertain() != nil && d.most <= 1 {
		return fmt.Errorf("the index is there, but: %w", e.Uncertain())
	}
	for _, k := range crashKeys {
		if _, there := want[k]; !there {
			continue
		}
		err := s.together(putCall(k, nil, "thief", Cond{Absent: true}))[0]
		if !errors.Is(err, ErrPrecondition) && !errors.Is(err, ErrUncertain) {
			return fmt.Errorf("conditional create of %q, which was there: %v", k, err)
		}
	}
	again, err := Open(crashOptions(s.disk()))
	if err != nil {
		return fmt.Errorf("does not start again: %w", err)
	}
	defer again.abandon()
	if f, err := survey(again, want); err != nil || !slices.Equal(f, failed) {
		return fmt.Errorf("after a restart %v failed, before %v: %w", f, failed, err)
	}
	w := world{}
	for i, k := range crashKeys { // every key is written or deleted, whatever is damaged
		c := deleteCall(k)
		if i%2 == 0 {
			c = putCall(k, pattern(100, byte(i)), "new-"+k, Cond{})
		}
		if err := s.together(c)[0]; err != nil {
			return fmt.Errorf("write of %q: %w", k, err)
		}
		c.effect(w)
	}
	if err := s.together(reclaimCall())[0]; err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	if f, err := survey(e, w); err != nil || len(f) > 0 && e.Uncertain() == nil {
		return fmt.Errorf("after everything was written again %v failed: %w", f, err)
	}
	return nil
}

// TestDamageIsContained: every kind of damage in every kind of place, with the index
// whole, behind the log, and lost.
func TestDamageIsContained(t *testing.T) {
	every := 4
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		every = 1
	}
	for i := range 4 {
		flushed, versioned := i%2 == 0, i >= 2
		s := damageHistory(t, flushed, versioned)
		for _, lost := range []bool{false, true} {
			if lost && flushed {
				continue // the same log as of the other history
			}
			list := s.damages(t, every*(1+i/2))
			var failures, done atomic.Int64
			pool := newWorkers(runtime.GOMAXPROCS(0))
			for _, d := range list {
				pool.jobs <- func() {
					if failures.Load() > 8 {
						return
					}
					if lost {
						if err := d.fs.RemoveAll("index"); err != nil {
							t.Error(err)
						}
					}
					if err := contained(d, s.now(), lost); err != nil {
						failures.Add(1)
						t.Errorf("index flushed: %t, lost: %t, versioned: %t; %s: %v", flushed, lost, versioned, d.what, err)
					}
					done.Add(1)
				}
			}
			pool.wait()
			t.Logf("index flushed: %t, lost: %t, versioned: %t: %d damaged disks", flushed, lost, versioned, done.Load())
		}
		s.e.abandon()
	}
}

// TestDamagedRecordOfALargeObjectStopsNothing: a write must not read the record that it replaces.
func TestDamagedRecordOfALargeObjectStopsNothing(t *testing.T) {
	ctx := context.Background()
	for _, overwrite := range []bool{true, false} {
		dir := t.TempDir()
		e := openTest(t, Options{Dir: dir})
		e.put("other", pattern(100, 1))
		e.putFile("large", pattern(BlockSize+5, 2))
		x, err := e.idx.current("bkt", "large")
		if err != nil {
			t.Fatal(err)
		}
		flipOnDisk(t, lastSegment(t, dir), x.pos.off+45)
		if overwrite {
			e.put("large", pattern(10, 3))
		} else if err := removeKey(ctx, e, "large"); err != nil {
			t.Fatal(err)
		}
		e.put("next", pattern(10, 4))
		e.done()
		e = openTest(t, Options{Dir: dir})
		e.want("other", pattern(100, 1))
		e.want("next", pattern(10, 4))
		if overwrite {
			e.want("large", pattern(10, 3))
		} else if _, err := e.body("large"); !errors.Is(err, ErrNotFound) {
			t.Errorf("deleted, but: %v", err)
		}
		e.done()
	}
}

// repaired repairs a damaged disk, and checks that what could be read before can be read
// afterwards, that what could not is named, that nothing else is lost, that the store is
// certain again, with the index lost too, and that no damaged file was deleted.
func repaired(d damaged, want world) error {
	before, err := Check(context.Background(), crashOptions(d.fs))
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	e, err := Open(crashOptions(d.fs))
	if err != nil {
		return err
	}
	if b, err := e.Bucket("bkt"); err != nil || bytes.Contains(b.Policy, []byte("Deny")) {
		e.abandon()
		return nil // the list of buckets is lost; contained has looked at that
	}
	s := &session{fs: d.fs, e: e, worlds: []world{want}}
	defer func() { s.e.abandon() }()
	failed, err := survey(e, want)
	if err != nil {
		return err
	}
	if len(failed) > 0 && len(before.Damages) == 0 {
		return fmt.Errorf("check found nothing, %v cannot be read", failed)
	}
	var out Repaired
	if err := s.together(call{func(e *Engine) (err error) {
		out, err = e.Repair(context.Background())
		return err
	}, nil})[0]; err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	for _, l := range before.Lost {
		if !slices.ContainsFunc(out.Lost, func(o LostObject) bool { return o.Key == l.Key }) && out.Salvaged == 0 {
			return fmt.Errorf("check says that %q is lost, repair says %+v", l.Key, out.Lost)
		}
	}
	for again := range 3 {
		if err := e.Uncertain(); err != nil || len(e.Damages()) > 0 {
			return fmt.Errorf("after the repair (%d): %v %+v", again, err, e.Damages())
		}
		for _, k := range crashKeys {
			w, there := want[k]
			lost := slices.ContainsFunc(out.Lost, func(o LostObject) bool { return o.Key == k })
			h, err := e.Get("bkt", k)
			var body bytes.Buffer
			if err == nil {
				err = h.Copy(&body, 0, h.Object.Size)
				h.Close()
			}
			switch {
			case lost && errors.Is(err, ErrCorrupt):
			case err == nil && there && body.String() == w.body:
			case errors.Is(err, ErrNotFound) && !there:
			case before.Uncertain && (err == nil || errors.Is(err, ErrNotFound)): // of writes that nobody knows
			default:
				return fmt.Errorf("after the repair (%d): %q, lost: %t: %v", again, k, lost, err)
			}
		}
		if again == 2 {
			break
		}
		e.abandon()
		disk := s.disk()
		if again == 1 {
			if err := disk.RemoveAll("index"); err != nil {
				return err
			}
		}
		if e, err = Open(crashOptions(disk)); err != nil {
			return fmt.Errorf("open after the repair: %w", err)
		}
		s.fs, s.e = disk, e
	}
	v, err := Check(context.Background(), crashOptions(s.disk()))
	if err != nil || len(v.Damages) > 0 {
		return fmt.Errorf("check after the repair: %+v, %w", v.Damages, err)
	}
	return nil
}

// TestRepair: every kind of damage is repaired.
func TestRepair(t *testing.T) {
	every := 7
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		every = 1
	}
	for i := range 4 {
		lost, versioned := i%2 == 1, i >= 2
		s := damageHistory(t, false, versioned)
		list := s.damages(t, every*(1+i/2))
		var failures atomic.Int64
		pool := newWorkers(runtime.GOMAXPROCS(0))
		for _, d := range list {
			pool.jobs <- func() {
				if failures.Load() > 8 {
					return
				}
				if lost {
					if err := d.fs.RemoveAll("index"); err != nil {
						t.Error(err)
					}
				}
				if err := repaired(d, s.now()); err != nil {
					failures.Add(1)
					t.Errorf("index lost: %t, versioned: %t; %s: %v", lost, versioned, d.what, err)
				}
			}
		}
		pool.wait()
		s.e.abandon()
	}
}
