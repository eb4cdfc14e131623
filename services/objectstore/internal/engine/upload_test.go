package engine

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

var ctxUp = context.Background()

// begin starts an upload.
func (e *testEngine) begin(key string) string {
	e.t.Helper()
	id, err := e.CreateUpload(ctxUp, Object{Bucket: "bkt", Key: key, Modified: epoch, User: []Pair{{"a", "1"}}})
	if err != nil {
		e.t.Fatal(err)
	}
	return id
}

// part stores a part.
func (e *testEngine) part(key, id string, n int, body []byte) error {
	e.t.Helper()
	return putPart(e.Engine, key, id, n, body, fmt.Sprintf("etag-%d-%x", n, md5.Sum(body)))
}

func putPart(e *Engine, key, id string, n int, body []byte, etag string) error {
	b, err := e.NewBlob("bkt", key)
	if err != nil {
		return err
	}
	_, err = b.Write(body)
	var x Extent
	if err == nil {
		x, err = b.Finish()
	}
	if err == nil {
		_, err = e.PutPart(ctxUp, "bkt", key, id, Part{Number: n, Object: Object{Size: int64(len(body)), ETag: etag, Modified: epoch, Extents: []Extent{x}}})
	}
	if err != nil {
		b.Discard()
	}
	return err
}

func (e *testEngine) parts(key, id string) []Part {
	e.t.Helper()
	list, _, err := e.Parts("bkt", key, id, 0, MaxParts)
	if err != nil {
		e.t.Fatal(err)
	}
	return list
}

func whole(key string, parts []Part) Object {
	o := Object{Bucket: "bkt", Key: key, Modified: epoch, ETag: fmt.Sprintf("whole-%d", len(parts))}
	for _, p := range parts {
		o.Size += p.Size
	}
	return o
}

// files counts the bodies on disk.
func (e *testEngine) files() (n int) {
	_ = filepath.WalkDir(filepath.Join(e.opt.Dir, "blobs"), func(_ string, d os.DirEntry, _ error) error {
		if d != nil && !d.IsDir() {
			n++
		}
		return nil
	})
	return n
}

// An object made of parts is read as one, outlives restarts, a lost index, tags and reclaiming, and takes its files with
// it when it goes.
func TestUpload(t *testing.T) {
	opt := Options{Dir: t.TempDir(), SegmentBytes: 64 << 10, ReclaimBelow: 0.9}
	e := openTest(t, opt)
	one, two, three := pattern(BlockSize+100, 1), pattern(3000, 2), []byte{}
	e.put("k", []byte("old"))
	id, other := e.begin("k"), e.begin("other")
	for n, body := range map[int][]byte{7: two, 2: one, 3: pattern(50, 9), 10000: three} {
		if err := e.part("k", id, n, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.part("k", id, 3, pattern(60, 9)); err != nil { // replaced, and not chosen
		t.Fatal(err)
	}
	if err := e.part("other", other, 1, two); err != nil {
		t.Fatal(err)
	}
	if page, err := e.List("bkt", ListQuery{Max: 10}); err != nil || len(page.Objects) != 1 || e.Stats().Objects != 1 || e.Stats().ObjectBytes != 3 {
		t.Errorf("uploads are objects: %+v %v", page, err)
	}
	list := e.parts("k", id)
	if len(list) != 4 || list[0].Number != 2 || list[1].Size != 60 || list[3].Number != 10000 || e.files() != 5 {
		t.Fatalf("parts %+v, %d files", list, e.files())
	}
	chosen := []Part{list[0], list[2], list[3]}
	if _, err := e.Complete(ctxUp, whole("k", chosen), id, chosen, Cond{Absent: true}); !errors.Is(err, ErrPrecondition) {
		t.Errorf("complete over an object that is there: %v", err)
	}
	if _, err := e.Complete(ctxUp, whole("k", chosen), id, chosen, Cond{Match: "nothing"}); !errors.Is(err, ErrPrecondition) {
		t.Errorf("complete with another ETag: %v", err)
	}
	if err := e.part("k", id, 7, []byte("another body")); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Complete(ctxUp, whole("k", chosen), id, chosen, Cond{}); !errors.Is(err, ErrPartChanged) {
		t.Errorf("complete with a part that was replaced: %v", err)
	}
	if err := e.part("k", id, 7, two); err != nil {
		t.Fatal(err)
	}
	list = e.parts("k", id)
	chosen = []Part{list[0], list[2], list[3]}
	o, err := e.Complete(ctxUp, whole("k", chosen), id, chosen, Cond{})
	if err != nil || o.Upload != id || len(o.PartSizes) != 3 {
		t.Fatalf("%+v %v", o, err)
	}
	if _, _, err := e.Parts("bkt", "k", id, 0, 10); !errors.Is(err, ErrNoUpload) {
		t.Errorf("a completed upload has parts: %v", err)
	}
	if err := e.part("k", id, 1, one); !errors.Is(err, ErrNoUpload) {
		t.Errorf("a part of a completed upload: %v", err)
	}
	if _, err := e.Complete(ctxUp, whole("k", chosen), id, chosen, Cond{}); !errors.Is(err, ErrNoUpload) {
		t.Errorf("completed twice: %v", err)
	}
	if err := e.AbortUpload(ctxUp, "bkt", "k", id); !errors.Is(err, ErrNoUpload) {
		t.Errorf("a completed upload is aborted: %v", err)
	}
	want := append(append(bytes.Clone(one), two...), three...)
	check := func(step string) {
		t.Helper()
		e.want("k", want)
		if n := e.files(); n != 4 { // three of the object, one of the other upload
			t.Errorf("%s: %d files", step, n)
		}
		if list := e.parts("other", other); len(list) != 1 {
			t.Errorf("%s: parts of the other upload: %+v", step, list)
		}
		h, err := e.Stat("bkt", "k")
		if err != nil || h.Upload != id || len(h.PartSizes) != 3 || h.PartSizes[1] != 3000 {
			t.Errorf("%s: %+v %v", step, h, err)
		}
		if s := e.Stats(); s.Objects != 1 || s.ObjectBytes != int64(len(want)) {
			t.Errorf("%s: %+v", step, s)
		}
	}
	check("completed")
	e.done()
	e = openTest(t, opt)
	check("opened again")
	if _, err := e.SetTags(ctxUp, "bkt", "k", "", []Pair{{"t", "1"}}); err != nil {
		t.Fatal(err)
	}
	check("tagged")
	for i := range 40 { // old records to reclaim
		e.put("filler", pattern(8000, byte(i)))
	}
	if err := removeKey(ctxUp, e, "filler"); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = e.Seal(); err != nil {
			t.Fatal(err)
		}
	}
	for n := int64(1); n > 0; {
		if n, err = e.Reclaim(ctxUp); err != nil {
			t.Fatal(err)
		}
	}
	check("reclaimed")
	for _, lost := range []string{"index", "index and footers"} {
		e.done()
		if err := os.RemoveAll(filepath.Join(opt.Dir, "index")); err != nil {
			t.Fatal(err)
		}
		if lost != "index" {
			if err := os.RemoveAll(filepath.Join(opt.Dir, footerDir)); err != nil {
				t.Fatal(err)
			}
		}
		e = openTest(t, opt)
		check("without " + lost)
	}
	if err := removeKey(ctxUp, e, "k"); err != nil {
		t.Fatal(err)
	}
	if err := e.AbortUpload(ctxUp, "bkt", "other", other); err != nil {
		t.Fatal(err)
	}
	if n := e.files(); n != 0 {
		t.Errorf("%d files of nothing", n)
	}
	e.done()
}

// Webhooks hear of the object, and of nothing before it.
func TestUploadsAreNoEvents(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	defer e.done()
	id := e.begin("k")
	if err := e.part("k", id, 1, []byte("x")); err != nil {
		t.Fatal(err)
	}
	gone := e.begin("gone")
	if err := e.AbortUpload(ctxUp, "bkt", "gone", gone); err != nil {
		t.Fatal(err)
	}
	parts := e.parts("k", id)
	if _, err := e.Complete(ctxUp, whole("k", parts), id, parts, Cond{Absent: true}); err != nil {
		t.Fatal(err)
	}
	events, _, _, err := e.Tail(0).Read(100, func(*Event) bool { return true })
	if err != nil || len(events) != 1 || events[0].Key != "k" || events[0].Removed || events[0].ETag != "whole-1" {
		t.Errorf("%+v %v", events, err)
	}
}

// TestSweepSparesNewUploads: a sweep leaves the parts of uploads that begin while it goes on, whatever the clock says.
func TestSweepSparesNewUploads(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	var sweeps sync.WaitGroup
	stop := make(chan struct{})
	sweeps.Go(func() {
		for {
			if n, err := e.SweepUploads(ctxUp, "bkt", time.Time{}); n != 0 || err != nil {
				t.Errorf("swept %d, %v", n, err)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for i := range 200 {
		key := fmt.Sprint("k", i)
		id := e.begin(key) // at a time that is long ago
		if err := e.part(key, id, 1, []byte("x")); err != nil {
			t.Error(err)
		}
		if n := len(e.parts(key, id)); n != 1 {
			t.Errorf("upload %d has %d parts", i, n)
		}
	}
	close(stop)
	sweeps.Wait()
	if n := e.files(); n != 200 {
		t.Errorf("%d files of 200 parts", n)
	}
}

// Old uploads are aborted, a bucket without objects goes with its uploads, and what a crash leaves is swept.
func TestSweepUploads(t *testing.T) {
	opt := Options{Dir: t.TempDir()}
	e := openTest(t, opt)
	defer func() { e.done() }()
	old := e.begin("old")
	if err := e.part("old", old, 1, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := e.SweepUploads(ctxUp, "bkt", epoch); n != 0 || err != nil {
		t.Errorf("swept %d: %v", n, err)
	}
	if n, err := e.SweepUploads(ctxUp, "bkt", epoch.Add(time.Second)); n != 1 || err != nil || e.files() != 0 {
		t.Errorf("swept %d, %d files: %v", n, e.files(), err)
	}
	// As a crash behind the tombstone of the upload leaves it.
	left := e.begin("left")
	if err := e.part("left", left, 1, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := e.submit(ctxUp, &op{rec: record{kind: kindDelete, flags: flagQuiet, bucket: "bkt", key: uploadKey("left", left)}}); err != nil {
		t.Fatal(err)
	}
	if n, err := e.SweepUploads(ctxUp, "bkt", time.Time{}); n != 1 || err != nil || e.files() != 0 {
		t.Errorf("swept %d, %d files: %v", n, e.files(), err)
	}
	// As a crash between the object and the tombstone of its upload leaves it.
	torn := e.begin("torn")
	if err := e.part("torn", torn, 1, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	parts := e.parts("torn", torn)
	o := whole("torn", parts)
	o.Upload, o.PartSizes, o.Extents = torn, []int64{5}, parts[0].Extents
	if _, err := e.Put(ctxUp, o, nil, Cond{}); err != nil {
		t.Fatal(err)
	}
	if page, err := e.Uploads("bkt", UploadQuery{Max: 10}); err != nil || len(page.Uploads) != 0 {
		t.Errorf("a complete upload is listed: %+v %v", page, err)
	}
	if err := e.AbortUpload(ctxUp, "bkt", "torn", torn); !errors.Is(err, ErrNoUpload) {
		t.Errorf("a complete upload is aborted: %v", err)
	}
	for range 2 { // now, and after a rebuild
		if n, err := e.SweepUploads(ctxUp, "bkt", time.Time{}); n > 1 || err != nil || e.files() != 1 {
			t.Errorf("swept %d, %d files: %v", n, e.files(), err)
		}
		e.want("torn", []byte("whole"))
		e.done()
		if err := os.RemoveAll(filepath.Join(opt.Dir, "index")); err != nil {
			t.Fatal(err)
		}
		e = openTest(t, opt)
	}
	e.want("torn", []byte("whole"))
	id := e.begin("k")
	if err := e.part("k", id, 1, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteBucket(ctxUp, "bkt"); !errors.Is(err, ErrBucketNotEmpty) {
		t.Errorf("a bucket with an object: %v", err)
	}
	if _, err := e.Upload("bkt", "k", id); err != nil {
		t.Errorf("an upload of a bucket that stays: %v", err)
	}
	if err := removeKey(ctxUp, e, "torn"); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteBucket(ctxUp, "bkt"); err != nil || e.files() != 0 {
		t.Errorf("%d files: %v", e.files(), err)
	}
	if err := e.CreateBucket(ctxUp, "bkt", epoch); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Upload("bkt", "k", id); !errors.Is(err, ErrNoUpload) {
		t.Errorf("an upload of an earlier bucket: %v", err)
	}
}

// Pages of uploads have each upload once, and each common prefix.
func TestListUploads(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	defer e.done()
	var all []string
	for _, k := range []string{"a", "a", "b/1", "b/2", "b/2", "b0", "c/1", "d"} {
		all = append(all, k+" "+e.begin(k))
	}
	for _, c := range []struct {
		q    UploadQuery
		want int
	}{{UploadQuery{}, 8}, {UploadQuery{Prefix: "b"}, 4}, {UploadQuery{Delimiter: "/"}, 6}, {UploadQuery{Prefix: "b/", Delimiter: "/"}, 3}} {
		for most := 1; most <= 9; most++ {
			q, seen := c.q, map[string]bool{}
			q.Max = most
			for more := true; more; {
				page, err := e.Uploads("bkt", q)
				if err != nil || len(page.Uploads)+len(page.Prefixes) > most {
					t.Fatal(page, err)
				}
				for _, u := range page.Uploads {
					if k := u.Key + " " + u.ID; seen[k] {
						t.Errorf("%+v: %s twice", q, k)
					} else {
						seen[k] = true
					}
				}
				for _, p := range page.Prefixes {
					if seen[p] {
						t.Errorf("%+v: %s twice", q, p)
					}
					seen[p] = true
				}
				q.AfterKey, q.AfterID, more = page.NextKey, page.NextID, page.Truncated
			}
			if len(seen) != c.want {
				t.Errorf("%+v by %d: %d of %d: %v", c.q, most, len(seen), c.want, seen)
			}
		}
	}
	if len(all) != 8 {
		t.Fatal(all)
	}
}

// No client reaches the hidden keys.
func TestHiddenKeysAreHidden(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	defer e.done()
	id := e.begin("k")
	hidden := uploadKey("k", id)
	if _, err := e.Engine.Put(ctxUp, Object{Bucket: "bkt", Key: hidden, Modified: epoch}, nil, Cond{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("put: %v", err)
	}
	if err := removeKey(ctxUp, e, hidden); !errors.Is(err, ErrTooLarge) {
		t.Errorf("delete: %v", err)
	}
	many := []Deletion{{Key: hidden}}
	e.DeleteMany(ctxUp, "bkt", many)
	if !errors.Is(many[0].Err, ErrTooLarge) {
		t.Errorf("delete many: %v", many[0].Err)
	}
	if _, err := e.Upload("bkt", "k", id); err != nil {
		t.Error(err)
	}
	for _, prefix := range []string{hiddenPrefix, uploadPrefix, partPrefix, hidden} {
		for _, delimiter := range []string{"", "/", "k"} {
			if page, err := e.List("bkt", ListQuery{Prefix: prefix, Delimiter: delimiter, Max: 10}); err != nil || len(page.Objects)+len(page.Prefixes) != 0 {
				t.Errorf("list %q: %+v %v", prefix, page, err)
			}
			if page, err := e.Uploads("bkt", UploadQuery{Prefix: "k\x00" + id[:3], Delimiter: delimiter, Max: 10}); err != nil || len(page.Uploads)+len(page.Prefixes) != 0 {
				t.Errorf("uploads under a part of a hidden key: %+v %v", page, err)
			}
		}
	}
	if _, err := e.Upload("bkt", "other", id); !errors.Is(err, ErrNoUpload) {
		t.Errorf("under another key: %v", err)
	}
}

// Segments of earlier versions are read, and those of later ones are refused and left as they are.
func TestSegmentVersions(t *testing.T) {
	opt := Options{Dir: t.TempDir()}
	e := openTest(t, opt)
	e.put("k", []byte("old"))
	e.done()
	name := filepath.Join(opt.Dir, segName(1))
	become := func(version uint32) []byte {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		copy(b, encodeHeader(version, 1, binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint64(b[24:])))
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return b
	}
	for version := uint32(1); version < segVersion; version++ {
		become(version)
		e = openTest(t, opt)
		e.want("k", []byte("old"))
		if v, err := e.Verify(ctxUp); err != nil || len(v.Damages) != 0 {
			t.Errorf("version %d: %+v %v", version, v, err)
		}
		e.done()
	}
	// What this version adds must not come into a segment that says it is of an earlier one.
	become(segVersion - 1)
	size := func() int64 {
		f, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return f.Size()
	}
	before := size()
	e = openTest(t, opt)
	id := e.begin("k")
	if size() != before {
		t.Error("an upload is written into a segment of an earlier version")
	}
	e.done()
	e = openTest(t, opt)
	if _, err := e.Upload("bkt", "k", id); err != nil {
		t.Errorf("the upload behind an old segment: %v", err)
	}
	e.done()
	was := become(stubVersion + 1)
	if _, err := Open(opt); err == nil {
		t.Error("a later version is opened")
	}
	if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, was) {
		t.Errorf("a later version was changed: %v", err)
	}
}

// A crash between the object and the tombstone of its upload is mended before anybody can write: when the object is gone,
// nothing tells any more that the files of the parts went with it, and completing again would make an object of nothing.
func TestTornCompleteEndsItsUpload(t *testing.T) {
	opt := Options{Dir: t.TempDir()}
	e := openTest(t, opt)
	id := e.begin("torn")
	if err := e.part("torn", id, 1, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	parts := e.parts("torn", id)
	o := whole("torn", parts)
	o.Upload, o.PartSizes, o.Extents = id, []int64{5}, parts[0].Extents
	if _, err := e.Put(ctxUp, o, nil, Cond{}); err != nil {
		t.Fatal(err)
	}
	e.done()
	e = openTest(t, opt)
	defer func() { e.done() }()
	e.want("torn", []byte("whole"))
	if err := removeKey(ctxUp, e, "torn"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Complete(ctxUp, whole("torn", parts), id, parts, Cond{Absent: true}); !errors.Is(err, ErrNoUpload) {
		b, rerr := e.body("torn")
		t.Errorf("completed again: %v; the object is %q, %v", err, b, rerr)
	}
	// The part's record is left until a sweep, and its file is gone. That is no damage.
	if v, err := e.Verify(ctxUp); err != nil || len(v.Lost)+len(v.Damages) != 0 {
		t.Errorf("verify: %+v %v", v, err)
	}
}
