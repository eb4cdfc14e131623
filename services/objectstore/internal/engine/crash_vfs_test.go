package engine

import (
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// crashVFS puts the same file system behind the index, so that one power loss
// hits the log and the index at the same call.
type crashVFS struct{ *crashfs.FS }

func (c crashVFS) wrap(name string, f vfs.File, err error) (pebblevfs.File, error) {
	if err != nil {
		return nil, err
	}
	st, err := c.FS.Stat(name)
	return &vfsFile{File: f, name: name, dir: st.Type.IsDir()}, err
}

func (c crashVFS) Create(name string, _ pebblevfs.DiskWriteCategory) (pebblevfs.File, error) {
	// As the real one does: the old file lives on for those who have it open.
	if _, err := c.FS.Open(name); err == nil {
		if err := c.FS.Remove(name); err != nil {
			return nil, err
		}
	}
	f, err := c.FS.Create(name)
	return c.wrap(name, f, err)
}

func (c crashVFS) Open(name string, _ ...pebblevfs.OpenOption) (pebblevfs.File, error) {
	f, err := c.FS.Open(name)
	return c.wrap(name, f, err)
}

func (c crashVFS) OpenReadWrite(name string, cat pebblevfs.DiskWriteCategory, _ ...pebblevfs.OpenOption) (pebblevfs.File, error) {
	f, err := c.FS.Open(name)
	if err != nil {
		return c.Create(name, cat)
	}
	return c.wrap(name, f, nil)
}

func (c crashVFS) OpenDir(name string) (pebblevfs.File, error) { return c.Open(name) }

func (c crashVFS) ReuseForWrite(old, name string, _ pebblevfs.DiskWriteCategory) (pebblevfs.File, error) {
	if err := c.Rename(old, name); err != nil {
		return nil, err
	}
	return c.Open(name)
}

func (c crashVFS) MkdirAll(dir string, _ os.FileMode) error { return vfs.EnsureDir(c.FS, dir) }

func (c crashVFS) List(dir string) ([]string, error) { return vfs.Names(c.FS, dir) }

func (c crashVFS) Lock(name string) (io.Closer, error) { return c.FS.Lock(name) }

func (c crashVFS) Stat(name string) (pebblevfs.FileInfo, error) {
	st, err := c.FS.Stat(name)
	return info{path.Base(name), st.Size, st.Type.IsDir()}, err
}

func (crashVFS) PathBase(p string) string       { return path.Base(p) }
func (crashVFS) PathJoin(elem ...string) string { return path.Join(elem...) }
func (crashVFS) PathDir(p string) string        { return path.Dir(p) }
func (crashVFS) Unwrap() pebblevfs.FS           { return nil }
func (crashVFS) GetDiskUsage(string) (pebblevfs.DiskUsage, error) {
	return pebblevfs.DiskUsage{}, pebblevfs.ErrUnsupported
}

// vfsFile adds a position to a file. The index reads and writes each file from one place.
type vfsFile struct {
	vfs.File
	name      string
	dir       bool
	read, end int64
}

func (f *vfsFile) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.read)
	f.read += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *vfsFile) Write(p []byte) (int, error) {
	n, err := f.WriteAt(p, f.end)
	f.end += int64(n)
	return n, err
}

func (f *vfsFile) Stat() (pebblevfs.FileInfo, error) {
	n, err := f.Size()
	return info{path.Base(f.name), n, f.dir}, err
}

func (f *vfsFile) Preallocate(int64, int64) error    { return nil }
func (f *vfsFile) Prefetch(int64, int64) error       { return nil }
func (f *vfsFile) SyncTo(int64) (full bool, _ error) { return true, f.Sync() }
func (f *vfsFile) SyncData() error                   { return f.Sync() }
func (f *vfsFile) Fd() uintptr                       { return pebblevfs.InvalidFd }

type info struct {
	name string
	size int64
	dir  bool
}

func (i info) Name() string                 { return i.name }
func (i info) Size() int64                  { return i.size }
func (i info) Mode() fs.FileMode            { return 0o600 }
func (i info) ModTime() time.Time           { return time.Time{} }
func (i info) IsDir() bool                  { return i.dir }
func (i info) Sys() any                     { return nil }
func (i info) DeviceID() pebblevfs.DeviceID { return pebblevfs.DeviceID{} }
