package queue

import (
	"errors"

	"lightmetrics.dev/lightmetrics/internal/record"
)

// Kinds of the records on disk, for errors. Segments and their records are not JSON, but damage,
// and versions of a newer release, are reported as for every other record.
var (
	segmentKind = record.Kind{Title: "queue segment"}
	entryKind   = record.Kind{Title: "queue record"}
	skipsKind   = record.Kind{Title: "skipped numbers"}
	// HeldKind is the reason beside the frame of a held batch.
	HeldKind = record.Kind{Schema: "lightmetrics.held_batch.v1", Title: "reason of a held batch", MaxBytes: 1 << 20}
)

// Errors that callers branch on, beside record.ErrCorrupt and record.ErrNewerVersion.
var (
	// ErrFull: the bound of the disk, or the disk itself, is reached; nothing was queued.
	ErrFull = errors.New("queue is full")
	// ErrTooLarge: one Append has more than the whole queue may hold; nothing was queued.
	ErrTooLarge = errors.New("larger than the queue")
	// ErrNotFound: no such entry, or it is done.
	ErrNotFound = errors.New("no such queue entry")
	// ErrClosed: the queue was closed.
	ErrClosed = errors.New("queue is closed")
)
