package engine

import (
	"errors"
	"io"
	"maps"
	"slices"
	"time"
)

// Event is a change of a key, read from the log: an object written or removed.
type Event struct {
	Seq    uint64
	Bucket string
	Key    string
	// Version is the id of the version, NullVersion for that of a bucket whose versioning is suspended, or empty.
	Version  string
	Removed  bool
	Marker   bool // with Removed: a delete marker was made
	Expired  bool // with Removed: by a lifecycle rule
	Size     int64
	ETag     string
	Modified time.Time // zero for a removal
}

// Cursor reads events from the log, forwards. It is not safe for concurrent use.
type Cursor struct {
	e    *Engine
	next uint64 // sequence of the next record
	pos  position
}

// Tail gives a cursor that starts at the record with sequence from, or at the first later
// record that still exists.
func (e *Engine) Tail(from uint64) *Cursor { return &Cursor{e: e, next: max(from, 1)} }

// End gives the sequence of the next write, and a channel that is closed by it.
func (e *Engine) End() (uint64, <-chan struct{}) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.endSeq, e.changed
}

// Next gives the sequence of the record that the cursor reads next.
func (c *Cursor) Next() uint64 { return c.next }

// tailStep bounds the records that one Read examines, so that a reader with a narrow filter
// still returns, and can stop, from time to time.
const tailStep = 10000

// Read gives up to limit events and moves the cursor behind them. No event and more false is the
// end of the log. missed counts records that were reclaimed before they were read, or that are
// damaged.
func (c *Cursor) Read(limit int, want func(*Event) bool) (events []Event, missed uint64, more bool, err error) {
	for range tailStep {
		seg, end, skipped, err := c.segment()
		missed += skipped
		if err != nil || seg == nil {
			return events, missed, false, err
		}
		sc := newScanner(seg, c.pos.off, end)
		sc.skip = true
		for n := 0; len(events) < limit && n < tailStep; n++ {
			r, at, err := sc.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if errors.Is(err, ErrUnavailable) {
				seg.release()
				return events, missed, len(events) > 0, unlessSome(events, err)
			}
			if err != nil {
				// The events of damaged records are missed; reading continues with the next valid
				// record, and its sequence tells how many were missed.
				sc.skipTo(sc.findRecord(c.next, nil))
				c.pos.off = sc.off
				continue
			}
			c.pos.off = at + r.size()
			if r.seq < c.next {
				continue // read before, in this segment or in a predecessor
			}
			missed += r.seq - c.next
			c.next = r.seq + 1
			ev, ok, err := eventOf(&r)
			if err != nil {
				missed++
				continue
			}
			if ok && want(&ev) {
				events = append(events, ev)
			}
		}
		done := c.pos.off >= end
		seg.release()
		if len(events) >= limit || !done {
			return events, missed, true, nil
		}
		// The segment is read to its end. If the log goes on, the next round opens the next one.
		if last, _ := c.e.End(); c.next >= last {
			return events, missed, false, nil
		}
	}
	return events, missed, true, nil
}

// segment takes a reference to the segment that holds the cursor's next record, and
// puts the cursor's position into it. No segment is the end of the log.
func (c *Cursor) segment() (seg *segment, end int64, missed uint64, err error) {
	e := c.e
	e.mu.RLock()
	defer e.mu.RUnlock()
	if c.next >= e.endSeq {
		return nil, 0, 0, nil
	}
	var later *segment // the first that begins behind next
	for _, s := range e.segments {
		if s.firstSeq <= c.next && (seg == nil || s.firstSeq > seg.firstSeq) {
			seg = s
		}
		if s.firstSeq > c.next && (later == nil || s.firstSeq < later.firstSeq) {
			later = s
		}
	}
	if seg != nil && c.pos.seg == seg.number && c.pos.off >= e.segmentEnd(seg.number) && later != nil {
		// The whole segment was read and its successor begins later: the segments in between were
		// reclaimed, and their records are missed.
		seg = nil
	}
	if seg == nil {
		seg = later
		if seg == nil {
			return nil, 0, 0, nil
		}
		if seg.firstSeq > c.next {
			missed = seg.firstSeq - c.next
			c.next = seg.firstSeq
		}
	}
	if c.pos.seg != seg.number {
		c.pos = position{seg.number, segHeaderSize}
	}
	if !seg.acquire() {
		return nil, 0, missed, nil // dropped at this moment; the next Read finds the next one
	}
	return seg, e.segmentEnd(seg.number), missed, nil
}

// segmentEnd needs mu.
func (e *Engine) segmentEnd(n uint64) int64 {
	if n == e.end.seg {
		return e.end.off
	}
	return e.length[n]
}

// unlessSome gives an error when there are no events before it: who reads on behind them meets it again.
func unlessSome(events []Event, err error) error {
	if len(events) > 0 {
		return nil
	}
	return err
}

func eventOf(r *record) (Event, bool, error) {
	ev := Event{Seq: r.seq, Bucket: r.bucket, Expired: r.flags&flagExpired != 0}
	ev.Key, ev.Version = clientKey(r.key)
	switch {
	case r.flags&flagQuiet != 0 || r.kind >= kindBuckets || isHidden(ev.Key):
		return ev, false, nil
	case r.kind == kindDelete:
		ev.Removed = true
		return ev, true, nil
	}
	o, err := decodeMeta(r.meta)
	ev.Size, ev.ETag, ev.Modified = o.Size, o.ETag, o.Modified
	if o.Order != 0 {
		ev.Version = NullVersion
	}
	ev.Marker = r.flags&flagMarker != 0
	ev.Removed = ev.Marker
	return ev, err == nil, err
}

// SeqBefore gives the first sequence of the oldest segment among those that hold the last bytes
// bytes of the log.
func (e *Engine) SeqBefore(bytes int64) uint64 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	seq := e.endSeq
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(e.segments))) {
		if bytes <= 0 {
			break
		}
		seq = e.segments[n].firstSeq
		bytes -= e.segmentEnd(n)
	}
	return seq
}
