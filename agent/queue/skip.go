package queue

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// The file of skipped numbers has its full size from the start and is only overwritten, so that
// the queue can note what it refuses also on a full disk.
const (
	skipName  = "skipped"
	skipMagic = "LMQSKIP\x01"
	// skipSlot is the size of each of two slots, which are written in turn: a torn write
	// leaves the other one.
	skipSlot = 512
)

// skips is the content of a slot.
type skips struct {
	generation uint64
	// boot to which next and from belong.
	boot string
	// next sequence number of the boot after what was skipped.
	next uint64
	// from is the first skipped number that no batch follows yet; 0 when there is none. A gap is
	// visible only below an accepted number, so if the boot ends before a batch follows, these
	// records are owed to the next boot.
	from uint64
	// owed counts records that were skipped before their boot had given out a number. A gap below
	// the first accepted number is not visible, so the numbers are skipped after the first batch.
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

// Skip uses up sequence numbers for records that were dropped because they could not be queued, so
// that the loss is a gap in the ledger. The numbers are skipped also when Skip returns an error:
// the next batch that is queued makes that durable, and a crash before it forgets it.
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
	// The boot has given out no number yet, and a gap before its first number is not visible.
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

// noteAppended records that a batch follows the skipped numbers, so that they are visible as a gap.
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

// takeOwedNumbers skips the numbers that are owed, once the boot has given out a number.
func (q *Queue) takeOwedNumbers() {
	if q.skip.owed > 0 && q.next.nextSeq > 1 {
		q.skip.from = q.next.nextSeq
		q.next.nextSeq += q.skip.owed
		q.skip.owed = 0
	}
}

// carrySkips ends a boot: skipped numbers that no batch follows would never be visible as a gap, so
// they are owed to the next boot.
func (q *Queue) carrySkips() {
	if q.skip.from > 0 {
		q.skip.owed += q.next.nextSeq - q.skip.from
		q.skip.from = 0
	}
}

// writeSkips overwrites the older of both slots and syncs it, so that a torn write leaves the newer
// one intact.
func (q *Queue) writeSkips() error {
	if q.skipFile == nil {
		if err := q.createSkips(); err != nil {
			return err
		}
	}
	s := q.skip
	s.generation, s.boot, s.next = s.generation+1, q.boot.boot.Boot, q.next.nextSeq
	// Generations alternate between the slots, so the newest one is never overwritten.
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

// loadSkips reads the newer slot, and creates the file when there is none. When the disk has no
// space for it, Skip tries again.
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
		// A slot of zeros was never written; anything else is a torn or damaged note.
		case err != nil && slices.ContainsFunc(slot, func(c byte) bool { return c != 0 }):
			q.opts.Log.Warn("queue: a note of skipped numbers is torn or damaged", "file", skipName, "error", err)
		}
	}
	return nil
}

// recoverSkips raises the next number, which recovery has from the log, by the numbers that were
// skipped after the last batch.
func (q *Queue) recoverSkips() {
	s := &q.skip
	if s.boot != q.next.boot.Boot {
		// The process ended between the start of this boot and its first note, so carrySkips was not
		// recorded.
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
