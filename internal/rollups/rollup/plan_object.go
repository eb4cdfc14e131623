package rollup

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// zstdMagic begins a zstd frame. No JSON begins so, which tells plans of former releases.
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

var planEncoder = sync.OnceValue(func() *zstd.Encoder {
	// Better levels find nothing more in digests and times.
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(true), zstd.WithSingleSegment(true), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic("rollup: zstd encoder options: " + err.Error()) // the options are constants
	}
	return z
})

var planDecoders = sync.Pool{New: func() any {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(uint64(PlanKind.MaxBytes)))
	if err != nil {
		panic("rollup: zstd decoder options: " + err.Error())
	}
	return z
}}

// Encode gives the bytes of the plan's object: the JSON of Marshal as one zstd frame, which is two fifths as long. The
// frame has a checksum of the JSON. Blocks name the hash of these bytes.
func (p *Plan) Encode() ([]byte, error) {
	b, err := p.Marshal()
	if err != nil {
		return nil, err
	}
	return planEncoder().EncodeAll(b, make([]byte, 0, len(b)/2)), nil
}

// planText gives the JSON of a plan's object; former releases stored it as it is.
func planText(b []byte) ([]byte, error) {
	if !bytes.HasPrefix(b, zstdMagic) {
		return b, nil
	}
	var h zstd.Header
	if err := h.Decode(b); err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	if !h.HasFCS || h.FrameContentSize > uint64(PlanKind.MaxBytes) || h.DictionaryID != 0 {
		return nil, fmt.Errorf("zstd: not one frame with a content of at most %d bytes", PlanKind.MaxBytes)
	}
	z := planDecoders.Get().(*zstd.Decoder)
	defer planDecoders.Put(z)
	text, err := z.DecodeAll(b, make([]byte, 0, h.FrameContentSize))
	if err != nil || uint64(len(text)) != h.FrameContentSize {
		return nil, fmt.Errorf("zstd: %d bytes of %d: %v", len(text), h.FrameContentSize, err)
	}
	return text, nil
}
