// Package timegrid has the arithmetic of rollup hours and of the buckets of a resolution.
// Hours and buckets are open at their start and closed at their end, like the ranges of
// PromQL, so a range that is aligned with buckets is exactly a union of buckets. Times are
// whole milliseconds, rounded down from nanoseconds.
package timegrid

import (
	"fmt"
	"time"
)

// Resolution is the resolution of a block.
type Resolution uint8

// Resolutions, from the finest.
const (
	Raw Resolution = iota
	OneMinute
	FiveMinutes
	OneHour
)

// Resolutions lists the resolutions from the finest.
func Resolutions() []Resolution { return []Resolution{Raw, OneMinute, FiveMinutes, OneHour} }

// String is the resolution's name in keys, manifests and metrics.
func (r Resolution) String() string {
	switch r {
	case Raw:
		return "raw"
	case OneMinute:
		return "1m"
	case FiveMinutes:
		return "5m"
	case OneHour:
		return "1h"
	}
	return fmt.Sprintf("resolution(%d)", uint8(r))
}

// ParseResolution reads a resolution's name.
func ParseResolution(s string) (Resolution, error) {
	for _, r := range Resolutions() {
		if s == r.String() {
			return r, nil
		}
	}
	return 0, fmt.Errorf("no resolution is named %q", s)
}

// Millis is the width of a bucket in milliseconds; 0 for Raw.
func (r Resolution) Millis() int64 {
	switch r {
	case OneMinute:
		return minuteMS
	case FiveMinutes:
		return 5 * minuteMS
	case OneHour:
		return HourMS
	}
	return 0
}

// BucketEnd is the end of the bucket of a sample at ms (Unix milliseconds): the smallest
// multiple of the width that is not before ms. For Raw it is ms.
func (r Resolution) BucketEnd(ms int64) int64 {
	width := r.Millis()
	if width == 0 {
		return ms
	}
	return ceil(ms, width) * width
}

const (
	minuteMS = 60_000
	// HourMS is an hour in milliseconds.
	HourMS  = 60 * minuteMS
	nsPerMS = 1_000_000
)

// Millisecond is the millisecond that ns (Unix nanoseconds) lies in.
func Millisecond(ns int64) int64 { return floor(ns, nsPerMS) }

// Hour is an hour of sample time, counted in hours since the Unix epoch. It contains the
// milliseconds in (StartMS, EndMS].
type Hour int64

// HourOf is the hour of the sample at ms (Unix milliseconds).
func HourOf(ms int64) Hour { return Hour(ceil(ms, HourMS) - 1) }

// HourOfNS is the hour of the sample at ns (Unix nanoseconds).
func HourOfNS(ns int64) Hour { return HourOf(Millisecond(ns)) }

// HourStarting is the hour that starts at or before t and ends after it; the inverse of Start.
func HourStarting(t time.Time) Hour { return Hour(floor(t.UnixMilli(), HourMS)) }

// StartMS is the start of the hour in Unix milliseconds, which is not part of it.
func (h Hour) StartMS() int64 { return int64(h) * HourMS }

// EndMS is the end of the hour in Unix milliseconds, which is its last millisecond.
func (h Hour) EndMS() int64 { return (int64(h) + 1) * HourMS }

// Start in UTC.
func (h Hour) Start() time.Time { return time.UnixMilli(h.StartMS()).UTC() }

// End in UTC.
func (h Hour) End() time.Time { return time.UnixMilli(h.EndMS()).UTC() }

// Holds reports whether the sample at ms lies in the hour.
func (h Hour) Holds(ms int64) bool { return ms > h.StartMS() && ms <= h.EndMS() }

// String is the start as 2006-01-02T15.
func (h Hour) String() string { return h.Start().Format("2006-01-02T15") }

func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func ceil(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
