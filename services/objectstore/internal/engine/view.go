package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// Check opens the store in a directory, reads everything and reports what is damaged. It changes
// nothing: whatever opening writes, the index included, stays in memory.
func Check(ctx context.Context, opt Options) (Verified, error) {
	opt = opt.withDefaults()
	mem := pebblevfs.NewMem()
	if _, err := pebblevfs.Clone(opt.IndexFS, mem, opt.IndexDir, "index"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		// The log has everything that the index has, so an unreadable index is no reason to fail.
		opt.Log.Warn("the index cannot be read, and is built from the log", "error", err)
		mem = pebblevfs.NewMem()
	}
	opt.FS, opt.IndexFS, opt.IndexDir, opt.Reserve = &viewFS{FS: opt.FS, files: map[string]*memFile{}}, mem, "index", 0
	e, err := Open(opt)
	if err != nil {
		return Verified{}, err
	}
	v, err := e.Verify(ctx)
	return v, errors.Join(err, e.Close())
}

// viewFS shows a directory read-only: writes go to memory and are seen by later reads.
type viewFS struct {
	vfs.FS
	mu    sync.Mutex
	files map[string]*memFile // new ones, and those that were written to
}

// Create implements vfs.FS.
func (v *viewFS) Create(name string) (vfs.File, error) {
	if f, err := v.Open(name); err == nil {
		return nil, errors.Join(fs.ErrExist, f.Close())
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	f := &memFile{}
	v.files[name] = f
	return f, nil
}

// Open implements vfs.FS.
func (v *viewFS) Open(name string) (vfs.File, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if f := v.files[name]; f != nil {
		return f, nil
	}
	f, err := v.FS.Open(name)
	if err != nil {
		return nil, err
	}
	return &viewFile{File: f, cut: -1}, nil
}

// Rename implements vfs.FS, of new files.
func (v *viewFS) Rename(oldname, newname string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	f := v.files[oldname]
	if f == nil {
		return fmt.Errorf("rename %s: %w", oldname, errors.ErrUnsupported)
	}
	delete(v.files, oldname)
	v.files[newname] = f
	return nil
}

// Remove implements vfs.FS. What is on the disk stays.
func (v *viewFS) Remove(name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.files, name)
	return nil
}

// Mkdir implements vfs.FS.
func (v *viewFS) Mkdir(string) error { return nil }

// Link implements vfs.FS.
func (v *viewFS) Link(_, newname string) error {
	return fmt.Errorf("link %s: %w", newname, errors.ErrUnsupported)
}

// SyncDir implements vfs.FS.
func (v *viewFS) SyncDir(string) error { return nil }

// List implements vfs.FS.
func (v *viewFS) List(name string) ([]vfs.Entry, error) {
	list, err := v.FS.List(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for f := range v.files {
		base, ok := strings.CutPrefix(f, name+"/")
		if ok && !slices.ContainsFunc(list, func(e vfs.Entry) bool { return e.Name == base }) {
			list = append(list, vfs.Entry{Name: base})
		}
	}
	slices.SortFunc(list, func(a, b vfs.Entry) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

// viewFile is a file on disk whose writes are dropped. Opening writes to existing files only the
// mark, which is not read again, and cuts a torn tail, which cut remembers.
type viewFile struct {
	vfs.File
	cut int64 // its length, when it was cut off; -1: as it is
}

func (f *viewFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (f *viewFile) Sync() error                            { return nil }

func (f *viewFile) Allocate(int64, int64) error { return nil }

func (f *viewFile) Truncate(size int64) error {
	f.cut = size
	return nil
}

func (f *viewFile) Size() (int64, error) {
	if f.cut >= 0 {
		return f.cut, nil
	}
	return f.File.Size()
}

// memFile is a file in memory.
type memFile struct {
	mu sync.Mutex
	b  []byte
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := copy(p, f.b[min(off, int64(len(f.b))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if grow := off + int64(len(p)) - int64(len(f.b)); grow > 0 {
		f.b = append(f.b, make([]byte, grow)...)
	}
	return copy(f.b[off:], p), nil
}

func (f *memFile) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.b = f.b[:min(size, int64(len(f.b)))]
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.b)), nil
}

func (f *memFile) Allocate(off, n int64) error { return vfs.WriteZeros(f, off, n) }

func (f *memFile) Sync() error  { return nil }
func (f *memFile) Close() error { return nil }
