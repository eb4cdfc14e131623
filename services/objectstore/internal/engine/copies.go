package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// copies is a file that is kept several times, on different drives. What the engine reads is verified by its own
// checksums, so the engine knows which copy is right, and the file system does not.
type copies interface {
	// Copies gives how many there are.
	Copies() int
	// ReadCopy is ReadAt of one of them.
	ReadCopy(i int, p []byte, off int64) (int, error)
	// Mend writes bytes that are right over those copies that have others.
	Mend(p []byte, off int64)
}

// mendFrom fills b with the bytes at off of the first copy for which right holds, and mends the others. False: there is no
// such copy, and b has whatever was read last.
func mendFrom(f io.ReaderAt, b []byte, off int64, right func() bool) bool {
	c, ok := f.(copies)
	if !ok {
		return false
	}
	for i := range c.Copies() {
		if n, _ := c.ReadCopy(i, b, off); n == len(b) && right() {
			c.Mend(b, off)
			return true
		}
	}
	return false
}

// mendRecord puts a record right from another copy of its segment.
func (e *Engine) mendRecord(x *entry) bool {
	seg := e.segmentOf(x.pos.seg)
	if seg == nil {
		return false
	}
	defer seg.release()
	b := make([]byte, x.headLen+x.bodyLen)
	return !seg.saltUnknown && mendFrom(seg.file, b, x.pos.off, func() bool {
		r, n, err := decodeHead(b, seg.salt)
		return err == nil && r.seq == x.seq && n == x.headLen && int(r.bodyLen) == x.bodyLen &&
			crc32.Checksum(b[n:], castagnoli) == r.bodyCRC
	})
}

// mended runs fn with an entry, and once more when it found damage of the record that another copy could put right.
func (e *Engine) mended(x *entry, fn func(*entry) error) error {
	err := fn(x)
	if err == nil || errors.Is(err, errMoved) || x.flags&flagLost != 0 || !e.mendRecord(x) {
		return err
	}
	return fn(x)
}

// mendBlock puts a block of a body right from another copy of its file.
func mendBlock(f io.ReaderAt, block []byte, off int64, sum uint32) bool {
	return mendFrom(f, block, off, func() bool { return crc32.Checksum(block, castagnoli) == sum })
}

// mend puts the record at the scanner's offset right from another copy of the segment.
func (s *logScanner) mend() bool {
	c, ok := s.seg.file.(copies)
	if !ok || s.seg.saltUnknown || s.off >= s.end {
		return false
	}
	for i := range c.Copies() {
		one := *s.asCopy(c, i)
		sc := newScanner(&one, s.off, s.end)
		r, at, err := sc.readNext()
		if err != nil {
			continue
		}
		b := make([]byte, r.size())
		if n, _ := c.ReadCopy(i, b, at); n < len(b) {
			continue
		}
		c.Mend(b, at)
		s.buf = s.buf[:0]
		return true
	}
	return false
}

// asCopy is the segment as one of its copies has it.
func (s *logScanner) asCopy(c copies, i int) *segment {
	return &segment{number: s.seg.number, version: s.seg.version, salt: s.seg.salt, firstSeq: s.seg.firstSeq, file: oneCopy{s.seg.file, c, i}}
}

// oneCopy reads one copy of a file.
type oneCopy struct {
	vfs.File
	of copies
	i  int
}

// ReadAt implements io.ReaderAt.
func (o oneCopy) ReadAt(p []byte, off int64) (int, error) { return o.of.ReadCopy(o.i, p, off) }

// wholeHeader reports whether h is the whole header of a segment, of any version.
func wholeHeader(h []byte, number uint64) bool {
	return string(h[:8]) == segMagic && binary.LittleEndian.Uint32(h[32:]) == crc32.Checksum(h[:32], castagnoli) &&
		binary.LittleEndian.Uint64(h[16:]) == number
}

// sameBytes reports whether two files have the same bytes from one offset to another.
func sameBytes(a, b io.ReaderAt, from, to int64) bool {
	x, y := make([]byte, 256<<10), make([]byte, 256<<10)
	for from < to {
		n := min(int64(len(x)), to-from)
		k, _ := a.ReadAt(x[:n], from)
		l, _ := b.ReadAt(y[:n], from)
		if int64(k) < n || int64(l) < n || !bytes.Equal(x[:n], y[:n]) {
			return false
		}
		from += n
	}
	return true
}
