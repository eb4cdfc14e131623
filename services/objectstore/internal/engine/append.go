package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// keepBuffers is the largest buffer, bytes, that the committer keeps from batch to batch.
const keepBuffers = maxBatchBytes + maxInlineBytes

// logBuffer is empty and has room for all of the batch.
func (e *Engine) logBuffer(batch []*op) []byte {
	n := 0
	for _, o := range batch {
		n += int(o.rec.size())
	}
	if cap(e.scratch) < n {
		return make([]byte, 0, n)
	}
	return e.scratch[:0]
}

func (e *Engine) reuseBuffer(b []byte) {
	if cap(b) <= keepBuffers {
		e.scratch = b
	}
}

// append writes a batch at offset at and syncs it. A failed write is cut off again and the
// store goes on. After a failed fsync, or when the cut fails, the store takes no more writes:
// nobody knows which bytes are durable, and the kernel may report the error only once.
func (e *Engine) append(buf []byte, at int64) (time.Duration, error) {
	failpoint.Hit("objectstore.log.write.before")
	e.prepare(at+int64(len(buf)), int64(len(buf)))
	_, err := e.active.file.WriteAt(buf, at)
	// The first failure for lack of space frees a part of the reserve; the second is the answer.
	if vfs.IsFull(err) && e.freeReserve() {
		_, err = e.active.file.WriteAt(buf, at)
	}
	if err = full(err); err != nil {
		werr := fmt.Errorf("write %s at %d: %w", segName(e.active.number), at, err)
		e.prepared = 0
		if terr := e.active.file.Truncate(at); terr != nil {
			return 0, e.fail(errors.Join(werr, terr))
		}
		return 0, werr
	}
	failpoint.Hit("objectstore.log.sync.before")
	began := time.Now() // measures only; nothing is decided by it
	if err := e.active.file.Sync(); err != nil {
		return 0, e.fail(fmt.Errorf("fsync %s: %w", segName(e.active.number), err))
	}
	failpoint.Hit("objectstore.log.sync.after")
	e.counts.fsyncs.Add(1)
	return time.Since(began), nil
}

// roll starts a new segment. The old one is durable: every batch was synced.
func (e *Engine) roll() error {
	failpoint.Hit("objectstore.log.roll.before")
	if err := e.cutPrepared(); err != nil {
		return e.fail(err)
	}
	num := e.head.pos.seg + 1
	s, err := createSegment(e.fs, num, e.head.nextSeq)
	if vfs.IsFull(err) {
		// Nothing in the new file was acknowledged, so it can be removed and made again.
		if rerr := e.fs.Remove(segName(num)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			return e.fail(errors.Join(err, rerr))
		}
		if e.freeReserve() {
			s, err = createSegment(e.fs, num, e.head.nextSeq)
		}
	}
	if err != nil {
		if vfs.IsFull(err) {
			// If it stays, the next attempt finds the name taken, and the store is poisoned.
			_ = e.fs.Remove(segName(num))
			return full(err)
		}
		return e.fail(err)
	}
	e.mu.Lock()
	failpoint.Hit("objectstore.log.roll.after")
	e.length[e.head.pos.seg], e.closedAt[e.head.pos.seg] = e.head.pos.off, e.opt.Now()
	delete(e.found, e.head.pos.seg)
	e.segments[s.number] = s
	e.live[s.number] = 0
	e.end = position{s.number, segHeaderSize}
	e.mu.Unlock()
	e.active = s
	e.head.pos, e.head.salt = e.end, s.salt
	return nil
}
