package frame

import (
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Options of an Encoder. The zero value compresses with zstd and keeps the default limits.
type Options struct {
	// Uncompressed stores the payload as it is.
	Uncompressed bool
	// Limits are those of the receiver; a batch that exceeds them is refused.
	Limits Limits
}

// Encoder writes frames and reuses its memory. Not for concurrent use.
type Encoder struct {
	opts    Options
	lim     Limits
	zstd    *zstd.Encoder
	payload payloadWriter
}

// NewEncoder makes an Encoder.
func NewEncoder(opts Options) *Encoder {
	return &Encoder{opts: opts, lim: opts.Limits.orDefault(), zstd: newCompressor()}
}

// Encode appends the frame of b to dst. Equal batches give equal bytes only within one
// version of this package, so a sender keeps the bytes and never encodes a batch again.
// The batch is validated like a decoded one. Errors are *Error; dst is then unchanged.
func (e *Encoder) Encode(dst []byte, b *Batch) ([]byte, error) {
	if err := b.Validate(e.lim); err != nil {
		return dst, err
	}
	payload := e.payload.write(b)
	if len(payload) > e.lim.DecodedBytes {
		return dst, refuse(DecodedTooLarge, "payload has %d bytes, at most %d", len(payload), e.lim.DecodedBytes)
	}
	start, n := len(dst), headerLen(b.Identity)
	// Room for the header, which is written last: it has the lengths and checksum of the payload.
	dst = append(dst, make([]byte, n)...)
	compression := None
	if !e.opts.Uncompressed {
		out := e.zstd.EncodeAll(payload, dst)
		size := len(out) - start - n
		// A receiver refuses a payload that expands too much, so such a payload stays uncompressed.
		if size < len(payload) && !e.lim.ratioTooHigh(uint64(size), uint64(len(payload))) {
			dst, compression = out, Zstd
		}
	}
	if compression == None {
		dst = append(dst, payload...)
	}
	if size := len(dst) - start; size > e.lim.EncodedBytes {
		return dst[:start], refuse(TooLarge, "frame has %d bytes, at most %d", size, e.lim.EncodedBytes)
	}
	putHeader(dst[start:start+n], b.Identity, compression, dst[start+n:], len(payload))
	return dst, nil
}

var encoders = sync.Pool{New: func() any { return NewEncoder(Options{}) }}

// Encode appends the frame of b to dst with a pooled Encoder of default options.
func Encode(dst []byte, b *Batch) ([]byte, error) {
	e := encoders.Get().(*Encoder)
	defer encoders.Put(e)
	return e.Encode(dst, b)
}
