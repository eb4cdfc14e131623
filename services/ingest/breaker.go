package ingest

import (
	"sync"
	"time"
)

const (
	// breakerFailures is how many calls in a row the linearizer leaves without an answer before it is not asked any more.
	breakerFailures = 3
	// breakerProbe is the shortest time between the calls that find out whether it is back.
	breakerProbe = 500 * time.Millisecond
)

// breaker decides whether the identity linearizer is asked: after some calls in a row without an answer only one call at a time is, until
// one has an answer. So senders are told to try again at once, and go to a region that reaches the linearizer, where each would have
// waited for a call of its own. It has no clock: callers say what time it is. It is safe for concurrent use.
type breaker struct {
	mu sync.Mutex
	// failures since the last answer, of calls that began after it.
	failures int
	answers  uint64
	probing  bool
	// due is when the next probe may begin.
	due time.Time
}

// permit is leave to make one call, which ends with answered, failed or left.
type permit struct {
	answers uint64 // that there had been when the call began
	probe   bool
}

// ask gives leave to make a call, or says that it is not worth making.
func (b *breaker) ask(now time.Time) (permit, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := permit{answers: b.answers}
	if b.failures < breakerFailures {
		return p, true
	}
	if b.probing || now.Before(b.due) {
		return p, false
	}
	b.probing, p.probe = true, true
	return p, true
}

// allows reports whether ask would give leave now.
func (b *breaker) allows(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures < breakerFailures || !b.probing && !now.Before(b.due)
}

// answered notes that the linearizer has answered a call, whatever the answer was.
func (b *breaker) answered(p permit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(p)
	b.answers++
	b.failures = 0
}

// failed notes that a call had no answer.
func (b *breaker) failed(p permit, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(p)
	// It began before the last answer, so it may have met what has passed since.
	if p.answers != b.answers {
		return
	}
	opens := false
	if b.failures < breakerFailures {
		b.failures++
		opens = b.failures == breakerFailures
	}
	// Calls that began before it opened and end now say nothing new.
	if opens || p.probe {
		b.due = now.Add(breakerProbe)
	}
}

// left notes that a call ended without saying anything of the linearizer: its caller did not wait, or it was never sent. A probe is made
// again, and not at once: it may have waited behind calls that hang.
func (b *breaker) left(p permit, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(p)
	if p.probe && b.failures >= breakerFailures {
		b.due = now.Add(breakerProbe)
	}
}

// end lets another probe begin; the caller holds the lock.
func (b *breaker) end(p permit) {
	if p.probe {
		b.probing = false
	}
}

// open reports whether calls are held back.
func (b *breaker) open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures >= breakerFailures
}
