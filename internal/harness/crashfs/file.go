package crashfs

import (
	"io"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// File is an open file, or an open directory.
type File struct {
	fs   *FS
	n    *inode
	name string
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if off >= int64(len(f.n.data)) {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if len(p) > 0 {
		f.fs.do(Op{Kind: Write, Path: f.name, ino: f.n.id, off: off, data: slices.Clone(p)})
	}
	return len(p), nil
}

// Truncate sets the length.
func (f *File) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if size != int64(len(f.n.data)) {
		f.fs.do(Op{Kind: Truncate, Path: f.name, ino: f.n.id, off: size})
	}
	return nil
}

// Allocate adds zeros.
func (f *File) Allocate(off, n int64) error { return vfs.WriteZeros(f, off, n) }

// Sync makes a file's bytes and length durable, or a directory's names.
func (f *File) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	kind := Sync
	if f.n.isDir() {
		kind = SyncDir
	}
	f.fs.do(Op{Kind: kind, Path: f.name, ino: f.n.id})
	return nil
}

// Size gives the length in bytes.
func (f *File) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return int64(len(f.n.data)), nil
}

// Close implements io.Closer.
func (f *File) Close() error { return nil }
