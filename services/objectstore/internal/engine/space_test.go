package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// smallFS is a disk with little room: what the files of the engine grow by is taken from it.
type smallFS struct {
	vfs.FS
	room  atomic.Int64
	asked atomic.Int64
}

type smallFile struct {
	vfs.File
	fs *smallFS
}

func (s *smallFS) Free(string) (bytes, files int64, err error) {
	s.asked.Add(1)
	return max(0, s.room.Load()), 1 << 40, nil
}

func (s *smallFS) Create(name string) (vfs.File, error) { return s.wrap(s.FS.Create(name)) }
func (s *smallFS) Open(name string) (vfs.File, error)   { return s.wrap(s.FS.Open(name)) }

func (s *smallFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &smallFile{f, s}, nil
}

func (f *smallFile) WriteAt(p []byte, off int64) (int, error) {
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	if grow := off + int64(len(p)) - size; grow > 0 && f.fs.room.Add(-grow) < 0 {
		f.fs.room.Add(grow)
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(p, off)
}

func (f *smallFile) Allocate(off, n int64) error { return vfs.WriteZeros(f, off, n) }

func (f *smallFile) Truncate(n int64) error {
	size, err := f.Size()
	if err == nil {
		f.fs.room.Add(size - n)
		err = f.File.Truncate(n)
	}
	return err
}

// TestReserve: puts are refused while there is room for deletes, the reserve is given back
// for these when somebody else takes the rest, and grows again.
func TestReserve(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	fsys := &smallFS{FS: vfs.Dir(dir)}
	fsys.room.Store(4 << 20)
	e := openTest(t, Options{Dir: dir, FS: fsys, Reserve: 1 << 20, SegmentBytes: 256 << 10})
	var keys []string
	var err error
	for i := 0; err == nil; i++ {
		k := fmt.Sprintf("k/%d", i)
		if _, err = e.Put(ctx, sized(k, pattern(50<<10, 1)), pattern(50<<10, 1), Cond{}); err == nil {
			keys = append(keys, k)
		}
	}
	if !errors.Is(err, ErrFull) || len(keys) < 40 || e.Stats().ReserveBytes != 1<<20 {
		t.Fatalf("after %d objects: %v, %+v", len(keys), err, e.Stats())
	}
	if _, err := e.NewBlob("bkt", "k"); !errors.Is(err, ErrFull) {
		t.Errorf("a large object: %v", err)
	}
	if _, err := e.Put(ctx, sized(keys[0], nil), nil, Cond{Absent: true}); !errors.Is(err, ErrPrecondition) {
		t.Errorf("a create of what is there fails whether there is room or not: %v", err)
	}
	fsys.room.Store(0)
	for _, k := range keys[1:] {
		if err := removeKey(ctx, e, k); err != nil {
			t.Fatalf("delete: %v", err)
		}
	}
	if held := e.Stats().ReserveBytes; held >= 1<<20 {
		t.Errorf("%d bytes of the reserve are left", held)
	}
	for {
		n, err := e.Reclaim(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		fsys.room.Add(n)
	}
	if err := e.CheckSpace(); err != nil || e.Stats().ReserveBytes != 1<<20 {
		t.Errorf("there is room again: %v, %+v", err, e.Stats())
	}
	e.put("after", pattern(100, 1))
	e.want(keys[0], pattern(50<<10, 1))
	if e.Err() != nil {
		t.Error(e.Err())
	}
}

// TestPlentyOfSpace: the disk is not asked for every write while it has plenty, and for every one when it has not.
func TestPlentyOfSpace(t *testing.T) {
	dir := t.TempDir()
	fsys := &smallFS{FS: vfs.Dir(dir)}
	fsys.room.Store(100 << 20)
	e := openTest(t, Options{Dir: dir, FS: fsys, Reserve: 1 << 20})
	const times = 10_000
	ask := func() int64 {
		before := fsys.asked.Load()
		for range times {
			if err := e.CheckSpace(); err != nil {
				t.Fatal(err)
			}
		}
		return fsys.asked.Load() - before
	}
	if n := ask(); n > times/10 {
		t.Errorf("with plenty of space the disk is asked %d times for %d writes", n, times)
	}
	fsys.room.Store(4 << 20)
	for e.space.plenty.Load() > int64(time.Since(processStart)) {
		time.Sleep(time.Millisecond)
	}
	if n := ask(); n != times {
		t.Errorf("with little space the disk is asked %d times for %d writes", n, times)
	}
}

// TestFullIsSeenAtOnce: once a write did not fit, the next one is refused, however much space there was just before; otherwise
// it would be written into the reserve, which is for deletes.
func TestFullIsSeenAtOnce(t *testing.T) {
	dir := t.TempDir()
	fsys := &smallFS{FS: vfs.Dir(dir)}
	fsys.room.Store(100 << 20)
	e := openTest(t, Options{Dir: dir, FS: fsys, Reserve: 1 << 20})
	if err := e.CheckSpace(); err != nil {
		t.Fatal(err)
	}
	fsys.room.Store(0)
	e.space.plenty.Store(int64(time.Since(processStart) + time.Hour)) // as it was just before, on a slow machine, too
	if !e.freeReserve() {
		t.Fatal("there is no reserve")
	}
	if err := e.CheckSpace(); !errors.Is(err, ErrFull) {
		t.Errorf("the disk is full: %v", err)
	}
}

// fullVFS is an index's disk that gets full.
type fullVFS struct {
	pebblevfs.FS
	full atomic.Bool
}

type fullVFile struct {
	pebblevfs.File
	fs *fullVFS
}

func (f *fullVFS) Create(name string, c pebblevfs.DiskWriteCategory) (pebblevfs.File, error) {
	if f.full.Load() {
		return nil, syscall.ENOSPC
	}
	x, err := f.FS.Create(name, c)
	return &fullVFile{x, f}, err
}

func (f *fullVFile) Write(p []byte) (int, error) {
	if f.fs.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(p)
}

func (f *fullVFile) Sync() error {
	if f.fs.full.Load() {
		return syscall.ENOSPC
	}
	return f.File.Sync()
}

// TestIndexOnAFullDiskStopsNothing: an index that can't write its tables neither blocks
// commits nor the end, and nothing is lost by it.
func TestIndexOnAFullDiskStopsNothing(t *testing.T) {
	fsys := &fullVFS{FS: pebblevfs.NewMem()}
	opt := Options{Dir: t.TempDir(), IndexFS: fsys, IndexDir: "index"}
	e := openTest(t, opt)
	e.put("before", pattern(100, 1))
	fsys.full.Store(true)
	want := map[string][]byte{"before": pattern(100, 1)}
	if err := e.submit(context.Background(), &op{flush: true}); !errors.Is(err, ErrFull) && err == nil {
		t.Errorf("flush: %v", err)
	}
	for i := range 50 {
		k := fmt.Sprint(i)
		want[k] = pattern(100, byte(i))
		e.put(k, want[k])
	}
	e.wantAll(want)
	ended := make(chan struct{})
	go func() { e.done(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(2 * indexFlushTimeout):
		t.Fatal("the end waits for the index")
	}
	if _, err := Open(opt); !errors.Is(err, ErrFull) {
		t.Errorf("an open on a full disk: %v, want ErrFull", err)
	}
	fsys.full.Store(false)
	opt.IndexDir = "another" // the first one still has its lock
	e = openTest(t, opt)
	e.wantAll(want)
}
