package rollup

import (
	"errors"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// ErrInexact: rolled rows do not determine what the raw samples would give, because of infinities, NaN or
// histograms of several layouts. Read raw samples instead.
var ErrInexact = errors.New("rolled rows do not determine the result")

// Range is a range of PromQL, (StartMS, EndMS] in Unix milliseconds.
type Range struct{ StartMS, EndMS int64 }

// Seconds of the range.
func (r Range) Seconds() float64 { return float64(r.EndMS-r.StartMS) / 1000 }

// interval is the samples of a range: their number, and the times of the first and last in Unix nanoseconds.
type interval struct {
	count         uint64
	firstT, lastT int64
}

func (s *interval) add(count uint32, firstT, lastT int64) {
	if s.count == 0 {
		s.firstT = firstT
	}
	s.count += uint64(count)
	s.lastT = lastT
}

// factor is what PromQL multiplies the change between first and last of at least two samples with, to extrapolate
// to the ends of r. toZero is the time from the zero point to the first sample as a fraction of the sampled
// interval, negative when there is none. The steps are those of extrapolatedRate in the PromQL engine, in its
// order, so that results agree to the last bit.
func (s *interval) factor(r Range, toZero float64) float64 {
	firstT, lastT := timegrid.Millisecond(s.firstT), timegrid.Millisecond(s.lastT)
	toStart := float64(firstT-r.StartMS) / 1000
	toEnd := float64(r.EndMS-lastT) / 1000
	sampled := float64(lastT-firstT) / 1000
	average := sampled / float64(s.count-1)
	threshold := average * 1.1
	// As in the engine: where the samples begin or end far from the edge of the range, the series is taken
	// to begin or end half an interval away from them.
	if toStart >= threshold {
		toStart = average / 2
	}
	if toZero >= 0 {
		if zero := sampled * toZero; zero < toStart {
			toStart = zero
		}
	}
	if toEnd >= threshold {
		toEnd = average / 2
	}
	// All samples lie in one millisecond, so there is no interval to extrapolate from, and the division
	// would give NaN.
	if sampled == 0 {
		return 1
	}
	return (sampled + toStart + toEnd) / sampled
}
