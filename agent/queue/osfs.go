package queue

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"lightmetrics.dev/lightmetrics/pkg/run"
)

// OS is the real file system.
type OS struct{}

const (
	dirMode  fs.FileMode = 0o700
	fileMode fs.FileMode = 0o600
)

// MkdirAll makes dir, and syncs each parent that got a new name. The parent of a directory
// that is there is synced too: its maker may have been killed in between.
func (o OS) MkdirAll(dir string) error {
	if st, err := os.Stat(dir); err == nil {
		if !st.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
		err := o.SyncDir(filepath.Dir(dir))
		if errors.Is(err, fs.ErrPermission) {
			return nil // someone else made it
		}
		return err
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := o.MkdirAll(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return o.SyncDir(parent)
}

// ReadDir lists regular files.
func (OS) ReadDir(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(list))
	for _, e := range list {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Open opens for reading and writing.
func (OS) Open(name string) (File, error) {
	return osFile(os.OpenFile(name, os.O_RDWR, fileMode))
}

// Create makes or empties a file.
func (OS) Create(name string) (File, error) {
	return osFile(os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode))
}

// Rename renames.
func (OS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

// Remove removes.
func (OS) Remove(name string) error { return os.Remove(name) }

// SyncDir fsyncs a directory.
func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Lock takes a flock.
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	if err := run.Flock(f); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", name, ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return f, nil
}

type file struct{ *os.File }

func osFile(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return file{f}, nil
}

// Size of the file.
func (f file) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
