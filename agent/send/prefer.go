package send

import (
	"math/rand/v2"
	"time"
)

// List is one of the two lists of collectors.
type List string

// The lists.
const (
	// Preferred is the list of Config.Collectors.
	Preferred List = "preferred"
	// Fallback is Config.Fallback.
	Fallback List = "fallback"
)

// preference decides which of the two lists of collectors is used: when the fallback may be tried, and when the preferred list is
// gone back to. It has no clock and starts nothing: callers say what time it is and what they saw. As waits, it belongs to the
// sender's loop, and to the session that the loop waits for.
//
// Leaving is slow by FallbackAfter, so that a collector that restarts sends nobody to another region. Going back is slower: probes
// must have succeeded for a while without one that failed, and a batch must have been accepted. The while has jitter, because all
// agents of a region that is back would return at once otherwise; and it doubles each time that it was too short, so that a
// region which comes and goes is left alone.
type preference struct {
	cfg Config
	// random is between 0 and 1.
	random func() float64

	// failing is when preferred collectors began to give no answers, and leaving when the fallback may be tried for it; zero while
	// one gives answers.
	failing, leaving time.Time
	// away is when a fallback collector began to be used; zero on the preferred list.
	away time.Time
	// back is when the preferred list was gone back to last; zero before the first time.
	back time.Time
	// wait is ReturnAfter, doubled each time that it was too short.
	wait time.Duration
	// steady is since when each probe has succeeded; zero without one. The trial is due at steadyUntil.
	steady, steadyUntil time.Time
	// next is when the next probe is due.
	next time.Time
}

func newPreference(cfg Config) *preference {
	return &preference{cfg: cfg, random: rand.Float64, wait: cfg.ReturnAfter}
}

// configure takes other settings. Times that are shorter now hold at once.
func (p *preference) configure(now time.Time, cfg Config) {
	if p.wait == p.cfg.ReturnAfter {
		p.wait = cfg.ReturnAfter // it was not doubled
	}
	p.cfg = cfg
	p.wait = min(max(p.wait, cfg.ReturnAfter), cfg.ReturnMax)
	if at := now.Add(p.interval()); at.Before(p.next) {
		p.next = at
	}
}

// list is the one in use.
func (p *preference) list() List {
	if p.away.IsZero() {
		return Preferred
	}
	return Fallback
}

// answered notes that a preferred collector gave a final answer.
func (p *preference) answered() { p.failing, p.leaving = time.Time{}, time.Time{} }

// failed notes that a session with a preferred collector ended without an answer.
func (p *preference) failed(now time.Time) {
	if p.failing.IsZero() {
		// All streams of a collector that is killed end at the same time.
		p.failing, p.leaving = now, now.Add(p.cfg.FallbackAfter+time.Duration(p.random()*float64(p.cfg.FallbackAfter)/2))
	}
	p.restart()
}

// fallbackAt is when the fallback may be tried, if each preferred collector was tried in vain; zero while they give answers.
func (p *preference) fallbackAt() time.Time {
	if !p.away.IsZero() {
		return p.away // it is in use
	}
	return p.leaving
}

// exhausted reports whether a preferred collector need not be tried again before the fallback is: the last attempt ended when it was
// time, or was silent for so long that it would have been. One that failed sooner may be restarting.
func (p *preference) exhausted(t *target) bool {
	return t.failed && (!t.ended.Before(p.leaving) || t.silent >= p.cfg.FallbackAfter)
}

// tryBefore shortens the back-off of a preferred collector until at, so that it is tried once more before the fallback is.
func (p *preference) tryBefore(t *target, now, at time.Time) time.Time {
	if t.list != Preferred || len(p.cfg.Fallback) == 0 || !p.away.IsZero() || p.leaving.IsZero() || p.exhausted(t) {
		return at
	}
	latest := p.leaving
	if latest.Before(now) {
		latest = now
	}
	if latest.Before(at) {
		return latest
	}
	return at
}

// leave notes that a fallback collector is used.
func (p *preference) leave(now time.Time) {
	if !p.away.IsZero() {
		return
	}
	p.away = now
	switch {
	case p.back.IsZero() || now.Sub(p.back) >= p.cfg.ReturnMax:
		p.wait = p.cfg.ReturnAfter
	default: // the preferred collectors did not last
		p.lengthen()
	}
	p.restart()
	p.next = now.Add(p.interval())
}

// arrive notes that a preferred collector is used.
func (p *preference) arrive(now time.Time) {
	p.answered()
	if p.away.IsZero() {
		return
	}
	p.away, p.back = time.Time{}, now
	p.restart()
}

// reset begins with the preferred list, as at the start.
func (p *preference) reset() {
	p.answered()
	p.restart()
	p.away, p.back, p.wait = time.Time{}, time.Time{}, p.cfg.ReturnAfter
}

// isSteady: the last probe succeeded.
func (p *preference) isSteady() bool { return !p.steady.IsZero() }

// probed notes how a probe ended.
func (p *preference) probed(now time.Time, ok bool) {
	p.next = now.Add(p.interval())
	switch {
	case !ok:
		p.restart()
	case p.steady.IsZero():
		p.steady = now
		p.steadyUntil = now.Add(p.wait + time.Duration(p.random()*float64(p.wait)))
	}
}

// tryDue reports whether probes have succeeded for long enough, so that a batch may be tried.
func (p *preference) tryDue(now time.Time) bool {
	return !p.steady.IsZero() && !now.Before(p.steadyUntil)
}

// tried notes that a preferred collector which welcomed did not accept a batch.
func (p *preference) tried() {
	p.lengthen()
	p.restart()
}

func (p *preference) lengthen() { p.wait = min(2*p.wait, p.cfg.ReturnMax) }
func (p *preference) restart()  { p.steady, p.steadyUntil = time.Time{}, time.Time{} }

// interval is the time to the next probe: half to one and a half times the setting.
func (p *preference) interval() time.Duration {
	return time.Duration((0.5 + p.random()) * float64(p.cfg.ReturnInterval))
}
