package engine

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

const replayBatch = 1000

func decodeSegmentKey(name []byte) uint64 { return binary.BigEndian.Uint64(name) }

// replay brings the index from its checkpoint to the end of the log. Damage is recorded and
// skipped. Writing continues in the last segment if that is whole and of this version, and otherwise in a new one,
// so that nothing of a damaged segment is overwritten. A new store gets its first segment.
func (e *Engine) replay(numbers []uint64) error {
	healthy := len(numbers) > 0
	for _, num := range numbers {
		size, err := e.segments[num].file.Size()
		if err != nil {
			return err
		}
		e.length[num] = size
	}
	if err := e.findFooters(numbers); err != nil {
		return err
	}
	for i, num := range numbers {
		seg, size := e.segments[num], e.length[num]
		if seg.bad != nil {
			e.quarantine(Damage{File: segName(num), Length: segHeaderSize, Reason: seg.bad.Reason})
		}
		// The index has every record of this segment already.
		if num < e.head.pos.seg {
			continue
		}
		last := i == len(numbers)-1
		// A gap in the sequence before this segment is either lost data or segments that were
		// reclaimed. It is lost data where no segment in between can have been reclaimed: the
		// index still knows the log's position, the numbers are adjacent, or the missing segment
		// is the one that the mark names, which was being written and is never reclaimed.
		prev := uint64(0)
		if i > 0 {
			prev = numbers[i-1]
		}
		from := e.enterSegment(seg, e.indexed || e.head.pos.seg == num-1 || prev < e.mark.was.pos.seg && e.mark.was.pos.seg < num, size)
		if err := e.replaySegment(seg, from, size, last); err != nil {
			return err
		}
		if last {
			// Appending to a segment with a footer would make the footer wrong; one that ends
			// before the mark lost acknowledged records.
			// A segment of an earlier version must not get records that this version made up: the release
			// which wrote it would open it, and take them for damage or for a torn end.
			healthy = seg.bad == nil && seg.coded() == nil && seg.version == segVersion && !e.footed[num] && !e.damages.in(segName(num)) && e.head.pos.off >= e.ackedUpTo(seg)
		}
	}
	// Each of the next two finds records the damage itself; here it only decides whether the
	// last segment may be continued.
	if e.findLostEnd(numbers) {
		healthy = false
	}
	found, err := e.recoverBuckets()
	if err != nil {
		return err
	}
	if healthy && !found && e.head.pos.seg == numbers[len(numbers)-1] {
		e.active = e.segments[e.head.pos.seg]
		delete(e.length, e.head.pos.seg)
	} else if err := e.startSegment(numbers); err != nil {
		return err
	}
	e.end, e.endSeq = e.head.pos, e.head.nextSeq
	e.storeCounts()
	return e.declareNewDamage()
}

// findFooters finds the closed segments that have a footer. An index that is empty is built
// from the footers, which is much faster than replaying the log.
func (e *Engine) findFooters(numbers []uint64) error {
	clear(e.footed)
	if !e.indexed {
		built, err := e.buildFromFooters(numbers)
		if err != nil || built {
			return err
		}
		// Nothing of an unfinished attempt may count: the replay counts every record itself.
		clear(e.live)
		clear(e.sealedBy)
		clear(e.usage)
		clear(e.tombs)
		clear(e.versioned)
	}
	names, err := vfs.Names(e.fs, footerDir)
	for _, n := range names {
		if num, ok := parseSegName(n + ".seg"); ok {
			e.footed[num] = true
		}
	}
	return err
}

// enterSegment moves the head to the first record of seg that the index lacks, and gives its
// offset. follows says that no segment between the head and seg can have been reclaimed, so
// that missing sequences are lost records.
func (e *Engine) enterSegment(seg *segment, follows bool, size int64) int64 {
	if seg.number == e.head.pos.seg {
		if size < e.head.pos.off {
			e.quarantine(Damage{File: segName(seg.number), Offset: size, Length: e.head.pos.off - size,
				Reason: fmt.Sprintf("durable records up to byte %d are missing", e.head.pos.off)})
		}
		return e.head.pos.off
	}
	if seg.firstSeq > e.head.nextSeq && follows {
		prev := seg.number - 1
		e.quarantine(Damage{File: segName(prev), Offset: e.length[prev], First: e.head.nextSeq, Last: seg.firstSeq - 1,
			Reason: fmt.Sprintf("ends before record %d, but the next segment begins with %d", e.head.nextSeq, seg.firstSeq)})
	}
	e.head.nextSeq = max(e.head.nextSeq, seg.firstSeq)
	e.head.pos, e.head.salt = position{seg.number, segHeaderSize}, seg.salt
	return segHeaderSize
}

// findLostEnd reports whether records that were acknowledged, by the mark, are missing from the
// end of the log. It records them as damage and skips their sequences, which are never reused.
func (e *Engine) findLostEnd(numbers []uint64) bool {
	m := e.mark.was
	if s := e.segments[m.pos.seg]; s != nil && s.bad == nil && s.salt != m.salt {
		return false // the mark belongs to another log
	}
	if m.nextSeq <= e.head.nextSeq {
		return false
	}
	d := Damage{File: segName(m.pos.seg), First: e.head.nextSeq, Last: m.nextSeq - 1,
		Reason: fmt.Sprintf("acknowledged records %d to %d are missing", e.head.nextSeq, m.nextSeq-1)}
	if len(numbers) > 0 && e.head.pos.seg == m.pos.seg {
		d.Offset = e.head.pos.off
	}
	e.quarantine(d)
	e.head.nextSeq = m.nextSeq
	return true
}

// startSegment creates the first segment, or one with a higher number than every segment that
// exists or existed: a number that is used again could be taken for its predecessor.
func (e *Engine) startSegment(numbers []uint64) error {
	num := max(e.head.pos.seg, e.mark.was.pos.seg) + 1
	if n := len(numbers); n > 0 {
		num = max(num, numbers[n-1]+1)
	}
	s, err := createSegment(e.fs, num, e.head.nextSeq)
	if err != nil {
		return err
	}
	next := e.head
	e.segments[num], e.active = s, s
	next.pos, next.salt = position{num, segHeaderSize}, s.salt
	return e.apply(e.newOverlay(0), nil, next)
}

func (e *Engine) replaySegment(seg *segment, from, size int64, last bool) error {
	sc := newScanner(seg, from, size)
	p := &replayer{e: e, seg: seg, sc: sc, view: e.newOverlay(0), next: e.head}
	for {
		r, at, err := sc.next()
		var bad *CorruptError
		switch {
		case errors.Is(err, io.EOF):
			return p.flush(at)
		case errors.As(err, &bad):
			if last && !errors.Is(err, errUnreadable) && isTornTail(seg, at, size, e.ackedUpTo(seg)) {
				if err := e.cutTail(seg, at, bad); err != nil {
					return err
				}
				return p.flush(at)
			}
			// A disk that gives a read error may hold a good record there, so that is
			// never cut off as a torn tail.
			err = p.skipDamage(r, at, bad)
		case err == nil:
			err = p.applyRecord(r, at)
		}
		if err != nil {
			return err
		}
	}
}

// replayer brings the records of one segment into the index.
type replayer struct {
	e    *Engine
	seg  *segment
	sc   *logScanner
	view *overlay
	ops  []*op
	next checkpoint
}

func (p *replayer) flush(to int64) error {
	p.next.pos.off = max(to, p.next.pos.off)
	err := p.e.apply(p.view, p.ops, p.next)
	p.view.clear()
	p.ops = p.ops[:0]
	p.next = p.e.head
	return err
}

// applyRecord applies a record. A sequence above the due one shows that records are missing. A
// sequence below it is a misplaced copy of an older record, which must not count twice.
func (p *replayer) applyRecord(r record, at int64) error {
	if r.seq != p.next.nextSeq {
		d := Damage{File: segName(p.seg.number), Offset: at, Length: r.size(), Reason: fmt.Sprintf("record %d where %d was due", r.seq, p.next.nextSeq)}
		if r.seq > p.next.nextSeq {
			d.Length, d.First, d.Last = 0, p.next.nextSeq, r.seq-1
		}
		p.e.quarantine(d)
		if r.seq < p.next.nextSeq {
			return nil
		}
	}
	p.next.nextSeq = r.seq + 1
	o, err := p.view.toOp(r, position{p.seg.number, at})
	if err != nil {
		return fmt.Errorf("%s at byte %d: %w", segName(p.seg.number), at, err)
	}
	if p.ops = append(p.ops, o); len(p.ops) >= replayBatch {
		return p.flush(at + r.size())
	}
	return nil
}

// skipDamage records the damage at the scanner's offset, applies what is known of the record
// there, and moves the scanner behind it. With a readable head the key is known: the object is
// entered into the index, and reading it is an error. Without one the key is unknown, which
// makes conditions of absent keys undecidable until a repair.
func (p *replayer) skipDamage(r record, at int64, bad *CorruptError) error {
	file := segName(p.seg.number)
	known := r.kind != 0
	if !known {
		r, known = p.sc.correctRecord(p.next.nextSeq)
	}
	if known && r.seq >= p.next.nextSeq {
		d := Damage{File: file, Offset: at, Length: r.size(), Reason: bad.Reason}.of(r.bucket, r.key)
		p.sc.skipTo(at + r.size())
		// These two replace a whole list, so their content is needed and not only their place.
		if r.kind == kindBuckets || r.kind == kindDamages {
			body, ok := p.readListBody(&r, at)
			if !ok {
				d.First, d.Last = r.seq, r.seq
				p.e.quarantine(d)
				p.next.nextSeq = r.seq + 1
				return nil
			}
			r.body = body
		}
		p.e.quarantine(d)
		return p.applyRecord(r, at)
	}
	// Nothing is known of the record. Continue at the next valid head; the sequence there
	// tells how many writes are lost in between.
	end := p.sc.findRecord(p.next.nextSeq, nil)
	d := Damage{File: file, Offset: at, Length: end - at, Reason: bad.Reason, First: p.next.nextSeq, Last: p.next.nextSeq}
	p.sc.skipTo(end)
	if r, _, err := p.sc.next(); err == nil || r.kind != 0 {
		d.Last = max(d.First, r.seq-1)
		if r.seq == d.First { // what is damaged was no record: nothing is lost
			d.First, d.Last = 0, 0
		} else {
			p.next.nextSeq = r.seq
		}
	} else {
		// No valid record follows in this segment.
		d.Last = max(d.First, p.lastPossibleSeq())
		p.next.nextSeq = d.Last + 1
	}
	p.e.quarantine(d)
	p.sc.skipTo(end) // the record at end was read only for its sequence, and is read again
	return nil
}

// lastPossibleSeq is the last sequence that the segment can have had, as far as that is known.
func (p *replayer) lastPossibleSeq() uint64 {
	if s := p.e.segments[p.seg.number+1]; s != nil && s.firstSeq > 0 {
		return s.firstSeq - 1
	}
	if m := p.e.mark.was; m.pos.seg == p.seg.number && m.nextSeq > 0 {
		return m.nextSeq - 1
	}
	return 0
}

// readListBody reads the body of a damaged record that holds the list of buckets or of damages.
// One wrong byte is corrected; JSON that parses confirms the correction.
func (p *replayer) readListBody(r *record, at int64) ([]byte, bool) {
	b := make([]byte, r.bodyLen)
	if n, _ := p.seg.file.ReadAt(b, at+int64(r.headLen())); n < len(b) {
		return nil, false
	}
	if crc32.Checksum(b, castagnoli) != r.bodyCRC && !correctBody(b, r.bodyCRC) {
		return nil, false
	}
	return b, json.Valid(b)
}

// toOp turns a record back into the operation that wrote it.
func (v *overlay) toOp(r record, pos position) (*op, error) {
	if r.kind == kindBuckets || r.kind == kindDamages {
		r.body = append([]byte(nil), r.body...)
		return &op{rec: r}, nil
	}
	r.body = nil // the index does not need it, and the scanner reuses its memory
	o := &op{rec: r}
	var err error
	if o.prev, err = v.record(r.bucket, r.key); err != nil {
		return nil, err
	}
	if r.kind != kindDelete {
		if o.obj, err = decodeMeta(r.meta); err != nil {
			return nil, err
		}
	}
	v.note(o, pos)
	return o, nil
}
