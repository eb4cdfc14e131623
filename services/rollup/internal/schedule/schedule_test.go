package schedule

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

var policy = Policy{
	FirstAfter: 5 * time.Minute, LateAfter: 2 * time.Minute, Ahead: time.Hour, AheadAfter: 65 * time.Minute,
	RetryBase: time.Second, RetryMax: 4 * time.Second,
}

func TestDueAt(t *testing.T) {
	h := timegrid.HourStarting(time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC))
	at := func(minutes int) time.Time { return h.Start().Add(time.Duration(minutes) * time.Minute) }
	for _, c := range []struct {
		name  string
		hour  Hour
		now   time.Time
		want  time.Time
		early Early
	}{
		{"the first generation waits for the hour's end", Hour{Since: at(1)}, at(10), at(65), OnTime},
		{"a batch of an hour that is long over", Hour{Since: at(600)}, at(600), at(65), OnTime},
		{"a late batch gathers others", Hour{Since: at(90), Published: at(65)}, at(91), at(92), OnTime},
		{"two generations are apart", Hour{Since: at(90), Published: at(91)}, at(91), at(93), OnTime},
		{"a block of a clock that is ahead says nothing", Hour{Since: at(90), Published: at(1000)}, at(91), at(92), OnTime},
		{"a generation before the hour's end does not move the end", Hour{Since: at(20), Published: at(10)}, at(21), at(65), OnTime},
		{"what was begun is finished", Hour{Since: at(1), Unfinished: true}, at(1), time.Time{}, OnTime},
		{"no room", Hour{Since: at(10), Expedited: true}, at(11), at(12), Expedited},
		{"no room, and a generation lately", Hour{Since: at(10), Published: at(11), Expedited: true}, at(12), at(13), Expedited},
		{"no room, after the hour's end", Hour{Since: at(70), Expedited: true}, at(70), at(65), OnTime},
		{"far ahead", Hour{Since: at(-200)}, at(-200), at(-135), FarAhead},
		{"not far ahead", Hour{Since: at(-60)}, at(-60), at(65), OnTime},
		{"far ahead, and no room", Hour{Since: at(-200), Expedited: true}, at(-200), at(-198), Expedited},
	} {
		c.hour.Hour = h
		if got, early := policy.DueAt(c.hour, c.now); !got.Equal(c.want) || early != c.early {
			t.Errorf("%s: due at %v, early %q; want %v, %q", c.name, got.Sub(h.Start()), early, c.want.Sub(h.Start()), c.early)
		}
	}
}

func TestRetryWait(t *testing.T) {
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 50: 4 * time.Second} {
		if got := policy.RetryWait(n, 1); got != want {
			t.Errorf("after %d failures: %v, want %v", n, got, want)
		}
	}
}

func TestClockThatGoesBack(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var c Clock
	for _, step := range []struct {
		by   time.Duration
		want time.Duration
	}{{0, 0}, {time.Hour, 0}, {-time.Minute, 0}, {-time.Minute - 1, time.Minute + 1}, {0, 0}, {-365 * 24 * time.Hour, 365 * 24 * time.Hour}, {time.Second, 0}} {
		now = now.Add(step.by)
		if got := c.Observe(now); got != step.want {
			t.Errorf("a step of %v: %v", step.by, got)
		}
	}
}
