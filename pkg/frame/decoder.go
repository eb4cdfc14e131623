package frame

import (
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Decoder reads frames and reuses its memory. Not for concurrent use.
type Decoder struct {
	zstd    *zstd.Decoder
	payload []byte
	batch   Batch // of Inspect
}

// NewDecoder makes a Decoder.
func NewDecoder() *Decoder { return &Decoder{zstd: newDecompressor()} }

// Decode reads all of frame into b, whose memory it reuses, and validates it:
// header, checksums, limits, identity, strings, labels, columns, record count.
// Afterwards nothing in b refers to frame. Memory use is bounded by the frame's
// length and lim. Errors are *Error; b must not be used after one.
func (d *Decoder) Decode(frame []byte, b *Batch, lim Limits) error {
	_, err := d.decode(frame, b, lim.orDefault())
	return err
}

func (d *Decoder) decode(frame []byte, b *Batch, lim Limits) (Header, error) {
	if len(frame) > lim.EncodedBytes {
		return Header{}, refuse(TooLarge, "frame has %d bytes, at most %d", len(frame), lim.EncodedBytes)
	}
	h, agent, boot, err := parseHeader(frame)
	if err != nil {
		return h, err
	}
	// Frames of one stream mostly have the same agent and boot, so the strings are reused.
	if string(agent) != b.Identity.Agent {
		b.Identity.Agent = string(agent)
	}
	if string(boot) != b.Identity.Boot {
		b.Identity.Boot = string(boot)
	}
	h.Identity.Agent, h.Identity.Boot = b.Identity.Agent, b.Identity.Boot
	b.Identity = h.Identity
	if err := h.check(frame, lim); err != nil {
		return h, err
	}
	payload := frame[h.HeaderLen:]
	if h.Compression == Zstd {
		if cap(d.payload) < int(h.DecodedLen) {
			d.payload = make([]byte, h.DecodedLen)
		}
		out := d.payload[:h.DecodedLen:h.DecodedLen]
		if err := decompress(d.zstd, out, payload); err != nil {
			return h, err
		}
		payload = out
	}
	return h, b.read(payload, &lim)
}

// check compares the header with the frame and the limits, before anything is decompressed.
func (h *Header) check(frame []byte, lim Limits) error {
	if n := uint64(len(frame)); n < h.FrameLen() {
		return refuse(Truncated, "%d bytes of %d", n, h.FrameLen())
	} else if n > h.FrameLen() {
		return refuse(TrailingBytes, "%d bytes, the frame has %d", n, h.FrameLen())
	}
	// Before anything that the payload decides: damage on the way must not look like a fault of
	// the sender.
	if got := crc32.Checksum(frame[h.HeaderLen:], castagnoli); got != h.PayloadCRC {
		return refuse(ChecksumMismatch, "payload: CRC32C is %08x, want %08x", got, h.PayloadCRC)
	}
	if err := h.Identity.Validate(); err != nil {
		return refuse(IdentityInvalid, "header: %v", err)
	}
	if n := h.Identity.Count(); n > uint64(lim.Records) {
		return refuse(TooManyRecords, "%d records, at most %d", n, lim.Records)
	}
	if uint64(h.DecodedLen) > uint64(lim.DecodedBytes) {
		return refuse(DecodedTooLarge, "payload of %d bytes, at most %d", h.DecodedLen, lim.DecodedBytes)
	}
	if lim.ratioTooHigh(uint64(h.EncodedLen), uint64(h.DecodedLen)) {
		return refuse(RatioTooHigh, "%d bytes declared from %d, at most %d times", h.DecodedLen, h.EncodedLen, lim.Ratio)
	}
	return nil
}

// maxKept bounds, in bytes, the memory that an idle pooled Decoder keeps, so that one large
// frame does not hold its memory for the life of the process.
const maxKept = 4 << 20

var decoders = sync.Pool{New: func() any { return NewDecoder() }}

func putDecoder(d *Decoder) {
	if cap(d.payload) > maxKept {
		d.payload = nil
	}
	// The batch's contents stand for its memory: 8 bytes per record, and its tables.
	if d.batch.Records() > maxKept/8 || d.batch.tableCost() > maxKept {
		d.batch = Batch{}
	}
	decoders.Put(d)
}

// Decode reads frame into b with a pooled Decoder.
func Decode(frame []byte, b *Batch, lim Limits) error {
	d := decoders.Get().(*Decoder)
	defer putDecoder(d)
	return d.Decode(frame, b, lim)
}
