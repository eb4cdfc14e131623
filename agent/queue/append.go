package queue

import (
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Part is one batch to be queued.
type Part struct {
	// Records takes as many sequence numbers; at least 1.
	Records uint64
	// Encode makes the frame of the identity. An error leaves the numbers unused.
	Encode func(identity.Batch) ([]byte, error)
}

// Append gives identities to the parts in order, writes their frames, and syncs once. When it
// returns nil they are durable. After an error none of them was queued and their numbers are still
// free; a caller that drops the samples calls Skip. ErrFull: the bound or the disk is reached.
// ErrTooLarge: the parts would not fit into an empty queue.
func (q *Queue) Append(parts ...Part) ([]Entry, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, ErrClosed
	}
	// Encoded under the lock, since the identity, which is part of the frame, is only known here.
	buf, fresh, err := q.encode(parts)
	if err != nil {
		return nil, err
	}
	failpoint.Hit("agent.queue.append.before")
	if err := q.writeWithRoom(buf, fresh); err != nil {
		return nil, fmt.Errorf("queue append: %w", err)
	}
	out := make([]Entry, len(fresh))
	for i, e := range fresh {
		q.insert(e)
		// The numbers advance only after the sync: after a failure they are free again.
		q.next.nextEntry = e.no + 1
		q.next.nextSeq = e.seqEnd + 1
		out[i] = e.public()
	}
	q.noteAppended()
	q.notify()
	return out, nil
}

// encode builds the records of the parts; the entries' offsets are relative to the start of buf.
func (q *Queue) encode(parts []Part) ([]byte, []*entry, error) {
	var buf []byte
	fresh := make([]*entry, 0, len(parts))
	no, seq := q.next.nextEntry, q.next.nextSeq
	now := q.opts.Now()
	for _, p := range parts {
		if p.Records == 0 || seq+p.Records < seq {
			return nil, nil, fmt.Errorf("queue append: %d records at sequence number %d", p.Records, seq)
		}
		id := identity.Batch{Agent: q.boot.boot.Agent, Boot: q.boot.boot.Boot, SeqStart: seq, SeqEnd: seq + p.Records - 1}
		frame, err := p.Encode(id)
		if err != nil {
			return nil, nil, fmt.Errorf("encode batch %s: %w", id, err)
		}
		off := len(buf)
		buf = appendFrame(buf, no, frameBody{id: id, spool: q.boot.spool, created: now, frame: frame})
		fresh = append(fresh, &entry{
			no: no, boot: q.boot, seqStart: id.SeqStart, seqEnd: id.SeqEnd, created: now.UnixNano(),
			off: int64(off), body: int32(len(buf) - off - recordHeader), frame: int32(len(frame)),
		})
		no, seq = no+1, id.SeqEnd+1
	}
	return buf, fresh, nil
}

// writeWithRoom makes room according to the policy, writes, and sets the entries' offsets.
func (q *Queue) writeWithRoom(buf []byte, fresh []*entry) error {
	// Refused first: no batch may be dropped for one that fits into no queue of this size.
	if n := int64(len(buf)) + maxSegmentHeader; n > q.opts.MaxBytes {
		return fmt.Errorf("%w: %d bytes, the queue has %d", ErrTooLarge, n, q.opts.MaxBytes)
	}
	for {
		err := q.makeRoom(int64(len(buf)))
		if err == nil && q.pending+len(fresh) > q.opts.MaxBatches {
			err = fmt.Errorf("%w: %d batches are pending, at most %d", ErrFull, q.pending, q.opts.MaxBatches)
		}
		if err == nil {
			err = q.write(buf, fresh)
		}
		if !errors.Is(err, ErrFull) {
			return err
		}
		// A disk that is full below MaxBytes may hold nothing but finished entries. Their space is
		// freed only when the segment being written ends, which may be far from its size.
		freed, freeErr := q.rotateDone()
		switch {
		case freed:
			continue
		case freeErr != nil:
			err = errors.Join(err, freeErr)
		}
		if q.opts.Policy != DropOldest {
			return err
		}
		if dropErr := q.dropOldest(); dropErr != nil {
			return errors.Join(err, dropErr)
		}
	}
}

// write appends buf and syncs. After a failure the tail is repaired before the next write.
// Otherwise bytes whose numbers were never given out could come back at a restart, with numbers
// that other bytes have got meanwhile.
func (q *Queue) write(buf []byte, fresh []*entry) error {
	if err := q.prepare(int64(len(buf))); err != nil {
		return err
	}
	s := q.active()
	q.repair = true
	_, err := s.f.WriteAt(buf, s.size)
	failpoint.Hit("agent.queue.append.written")
	if err == nil {
		err = s.f.Sync()
	}
	if err != nil {
		// Tried at once, so that a restart in this state finds nothing. If it fails, prepare does not
		// write before it has succeeded.
		_ = q.repairTail()
		if vfs.IsFull(err) {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		return err
	}
	q.repair = false
	failpoint.Hit("agent.queue.append.synced")
	for _, e := range fresh {
		e.seg, e.off = s, e.off+s.size
	}
	s.size += int64(len(buf))
	return nil
}

// prepare repairs the tail and starts a new segment when this one is full.
func (q *Queue) prepare(n int64) error {
	if err := q.repairTail(); err != nil {
		return fmt.Errorf("repair the log's tail: %w", err)
	}
	// A segment with nothing but a header takes a record of any size, or one that is larger than
	// SegmentBytes would rotate for ever.
	if s := q.active(); s.size+n > q.opts.SegmentBytes && s.size > maxSegmentHeader {
		return q.rotate()
	}
	return nil
}

func (q *Queue) repairTail() error {
	if !q.repair {
		return nil
	}
	s := q.active()
	if err := s.f.Truncate(s.size); err != nil {
		return err
	}
	if err := s.f.Sync(); err != nil {
		return err
	}
	q.repair = false
	return nil
}

// rotate seals the segment being written and starts the next. The header of the new one carries
// the next numbers, so older segments can be removed.
func (q *Queue) rotate() error {
	if err := q.repairTail(); err != nil {
		return fmt.Errorf("repair the log's tail: %w", err)
	}
	s := q.active()
	if err := s.f.Sync(); err != nil {
		return fmt.Errorf("seal segment %d: %w", s.no, err)
	}
	failpoint.Hit("agent.queue.roll.before")
	o := q.next
	o.created, o.fingerprint = q.opts.Now(), q.opts.Fingerprint
	next, err := createSegment(q.fs, q.dir, s.no+1, o)
	if err != nil {
		if vfs.IsFull(err) {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		return err
	}
	failpoint.Hit("agent.queue.roll.after")
	q.segments = append(q.segments, next)
	return q.removeDone()
}

func (q *Queue) insert(e *entry) {
	q.entries = append(q.entries, e)
	q.byNo[e.no] = e
	q.pending++
	q.pendingBytes += int64(e.frame)
	e.seg.live++
	e.seg.liveBytes += e.recordBytes()
}
