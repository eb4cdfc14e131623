// Package schedule says when an hour is rolled up, how long failures wait, and what a step of
// the clock does to waits. It is pure: the time is handed in, and so is randomness.
package schedule

import (
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Policy is the settings of the schedule; docs/guide/rollup.md explains each.
type Policy struct {
	// FirstAfter an hour's end its first generation is made; negative is before its end.
	FirstAfter time.Duration
	// LateAfter is how long late batches gather, and the least time between two generations.
	LateAfter time.Duration
	// FoldAfter is how long late batches are in deltas at most; 0 makes a new generation for them at once.
	FoldAfter time.Duration
	// Ahead is how far in the future an hour begins that only a wrong clock gives, and
	// AheadAfter how long batches of such hours gather.
	Ahead, AheadAfter time.Duration
	// RetryBase is the wait after a failure; it doubles with each one, up to RetryMax.
	RetryBase, RetryMax time.Duration
}

// Early says why a generation is made before its hour's time.
type Early string

// Why a generation is made early.
const (
	OnTime Early = ""
	// FarAhead: the hour lies so far ahead that an agent's clock is wrong, or this worker's.
	// Its batches would be pending for hours or years.
	FarAhead Early = "ahead"
	// Expedited: there is no room for more pending batches.
	Expedited Early = "expedited"
)

// Hour is what the schedule has to know of an hour with pending batches.
type Hour struct {
	Hour timegrid.Hour
	// Since is when the first of its pending batches was seen.
	Since     time.Time
	Expedited bool
	// Unfinished: a generation is decided at some resolutions and not at others.
	Unfinished bool
	// Published is when the newest raw block was made; zero where there is none.
	Published time.Time
}

// DueAt is when the hour's next generation is to be made. One that is made early is a
// generation like any other: what comes later, and the hour's end, make the next ones.
func (p Policy) DueAt(h Hour, now time.Time) (time.Time, Early) {
	if h.Unfinished {
		// Readers see it at some resolutions already, so it is finished at once.
		return time.Time{}, OnTime
	}
	since, again := h.Since, !h.Published.IsZero()
	// Two generations are LateAfter apart, so the one before may be what counts. A block that
	// says it was made after now was made by another clock, and that says nothing.
	if again && h.Published.After(since) && !h.Published.After(now) {
		since = h.Published
	}
	at := h.Hour.End().Add(p.FirstAfter)
	if again && since.Add(p.LateAfter).After(at) {
		at = since.Add(p.LateAfter)
	}
	soon, why := time.Time{}, OnTime
	switch {
	case h.Expedited:
		soon, why = since.Add(p.LateAfter), Expedited
	case p.FarAhead(h.Hour, now):
		soon, why = since.Add(p.AheadAfter), FarAhead
	}
	if why != OnTime && soon.Before(at) {
		return soon, why
	}
	return at, OnTime
}

// FarAhead reports whether the hour begins so much later than now that no right clock gives it.
func (p Policy) FarAhead(h timegrid.Hour, now time.Time) bool { return h.Start().Sub(now) > p.Ahead }

// RetryWait is how long to wait after the nth failure in a row, counted from 1. jitter is 0 to 1.
func (p Policy) RetryWait(n int, jitter float64) time.Duration {
	return retry.Policy{Base: p.RetryBase, Cap: p.RetryMax}.Wait(n, jitter)
}

// clockStep is how far the clock may go back before that counts: smaller corrections are
// ordinary, and no wait is so long that they matter.
const clockStep = time.Minute

// Clock notices that the clock went back. Waits that were set before would last until the
// clock is again where it was, which may be a year.
type Clock struct{ last time.Time }

// Observe takes the present time, and gives how far the clock went back since the call before;
// 0 when it did not.
func (c *Clock) Observe(now time.Time) time.Duration {
	now = now.Round(0) // without the monotonic reading, which never goes back
	back := c.last.Sub(now)
	c.last = now
	if back > clockStep {
		return back
	}
	return 0
}
