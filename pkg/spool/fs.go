package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"lightmetrics.dev/lightmetrics/pkg/run"
)

// FS is the file system as the spool uses it; tests put one in its place that loses
// what was not synced. Paths are absolute. Errors wrap fs.ErrExist and fs.ErrNotExist.
type FS interface {
	// Mkdir makes one directory.
	Mkdir(path string) error
	// WriteFile makes a new file of the parts and syncs it.
	WriteFile(path string, parts ...[]byte) error
	// Link gives a file a second name, and fails if the name is taken.
	Link(from, to string) error
	// Rename moves a file over whatever is there.
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir makes the directory's entries durable.
	SyncDir(path string) error
	// ReadFile reads at most limit bytes from the start (0: all) and tells the file's size.
	ReadFile(path string, limit int64) ([]byte, int64, error)
	ReadDir(path string) ([]DirEntry, error)
	// Free is the room that the file system has left at path, bytes and files.
	Free(path string) (bytes, files int64, err error)
	// Lock takes an exclusive lock that ends with the process, or fails at once.
	Lock(path string) (io.Closer, error)
}

// DirEntry is one name in a directory.
type DirEntry struct {
	Name string
	Dir  bool
}

// OS is the machine's file system.
type OS struct{}

// Mkdir makes one directory.
func (OS) Mkdir(path string) error { return os.Mkdir(path, 0o750) }

// WriteFile makes a new file and syncs it.
func (OS) WriteFile(path string, parts ...[]byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, err = f.Write(p); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Link gives a file a second name.
func (OS) Link(from, to string) error { return os.Link(from, to) }

// Rename moves a file.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove removes a file or an empty directory.
func (OS) Remove(path string) error { return os.Remove(path) }

// SyncDir syncs a directory.
func (OS) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ReadFile reads the start of a file.
func (OS) ReadFile(path string, limit int64) ([]byte, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	n := st.Size()
	if limit > 0 {
		n = min(n, limit)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, 0, err
	}
	return b, st.Size(), nil
}

// ReadDir lists a directory in name order.
func (OS) ReadDir(path string) ([]DirEntry, error) {
	list, err := os.ReadDir(path)
	out := make([]DirEntry, len(list))
	for i, e := range list {
		out[i] = DirEntry{Name: e.Name(), Dir: e.IsDir()}
	}
	return out, err
}

// Free is what statfs(2) says an unprivileged process may take. A file system without
// a count of files has room for any number.
func (OS) Free(path string) (bytes, files int64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %q: %w", path, err)
	}
	files = int64(st.Ffree)
	if st.Files == 0 {
		files = math.MaxInt64
	}
	return int64(st.Bavail) * int64(st.Bsize), files, nil
}

// Lock takes flock(2).
func (OS) Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, err
	}
	if err := run.Flock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %q: another process has it: %w", path, err), f.Close())
	}
	return f, nil
}

// tree makes directories durably and gives files their names.
type tree struct {
	fs    FS
	root  string
	known map[string]bool // directories that are there and durable
}

// maxKnownDirs bounds tree.known; past it the tree forgets and looks again.
const maxKnownDirs = 1 << 14

// mkdirs makes rel and its parents, and syncs the parent of each that is new to this process.
func (t *tree) mkdirs(rel string) error {
	if rel == "." || t.known[rel] {
		return nil
	}
	parent := filepath.Dir(rel)
	if err := t.mkdirs(parent); err != nil {
		return err
	}
	if err := t.fs.Mkdir(t.abs(rel)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := t.fs.SyncDir(t.abs(parent)); err != nil {
		return err
	}
	if len(t.known) >= maxKnownDirs {
		clear(t.known)
	}
	t.known[rel] = true
	return nil
}

// mkdirAll makes the spool's own directory and the parents that it lacks, durably.
func mkdirAll(f FS, path string) error {
	err := f.Mkdir(path)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(path) != path {
		if err := mkdirAll(f, filepath.Dir(path)); err != nil {
			return err
		}
		err = f.Mkdir(path)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return f.SyncDir(filepath.Dir(path))
}

func (t *tree) abs(rel string) string { return filepath.Join(t.root, rel) }
