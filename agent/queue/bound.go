package queue

import (
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/record"
)

func (q *Queue) diskBytes() int64 {
	n := q.heldBytes[Parked] + q.heldBytes[Dead]
	for _, s := range q.segments {
		n += s.size
	}
	return n
}

// makeRoom frees the space of finished entries until n more bytes fit; ErrFull when they do not.
func (q *Queue) makeRoom(n int64) error {
	fits := func() bool { return q.diskBytes()+n <= q.opts.MaxBytes }
	if fits() {
		return nil
	}
	// Finished entries still hold space in the segment being written, and in segments behind one with
	// a pending entry.
	if _, err := q.rotateDone(); err != nil {
		return err
	}
	for !fits() && q.compactable() {
		if err := q.moveOldestEntries(); err != nil {
			return err
		}
	}
	if !fits() {
		return fmt.Errorf("%w: %d of %d bytes are used", ErrFull, q.diskBytes(), q.opts.MaxBytes)
	}
	return nil
}

// rotateDone ends the segment being written when all of its entries are finished, so that it can
// be removed; freed reports whether it was.
func (q *Queue) rotateDone() (freed bool, err error) {
	if a := q.active(); a.live > 0 || a.size <= maxSegmentHeader {
		return false, nil
	}
	err = q.rotate()
	if errors.Is(err, ErrFull) && q.spendReserve() {
		err = q.rotate()
	}
	if err != nil {
		return false, err
	}
	q.keepReserve()
	return true, nil
}

// removeDone removes the oldest segments while nothing in them is pending. It does so only from the
// front: a note that an entry is finished is in a younger segment than the entry, and removing it
// first would make the entry pending again after a restart.
func (q *Queue) removeDone() error {
	for len(q.segments) > 1 && q.segments[0].live == 0 {
		s := q.segments[0]
		failpoint.Hit("agent.queue.reclaim.before")
		if s.damaged {
			if err := q.fs.Rename(s.name, s.name+corruptExt); err != nil {
				return fmt.Errorf("set segment %d aside: %w", s.no, err)
			}
		} else if err := q.fs.Remove(s.name); err != nil {
			return fmt.Errorf("remove segment %d: %w", s.no, err)
		}
		failpoint.Hit("agent.queue.reclaim.removed")
		q.segments = q.segments[1:]
		if err := errors.Join(s.f.Close(), q.fs.SyncDir(q.dir)); err != nil {
			return fmt.Errorf("remove segment %d: %w", s.no, err)
		}
	}
	return nil
}

// reclaim removes finished segments, and moves old pending entries that keep much finished space
// from being freed.
func (q *Queue) reclaim() error {
	if err := q.removeDone(); err != nil {
		return err
	}
	for q.compactable() && q.wastedBytes() > max(4*q.opts.SegmentBytes, q.opts.MaxBytes/4) {
		if err := q.moveOldestEntries(); err != nil {
			return err
		}
	}
	return nil
}

// wastedBytes is the size of all segments without their pending entries.
func (q *Queue) wastedBytes() int64 {
	var n int64
	for _, s := range q.segments {
		n += s.size - s.liveBytes
	}
	return n
}

// compactable reports whether moving the pending entries of the oldest segment frees much more
// than it costs.
func (q *Queue) compactable() bool {
	return len(q.segments) > 2 && q.segments[0].liveBytes < q.segments[0].size/4
}

// moveOldestEntries copies the pending records of the oldest segment to the end of the log, byte for
// byte and under the same numbers, and removes the segment. If a crash leaves both copies, recovery
// uses the younger one.
func (q *Queue) moveOldestEntries() error {
	s := q.segments[0]
	failpoint.Hit("agent.queue.relocate.before")
	for _, e := range q.entries {
		if e.done || e.seg != s {
			continue
		}
		rec, _, err := q.read(e)
		if errors.Is(err, record.ErrCorrupt) {
			// Its bytes are lost. It is dropped here, or it would keep the segment, and with it the
			// space, for ever; the file is kept under another name.
			s.damaged = true
			q.opts.Log.Error("queue record is damaged", "segment", s.name, "error", err)
			q.finishEntry(e)
			q.opened.Damaged++
			return q.removeDone()
		}
		if err != nil {
			return err
		}
		moved := *e
		moved.off = 0
		if err := q.write(rec, []*entry{&moved}); err != nil {
			return fmt.Errorf("relocate entry %d: %w", e.no, err)
		}
		failpoint.Hit("agent.queue.relocate.copied")
		s.live--
		s.liveBytes -= e.recordBytes()
		e.seg, e.off = moved.seg, moved.off
		e.seg.live++
		e.seg.liveBytes += e.recordBytes()
	}
	failpoint.Hit("agent.queue.relocate.after")
	return q.removeDone()
}

// dropOldest drops the pending entries of the oldest segment, and frees its space.
func (q *Queue) dropOldest() error {
	if q.pending == 0 {
		return errors.New("nothing is left to drop")
	}
	if len(q.segments) == 1 {
		if err := q.rotate(); err != nil {
			return err
		}
	}
	s := q.segments[0]
	// A copy, because finishEntry trims q.entries.
	for _, e := range append([]*entry(nil), q.entries...) {
		if e.done || e.seg != s {
			continue
		}
		q.opts.Log.Warn("queue is full: dropping the oldest batch", "identity", e.public().Identity.String(), "bytes", e.frame)
		// Finished in memory before the segment is removed below. If a crash comes first, the batch is
		// pending again and is sent, which is harmless.
		q.finishEntry(e)
		if q.opts.OnDrop != nil {
			q.opts.OnDrop(e.public())
		}
	}
	q.notify()
	return q.reclaim()
}
