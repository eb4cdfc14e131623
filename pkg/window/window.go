// Package window is the arithmetic of rollup windows: hours, buckets and which sample
// lies in which. Hours and buckets are open at their start and closed at their end, like
// the ranges of PromQL, so that a range aligned with buckets is exactly a union of them.
// Times count in whole milliseconds, cut down from nanoseconds.
package window

import (
	"fmt"
	"time"
)

// Window is the resolution of a published set.
type Window uint8

// Windows, from the finest.
const (
	Raw Window = iota
	OneMinute
	FiveMinutes
	OneHour
)

// All lists the windows from the finest.
func All() []Window { return []Window{Raw, OneMinute, FiveMinutes, OneHour} }

// String is the window's name in keys, manifests and metrics.
func (w Window) String() string {
	switch w {
	case Raw:
		return "raw"
	case OneMinute:
		return "1m"
	case FiveMinutes:
		return "5m"
	case OneHour:
		return "1h"
	}
	return fmt.Sprintf("window(%d)", uint8(w))
}

// Parse reads a window's name.
func Parse(s string) (Window, error) {
	for _, w := range All() {
		if s == w.String() {
			return w, nil
		}
	}
	return 0, fmt.Errorf("no rollup window is named %q", s)
}

// Millis is the width of a bucket, 0 for Raw.
func (w Window) Millis() int64 {
	switch w {
	case OneMinute:
		return minuteMS
	case FiveMinutes:
		return 5 * minuteMS
	case OneHour:
		return HourMS
	}
	return 0
}

// BucketEnd is the end of the bucket that holds the sample at ms: the least multiple of
// the width that is not before ms. For Raw it is ms.
func (w Window) BucketEnd(ms int64) int64 {
	width := w.Millis()
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

// Hour is an hour of sample time, by its start: hours since the Unix epoch. It holds the
// milliseconds in (StartMS, EndMS].
type Hour int64

// HourOf is the hour of the sample at ms (Unix milliseconds).
func HourOf(ms int64) Hour { return Hour(ceil(ms, HourMS) - 1) }

// HourOfNS is the hour of the sample at ns (Unix nanoseconds).
func HourOfNS(ns int64) Hour { return HourOf(Millisecond(ns)) }

// HourStarting is the hour that starts at or before t and ends after it; the inverse of Start.
func HourStarting(t time.Time) Hour { return Hour(floor(t.UnixMilli(), HourMS)) }

// StartMS is the millisecond before the hour's first.
func (h Hour) StartMS() int64 { return int64(h) * HourMS }

// EndMS is the hour's last millisecond.
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
