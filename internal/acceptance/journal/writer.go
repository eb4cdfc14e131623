package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// WriterStore is what a Writer needs of the store.
type WriterStore interface {
	objstore.Getter
	objstore.Creator
}

// Writer writes the segments of one run after the other. Not for concurrent use: one segment is
// in flight at a time, and while it is written the caller collects the entries of the next one.
//
// The caller adds an entry only after it has observed the manifest, or the quarantine record:
// a create that is still under way may lose to another hash, and a segment can't be taken back.
// It answers the sender only after Flush has returned the entry's number.
type Writer struct {
	store  WriterStore
	rand   io.Reader
	open   Opening
	clock  func() int64
	events WriterEvents
	epochs Epochs
	// perSegment bounds the entries of a segment. Only tests have another than MaxSegmentEntries.
	perSegment int

	run  RunID
	next uint64 // segment of run that Flush writes next
	// live: run has been drawn, and has not ended.
	live bool
	// sent is segment next as it was first sent; nil between two segments. Its bytes never change: an
	// attempt of unknown outcome may still be applied.
	sent        []byte
	sentEntries int
	sentCloses  bool
	// sentEpoch is the epoch that sent names, and sentSpared are those of its entries that this does not condemn.
	sentEpoch  uint64
	sentSpared []bool

	// names: segment 0 of run says that it names epochs. epoch is the last one that a durable segment of it names, and openedAt
	// how many readings of the log of epochs had begun when segment 0 was known to be durable.
	names    bool
	epoch    uint64
	openedAt uint64
	// spared are those of the last durable segment, whose first entry has the number sparedFrom.
	spared     []bool
	sparedFrom uint64

	entries []Entry // that are in no durable segment; those of sent come first
	flushed uint64  // how many entries are durable, since the writer began
}

// WriterEvents reports what happens to runs; nil functions are not called.
type WriterEvents struct {
	// Fenced: somebody else ended the run, because this writer was silent for long, or its segment
	// can't be read. Nothing is lost: what was not answered goes into a new run.
	Fenced func(Position)
	Opened func(RunID)
}

// WriterConfig makes a Writer.
type WriterConfig struct {
	Store WriterStore
	// Rand is the source of run ids: crypto/rand.Reader, except in tests.
	Rand io.Reader
	// Opening is written into each run's first segment; its At is set from Clock.
	Opening Opening
	// Clock is the time of day in Unix nanoseconds.
	Clock  func() int64
	Events WriterEvents
	// Epochs: runs name epochs of condemned names. Only a collector's may; nil is none.
	Epochs Epochs
}

// NewWriter makes a writer. It opens its first run when there is something to write.
func NewWriter(c WriterConfig) (*Writer, error) {
	if c.Store == nil || c.Rand == nil || c.Clock == nil {
		return nil, errors.New("journal writer: store, clock and randomness are needed")
	}
	if err := c.Opening.validate(); err != nil {
		return nil, fmt.Errorf("journal writer: %w", err)
	}
	if c.Epochs != nil && c.Opening.Role != RoleCollector {
		return nil, fmt.Errorf("journal writer: the run of a %s names no epochs", c.Opening.Role)
	}
	return &Writer{store: c.Store, rand: c.Rand, open: c.Opening, clock: c.Clock, events: c.Events, epochs: c.Epochs, perSegment: MaxSegmentEntries}, nil
}

// Add adds an entry and returns its number, from 1. It is durable once Flush has returned that number
// or a greater one. An entry that no file can hold is an error, and is not added.
func (w *Writer) Add(e Entry) (uint64, error) {
	// Checked now, because a segment with an invalid entry could never be written, nor any after it.
	if err := e.Validate(); err != nil {
		return 0, fmt.Errorf("journal entry: %w", err)
	}
	w.entries = append(w.entries, e)
	return w.flushed + uint64(len(w.entries)), nil
}

// Waiting is how many entries are in no durable segment.
func (w *Writer) Waiting() int { return len(w.entries) }

// Open reports whether a run is open that Close would end.
func (w *Writer) Open() bool { return w.live && (w.next > 0 || w.sent != nil) }

// maxFences bounds the runs that one Flush opens: a writer whose every run is fenced at once has
// somebody working against it, and the senders may try again.
const maxFences = 3

// Flush makes one segment durable, with as many of the waiting entries as fit. It returns its
// position, and the number of the last entry that is durable. Without entries it does nothing.
// After an error the outcome is unknown: the entries stay, and the next Flush sends the same bytes.
func (w *Writer) Flush(ctx context.Context) (Position, uint64, error) {
	if len(w.entries) == 0 && w.sent == nil {
		return Position{}, w.flushed, nil
	}
	return w.write(ctx, false)
}

// Renew names the newest epoch in a segment without entries where the run is Behind, or closes the run. Garbage collection waits
// for that before it deletes anything.
func (w *Writer) Renew(ctx context.Context) error {
	if !w.Behind() {
		return nil
	}
	_, _, err := w.write(ctx, false)
	return err
}

// Begin opens a run without entries. Only a spooler does that, before it accepts anything.
func (w *Writer) Begin(ctx context.Context) (Position, error) {
	// What was sent before may be the end of the run before.
	for !w.Open() || w.sent != nil {
		if _, _, err := w.write(ctx, false); err != nil {
			return Position{}, err
		}
	}
	return Position{Run: w.run, Segment: w.next - 1}, nil
}

// Close writes what waits, and ends the run. Readers never ask again for the segments of a run that was
// closed. A writer that has nothing open writes nothing. The writer can be used again: the next
// entry opens a new run.
func (w *Writer) Close(ctx context.Context) error {
	for len(w.entries) > 0 || w.Open() {
		if _, _, err := w.write(ctx, len(w.entries) <= w.perSegment); err != nil {
			return err
		}
	}
	return nil
}

// write makes one segment durable; closes asks for the last one of the run.
func (w *Writer) write(ctx context.Context, closes bool) (Position, uint64, error) {
	var last Position
	for range maxFences {
		if err := w.prepare(closes); err != nil {
			return Position{}, w.flushed, err
		}
		last = Position{Run: w.run, Segment: w.next}
		there, err := w.create(ctx, last)
		switch {
		case err != nil:
			return last, w.flushed, fmt.Errorf("journal segment %q: %w", last.Key(), err)
		case there:
			w.confirm()
			return last, w.flushed, nil
		}
		// The run ended here without this segment, so nothing of it was answered, and nobody will read
		// it. The same entries open a new run.
		w.live, w.sent = false, nil
		if w.events.Fenced != nil {
			w.events.Fenced(last)
		}
		// The fence ended the run as well as this segment would have. Only a spooler needs a run without entries.
		if len(w.entries) == 0 && (closes || w.open.Role != RoleSpooler) {
			return last, w.flushed, nil
		}
	}
	return last, w.flushed, &objstore.Error{Op: "create", Key: last.Key(), Err: fmt.Errorf("%w: %d runs were fenced one after the other", objstore.ErrUnavailable, maxFences)}
}

// prepare fixes the bytes of the next segment, unless it was sent before.
func (w *Writer) prepare(closes bool) error {
	if w.sent != nil {
		return nil
	}
	if !w.live {
		run, err := NewRunID(w.rand)
		if err != nil {
			return err
		}
		w.run, w.next, w.live = run, 0, true
		w.names, w.epoch = false, 0
		if w.epochs != nil {
			set, _ := w.epochs.Held()
			w.names = set != nil
		}
		if w.events.Opened != nil {
			w.events.Opened(run)
		}
	}
	n := min(len(w.entries), w.perSegment)
	names, ends := w.hold()
	closes = closes || ends
	// A copy, because Marshal sorts, and the order of entries is the order of their numbers.
	s := Segment{Position: Position{w.run, w.next}, Entries: append([]Entry(nil), w.entries[:n]...), Closed: closes, Epochs: w.names, Epoch: w.epoch}
	// What is in the segment is compared with exactly the epoch that it names: all of that was observed before now.
	if names != nil {
		s.Epoch = names.Epoch()
	}
	if w.next == 0 {
		o := w.open
		o.At = w.clock()
		s.Opening = &o
	}
	b, err := s.Marshal()
	if err != nil {
		return err
	}
	w.sent, w.sentEntries, w.sentCloses = b, n, closes
	w.sentEpoch, w.sentSpared = s.Epoch, check(names, w.entries[:n])
	return nil
}

// confirm notes that the segment that was sent is durable.
func (w *Writer) confirm() {
	if w.next == 0 && w.names {
		w.openedAt = w.epochs.Readings()
	}
	w.epoch = w.sentEpoch
	w.spared, w.sparedFrom = w.sentSpared, w.flushed+1
	w.flushed += uint64(w.sentEntries)
	w.entries = append(w.entries[:0], w.entries[w.sentEntries:]...)
	w.next++
	w.sent = nil
	if w.sentCloses {
		w.live = false
	}
}

// create sends the segment. there reports that it is durable with exactly these bytes; without it
// and without an error the key has other bytes.
func (w *Writer) create(ctx context.Context, at Position) (there bool, err error) {
	body, created, err := objstore.CreateOrGet(ctx, w.store, at.Key(), w.sent, MaxFileBytes+headerBytes, segmentContent)
	switch {
	case created:
		return true, nil
	case errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err) && ctx.Err() == nil:
		// Whatever is there, no reader gets at these entries here.
		return false, nil
	case err != nil:
		return false, err
	}
	return bytes.Equal(body, w.sent), nil
}

var segmentContent = objstore.PutOptions{ContentType: "application/vnd.lightmetrics.journal"}

// Fence ends a run at segment n, which its writer has not written for long. n is at least 1: the
// object that opens a run must be one that can be deleted, and a fence never is. The answer proves nothing
// to the caller, whichever it is: n may have been folded and deleted while the request was under
// way. The next poll says what became of the run.
func Fence(ctx context.Context, s objstore.Creator, at Position) error {
	if at.Segment == 0 {
		return fmt.Errorf("fence %q: segment 0 is never fenced", layout.JournalSegment(at.Run, 0))
	}
	b, err := (&Segment{Position: at, Fenced: true}).Marshal()
	if err != nil {
		return err
	}
	_, err = s.Create(ctx, at.Key(), b, segmentContent)
	if errors.Is(err, objstore.ErrExists) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("fence %q: %w", at.Key(), err)
	}
	return nil
}
