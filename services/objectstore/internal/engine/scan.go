package engine

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
)

// position is a place in the log.
type position struct {
	seg uint64
	off int64
}

func (p position) less(q position) bool {
	return p.seg < q.seg || p.seg == q.seg && p.off < q.off
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

// window gives n bytes at the scanner's offset, or as many as there are before end.
func (s *logScanner) window(n int) ([]byte, error) {
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

// next gives the next record and its offset; the body is valid until the next call.
// io.EOF is the end. A *CorruptError names a damaged record.
func (s *logScanner) next() (record, int64, error) {
	at := s.off
	if at >= s.end {
		return record{}, at, io.EOF
	}
	bad := func(reason string) (record, int64, error) {
		return record{}, at, &CorruptError{segName(s.seg.number), at, reason}
	}
	need := headSize
	var r record
	for {
		b, err := s.window(need)
		if err != nil {
			return record{}, at, err
		}
		var n int
		if r, n, err = decodeHead(b, s.seg.salt); err == nil {
			need = n
			break
		} else if errors.Is(err, errShort) && n > need {
			need = n
			continue
		} else if errors.Is(err, errShort) {
			return bad("record is cut off")
		}
		return bad(err.Error())
	}
	if at+r.size() > s.end {
		return bad("body is cut off")
	}
	if !s.skip {
		b, err := s.window(need + int(r.bodyLen))
		if err != nil {
			return record{}, at, err
		}
		if len(b) < need+int(r.bodyLen) {
			return bad("body is cut off")
		}
		r.body = b[need:]
		if crc32.Checksum(r.body, castagnoli) != r.bodyCRC {
			return bad("body checksum mismatch")
		}
	}
	s.off += r.size()
	return r, at, nil
}

// tornTail decides whether the damage at off of the last segment is what a crash
// leaves: then no valid record behind it belongs to a batch that began behind it,
// since a batch is written only after the one before is durable.
func tornTail(seg *segment, off, end int64, cause *CorruptError) error {
	if end-off > tailLimit {
		return cause
	}
	b := make([]byte, end-off)
	if _, err := seg.file.ReadAt(b, off); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for i := 1; i+headSize <= len(b); i++ {
		j := bytes.IndexByte(b[i+4:], recordMagic)
		if j < 0 {
			return nil
		}
		i += j
		if i+headSize > len(b) {
			return nil
		}
		if r, _, err := decodeHead(b[i:], seg.salt); err == nil && int64(r.batch) > off {
			return cause
		}
	}
	return nil
}
