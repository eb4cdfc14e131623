package queue

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// The file of skipped numbers has its full size from the start and is only ever
// overwritten, so that a full disk can't keep the queue from noting what it refuses.
const (
	skipName  = "skipped"
	skipMagic = "LMQSKIP\x01"
	// skipSlot is the size of each of two slots, which are written in turn: a torn write
	// leaves the other one.
	skipSlot = 512
)

// skips is what a slot says.
type skips struct {
	generation uint64
	// boot that next and from are of.
	boot string
	// next sequence number of the boot after what was skipped.
	next uint64
	// from is the first of the skipped numbers that no batch follows; 0 when one does. Nothing
	// shows them yet, so a new boot takes them over.
	from uint64
	// owed are records that were skipped while their boot had given out no number. Below a
	// boot's first accepted number nobody sees a gap, so they follow its first batch.
	owed uint64
	// total counts skipped records for the life of the directory.
	total uint64
}

func (s skips) encode() []byte {
	b := make([]byte, 0, skipSlot)
	b = append(b, skipMagic...)
	for _, v := range []uint64{s.generation, s.next, s.from, s.owed, s.total} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = appendText(b, s.boot)
	b = append(b, make([]byte, skipSlot-4-len(b))...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func parseSkips(b []byte) (skips, error) {
	var s skips
	if len(b) != skipSlot || string(b[:len(skipMagic)]) != skipMagic ||
		crc32.Checksum(b[:skipSlot-4], castagnoli) != binary.LittleEndian.Uint32(b[skipSlot-4:]) {
		return s, skipsKind.Corrupt("", "slot of skipped numbers")
	}
	rest := b[len(skipMagic) : skipSlot-4]
	for _, v := range []*uint64{&s.generation, &s.next, &s.from, &s.owed, &s.total} {
		*v, rest = binary.LittleEndian.Uint64(rest), rest[8:]
	}
	var err error
	s.boot, _, err = cutText(rest)
	return s, err
}

// Skip takes sequence numbers for records that were dropped because they could not be
// queued: their loss is a gap that the ledger shows. The numbers are skipped even when this
// fails; then the next batch that is queued makes it durable, and a crash before forgets it.
func (q *Queue) Skip(records uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	if q.next.nextSeq+records < q.next.nextSeq || q.skip.owed+records < q.skip.owed {
		return fmt.Errorf("queue skip: %d records at sequence number %d", records, q.next.nextSeq)
	}
	q.refusing = true
	q.skip.total += records
	switch {
	case q.next.nextSeq == 1:
		q.skip.owed += records
	default:
		if q.skip.from == 0 {
			q.skip.from = q.next.nextSeq
		}
		q.next.nextSeq += records
	}
	if err := q.writeSkips(); err != nil {
		return fmt.Errorf("queue skip: %w", err)
	}
	return nil
}

// noteAppended notes that a batch follows what was skipped before it.
func (q *Queue) noteAppended() {
	q.refusing = false
	if q.skip.from == 0 && q.skip.owed == 0 {
		return
	}
	q.skip.from = 0
	q.takeOwedNumbers()
	if err := q.writeSkips(); err != nil {
		q.opts.Log.Warn("queue: could not note that a batch follows skipped numbers", "error", err)
	}
}

// takeOwedNumbers takes the numbers that are owed, once the boot has given out others.
func (q *Queue) takeOwedNumbers() {
	if q.skip.owed > 0 && q.next.nextSeq > 1 {
		q.skip.from = q.next.nextSeq
		q.next.nextSeq += q.skip.owed
		q.skip.owed = 0
	}
}

// carrySkips is for the end of a boot: skipped numbers that no batch follows would never be seen.
func (q *Queue) carrySkips() {
	if q.skip.from > 0 {
		q.skip.owed += q.next.nextSeq - q.skip.from
		q.skip.from = 0
	}
}

// writeSkips overwrites the older slot and syncs it.
func (q *Queue) writeSkips() error {
	if q.skipFile == nil {
		if err := q.createSkips(); err != nil {
			return err
		}
	}
	s := q.skip
	s.generation, s.boot, s.next = s.generation+1, q.boot.boot.Boot, q.next.nextSeq
	if _, err := q.skipFile.WriteAt(s.encode(), int64(s.generation%2)*skipSlot); err != nil {
		return fmt.Errorf("write %s: %w", skipName, err)
	}
	if err := q.skipFile.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", skipName, err)
	}
	q.skip = s
	return nil
}

func (q *Queue) createSkips() error {
	if err := q.persist(q.dir, skipName, make([]byte, 2*skipSlot), persistHooks{}); err != nil {
		return err
	}
	f, err := q.fs.Open(filepath.Join(q.dir, skipName))
	if err != nil {
		return err
	}
	q.skipFile = f
	return nil
}

// loadSkips reads the newer slot. A queue from before there was this file gets it; where
// the disk has no room even for that, Skip tries again.
func (q *Queue) loadSkips(names []string) error {
	if !slices.Contains(names, skipName) {
		if err := q.createSkips(); err != nil {
			if !vfs.IsFull(err) {
				return err
			}
			q.opts.Log.Warn("queue: no room to note skipped numbers", "error", err)
		}
		return nil
	}
	f, err := q.fs.Open(filepath.Join(q.dir, skipName))
	if err != nil {
		return err
	}
	q.skipFile = f
	size, err := f.Size()
	if err != nil {
		return err
	}
	b := make([]byte, 2*skipSlot)
	if n := min(size, int64(len(b))); n > 0 {
		if _, err := f.ReadAt(b[:n], 0); err != nil {
			return fmt.Errorf("read %s: %w", skipName, err)
		}
	}
	for i := range 2 {
		slot := b[i*skipSlot : (i+1)*skipSlot]
		s, err := parseSkips(slot)
		switch {
		case err == nil && s.generation > q.skip.generation:
			q.skip = s
		case err != nil && slices.ContainsFunc(slot, func(c byte) bool { return c != 0 }):
			q.opts.Log.Warn("queue: a note of skipped numbers is torn or damaged", "file", skipName, "error", err)
		}
	}
	return nil
}

// recoverSkips raises the numbers that the log alone gave to what was skipped after them.
func (q *Queue) recoverSkips() {
	s := &q.skip
	if s.boot != q.next.boot.Boot {
		// The process ended between the start of this boot and its first note.
		if s.from > 0 {
			s.owed, s.from = s.owed+s.next-s.from, 0
		}
		s.boot = q.next.boot.Boot
		q.takeOwedNumbers()
		return
	}
	if q.next.nextSeq > s.next {
		s.from = 0 // a batch follows
	}
	q.next.nextSeq = max(q.next.nextSeq, s.next)
	q.takeOwedNumbers()
}

func (q *Queue) closeSkips() error {
	if q.skipFile == nil {
		return nil
	}
	return q.skipFile.Close()
}
