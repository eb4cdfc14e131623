package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
)

// Dir is the file system of the operating system below a directory. Files and directories that it
// creates are accessible only to the user of the process.
type Dir string

// OS takes the names of the operating system as they are.
const OS = Dir("")

const (
	dirMode  fs.FileMode = 0o700
	fileMode fs.FileMode = 0o600
)

func (d Dir) path(name string) string {
	if d == "" {
		return name
	}
	return filepath.Join(string(d), name)
}

func (d Dir) open(name string, flag int) (File, error) {
	f, err := os.OpenFile(d.path(name), flag, fileMode)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Create implements FS.
func (d Dir) Create(name string) (File, error) {
	return d.open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

// Open implements FS.
func (d Dir) Open(name string) (File, error) { return d.open(name, os.O_RDWR) }

// Link implements FS.
func (d Dir) Link(oldname, newname string) error { return os.Link(d.path(oldname), d.path(newname)) }

// Rename implements FS.
func (d Dir) Rename(oldname, newname string) error {
	return os.Rename(d.path(oldname), d.path(newname))
}

// Remove implements FS.
func (d Dir) Remove(name string) error { return os.Remove(d.path(name)) }

// Mkdir implements FS.
func (d Dir) Mkdir(name string) error { return os.Mkdir(d.path(name), dirMode) }

// List implements FS.
func (d Dir) List(dir string) ([]Entry, error) {
	list, err := os.ReadDir(d.path(dir))
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, len(list))
	for i, e := range list {
		entries[i] = Entry{e.Name(), e.Type()}
	}
	return entries, nil
}

// Stat implements FS.
func (d Dir) Stat(name string) (Info, error) {
	st, err := os.Stat(d.path(name))
	if err != nil {
		return Info{}, err
	}
	return Info{st.Size(), st.Mode().Type()}, nil
}

// SyncDir implements FS.
func (d Dir) SyncDir(dir string) error {
	f, err := os.Open(d.path(dir))
	if err != nil {
		return err
	}
	// Sync of a directory makes the names in it durable; the sync of a file does not cover its own name.
	return errors.Join(f.Sync(), f.Close())
}

// Free is what statfs(2) says an unprivileged process may take. A file system without
// a count of files has room for any number.
func (d Dir) Free(dir string) (bytes, files int64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.path(dir), &st); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: d.path(dir), Err: err}
	}
	files = int64(st.Ffree)
	if st.Files == 0 {
		files = math.MaxInt64
	}
	// Bavail and not Bfree: the difference is reserved for root.
	return int64(st.Bavail) * int64(st.Bsize), files, nil
}

// Lock takes flock(2).
func (d Dir) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	// The file stays after the lock is released: removing it would let two processes lock two files of one
	// name.
	if err := lock(f); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("%w: %w", ErrLocked, err)
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

type osFile struct{ *os.File }

// Size implements File.
func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
