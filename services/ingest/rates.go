package ingest

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// rates limits the batches of each agent. Only so many agents are remembered: the
// one that sent least recently is forgotten, which can only let it send more.
type rates struct {
	limit rate.Limit
	burst int
	most  int
	now   func() time.Time

	mu     sync.Mutex
	recent *list.List // of *agentRate, most recent first
	byID   map[string]*list.Element
}

type agentRate struct {
	agent   string
	limiter *rate.Limiter
}

func newRates(perSecond float64, burst, most int, now func() time.Time) *rates {
	return &rates{limit: rate.Limit(perSecond), burst: burst, most: most, now: now,
		recent: list.New(), byID: map[string]*list.Element{}}
}

// take counts one batch of the agent; false with the time to wait when it is one too many.
func (r *rates) take(agent string) (time.Duration, bool) {
	limiter := r.of(agent)
	if limiter == nil {
		return 0, true
	}
	now := r.now()
	res := limiter.ReserveN(now, 1)
	wait := res.DelayFrom(now)
	if wait > 0 {
		res.CancelAt(now)
		return wait, false
	}
	return 0, true
}

// set changes the rate of every agent; 0 is unlimited.
func (r *rates) set(perSecond float64, burst int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit, r.burst = rate.Limit(perSecond), burst
	now := r.now()
	for e := r.recent.Front(); e != nil; e = e.Next() {
		l := e.Value.(*agentRate).limiter
		l.SetLimitAt(now, r.limit)
		l.SetBurstAt(now, burst)
	}
}

// of is the agent's limiter; nil when there is no limit.
func (r *rates) of(agent string) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limit <= 0 {
		return nil
	}
	if e, ok := r.byID[agent]; ok {
		r.recent.MoveToFront(e)
		return e.Value.(*agentRate).limiter
	}
	if r.recent.Len() >= r.most {
		last := r.recent.Back()
		delete(r.byID, last.Value.(*agentRate).agent)
		r.recent.Remove(last)
	}
	a := &agentRate{agent, rate.NewLimiter(r.limit, r.burst)}
	r.byID[agent] = r.recent.PushFront(a)
	return a.limiter
}
