package queue

import "errors"

// Errors that callers branch on.
var (
	// ErrFull: the bound of the disk, or the disk itself, is reached; nothing was queued.
	ErrFull = errors.New("queue is full")
	// ErrCorrupt: bytes on disk are not what was written.
	ErrCorrupt = errors.New("queue record is corrupt")
	// ErrNotFound: no such entry, or it is done.
	ErrNotFound = errors.New("no such queue entry")
	// ErrClosed: the queue was closed.
	ErrClosed = errors.New("queue is closed")
)
