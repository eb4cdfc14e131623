package frame

import (
	"math"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Summary is what acceptance needs to know about a valid frame.
type Summary struct {
	Identity         identity.Batch
	FrameVersion     uint8
	WireVersion      uint16
	Compression      Compression
	FrameBytes       int
	DecodedBytes     int
	Records          uint64
	MinTime, MaxTime int64 // Unix nanoseconds, both inclusive
}

// Inspect decodes and validates frame like Decode and keeps only its Summary.
func (d *Decoder) Inspect(frame []byte, lim Limits) (Summary, error) {
	h, err := d.decode(frame, &d.batch, lim.orDefault())
	if err != nil {
		return Summary{}, err
	}
	return summary(h, frame, &d.batch), nil
}

// DecodeSummary is Decode and Inspect in one pass.
func (d *Decoder) DecodeSummary(frame []byte, b *Batch, lim Limits) (Summary, error) {
	h, err := d.decode(frame, b, lim.orDefault())
	if err != nil {
		return Summary{}, err
	}
	return summary(h, frame, b), nil
}

// Inspect decodes and validates frame with a pooled Decoder.
func Inspect(frame []byte, lim Limits) (Summary, error) {
	d := decoders.Get().(*Decoder)
	defer putDecoder(d)
	return d.Inspect(frame, lim)
}

func summary(h Header, frame []byte, b *Batch) Summary {
	i := Summary{
		Identity:     h.Identity,
		FrameVersion: h.FrameVersion,
		WireVersion:  h.WireVersion,
		Compression:  h.Compression,
		FrameBytes:   len(frame),
		DecodedBytes: int(h.DecodedLen),
		Records:      h.Identity.Count(),
	}
	i.MinTime, i.MaxTime = TimeRange(b)
	return i
}

// TimeRange returns the first and the last timestamp of b, Unix nanoseconds; zeros
// for a batch without records.
func TimeRange(b *Batch) (minTime, maxTime int64) {
	if len(b.Groups) == 0 {
		return 0, 0
	}
	minTime, maxTime = math.MaxInt64, math.MinInt64
	for i := range b.Groups {
		if ts := b.Groups[i].Timestamps; len(ts) > 0 {
			minTime, maxTime = min(minTime, ts[0]), max(maxTime, ts[len(ts)-1])
		}
	}
	return minTime, maxTime
}
