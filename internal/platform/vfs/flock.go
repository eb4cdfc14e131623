package vfs

import (
	"errors"
	"os"
	"syscall"
	"time"
)

const (
	flockWait  = time.Second
	flockRetry = 10 * time.Millisecond
)

// lock takes an exclusive flock(2) on f. The kernel may release the lock of a killed process a moment
// after the process is gone, so a lock that is held is tried again for a second. After that the error
// is EWOULDBLOCK.
func lock(f *os.File) error { return flock(f, time.Now, time.Sleep) }

func flock(f *os.File, now func() time.Time, sleep func(time.Duration)) error {
	for end := now().Add(flockWait); ; sleep(flockRetry) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || now().After(end) {
			return err
		}
	}
}
