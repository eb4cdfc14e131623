package vfs

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// MkdirAll creates a directory and its missing parents, durably. The parent of an existing directory
// is synced too: the process that created it may have been killed before it did that.
func MkdirAll(fsys FS, dir string) error {
	err := fsys.Mkdir(dir)
	parent := filepath.Dir(dir)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := MkdirAll(fsys, parent); err != nil {
			return err
		}
		err = fsys.Mkdir(dir)
	}
	// Checked after the parents were made: another process may have made the directory in between.
	there := errors.Is(err, fs.ErrExist)
	if there {
		err = wantDir(fsys, dir)
	}
	if err != nil {
		return err
	}
	err = fsys.SyncDir(parent)
	if there && errors.Is(err, fs.ErrPermission) {
		return nil // the parent belongs to another user, who created the directory and has to make it durable
	}
	return err
}

// EnsureDir makes one directory where there is none. It is not durable before its parent is synced.
func EnsureDir(fsys FS, dir string) error {
	err := fsys.Mkdir(dir)
	if errors.Is(err, fs.ErrExist) {
		return wantDir(fsys, dir)
	}
	return err
}

func wantDir(fsys FS, name string) error {
	st, err := fsys.Stat(name)
	if err == nil && !st.Type.IsDir() {
		return &fs.PathError{Op: "mkdir", Path: name, Err: errors.New("is there, and is not a directory")}
	}
	return err
}

// CreateEmpty gives an empty file, whether the name was taken or not.
func CreateEmpty(fsys FS, name string) (File, error) {
	f, err := fsys.Create(name)
	if !errors.Is(err, fs.ErrExist) {
		return f, err
	}
	// Create first and open then: of two calls for a new name one creates it, and neither fails.
	if f, err = fsys.Open(name); err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// WriteFile makes a new file of the parts and syncs its bytes; its name is not durable yet.
func WriteFile(fsys FS, name string, parts ...[]byte) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	var off int64
	for _, p := range parts {
		var n int
		n, err = f.WriteAt(p, off)
		if off += int64(n); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// ReplaceFile writes a file durably and in one step: whatever happens, the name has either the bytes
// before or all of the new ones. Several processes may do that with one name.
func ReplaceFile(fsys FS, name string, data []byte) error {
	// A random name, because several processes may replace the file at once.
	temp := name + "." + rand.Text()[:8] + ".tmp"
	err := WriteFile(fsys, temp, data)
	if err == nil {
		err = fsys.Rename(temp, name)
	}
	if err != nil {
		// The first error says what went wrong. A file that is left behind has a name that nobody reads.
		_ = fsys.Remove(temp)
		return err
	}
	// Last: before it, a loss of power may bring back the old file, but never a part of the new one, whose
	// bytes were synced first.
	return fsys.SyncDir(filepath.Dir(name))
}

// ReadFile reads at most limit bytes from the start of a file (0: all), and gives the file's size.
func ReadFile(fsys FS, name string, limit int64) (b []byte, size int64, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	if size, err = f.Size(); err != nil {
		return nil, 0, err
	}
	n := size
	if limit > 0 {
		n = min(n, limit)
	}
	b = make([]byte, n)
	if got, err := f.ReadAt(b, 0); got < len(b) {
		// The file became shorter after its size was read. A plain EOF could be taken for its normal end.
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, 0, fmt.Errorf("read %s: %w", name, err)
	}
	return b, size, nil
}

// MoveAside moves a file to another directory, durably, under a name made of its path. Where
// that is taken, by another file of the same path, it gets a number. It gives the new name,
// and an empty one when there is no such file.
func MoveAside(fsys FS, name, dir string) (string, error) {
	have, err := Names(fsys, dir)
	if err != nil {
		return "", err
	}
	base := strings.ReplaceAll(name, "/", "-")
	to := base
	// Nothing that was moved aside is ever overwritten: it may be all that is left of somebody's data.
	for i := 1; slices.Contains(have, to); i++ {
		to = fmt.Sprintf("%s.%d", base, i)
	}
	to = dir + "/" + to
	if err := fsys.Rename(name, to); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	return to, fsys.SyncDir(dir)
}

// Names gives the names in a directory, in order.
func Names(fsys FS, dir string) ([]string, error) {
	list, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name
	}
	return names, nil
}

// IsFull reports whether an error is of a full disk or an exhausted quota.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// WriteZeros writes n zero bytes from off on.
func WriteZeros(f File, off, n int64) error {
	// One megabyte at a time bounds the memory for a file of any size.
	zeros := make([]byte, min(n, 1<<20))
	for n > 0 {
		k, err := f.WriteAt(zeros[:min(n, int64(len(zeros)))], off)
		if err != nil {
			return err
		}
		off, n = off+int64(k), n-int64(k)
	}
	return nil
}
