package queue

import (
	"errors"
	"fmt"
	"sort"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// Pending lists up to limit pending entries with numbers greater than after, oldest first.
func (q *Queue) Pending(after uint64, limit int) []Entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	// Entries are sorted by number, and finished ones are trimmed from the front.
	i := sort.Search(len(q.entries), func(i int) bool { return q.entries[i].no > after })
	var out []Entry
	for ; i < len(q.entries) && len(out) < limit; i++ {
		if e := q.entries[i]; !e.done {
			out = append(out, e.public())
		}
	}
	return out
}

// Frame reads the exact bytes of a pending entry; record.ErrCorrupt when the disk has other bytes.
func (q *Queue) Frame(no uint64) ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.byNo[no]
	if e == nil {
		return nil, fmt.Errorf("%w: %d", ErrNotFound, no)
	}
	_, f, err := q.read(e)
	return f.frame, err
}

// read returns a record and its parsed body.
func (q *Queue) read(e *entry) ([]byte, frameBody, error) {
	rec := make([]byte, e.recordBytes())
	if _, err := e.seg.f.ReadAt(rec, e.off); err != nil {
		return nil, frameBody{}, fmt.Errorf("read queue entry %d: %w", e.no, err)
	}
	h, err := parseHeader(rec)
	// A valid record of another entry would be sent under the wrong identity.
	if err == nil && (h.no != e.no || h.kind != kindFrame) {
		err = entryKind.Corrupt("", "entry %d found where %d was written", h.no, e.no)
	}
	if err == nil {
		err = h.check(rec[recordHeader:])
	}
	if err != nil {
		return nil, frameBody{}, fmt.Errorf("read queue entry %d: %w", e.no, err)
	}
	f, err := parseFrame(rec[recordHeader:])
	return rec, f, err
}

// Ack finishes an entry that a collector has accepted.
func (q *Queue) Ack(no uint64) error { return q.finish(no, Acked) }

// Drop finishes an entry that will not be sent.
func (q *Queue) Drop(no uint64) error { return q.finish(no, Dropped) }

func (q *Queue) finish(no uint64, s State) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	e := q.byNo[no]
	if e == nil {
		return fmt.Errorf("%w: %d", ErrNotFound, no)
	}
	return q.finishLocked(e, s)
}

// finishLocked notes an entry's state without a sync. When the note is lost, the same bytes are sent
// again and answered with DUPLICATE, which is harmless and cheaper than an fsync per batch. The
// entry is finished in memory even when the note fails.
func (q *Queue) finishLocked(e *entry, s State) error {
	err := q.note(e.no, s)
	q.finishEntry(e)
	q.notify()
	return errors.Join(err, q.reclaim())
}

func (q *Queue) note(no uint64, s State) error {
	if err := q.repairTail(); err != nil {
		return fmt.Errorf("note entry %d as %s: %w", no, s, err)
	}
	a := q.active()
	rec := appendState(nil, no, s, q.opts.Now())
	q.repair = true
	failpoint.Hit("agent.queue.note.before")
	if _, err := a.f.WriteAt(rec, a.size); err != nil {
		_ = q.repairTail()
		return fmt.Errorf("note entry %d as %s: %w", no, s, err)
	}
	q.repair = false
	failpoint.Hit("agent.queue.note.written")
	a.size += int64(len(rec))
	return nil
}

// finishEntry removes an entry from the pending ones.
func (q *Queue) finishEntry(e *entry) {
	if e.done {
		return
	}
	e.done = true
	delete(q.byNo, e.no)
	q.pending--
	q.pendingBytes -= int64(e.frame)
	e.seg.live--
	e.seg.liveBytes -= e.recordBytes()
	i := 0
	for i < len(q.entries) && q.entries[i].done {
		q.entries[i] = nil
		i++
	}
	q.entries = q.entries[i:]
}

// NewBoot starts a new boot for later batches, with the same spool id. Pending batches keep theirs.
func (q *Queue) NewBoot(why string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	if err := q.repairTail(); err != nil {
		return err
	}
	s := q.active()
	if err := s.f.Sync(); err != nil {
		return fmt.Errorf("seal segment %d: %w", s.no, err)
	}
	if err := q.startBoot(s.no+1, q.boot.spool, why); err != nil {
		return err
	}
	q.notify()
	return nil
}

// Stats is a picture of the queue.
type Stats struct {
	Pending, Parked, Dead                int
	PendingBytes, ParkedBytes, DeadBytes int64
	// DiskBytes is all that counts against MaxBytes.
	DiskBytes int64
	MaxBytes  int64
	Segments  int
	// Skipped counts the records that got numbers and were dropped, for the life of the directory.
	Skipped uint64
	// Refusing: the last batch was dropped.
	Refusing bool
	// Oldest pending entry; nil when there is none.
	Oldest *Entry
}

// Stats of now.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	st := Stats{
		Pending: q.pending, PendingBytes: q.pendingBytes,
		Parked: len(q.held[Parked]), ParkedBytes: q.heldBytes[Parked],
		Dead: len(q.held[Dead]), DeadBytes: q.heldBytes[Dead],
		DiskBytes: q.diskBytes(), MaxBytes: q.opts.MaxBytes, Segments: len(q.segments),
		Skipped: q.skip.total, Refusing: q.refusing,
	}
	if len(q.entries) > 0 {
		e := q.entries[0].public()
		st.Oldest = &e
	}
	return st
}
