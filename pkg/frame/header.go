package frame

import (
	"encoding/binary"
	"hash/crc32"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Versions that this package reads and writes.
const (
	FrameVersion = 1 // of the header
	WireVersion  = 1 // of the payload
)

// MaxHeaderBytes is the length of a prefix of a frame that always contains the whole header.
const MaxHeaderBytes = 1024

// Extension is the file name extension of a frame.
const Extension = ".lmbatch"

// MediaType is the HTTP media type of a frame.
const MediaType = "application/vnd.lightmetrics.batch"

// Compression of the payload within the frame.
type Compression uint8

// Compressions.
const (
	None Compression = 0
	Zstd Compression = 1
)

const (
	magic = "\x89LMB"

	flagCompression = 0x03 // bits 0 and 1
	flagSeriesTable = 0x04 // reserved: a series table by its SHA-256

	fixedHeader  = 40 // up to the agent id
	checksumTail = 8  // payload CRC, header CRC
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the uncompressed part of a frame before the payload.
type Header struct {
	FrameVersion uint8
	WireVersion  uint16
	Compression  Compression
	Identity     identity.Batch
	HeaderLen    uint16 // bytes before the payload
	EncodedLen   uint32 // bytes of the payload as stored
	DecodedLen   uint32 // bytes of the payload when decompressed
	PayloadCRC   uint32 // CRC32C of the payload as stored
}

// FrameLen is the length of the whole frame in bytes.
func (h Header) FrameLen() uint64 { return uint64(h.HeaderLen) + uint64(h.EncodedLen) }

// ParseHeader reads the header from the first bytes of a frame; MaxHeaderBytes
// are enough, or the whole frame if it is shorter. The header's own checksum is
// verified, the payload's is not. Errors are *Error.
func ParseHeader(prefix []byte) (Header, error) {
	h, agent, boot, err := parseHeader(prefix)
	if err != nil {
		return Header{}, err
	}
	h.Identity.Agent, h.Identity.Boot = string(agent), string(boot)
	if err := h.Identity.Validate(); err != nil {
		return Header{}, refuse(IdentityInvalid, "header: %v", err)
	}
	return h, nil
}

// parseHeader returns the texts of the identity as bytes that refer to b, not validated, so that a Decoder need not allocate them.
func parseHeader(b []byte) (h Header, agent, boot []byte, err error) {
	// Before the length, so that a short input that is no frame at all is not called truncated.
	for i := range min(len(b), len(magic)) {
		if b[i] != magic[i] {
			return h, nil, nil, refuse(BadMagic, "byte %d is 0x%02x, want 0x%02x", i, b[i], magic[i])
		}
	}
	if len(b) < fixedHeader {
		return h, nil, nil, refuse(Truncated, "%d bytes, the header has at least %d", len(b), fixedHeader+checksumTail)
	}
	h.FrameVersion = b[4]
	if h.FrameVersion != FrameVersion {
		return h, nil, nil, refuse(UnsupportedVersion, "frame version %d, this reads %d", h.FrameVersion, FrameVersion)
	}
	h.HeaderLen = binary.LittleEndian.Uint16(b[8:])
	agentLen, bootLen := int(b[36]), int(b[37])
	// A frame with a series table has a longer header. It is refused below, after the checksum, as
	// unsupported and not as damaged.
	if b[5]&flagSeriesTable == 0 && int(h.HeaderLen) != fixedHeader+agentLen+bootLen+checksumTail {
		return h, nil, nil, refuse(BadHeader, "header length %d does not fit ids of %d and %d bytes", h.HeaderLen, agentLen, bootLen)
	}
	n := int(h.HeaderLen)
	if n > MaxHeaderBytes || n < fixedHeader+checksumTail {
		return h, nil, nil, refuse(BadHeader, "header length %d", n)
	}
	if len(b) < n {
		return h, nil, nil, refuse(Truncated, "%d bytes of a header of %d", len(b), n)
	}
	want := binary.LittleEndian.Uint32(b[n-4:])
	if got := crc32.Checksum(b[:n-4], castagnoli); got != want {
		return h, nil, nil, refuse(ChecksumMismatch, "header: CRC32C is %08x, want %08x", got, want)
	}
	// The checksum is right, so from here on a fault was made by the writer and is no damage.
	flags := b[5]
	if flags&^flagCompression != 0 {
		return h, nil, nil, refuse(UnsupportedFlags, "flags 0x%02x", flags)
	}
	h.Compression = Compression(flags & flagCompression)
	if h.Compression > Zstd {
		return h, nil, nil, refuse(UnsupportedFlags, "compression %d", h.Compression)
	}
	h.WireVersion = binary.LittleEndian.Uint16(b[6:])
	if h.WireVersion != WireVersion {
		return h, nil, nil, refuse(UnsupportedVersion, "wire version %d, this reads %d", h.WireVersion, WireVersion)
	}
	if b[10]|b[11]|b[38]|b[39] != 0 {
		return h, nil, nil, refuse(BadHeader, "reserved bytes are not zero")
	}
	h.EncodedLen = binary.LittleEndian.Uint32(b[12:])
	h.DecodedLen = binary.LittleEndian.Uint32(b[16:])
	if h.Compression == None && h.EncodedLen != h.DecodedLen {
		return h, nil, nil, refuse(BadHeader, "encoded length %d and decoded length %d differ without compression", h.EncodedLen, h.DecodedLen)
	}
	h.Identity.SeqStart = binary.LittleEndian.Uint64(b[20:])
	h.Identity.SeqEnd = binary.LittleEndian.Uint64(b[28:])
	h.PayloadCRC = binary.LittleEndian.Uint32(b[n-8:])
	agent = b[fixedHeader : fixedHeader+agentLen]
	boot = b[fixedHeader+agentLen : fixedHeader+agentLen+bootLen]
	return h, agent, boot, nil
}

// headerLen is the length of the header of a frame with this identity.
func headerLen(id identity.Batch) int {
	return fixedHeader + len(id.Agent) + len(id.Boot) + checksumTail
}

// putHeader writes the header into b, which has headerLen bytes before the payload.
func putHeader(b []byte, id identity.Batch, c Compression, payload []byte, decodedLen int) {
	copy(b, magic)
	b[4] = FrameVersion
	b[5] = byte(c)
	le := binary.LittleEndian
	le.PutUint16(b[6:], WireVersion)
	le.PutUint16(b[8:], uint16(len(b)))
	le.PutUint16(b[10:], 0)
	le.PutUint32(b[12:], uint32(len(payload)))
	le.PutUint32(b[16:], uint32(decodedLen))
	le.PutUint64(b[20:], id.SeqStart)
	le.PutUint64(b[28:], id.SeqEnd)
	b[36], b[37], b[38], b[39] = byte(len(id.Agent)), byte(len(id.Boot)), 0, 0
	n := fixedHeader + copy(b[fixedHeader:], id.Agent)
	n += copy(b[n:], id.Boot)
	le.PutUint32(b[n:], crc32.Checksum(payload, castagnoli))
	le.PutUint32(b[n+4:], crc32.Checksum(b[:n+4], castagnoli))
}
