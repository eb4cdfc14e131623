package engine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// A closed segment may be kept as a body, coded over places, and no longer on the drives of the log. Then its name in log/ is
// that of a stub: a small file that says which body it is. The stub is the only thing that says so; whatever else knows it was
// read from there. It begins like a segment, with a version that no release before it opens.
//
// The stub is there twice in its file, each with a checksum, and the file on each drive.
const (
	stubVersion = 5
	stubSize    = 128
	stubBytes   = 2 * stubSize
)

// stub says that a segment is a body.
type stub struct {
	number   uint64
	version  uint32 // of the segment
	salt     uint32
	firstSeq uint64
	length   int64 // of the segment
	body     string
	sum      [sha256.Size]byte // of the segment
}

// encode gives the content of the file.
func (s *stub) encode() []byte {
	b := encodeHeader(stubVersion, s.number, s.salt, s.firstSeq)
	b = binary.LittleEndian.AppendUint32(b, s.version)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.length))
	id, _ := hex.DecodeString(s.body)
	b = append(b, id...)
	b = append(b, s.sum[:]...)
	b = append(b, make([]byte, stubSize-4-len(b))...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return append(b, b...)
}

// decodeStub reads one of the two halves; false: it is damaged, or is none of this segment.
func decodeStub(b []byte, number uint64) (s stub, ok bool) {
	if len(b) < stubSize || !wholeHeader(b[:segHeaderSize], number) || binary.LittleEndian.Uint32(b[8:]) != stubVersion ||
		crc32.Checksum(b[:stubSize-4], castagnoli) != binary.LittleEndian.Uint32(b[stubSize-4:stubSize]) {
		return s, false
	}
	s = stub{
		number: number, salt: binary.LittleEndian.Uint32(b[12:]), firstSeq: binary.LittleEndian.Uint64(b[24:]),
		version: binary.LittleEndian.Uint32(b[40:]), length: int64(binary.LittleEndian.Uint64(b[48:])), body: hex.EncodeToString(b[56:72]),
	}
	copy(s.sum[:], b[72:])
	return s, s.version >= 1 && s.version <= segVersion && s.length >= segHeaderSize && s.length < maxSegment
}

// eitherHalf reads what is whole of the content of a stub's file. What is longer has its second half for no stub: in a segment
// whose header is damaged a client's bytes are there.
func eitherHalf(b []byte, number uint64) (stub, bool) {
	s, ok := decodeStub(b, number)
	if !ok && len(b) > stubSize && len(b) <= stubBytes {
		s, ok = decodeStub(b[stubSize:], number)
	}
	return s, ok
}

// bothHalves reports whether the content of a stub's file is whole.
func bothHalves(b []byte, number uint64) bool {
	_, ok := decodeStub(b, number)
	return ok && len(b) == stubBytes && bytes.Equal(b[:stubSize], b[stubSize:])
}

// isStub reads the stub in a segment's file. It puts right what is damaged of it where half of it is whole, on any drive. was:
// it is a stub, also when nothing of it can be used.
func isStub(f vfs.File, number uint64) (s stub, was, ok bool) {
	b := make([]byte, stubBytes+1) // tells what is longer
	n, _ := f.ReadAt(b, 0)
	b = b[:n]
	whole := n >= segHeaderSize && wholeHeader(b[:segHeaderSize], number)
	was = whole && binary.LittleEndian.Uint32(b[8:]) == stubVersion
	switch {
	case whole && !was:
		return s, false, false
	case bothHalves(b, number):
		s, _ = decodeStub(b, number)
		return s, true, true
	}
	s, ok = eitherHalf(b, number)
	if c, several := f.(copies); several {
		for i := 0; i < c.Copies() && !ok; i++ {
			b = make([]byte, stubBytes+1)
			n, _ := c.ReadCopy(i, b, 0)
			s, ok = eitherHalf(b[:n], number)
		}
	}
	if !ok {
		return s, was, false
	}
	// A failure leaves what is there: one half of it, or that of another drive.
	if _, err := f.WriteAt(s.encode(), 0); err == nil {
		_ = f.Sync()
	}
	return s, true, true
}

// mayBeStub reports whether a file that is nothing that can be read may have been a stub.
func mayBeStub(f vfs.File) bool {
	n, err := f.Size()
	return err != nil || n <= stubBytes
}
