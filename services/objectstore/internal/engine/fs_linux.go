package engine

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// Sync implements File. fdatasync also makes the length durable, which is all the
// metadata that reading needs.
func (f osFile) Sync() error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR {
			return err
		}
	}
}

// Allocate takes room on the disk.
func (f osFile) Allocate(off, n int64) error {
	return syscall.Fallocate(int(f.Fd()), 0, off, n)
}

// Lock implements FS.
func (d DirFS) Lock(name string) (io.Closer, error) { return flock(d.path(name)) }

func flock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: %s: %w", ErrLocked, path, err)
	}
	return f, nil
}
