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
	if r.limit <= 0 {
		return 0, true
	}
	now := r.now()
	res := r.of(agent).ReserveN(now, 1)
	wait := res.DelayFrom(now)
	if wait > 0 {
		res.CancelAt(now)
		return wait, false
	}
	return 0, true
}

func (r *rates) of(agent string) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
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
