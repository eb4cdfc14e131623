// Package memfs is a file system in memory, which ends with the process: for the client's
// memory mode. Syncs do nothing, as there is nothing that could be lost alone.
package memfs

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// FS implements vfs.FS; its root is "." and "/". Safe for concurrent use.
type FS struct {
	mu sync.Mutex
	// nodes by their clean path; a directory is nil.
	nodes map[string]*data
	locks map[string]bool
}

// data of a file, which may have several names.
type data struct {
	mu sync.RWMutex
	b  []byte
}

// New is empty.
func New() *FS {
	return &FS{nodes: map[string]*data{".": nil, "/": nil}, locks: map[string]bool{}}
}

func fail(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

var errNotEmpty = errors.New("directory is not empty")

// free reports whether name can be made: its directory is there, and the name is not taken.
func (f *FS) free(op, name string) (string, error) {
	p := path.Clean(name)
	if d, ok := f.nodes[path.Dir(p)]; !ok || d != nil {
		return p, fail(op, name, fs.ErrNotExist)
	}
	if _, taken := f.nodes[p]; taken {
		return p, fail(op, name, fs.ErrExist)
	}
	return p, nil
}

// file gives the data of a file.
func (f *FS) file(op, name string) (*data, error) {
	d, ok := f.nodes[path.Clean(name)]
	switch {
	case !ok:
		return nil, fail(op, name, fs.ErrNotExist)
	case d == nil:
		return nil, fail(op, name, fs.ErrInvalid)
	}
	return d, nil
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.free("create", name)
	if err != nil {
		return nil, err
	}
	d := &data{}
	f.nodes[p] = d
	return file{d}, nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.file("open", name)
	if err != nil {
		return nil, err
	}
	return file{d}, nil
}

// Link implements vfs.FS.
func (f *FS) Link(oldname, newname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.file("link", oldname)
	if err != nil {
		return err
	}
	p, err := f.free("link", newname)
	if err == nil {
		f.nodes[p] = d
	}
	return err
}

// Rename implements vfs.FS; directories can't be renamed.
func (f *FS) Rename(oldname, newname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.file("rename", oldname)
	if err != nil {
		return err
	}
	p, err := f.free("rename", newname)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	switch old, taken := f.nodes[p]; {
	case taken && old == nil:
		return fail("rename", newname, fs.ErrExist)
	case old == d: // two names of one file: rename(2) leaves both
		return nil
	}
	f.nodes[p] = d
	delete(f.nodes, path.Clean(oldname))
	return nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := path.Clean(name)
	d, ok := f.nodes[p]
	if !ok {
		return fail("remove", name, fs.ErrNotExist)
	}
	if d == nil {
		// A scan of all names is good enough: directories are seldom removed, and a queue has few files.
		for other := range f.nodes {
			if other != p && path.Dir(other) == p {
				return fail("remove", name, errNotEmpty)
			}
		}
	}
	delete(f.nodes, p)
	return nil
}

// Mkdir implements vfs.FS.
func (f *FS) Mkdir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.free("mkdir", name)
	if err == nil {
		f.nodes[p] = nil
	}
	return err
}

func typeOf(d *data) fs.FileMode {
	if d == nil {
		return fs.ModeDir
	}
	return 0
}

// directory fails where dir is none.
func (f *FS) directory(op, dir string) (string, error) {
	p := path.Clean(dir)
	if d, ok := f.nodes[p]; !ok || d != nil {
		return p, fail(op, dir, fs.ErrNotExist)
	}
	return p, nil
}

// List implements vfs.FS.
func (f *FS) List(dir string) ([]vfs.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.directory("list", dir)
	if err != nil {
		return nil, err
	}
	var out []vfs.Entry
	for name, d := range f.nodes {
		if name != "." && name != "/" && path.Dir(name) == p {
			out = append(out, vfs.Entry{Name: path.Base(name), Type: typeOf(d)})
		}
	}
	slices.SortFunc(out, func(a, b vfs.Entry) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (vfs.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, ok := f.nodes[path.Clean(name)]
	if !ok {
		return vfs.Info{}, fail("stat", name, fs.ErrNotExist)
	}
	info := vfs.Info{Type: typeOf(d)}
	if d != nil {
		info.Size, _ = file{d}.Size()
	}
	return info, nil
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.directory("sync", dir)
	return err
}

// Free implements vfs.FS: whoever writes bounds itself.
func (f *FS) Free(string) (bytes, files int64, err error) { return math.MaxInt64, math.MaxInt64, nil }

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.free("lock", name)
	switch {
	case f.locks[p]:
		return nil, fail("lock", name, vfs.ErrLocked)
	case err == nil:
		f.nodes[p] = &data{}
	case !errors.Is(err, fs.ErrExist):
		return nil, err
	}
	f.locks[p] = true
	return unlock(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.locks, p)
	}), nil
}

type unlock func()

func (u unlock) Close() error { u(); return nil }

// file is an open file.
type file struct{ d *data }

// ReadAt implements vfs.File.
func (f file) ReadAt(p []byte, off int64) (int, error) {
	f.d.mu.RLock()
	defer f.d.mu.RUnlock()
	if off >= int64(len(f.d.b)) {
		return 0, io.EOF
	}
	n := copy(p, f.d.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements vfs.File.
func (f file) WriteAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.resize(max(int64(len(f.d.b)), off+int64(len(p))))
	return copy(f.d.b[off:], p), nil
}

// resize sets the length; new bytes are zeros.
func (f file) resize(n int64) {
	if have := int64(len(f.d.b)); n > have {
		f.d.b = slices.Grow(f.d.b, int(n-have))[:n]
		// Capacity that an earlier Truncate has cut off still has its old bytes.
		clear(f.d.b[have:])
		return
	}
	f.d.b = f.d.b[:n]
}

// Size implements vfs.File.
func (f file) Size() (int64, error) {
	f.d.mu.RLock()
	defer f.d.mu.RUnlock()
	return int64(len(f.d.b)), nil
}

// Truncate implements vfs.File.
func (f file) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.resize(size)
	return nil
}

// Allocate implements vfs.File.
func (f file) Allocate(off, n int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.resize(max(int64(len(f.d.b)), off+n))
	return nil
}

// Sync implements vfs.File.
func (f file) Sync() error { return nil }

// Close implements vfs.File.
func (f file) Close() error { return nil }
