package frame

import (
	"errors"
	"math"

	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the window, in bytes, that a zstd frame may ask for. It does not apply to
// single segments: their window is their content, for which there is memory already.
const maxWindow = 8 << 20

func newCompressor() *zstd.Encoder {
	e, err := zstd.NewWriter(nil,
		// 5% fewer bytes than SpeedFastest for 20% more time, on devops data.
		zstd.WithEncoderLevel(zstd.SpeedDefault),
		zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), // the frame header has a CRC
		zstd.WithSingleSegment(true),
		zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic("frame: zstd encoder options: " + err.Error())
	}
	return e
}

func newDecompressor() *zstd.Decoder {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxWindow(math.MaxUint32)) // decompress checks windows; a lower bound here would refuse single segments
	if err != nil {
		panic("frame: zstd decoder options: " + err.Error())
	}
	return d
}

// decompress fills all of dst from src, which must be exactly one zstd frame that
// declares len(dst) as its content size. dst never grows: a frame with
// more content than it declares is refused when dst is full.
func decompress(d *zstd.Decoder, dst, src []byte) error {
	var h zstd.Header
	if err := h.Decode(src); err != nil {
		return refuse(BadCompression, "zstd header: %v", err)
	}
	switch {
	case h.Skippable:
		return refuse(BadCompression, "zstd: skippable frame")
	case !h.HasFCS || h.FrameContentSize != uint64(len(dst)):
		return refuse(BadCompression, "zstd: content size is not the decoded length %d", len(dst))
	case h.DictionaryID != 0:
		return refuse(BadCompression, "zstd: needs dictionary %d", h.DictionaryID)
	case !h.SingleSegment && h.WindowSize > maxWindow:
		return refuse(BadCompression, "zstd: window of %d bytes, at most %d", h.WindowSize, maxWindow)
	}
	if err := oneFrame(src, h.HeaderSize, h.HasCheckSum); err != nil {
		return err
	}
	// The capacity of dst bounds the output, see WithDecodeAllCapLimit.
	out, err := d.DecodeAll(src, dst[:0])
	if err != nil {
		if errors.Is(err, zstd.ErrDecoderSizeExceeded) {
			return refuse(BadCompression, "zstd: more content than %d bytes", len(dst))
		}
		return refuse(BadCompression, "zstd: %v", err)
	}
	if len(out) != len(dst) {
		return refuse(BadCompression, "zstd: %d bytes of content, want %d", len(out), len(dst))
	}
	return nil
}

// oneFrame checks, by the block headers, that src ends with the frame that it begins with: DecodeAll would decode further frames as well.
func oneFrame(src []byte, pos int, checksum bool) error {
	for last := false; !last; {
		if len(src)-pos < 3 {
			return refuse(BadCompression, "zstd: ends within a block header")
		}
		v := int(src[pos]) | int(src[pos+1])<<8 | int(src[pos+2])<<16
		pos += 3
		last = v&1 != 0
		size := v >> 3
		if v>>1&3 == 1 { // run length: one byte, repeated
			size = 1
		}
		if size > len(src)-pos {
			return refuse(BadCompression, "zstd: ends within a block")
		}
		pos += size
	}
	if checksum {
		pos += 4
	}
	if pos != len(src) {
		return refuse(BadCompression, "zstd: %d bytes, the frame has %d", len(src), pos)
	}
	return nil
}
