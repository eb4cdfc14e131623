package engine

import (
	"errors"
	"fmt"
	"io"
)

// Behind its last record the active segment has zeros that were written ahead: an fsync of bytes that replace written
// ones need not make a new length and new blocks durable, which takes about as long as the bytes themselves. Blocks that
// are only allocated, by fallocate(2), don't help: the file system must note for each that it is written now.
//
// After a crash the zeros look like a torn write that left nothing, and are cut off like one.
const (
	// preparedBatches is for how many batches of the present size zeros are written at a time.
	preparedBatches = 64
	// leastPrepared and mostPrepared bound them, in bytes. More would make the batch that waits for them too slow.
	leastPrepared = 64 << 10
	mostPrepared  = 4 << 20
	// largestPreparedFor is the largest batch, bytes, for which zeros are written. Writing a larger one's bytes twice
	// takes longer than what it saves.
	largestPreparedFor = 256 << 10
)

// prepare writes zeros behind a batch of n bytes that will end at offset end, unless there are some. The fsync of the
// batch makes them durable. A failure is dropped: the segment grows with its batches then, and has all the room that there
// is.
func (e *Engine) prepare(end, n int64) {
	if end <= e.prepared || n > largestPreparedFor || e.batchFull != nil {
		return
	}
	ahead := min(max(preparedBatches*n, leastPrepared), mostPrepared, e.opt.SegmentBytes-end)
	if ahead <= 0 {
		return
	}
	was := e.prepared
	// Set before the attempt: what a failed one has left must be cut off, too.
	e.prepared = end + ahead
	for at := end; at < e.prepared; at += int64(len(zeros)) {
		if _, err := e.active.file.WriteAt(zeros[:min(int64(len(zeros)), e.prepared-at)], at); err != nil {
			// They must not take the room of records. No more are tried in this segment.
			_ = e.active.file.Truncate(max(was, end-n))
			e.prepared = max(e.prepared, e.opt.SegmentBytes)
			return
		}
	}
}

// zeros are a variable that is only read, so that they need no memory each time.
var zeros [256 << 10]byte

// cutPrepared ends the active segment behind its last record. Only the last segment of a log may have zeros there: in any
// other they would be lost records.
func (e *Engine) cutPrepared() error {
	if e.prepared <= e.head.pos.off {
		return nil
	}
	e.prepared = 0
	if err := errors.Join(e.active.file.Truncate(e.head.pos.off), e.active.file.Sync()); err != nil {
		return fmt.Errorf("cut off what %s has behind its records: %w", segName(e.active.number), err)
	}
	return nil
}

// isUnused reports whether a segment has only zeros from off to end.
func isUnused(s *segment, off, end int64) bool {
	b := make([]byte, min(64<<10, max(0, end-off)))
	for off < end {
		n, err := s.file.ReadAt(b[:min(int64(len(b)), end-off)], off)
		if n == 0 || err != nil && !errors.Is(err, io.EOF) {
			return false
		}
		for _, c := range b[:n] {
			if c != 0 {
				return false
			}
		}
		off += int64(n)
	}
	return true
}
