package engine

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// position is the offset of a record in a segment of the log.
type position struct {
	seg uint64
	off int64
}

// logScanner reads the records of a segment in order and verifies them.
type logScanner struct {
	seg  *segment
	end  int64 // where to stop reading
	off  int64 // of the next record
	buf  []byte
	base int64 // file offset of buf
	skip bool  // do not read bodies
}

func newScanner(seg *segment, from, end int64) *logScanner {
	return &logScanner{seg: seg, off: max(from, segHeaderSize), end: end}
}

// peek gives n bytes at the scanner's offset, or as many as there are before end. They are valid
// until the next call. It reads ahead, since records are read in order.
func (s *logScanner) peek(n int) ([]byte, error) {
	have := s.base + int64(len(s.buf)) - s.off
	if s.off >= s.base && have >= int64(n) {
		return s.buf[s.off-s.base:][:n], nil
	}
	want := min(int64(max(n, 256<<10)), s.end-s.off)
	if int64(cap(s.buf)) < want {
		s.buf = make([]byte, want)
	}
	s.buf, s.base = s.buf[:want], s.off
	got, err := s.seg.file.ReadAt(s.buf, s.off)
	if int64(got) < want && err != nil && !errors.Is(err, io.EOF) {
		s.buf = s.buf[:0]
		return nil, err
	}
	s.buf = s.buf[:got]
	return s.buf[:min(n, got)], nil
}

// errUnreadable means that the disk returned an error. The bytes there may be good, so they are
// never cut off as a torn tail.
var errUnreadable = errors.New("unreadable")

// next gives the next record and its offset; the body is valid until the next call. io.EOF is
// the end. A *CorruptError names a damaged record: the record is returned with it when its head
// is whole, the scanner does not move, and the caller continues with skipTo. Any other error wraps body.ErrUnavailable: the
// segment is a body that cannot be read now.
func (s *logScanner) next() (record, int64, error) {
	r, at, err := s.readNext()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, body.ErrUnavailable) && s.mend() {
		return s.readNext()
	}
	return r, at, err
}

func (s *logScanner) readNext() (record, int64, error) {
	at := s.off
	if at >= s.end {
		return record{}, at, io.EOF
	}
	bad := func(r record, reason string) (record, int64, error) {
		return r, at, &CorruptError{segName(s.seg.number), at, reason}
	}
	if s.seg.saltUnknown {
		return bad(record{}, s.seg.bad.Reason)
	}
	need := headSize
	var r record
	for {
		b, err := s.peek(need)
		if errors.Is(err, body.ErrUnavailable) {
			return record{}, at, err // it says nothing of the bytes
		}
		if err != nil {
			_, _, cerr := bad(record{}, "cannot be read: "+err.Error())
			return record{}, at, errors.Join(cerr, errUnreadable)
		}
		var n int
		if r, n, err = decodeHead(b, s.seg.salt); err == nil {
			need = n
			break
		} else if errors.Is(err, errShort) && n > need {
			need = n
			continue
		} else if errors.Is(err, errShort) {
			return bad(record{}, "record is cut off")
		}
		return bad(record{}, err.Error())
	}
	// The head is whole, so it is known what the record was even though its body is missing.
	if at+r.size() > s.end {
		return bad(r, "body is cut off")
	}
	if !s.skip {
		b, err := s.peek(need + int(r.bodyLen))
		if errors.Is(err, body.ErrUnavailable) {
			return record{}, at, err
		}
		if err != nil {
			_, _, cerr := bad(r, "cannot be read: "+err.Error())
			return r, at, errors.Join(cerr, errUnreadable)
		}
		if len(b) < need+int(r.bodyLen) {
			return bad(r, "body is cut off")
		}
		r.body = b[need:]
		if crc32.Checksum(r.body, castagnoli) != r.bodyCRC {
			return bad(r, "body checksum mismatch")
		}
	}
	s.off += r.size()
	return r, at, nil
}

// skipTo moves the scanner to an offset, at most to its end.
func (s *logScanner) skipTo(to int64) { s.off = min(to, s.end) }

// correctRecord gives the record at the scanner's offset, with one damaged byte of its head
// corrected. The correction is accepted only with the due sequence and with a record, or the
// end of the segment, where it ends. The body is not read.
func (s *logScanner) correctRecord(due uint64) (record, bool) {
	if s.seg.saltUnknown {
		return record{}, false
	}
	at := s.off
	b, err := s.peek(int(min(maxCorrected, s.end-at)))
	if err != nil {
		return record{}, false
	}
	b = bytes.Clone(b) // peek's buffer is overwritten by the scan of the record that follows
	r, _, ok := correctHead(b, s.seg.salt, func(r *record) bool {
		end := at + r.size()
		if r.seq != due || int64(r.batch) > at || end > s.end {
			return false
		}
		if isUnused(s.seg, end, s.end) {
			return true // the last record
		}
		follows := newScanner(s.seg, end, s.end)
		follows.skip = true
		n, _, err := follows.next()
		return err == nil && n.seq == due+1
	})
	return r, ok
}

// salvage gives the record at offset at with one damaged byte corrected, in its head or in a
// short body. A CRC of 32 bits is not enough to confirm the correction of a client's bytes: the
// body must also have the MD5 that is the object's ETag.
func (s *logScanner) salvage(due uint64, at int64) (record, bool) {
	s.skipTo(at)
	head := newScanner(s.seg, at, s.end)
	head.skip = true
	r, _, err := head.next()
	if err != nil {
		var ok bool
		if r, ok = s.correctRecord(due); !ok {
			return r, false
		}
	}
	if at+r.size() > s.end {
		return r, false
	}
	r.body = make([]byte, r.bodyLen)
	if n, _ := s.seg.file.ReadAt(r.body, at+int64(r.headLen())); n < len(r.body) {
		return r, false
	}
	if crc32.Checksum(r.body, castagnoli) == r.bodyCRC {
		return r, true
	}
	o, merr := decodeMeta(r.meta)
	// A corrected head and a corrected body at once would be two guesses.
	if err != nil || merr != nil || !correctBody(r.body, r.bodyCRC) {
		return r, false
	}
	return r, fmt.Sprintf("%x", md5.Sum(r.body)) == o.ETag
}

// findRecord gives the offset of the first valid head behind the scanner's offset whose sequence
// is at least from and for which want holds; the scanner's end when there is none.
func (s *logScanner) findRecord(from uint64, want func(*record) bool) int64 {
	if s.seg.saltUnknown {
		return s.end
	}
	const step = 1 << 20
	const longest = headSize + maxBucketLen + maxHiddenLen + maxMetaLen
	// Each step reads one longest head more than it searches, so that a head which begins at
	// the end of a step is whole.
	b := make([]byte, min(step+longest, max(0, s.end-s.off)))
	for at := s.off + 1; at < s.end; at += step {
		n, err := s.seg.file.ReadAt(b[:min(int64(len(b)), s.end-at)], at)
		if err != nil && !errors.Is(err, io.EOF) && n == 0 {
			continue // unreadable, but the bytes behind may be whole
		}
		for i := 0; i < min(n, step); i++ {
			// The magic is at byte 4 of a head. Searching for it first avoids a checksum per byte.
			j := bytes.IndexByte(b[min(i+4, n):n], recordMagic)
			if j < 0 || i+j >= step {
				break
			}
			i += j
			if r, _, err := decodeHead(b[i:n], s.seg.salt); err == nil && r.seq >= from && (want == nil || want(&r)) {
				return at + int64(i)
			}
		}
	}
	return s.end
}

// isTornTail decides whether the damage at off of the last segment is the rest of a write that a
// crash interrupted. That is so when the place was not acknowledged and no valid record behind
// it belongs to a later batch: a batch is written only after the one before is durable, so a
// later batch proves that this one was whole once.
func isTornTail(seg *segment, off, end, acked int64) bool {
	if off < acked || end-off > tailLimit || seg.saltUnknown {
		return false
	}
	sc := newScanner(seg, off, end)
	return sc.findRecord(0, func(r *record) bool { return int64(r.batch) > off }) == end
}
