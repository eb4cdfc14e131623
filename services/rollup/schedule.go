package rollup

import (
	"errors"
	"math/rand/v2"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// early says why an hour is rolled up before its time.
type early string

const (
	onTime early = ""
	// isAhead: the hour lies so far ahead that some agent's clock is wrong, or ours. Its
	// batches would be pending for hours or years.
	isAhead early = "ahead"
	// isCrowded: there is no room for more pending batches.
	isCrowded early = "crowded"
)

// dueAt is when the hour's next generation is to be made. What was begun is finished at
// once. What is made early is a generation like any other: what comes later, and the
// hour's end, make the next ones.
func (o *owner) dueAt(w *hourWork, pub *published) (time.Time, early) {
	c := o.s.cfg.Schedule
	if pub.unfinished() {
		return time.Time{}, onTime
	}
	now, since, block := o.s.now(), w.since, pub.sets[timegrid.Raw]
	if block != nil {
		// One that says it was made after now is of another clock, and says nothing.
		if at := time.Unix(0, block.CreatedAt); at.After(since) && !at.After(now) {
			since = at
		}
	}
	at := w.hour.End().Add(c.FirstAfter)
	if block != nil && since.Add(c.LateAfter).After(at) {
		at = since.Add(c.LateAfter)
	}
	soon, why := time.Time{}, onTime
	switch {
	case w.crowded:
		soon, why = since.Add(c.LateAfter), isCrowded
	case o.ahead(w.hour, now):
		soon, why = since.Add(c.AheadAfter), isAhead
	}
	if why != onTime && soon.Before(at) {
		return soon, why
	}
	return at, onTime
}

// ahead: the hour begins so much later than now that no clock that is right gives it.
func (o *owner) ahead(h timegrid.Hour, now time.Time) bool {
	return h.Start().Sub(now) > o.s.cfg.Schedule.Ahead
}

// failed puts the hour off, the longer the more often it failed.
func (o *owner) failed(w *hourWork, err error) {
	w.fails++
	w.next = o.s.now().Add(o.s.retryWait(w.fails))
	if isStuck(err) {
		w.stuck++
	} else {
		w.stuck = 0
	}
}

// retryWait is how long to wait after the nth failure in a row, counted from 1.
func (s *Service) retryWait(n int) time.Duration {
	c := s.cfg.Schedule
	return retry.Policy{Base: c.RetryBase, Cap: c.RetryMax}.Wait(n, rand.Float64())
}

// isStuck: the store answers, and what it holds does not let the hour be rolled up. Only
// somebody who brings a frame or an object back can mend that.
func isStuck(err error) bool {
	var frame *UnreadableError
	var records *rollup.ConservationError
	return errors.As(err, &frame) || errors.As(err, &records) || record.Opaque(err) || errors.Is(err, objstore.ErrNotFound)
}

// clockStep is how far the clock may go back between two rounds before that is noticed.
const clockStep = time.Minute

// watchClock forgets all waits when the clock went back: they would last until it is
// again where it was.
func (o *owner) watchClock() {
	now := o.s.now().Round(0)
	if back := o.seen.Sub(now); back > clockStep {
		o.s.m.clockSteps.Inc()
		o.s.log.Warn("the clock went back; nothing waits for where it was", "shard", o.grant.Shard, "by", back)
		for _, w := range o.log.hours {
			w.next = time.Time{}
			if w.since.After(now) {
				w.since = now
			}
		}
		for id, out := range o.out {
			out.until = time.Time{}
			o.out[id] = out
		}
		for _, ord := range o.orders {
			ord.next = time.Time{}
		}
		o.listed = time.Time{}
		if o.looked.After(now) {
			o.looked = now
		}
	}
	o.seen = now
}
