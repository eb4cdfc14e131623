package queue

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	segmentMagic = "LMQUEUE\x01"
	segmentExt   = ".lmq"
	tmpExt       = ".tmp"
	// maxSegmentHeader is far above the largest header.
	maxSegmentHeader = 4 << 10
)

// Fingerprint tells a queue directory from a copy of it; see FingerprintOf.
type Fingerprint [16]byte

// origin is the content of a segment's header. It has the next numbers at the time when the segment
// was created, so the newest segment is enough to continue, however many older ones were removed.
type origin struct {
	boot        identity.Boot
	spool       string
	nextEntry   uint64
	nextSeq     uint64
	created     time.Time
	fingerprint Fingerprint
}

func (o origin) encode() []byte {
	b := append([]byte(segmentMagic), 0, 0, 0, 0)
	b = appendText(b, o.boot.Agent)
	b = appendText(b, o.boot.Boot)
	b = appendText(b, o.spool)
	b = binary.LittleEndian.AppendUint64(b, o.nextEntry)
	b = binary.LittleEndian.AppendUint64(b, o.nextSeq)
	b = binary.LittleEndian.AppendUint64(b, uint64(o.created.UnixNano()))
	b = append(b, o.fingerprint[:]...)
	binary.LittleEndian.PutUint32(b[len(segmentMagic):], uint32(len(b)+4))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseOrigin reads a segment header and its length.
func parseOrigin(b []byte) (origin, int, error) {
	var o origin
	const fixed = len(segmentMagic) + 4
	const version = len(segmentMagic) - 1
	if len(b) < fixed || string(b[:version]) != segmentMagic[:version] {
		return o, 0, segmentKind.Corrupt("", "not a queue segment")
	}
	// The length is at a fixed place in every version, so that the checksum of a later version's
	// header can be verified, too.
	n := int(binary.LittleEndian.Uint32(b[len(segmentMagic):]))
	if n < fixed+4 || n > len(b) {
		return o, 0, segmentKind.Corrupt("", "segment header of %d bytes", n)
	}
	if crc32.Checksum(b[:n-4], castagnoli) != binary.LittleEndian.Uint32(b[n-4:]) {
		return o, 0, segmentKind.Corrupt("", "segment header checksum")
	}
	// The version is checked after the checksum: a flipped bit in it is damage and no newer release.
	if err := segmentKind.CheckFormat(b[version], segmentMagic[version]); err != nil {
		return o, 0, err
	}
	rest := b[fixed : n-4]
	var err error
	for _, dst := range []*string{&o.boot.Agent, &o.boot.Boot, &o.spool} {
		if *dst, rest, err = cutText(rest); err != nil {
			return o, 0, err
		}
	}
	if len(rest) != 24+len(o.fingerprint) {
		return o, 0, segmentKind.Corrupt("", "segment header is %d bytes off", len(rest))
	}
	o.nextEntry = binary.LittleEndian.Uint64(rest)
	o.nextSeq = binary.LittleEndian.Uint64(rest[8:])
	o.created = time.Unix(0, int64(binary.LittleEndian.Uint64(rest[16:])))
	copy(o.fingerprint[:], rest[24:])
	return o, n, nil
}

// segment is one open file of the log.
type segment struct {
	no   uint64
	name string
	f    vfs.File
	size int64 // end of the last whole record
	live int   // pending entries whose newest copy is here
	// liveBytes of those entries, records included.
	liveBytes int64
	damaged   bool // keep the file when it is done
}

func segmentName(dir string, no uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", no, segmentExt))
}

func parseSegmentName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, segmentExt)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	no, err := strconv.ParseUint(digits, 10, 64)
	return no, err == nil && no < math.MaxUint64 // the next one has a number too
}

// createSegment writes and syncs a segment's header under a temporary name and renames it. A
// segment with its name therefore always has a whole header.
func createSegment(fsys vfs.FS, dir string, no uint64, o origin) (*segment, error) {
	name := segmentName(dir, no)
	f, err := vfs.CreateEmpty(fsys, name+tmpExt)
	if err != nil {
		return nil, fmt.Errorf("create segment %d: %w", no, err)
	}
	head := o.encode()
	if _, err = f.WriteAt(head, 0); err == nil {
		failpoint.Hit("agent.queue.roll.header")
		err = f.Sync()
	}
	if err == nil {
		failpoint.Hit("agent.queue.roll.synced")
		err = fsys.Rename(name+tmpExt, name)
	}
	if err == nil {
		failpoint.Hit("agent.queue.roll.renamed")
		err = fsys.SyncDir(dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create segment %d: %w", no, err), f.Close())
	}
	return &segment{no: no, name: name, f: f, size: int64(len(head))}, nil
}

// scan calls fn for each whole record from off on. It returns the offset after the last
// whole record, and what was wrong with the next one (nil at a clean end). A record
// whose body alone is damaged is given to fn with its error, and the scan continues.
func scan(r io.ReaderAt, off, size int64, fn func(off int64, h header, body []byte, damage error) error) (int64, error, error) {
	br := bufio.NewReaderSize(io.NewSectionReader(r, off, size-off), 256<<10)
	var head [recordHeader]byte
	var body []byte
	for off < size {
		if size-off < recordHeader {
			return off, segmentKind.Corrupt("", "%d bytes of a header", size-off), nil
		}
		if _, err := io.ReadFull(br, head[:]); err != nil {
			return off, nil, fmt.Errorf("read record at %d: %w", off, err)
		}
		h, err := parseHeader(head[:])
		if err != nil {
			return off, err, nil
		}
		if int64(h.body) > size-off-recordHeader {
			return off, segmentKind.Corrupt("", "body of entry %d is cut", h.no), nil
		}
		if cap(body) < h.body {
			body = make([]byte, h.body)
		}
		body = body[:h.body]
		if _, err := io.ReadFull(br, body); err != nil {
			return off, nil, fmt.Errorf("read record at %d: %w", off, err)
		}
		if err := fn(off, h, body, h.check(body)); err != nil {
			return off, nil, err
		}
		off += recordHeader + int64(h.body)
	}
	return off, nil, nil
}
