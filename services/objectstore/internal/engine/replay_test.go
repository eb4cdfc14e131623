package engine

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// recordsOf gives the bytes of a segment's header and of each of its records.
func recordsOf(t *testing.T, file string) (header []byte, records [][]byte, salt uint32) {
	t.Helper()
	dir := filepath.Dir(filepath.Dir(file))
	num, ok := parseSegName(filepath.Base(file))
	if !ok {
		t.Fatalf("%s is no segment", file)
	}
	seg, err := openSegment(vfs.Dir(dir), num)
	if err != nil {
		t.Fatal(err)
	}
	defer seg.release()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sc := newScanner(seg, 0, int64(len(b)))
	for sc.off < int64(len(b)) {
		r, at, err := sc.next()
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, b[at:at+r.size()])
	}
	return b[:segHeaderSize], records, seg.salt
}

// reopened opens the store of a directory without its index, and gives how many objects
// can be read, and what was found.
func reopened(t *testing.T, dir string) (objects int, e *testEngine) {
	t.Helper()
	e = openTest(t, Options{Dir: dir, IndexFS: pebblevfs.NewMem()})
	page, err := e.List("bkt", ListQuery{Max: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range page.Objects {
		if _, err := e.body(o.Key); err == nil {
			objects++
		}
	}
	return objects, e
}

// Every record has a valid checksum of its own; that one is missing, doubled or out of
// its place shows only by the sequence, and must not become a shorter history in silence.
func TestReplayTellsOfRecordsOutOfOrder(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir})
	for i := range 5 {
		e.put(fmt.Sprint(i), pattern(200, byte(i)))
	}
	e.done()
	header, records, _ := recordsOf(t, lastSegment(t, dir))
	if len(records) != 6 { // the bucket's, too
		t.Fatalf("%d records", len(records))
	}
	for _, c := range []struct {
		what    string
		order   []int
		broken  int // the first record that is not where it belongs
		objects int
		unknown bool // writes of unknown keys are missing
	}{
		{"nothing", []int{0, 1, 2, 3, 4, 5}, -1, 5, false},
		{"one is missing", []int{0, 1, 2, 4, 5}, 3, 4, true},
		{"one stands twice", []int{0, 1, 2, 2, 3, 4, 5}, 3, 5, false},
		{"two are swapped", []int{0, 1, 3, 2, 4, 5}, 2, 4, true},
		{"the last stands twice", []int{0, 1, 2, 3, 4, 5, 5}, 6, 5, false},
		{"an old one stands at the end", []int{0, 1, 2, 3, 4, 5, 1}, 6, 5, false},
	} {
		b := slices.Clone(header)
		at := int64(0)
		for i, k := range c.order {
			if i == c.broken {
				at = int64(len(b))
			}
			b = append(b, records[k]...)
		}
		d := copyStore(t, dir)
		file := lastSegment(t, d)
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		objects, e := reopened(t, d)
		found := e.Damages()
		switch {
		case objects != c.objects || (e.Uncertain() != nil) != c.unknown:
			t.Errorf("%s: %d objects, %v", c.what, objects, e.Uncertain())
		case c.broken < 0 && len(found) > 0, c.broken >= 0 && (len(found) == 0 || found[0].Offset != at):
			t.Errorf("%s: %+v, want one at %d", c.what, found, at)
		}
		e.done()
		if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, b) {
			t.Errorf("%s: the segment was changed (%v)", c.what, err)
		}
	}
}

// A segment that ends at a whole record, but before the next segment begins, has lost
// records that were acknowledged.
func TestReplayTellsOfAGapBetweenSegments(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir, SegmentBytes: 4 << 10})
	for i := range 12 {
		e.put(fmt.Sprint(i), pattern(1000, byte(i)))
	}
	e.done()
	files, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d segments, %v", len(files), err)
	}
	for i, file := range files[:len(files)-1] {
		header, records, _ := recordsOf(t, file)
		whole := slices.Concat(append([][]byte{header}, records...)...)
		last := records[len(records)-1]
		for _, c := range []struct {
			what string
			b    []byte
			lost int
		}{
			{"lacks its last record", whole[:len(whole)-len(last)], 1},
			{"has nothing but its header", header, len(records)},
		} {
			if i == 0 && c.lost > 1 {
				continue // the list of buckets is in there
			}
			d := copyStore(t, dir)
			if err := os.WriteFile(filepath.Join(d, "log", filepath.Base(file)), c.b, 0o600); err != nil {
				t.Fatal(err)
			}
			objects, e := reopened(t, d)
			if found := e.Damages(); objects != 12-c.lost || e.Uncertain() == nil || len(found) != 1 || found[0].Last-found[0].First+1 != uint64(c.lost) {
				t.Errorf("%s %s: %d objects, %+v, %v", filepath.Base(file), c.what, objects, found, e.Uncertain())
			}
			e.done()
		}
	}
}

// forge makes a record as a client could that knows the format: of an object that nobody
// put, with the sequence that is due.
func forge(seq uint64, batch int64, salt uint32) []byte {
	o := sized("forged", []byte("x"))
	r := record{
		kind: kindPut, bucket: "bkt", key: "forged", meta: encodeMeta(&o), bodyLen: 1, bodyCRC: crc32.Checksum([]byte("x"), castagnoli),
		seq: seq, batch: uint64(batch),
	}
	return append(r.appendHead(nil, salt), 'x')
}

// What follows the last record of a segment can be anything: blocks that a file system
// gives back after a crash, with a record of another segment or one that a client put as
// a body. Only the segment's salt tells that it is not of this log.
func TestReplayTakesNoRecordOfAnotherSalt(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir})
	e.put("a", pattern(100, 1))
	next, _ := e.End()
	e.done()
	file := lastSegment(t, dir)
	_, _, salt := recordsOf(t, file)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		salt uint32
		is   bool
	}{{"none", 0, false}, {"another's", salt ^ 1, false}, {"its own", salt, true}} {
		d := copyStore(t, dir)
		b := append(bytes.Clone(whole), forge(next, int64(len(whole)), c.salt)...)
		if err := os.WriteFile(lastSegment(t, d), b, 0o600); err != nil {
			t.Fatal(err)
		}
		e := openTest(t, Options{Dir: d})
		e.want("a", pattern(100, 1))
		_, err := e.body("forged")
		if is := err == nil; is != c.is || !is && !errors.Is(err, ErrNotFound) {
			t.Errorf("a record with the salt %q is taken: %t, %v", c.what, is, err)
		}
		e.done()
	}
}

// A body with a record in it, in a write that a crash tore: it must not look like a record
// behind the damage, or a client could make a store that does not open any more.
func TestTornBodyWithARecordInIt(t *testing.T) {
	for _, c := range []struct {
		what string
		own  bool
	}{{"none", false}, {"its own", true}} {
		dir := t.TempDir()
		e := openTest(t, Options{Dir: dir})
		e.put("a", pattern(100, 1))
		file := lastSegment(t, dir)
		at, salt := e.head.pos.off, e.active.salt
		if !c.own {
			salt = 0
		}
		e.put("b", slices.Concat(pattern(300, 2), forge(100, at+200, salt), pattern(300, 3)))
		e.done()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b[at] ^= 1 // the head of b's record
		d := copyStore(t, dir)
		if err := os.WriteFile(lastSegment(t, d), b, 0o600); err != nil {
			t.Fatal(err)
		}
		o := openTest(t, Options{Dir: d})
		// With the salt, which no client knows, it is what a record behind damage is.
		if found := o.Damages(); c.own != (len(found) > 0) {
			t.Errorf("with the salt %q: %+v", c.what, found)
		}
		o.done()
	}
}

// An index that another log left behind is of no use, even where positions agree.
func TestIndexOfAnotherLogIsBuiltAnew(t *testing.T) {
	var dirs []string
	for _, key := range []string{"a", "b"} {
		dir := t.TempDir()
		e := openTest(t, Options{Dir: dir})
		e.put(key, pattern(100, 1))
		e.done()
		dirs = append(dirs, dir)
	}
	d := copyStore(t, dirs[0])
	if err := os.CopyFS(filepath.Join(d, "index"), os.DirFS(filepath.Join(dirs[1], "index"))); err != nil {
		t.Fatal(err)
	}
	e := openTest(t, Options{Dir: d})
	e.wantAll(map[string][]byte{"a": pattern(100, 1)})
}
