package ingest

import (
	"context"
	"runtime"

	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// decoding bounds the memory of decoded frames: by bytes, which the header
// declares, and by the number of decoders, which is the number of processors.
type decoding struct {
	limits   frame.Limits
	bytes    int64
	budget   *semaphore.Weighted
	decoders chan *inspector
}

// inspector decodes one frame at a time.
type inspector struct {
	*frame.Decoder
	batch frame.Batch
	measurer
}

// keepDecoded is the largest payload, in bytes, after which a decoder keeps its memory.
const keepDecoded = 8 << 20

func newDecoding(l Limits) *decoding {
	d := &decoding{
		limits: l.frameLimits(), bytes: int64(l.DecodingBytes),
		budget:   semaphore.NewWeighted(int64(l.DecodingBytes)),
		decoders: make(chan *inspector, runtime.GOMAXPROCS(0)),
	}
	for range cap(d.decoders) {
		// Decoders are made when they are first used: an idle collector on a large machine has none.
		d.decoders <- nil
	}
	return d
}

// inspect decodes and validates the frame with the header h, and fills sh with its series.
func (d *decoding) inspect(ctx context.Context, b []byte, h frame.Header, sh *shape) (frame.Summary, error) {
	// A frame must not wait for more room than there is in all.
	need := min(decodedBytes(h, d.limits), d.bytes)
	if err := d.budget.Acquire(ctx, need); err != nil {
		return frame.Summary{}, err
	}
	defer d.budget.Release(need)
	var dec *inspector
	select {
	case dec = <-d.decoders:
	case <-ctx.Done():
		return frame.Summary{}, ctx.Err()
	}
	if dec == nil {
		dec = &inspector{Decoder: frame.NewDecoder()}
	}
	defer func() {
		if need > keepDecoded {
			dec = nil
		}
		d.decoders <- dec
	}()
	sum, err := dec.DecodeSummary(b, &dec.batch, d.limits)
	if err == nil {
		dec.measure(&dec.batch, sh)
	}
	return sum, err
}

// decodedBytes estimates the memory, in bytes, that decoding takes: the payload and a value
// for each record. It is 0 for a header beyond the limits, because the decoder refuses such
// a frame before it allocates anything.
func decodedBytes(h frame.Header, l frame.Limits) int64 {
	if uint64(h.DecodedLen) > uint64(l.DecodedBytes) || h.Identity.Count() > uint64(l.Records) {
		return 0
	}
	return int64(h.DecodedLen) + 8*int64(h.Identity.Count())
}
