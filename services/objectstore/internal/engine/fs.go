package engine

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// FS is the part of a file system that the engine needs. Names are slash-separated
// paths relative to the store's directory. Tests wrap it to fail or to drop writes.
type FS interface {
	// Create makes a new file for writing and reading; it fails when the name exists.
	Create(name string) (File, error)
	// Open opens an existing file for writing and reading.
	Open(name string) (File, error)
	// Rename replaces newname by oldname.
	Rename(oldname, newname string) error
	// Remove deletes a file. A missing file gives an error that is fs.ErrNotExist.
	Remove(name string) error
	// MkdirAll makes a directory and its parents.
	MkdirAll(name string) error
	// List gives the names in a directory, sorted, without their path.
	List(name string) ([]string, error)
	// SyncDir makes the entries of a directory durable.
	SyncDir(name string) error
	// Free gives the bytes that can still be written.
	Free() (int64, error)
	// Lock takes the exclusive lock of the store until the closer is closed.
	Lock(name string) (io.Closer, error)
}

// File is an open file. ReadAt and WriteAt may be called at the same time.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Truncate sets the length.
	Truncate(size int64) error
	// Sync makes data and length durable.
	Sync() error
	// Size gives the length in bytes.
	Size() (int64, error)
}

// MakeDir makes the store's directory and the parents that it lacks, durably. The parent of
// one that is there is synced too: its maker may have been killed before it did that.
func MakeDir(path string) error {
	err := os.Mkdir(path, 0o700)
	parent := filepath.Dir(path)
	if errors.Is(err, fs.ErrNotExist) && parent != path {
		if err := MakeDir(parent); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err = DirFS(parent).SyncDir(".")
	if errors.Is(err, fs.ErrPermission) {
		return nil // someone else made the directory
	}
	return err
}

// DirFS is the real file system below a directory.
type DirFS string

func (d DirFS) path(name string) string { return string(d) + string(os.PathSeparator) + name }

// Create implements FS.
func (d DirFS) Create(name string) (File, error) {
	return openOS(d.path(name), os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

// Open implements FS.
func (d DirFS) Open(name string) (File, error) { return openOS(d.path(name), os.O_RDWR) }

// Rename implements FS.
func (d DirFS) Rename(oldname, newname string) error {
	return os.Rename(d.path(oldname), d.path(newname))
}

// Remove implements FS.
func (d DirFS) Remove(name string) error { return os.Remove(d.path(name)) }

// MkdirAll implements FS.
func (d DirFS) MkdirAll(name string) error { return os.MkdirAll(d.path(name), 0o700) }

// List implements FS.
func (d DirFS) List(name string) ([]string, error) {
	entries, err := os.ReadDir(d.path(name))
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// SyncDir implements FS.
func (d DirFS) SyncDir(name string) error {
	f, err := os.Open(d.path(name))
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// Free implements FS.
func (d DirFS) Free() (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(string(d), &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

type osFile struct{ *os.File }

func openOS(path string, flag int) (File, error) {
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Size implements File.
func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
