package engine

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/pkg/failpoint"
)

const (
	segMagic      = "LMSEGLOG"
	segVersion    = 1
	segHeaderSize = 40
	logDir        = "log"
	// tailLimit is more than one batch can hold; a longer damaged tail is no torn write.
	tailLimit = 16 << 20
)

// segment is one file of the log.
type segment struct {
	number   uint64
	salt     uint32 // seeds the checksums of heads, so that no client can forge a record
	firstSeq uint64
	file     File
	refs     atomic.Int64 // the engine's own and one per reader; the file is closed at 0
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

// acquire takes a reference; false when the segment is gone.
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

func (s *segment) release() {
	if s.refs.Add(-1) == 0 {
		_ = s.file.Close()
	}
}

// createSegment makes a durable segment with only its header.
func createSegment(fsys FS, number, firstSeq uint64) (*segment, error) {
	var salt [4]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return nil, err
	}
	s := &segment{number: number, salt: binary.LittleEndian.Uint32(salt[:]), firstSeq: firstSeq}
	h := make([]byte, segHeaderSize)
	copy(h, segMagic)
	binary.LittleEndian.PutUint32(h[8:], segVersion)
	binary.LittleEndian.PutUint32(h[12:], s.salt)
	binary.LittleEndian.PutUint64(h[16:], number)
	binary.LittleEndian.PutUint64(h[24:], firstSeq)
	binary.LittleEndian.PutUint32(h[32:], crc32.Checksum(h[:32], castagnoli))
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

// openSegment reads the header of an existing segment.
func openSegment(fsys FS, number uint64) (*segment, error) {
	f, err := fsys.Open(segName(number))
	if err != nil {
		return nil, fmt.Errorf("open segment %d: %w", number, err)
	}
	h := make([]byte, segHeaderSize)
	if _, err := f.ReadAt(h, 0); err != nil {
		_ = f.Close()
		return nil, &CorruptError{segName(number), 0, "header cannot be read: " + err.Error()}
	}
	reason := ""
	switch {
	case string(h[:8]) != segMagic:
		reason = "not a segment"
	case binary.LittleEndian.Uint32(h[32:]) != crc32.Checksum(h[:32], castagnoli):
		reason = "header checksum mismatch"
	case binary.LittleEndian.Uint32(h[8:]) != segVersion:
		reason = fmt.Sprintf("version %d is not known", binary.LittleEndian.Uint32(h[8:]))
	case binary.LittleEndian.Uint64(h[16:]) != number:
		reason = fmt.Sprintf("header says segment %d", binary.LittleEndian.Uint64(h[16:]))
	}
	if reason != "" {
		_ = f.Close()
		return nil, &CorruptError{segName(number), 0, reason}
	}
	s := &segment{
		number: number, file: f,
		salt:     binary.LittleEndian.Uint32(h[12:]),
		firstSeq: binary.LittleEndian.Uint64(h[24:]),
	}
	s.refs.Store(1)
	return s, nil
}
