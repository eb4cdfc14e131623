package timegrid

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestNamesParse(t *testing.T) {
	for _, w := range Resolutions() {
		got, err := ParseResolution(w.String())
		if err != nil || got != w {
			t.Errorf("ParseResolution(%q) = %v, %v", w.String(), got, err)
		}
	}
	for _, bad := range []string{"", "RAW", "1h ", "2h"} {
		if _, err := ParseResolution(bad); err == nil {
			t.Errorf("ParseResolution(%q) succeeded", bad)
		}
	}
}

// A sample on the stroke belongs to what ends there.
func TestEndsAreClosed(t *testing.T) {
	stroke := time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC)
	if h := HourOf(stroke.UnixMilli()); h.Start().Hour() != 12 || h.End() != stroke {
		t.Errorf("13:00:00.000 is in %v", h)
	}
	if h := HourOf(stroke.UnixMilli() + 1); h.Start() != stroke {
		t.Errorf("13:00:00.001 is in %v", h)
	}
	// What is above the millisecond is cut off first.
	if h := HourOfNS(stroke.UnixNano() + 999_999); h.End() != stroke {
		t.Errorf("13:00:00.000999999 is in %v", h)
	}
	if h := HourStarting(stroke); h.Start() != stroke {
		t.Errorf("HourStarting(13:00) = %v", h)
	}
	if end := FiveMinutes.BucketEnd(stroke.UnixMilli()); end != stroke.UnixMilli() {
		t.Errorf("bucket end of 13:00 is %d", end)
	}
}

func TestEveryMillisecondIsInOneHourAndOneBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.Int64Range(-1<<45, 1<<45).Draw(t, "ms")
		h := HourOf(ms)
		if !h.Holds(ms) || (h - 1).Holds(ms) || (h + 1).Holds(ms) {
			t.Fatalf("hour of %d is %d", ms, h)
		}
		for _, w := range Resolutions()[1:] {
			end := w.BucketEnd(ms)
			if end%w.Millis() != 0 || ms > end || ms <= end-w.Millis() {
				t.Fatalf("%v bucket of %d ends at %d", w, ms, end)
			}
			if HourOf(end) != h {
				t.Fatalf("%v bucket of %d leaves its hour", w, ms)
			}
		}
	})
}
