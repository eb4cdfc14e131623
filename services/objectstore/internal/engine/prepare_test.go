package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// TestPreparedIsCutOff: the zeros behind the records of a killed store are no torn write to warn of, and an ended one
// leaves none.
func TestPreparedIsCutOff(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir})
	e.put("a", pattern(100, 1))
	e.put("b", make([]byte, 3000)) // a body of zeros is none of them
	end := e.head.pos.off
	killed := copyStore(t, dir)
	if st, err := os.Stat(lastSegment(t, killed)); err != nil || st.Size() <= end {
		t.Fatalf("nothing is prepared behind byte %d: %v, %v", end, st.Size(), err)
	}
	e.done()
	if st, err := os.Stat(lastSegment(t, dir)); err != nil || st.Size() != end {
		t.Errorf("an ended store has %d bytes, its records %d, %v", st.Size(), end, err)
	}
	var log bytes.Buffer
	e = openTest(t, Options{Dir: killed, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if e.head.pos.off != end || len(e.Damages()) > 0 || bytes.Contains(log.Bytes(), []byte("torn")) {
		t.Errorf("it goes on at byte %d of %d, with damages %v: %s", e.head.pos.off, end, e.Damages(), &log)
	}
	e.put("c", pattern(200, 3))
	e.wantAll(map[string][]byte{"a": pattern(100, 1), "b": make([]byte, 3000), "c": pattern(200, 3)})
}

// TestPreparedBehindADamagedRecord: the last record is corrected although it does not end its file.
func TestPreparedBehindADamagedRecord(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir})
	e.put("a", pattern(100, 1))
	at := e.head.pos.off
	e.put("b", pattern(300, 2))
	killed := copyStore(t, dir)
	b, err := os.ReadFile(filepath.Join(dir, markName)) // by which the record was acknowledged
	if err == nil {
		err = os.WriteFile(filepath.Join(killed, markName), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	flipOnDisk(t, lastSegment(t, killed), at+9)
	e = openTest(t, Options{Dir: killed})
	if found := e.Damages(); len(found) != 1 || found[0].Key != "b" || e.Uncertain() != nil {
		t.Errorf("of a record that can be corrected: %+v, %v", found, e.Uncertain())
	}
	e.want("a", pattern(100, 1))
}

// TestPreparedEndsWithItsSegment: a segment that is not the last one has nothing behind its records, which would be
// taken for lost ones.
func TestPreparedEndsWithItsSegment(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir, SegmentBytes: 100 << 10})
	want := map[string][]byte{}
	for i := range 20 {
		k := fmt.Sprint(i)
		want[k] = pattern(1000*(i+1), byte(i))
		e.put(k, want[k])
		if i%7 == 6 { // long before it is full
			if err := e.submit(context.Background(), &op{roll: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if e.head.pos.seg < 3 {
		t.Fatalf("only %d segments", e.head.pos.seg)
	}
	killed := copyStore(t, dir)
	e = openTest(t, Options{Dir: killed, IndexFS: pebblevfs.NewMem()})
	if found := e.Damages(); len(found) > 0 {
		t.Errorf("damage of a whole log: %+v", found)
	}
	e.wantAll(want)
}

// fullForZeros is a disk on which no more fits than the records.
type fullForZeros struct {
	vfs.FS
	refused atomic.Int64
}

type fullForZerosFile struct {
	vfs.File
	fs *fullForZeros
}

func (f *fullForZeros) Create(name string) (vfs.File, error) {
	x, err := f.FS.Create(name)
	return &fullForZerosFile{x, f}, err
}

func (f *fullForZerosFile) WriteAt(p []byte, off int64) (int, error) {
	if len(bytes.Trim(p, "\x00")) > 0 {
		return f.File.WriteAt(p, off)
	}
	f.fs.refused.Add(1)
	n, _ := f.File.WriteAt(p[:min(len(p), 10_000)], off)
	return n, syscall.ENOSPC
}

// TestNoRoomToPrepare: where the zeros do not fit, their records still do, and what was written of them is cut off.
func TestNoRoomToPrepare(t *testing.T) {
	dir := t.TempDir()
	disk := &fullForZeros{FS: vfs.Dir(dir)}
	e := openTest(t, Options{Dir: dir, FS: disk})
	want := map[string][]byte{}
	for i := range 5 {
		k := fmt.Sprint(i)
		want[k] = pattern(1000, byte(i))
		e.put(k, want[k])
	}
	if disk.refused.Load() == 0 {
		t.Fatal("nothing was refused")
	}
	e.wantAll(want)
	end := e.head.pos.off
	e.done()
	if st, err := os.Stat(lastSegment(t, dir)); err != nil || st.Size() != end {
		t.Errorf("%d bytes are left, %d of records, %v", st.Size(), end, err)
	}
	e = openTest(t, Options{Dir: dir})
	e.wantAll(want)
}

// pagesFS is a disk with room for some pages of 4 KiB, of which a write takes as many as there are left, like a real one.
type pagesFS struct {
	vfs.FS
	mu    sync.Mutex
	left  int
	taken map[*pagesFile]map[int64]bool
}

type pagesFile struct {
	vfs.File
	fs *pagesFS
}

const pageBytes = 4096

func (p *pagesFS) Create(name string) (vfs.File, error) {
	f, err := p.FS.Create(name)
	return &pagesFile{f, p}, err
}

func (f *pagesFile) WriteAt(b []byte, off int64) (n int, err error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	of := f.fs.taken[f]
	if of == nil {
		of = map[int64]bool{}
		f.fs.taken[f] = of
	}
	for n < len(b) {
		page := (off + int64(n)) / pageBytes
		if !of[page] {
			if f.fs.left == 0 {
				return n, syscall.ENOSPC
			}
			f.fs.left--
			of[page] = true
		}
		part := min(int((page+1)*pageBytes-off)-n, len(b)-n)
		m, err := f.File.WriteAt(b[n:n+part], off+int64(n))
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (f *pagesFile) Truncate(n int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	for page := range f.fs.taken[f] {
		if page*pageBytes >= n {
			delete(f.fs.taken[f], page)
			f.fs.left++
		}
	}
	return f.File.Truncate(n)
}

// TestZerosLeaveTheRoomOfRecords: a disk that has room for some records, but not for the zeros behind them, takes the
// records, deletions among them. Otherwise nothing could be removed to make room.
func TestZerosLeaveTheRoomOfRecords(t *testing.T) {
	dir := t.TempDir()
	disk := &pagesFS{FS: vfs.Dir(dir), left: 1 << 20, taken: map[*pagesFile]map[int64]bool{}}
	e := openTest(t, Options{Dir: dir, FS: disk})
	disk.mu.Lock()
	disk.left = 12 // and what was prepared when the bucket was made
	disk.mu.Unlock()
	for i := range 4 {
		body := pattern(20_000, byte(i))
		if _, err := e.Put(context.Background(), sized(fmt.Sprint(i), body), body, Cond{}); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	if err := removeKey(context.Background(), e, "1"); err != nil {
		t.Errorf("a deletion: %v", err)
	}
}
