package queue

import (
	"errors"
	"path/filepath"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// The reserve is a file that holds a block of the disk for the header of the next segment.
// The written segment can only be removed once the next one exists, so on a disk without a
// free block the queue could never free what is done, and would refuse batches for ever.
const (
	reserveName  = "reserve"
	reserveBytes = 4 << 10
)

// findReserve finds the reserve of an earlier start. A crash may have left a part of it.
func (q *Queue) findReserve() {
	info, err := q.fs.Stat(filepath.Join(q.dir, reserveName))
	q.reserved = err == nil && info.Size == reserveBytes
}

// keepReserve makes the reserve where it is missing. A disk that has no room for it is left alone.
func (q *Queue) keepReserve() {
	if q.reserved {
		return
	}
	path := filepath.Join(q.dir, reserveName)
	f, err := vfs.CreateEmpty(q.fs, path)
	if err == nil {
		_, err = f.WriteAt(slices.Repeat([]byte{0xff}, reserveBytes), 0)
		if err == nil {
			err = f.Sync()
		}
		err = errors.Join(err, f.Close())
	}
	if q.reserved = err == nil; !q.reserved {
		_ = q.fs.Remove(path)
	}
}

// spendReserve gives the block back; it reports whether there was one.
func (q *Queue) spendReserve() bool {
	if !q.reserved {
		return false
	}
	q.reserved = false
	return errors.Join(q.fs.Remove(filepath.Join(q.dir, reserveName)), q.fs.SyncDir(q.dir)) == nil
}
