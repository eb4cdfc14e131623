package vfs

import "syscall"

// Sync implements File. fdatasync also makes the length durable, which is all the
// metadata that reading needs.
func (f osFile) Sync() error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		// Go sends signals to its own threads to preempt goroutines, and they can interrupt the call.
		if err != syscall.EINTR {
			return err
		}
	}
}

// Allocate implements File. A file system without fallocate(2) gets zeros.
func (f osFile) Allocate(off, n int64) error {
	err := syscall.Fallocate(int(f.Fd()), 0, off, n)
	// A full disk is the answer that the caller asks for. Writing zeros would fail as well, after filling
	// what is left.
	if err == nil || IsFull(err) {
		return err
	}
	return WriteZeros(f, off, n)
}
