package engine

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

const (
	segMagic      = "LMSEGLOG"
	segVersion    = 4 // 1 had no records of lost objects, 2 no uploads, 3 no versions
	segHeaderSize = 40
	logDir        = "log"
	// tailLimit, bytes, is more than one batch can hold; a longer damaged tail is no torn write.
	tailLimit = 16 << 20
	// maxSegment is longer than any segment.
	maxSegment = 1 << 40
)

// segment is one file of the log.
type segment struct {
	number      uint64
	version     uint32 // of the header; 0 where that is damaged
	salt        uint32 // seeds the checksums of heads, so that no client can forge a record
	firstSeq    uint64
	file        vfs.File
	bad         *CorruptError // the header's damage; nil: it is whole
	saltUnknown bool          // the salt is not known: no record can be verified
	stub        *stub         // found in the file; nil: the file has records. See Engine.openSegment
	lostStub    bool          // the file was a stub, of which nothing can be read
	refs        atomic.Int64  // the engine's own and one per reader; the file is closed at 0
}

func segName(n uint64) string { return fmt.Sprintf("%s/%016x.seg", logDir, n) }

func parseSegName(name string) (uint64, bool) {
	hex, ok := strings.CutSuffix(name, ".seg")
	if !ok || len(hex) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(hex, 16, 64)
	return n, err == nil
}

// acquire takes a reference; false when the segment was dropped. A count that has reached 0 must
// not rise again, since the file is closed then.
func (s *segment) acquire() bool {
	for {
		n := s.refs.Load()
		if n <= 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// parseSegPath reads what segName wrote.
func parseSegPath(name string) (uint64, bool) {
	base, ok := strings.CutPrefix(name, logDir+"/")
	if !ok {
		return 0, false
	}
	return parseSegName(base)
}

func (s *segment) release() {
	if s.refs.Add(-1) == 0 {
		_ = s.file.Close()
	}
}

func encodeHeader(version uint32, number uint64, salt uint32, firstSeq uint64) []byte {
	h := make([]byte, segHeaderSize)
	copy(h, segMagic)
	binary.LittleEndian.PutUint32(h[8:], version)
	binary.LittleEndian.PutUint32(h[12:], salt)
	binary.LittleEndian.PutUint64(h[16:], number)
	binary.LittleEndian.PutUint64(h[24:], firstSeq)
	binary.LittleEndian.PutUint32(h[32:], crc32.Checksum(h[:32], castagnoli))
	return h
}

// createSegment creates a segment with only its header, durably: the file is synced, and its
// name too, before the first record may be written.
func createSegment(fsys vfs.FS, number, firstSeq uint64) (*segment, error) {
	var salt [4]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return nil, err
	}
	s := &segment{number: number, version: segVersion, salt: binary.LittleEndian.Uint32(salt[:]), firstSeq: firstSeq}
	h := encodeHeader(segVersion, number, s.salt, firstSeq)
	f, err := fsys.Create(segName(number))
	if err != nil {
		return nil, fmt.Errorf("create segment %d: %w", number, err)
	}
	if _, err = f.WriteAt(h, 0); err == nil {
		failpoint.Hit("objectstore.log.roll.header")
		if err = f.Sync(); err == nil {
			err = fsys.SyncDir(logDir)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("create segment %d: %w", number, err)
	}
	s.file = f
	s.refs.Store(1)
	return s, nil
}

// openSegment opens an existing segment. One with a damaged header is returned with the reason in
// bad; when its salt could not be derived, adoptSalt may get it from the index or a footer.
func openSegment(fsys vfs.FS, number uint64) (*segment, error) {
	f, err := fsys.Open(segName(number))
	if err != nil {
		return nil, fmt.Errorf("open segment %d: %w", number, err)
	}
	s := &segment{number: number, file: f}
	s.refs.Store(1)
	if st, was, ok := isStub(f, number); ok {
		s.stub = &st
		return s, nil
	} else if was {
		s.bad, s.saltUnknown, s.lostStub = &CorruptError{segName(number), 0, "the stub that names the body of the segment is damaged"}, true, true
		return s, nil
	}
	h := make([]byte, segHeaderSize)
	_, err = f.ReadAt(h, 0)
	if (err != nil || !wholeHeader(h, number)) && mendFrom(f, h, 0, func() bool { return wholeHeader(h, number) }) {
		err = nil
	}
	if err != nil {
		s.bad, s.saltUnknown = &CorruptError{segName(number), 0, "header cannot be read: " + err.Error()}, true
		s.lostStub = mayBeStub(f)
		return s, nil
	}
	s.salt, s.firstSeq = binary.LittleEndian.Uint32(h[12:]), binary.LittleEndian.Uint64(h[24:])
	reason := ""
	switch {
	case string(h[:8]) != segMagic:
		reason = "not a segment"
	case binary.LittleEndian.Uint32(h[32:]) != crc32.Checksum(h[:32], castagnoli):
		reason = "header checksum mismatch"
	case binary.LittleEndian.Uint64(h[16:]) != number:
		reason = fmt.Sprintf("header says segment %d", binary.LittleEndian.Uint64(h[16:]))
	case h[8] == 0 || binary.LittleEndian.Uint32(h[8:]) > segVersion:
		// A newer release has written it. Nothing is wrong with it, so it must not be treated as
		// damage.
		s.release()
		return nil, fmt.Errorf("%s: version %d is not known", segName(number), binary.LittleEndian.Uint32(h[8:]))
	}
	if reason == "" {
		s.version = binary.LittleEndian.Uint32(h[8:])
	} else {
		s.bad = &CorruptError{segName(number), 0, reason}
		s.saltUnknown = !s.deriveSalt(h)
		s.lostStub = mayBeStub(f)
	}
	return s, nil
}

// deriveSalt finds the salt of a segment whose header is damaged, from its first record. The
// header's salt may still be right; otherwise it follows from the first record's checksum, if the
// record is whole, and the header's checksum confirms it.
func (s *segment) deriveSalt(header []byte) bool {
	b := make([]byte, 64<<10)
	n, err := s.file.ReadAt(b, segHeaderSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	b = b[:n]
	if r, _, err := decodeHead(b, s.salt); err == nil {
		s.firstSeq = r.seq
		return true
	}
	if len(b) < headSize || b[4] != recordMagic {
		return false
	}
	size := headSize + int(b[7]) + int(binary.LittleEndian.Uint16(b[8:])) + int(binary.LittleEndian.Uint32(b[12:]))
	if size < headSize || size > len(b) {
		return false
	}
	salt, ok := saltOf(b[:size])
	if !ok {
		return false
	}
	r, _, err := decodeHead(b, salt)
	for version := uint32(1); err == nil && version <= segVersion; version++ {
		if bytes.Equal(encodeHeader(version, s.number, salt, r.seq)[32:36], header[32:36]) {
			s.salt, s.firstSeq = salt, r.seq
			return true
		}
	}
	return false
}

// adoptSalt sets the salt and first sequence, as the index or a footer knows them, of a segment
// whose own header did not give them.
func (s *segment) adoptSalt(salt uint32, firstSeq uint64) {
	if s.saltUnknown {
		s.salt, s.firstSeq, s.saltUnknown = salt, firstSeq, false
	}
}
