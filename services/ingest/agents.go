package ingest

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/internal/rollups/sketch"
)

// agents bounds what each agent sends: the rate of its batches and the number of its
// series. It keeps the state of limits.agents_tracked agents, those that sent last. An agent
// whose state was dropped can only send more than its limits for a while.
type agents struct {
	now    func() time.Time
	series seriesLimit
	recent *lru.Cache[string, *agent]

	mu    sync.Mutex
	limit rate.Limit // batches a second of one agent; 0 is unlimited
	burst int
}

// seriesLimit is the most series of one agent within one to two windows; most 0 is unlimited.
type seriesLimit struct {
	most   int
	window time.Duration
}

type agent struct {
	limiter *rate.Limiter // nil before the first batch under a limit; guarded by agents.mu
	series  activeSeries
}

func newAgents(l Limits, now func() time.Time) *agents {
	return &agents{
		now: now, limit: rate.Limit(l.AgentBatchesPerSec), burst: l.AgentBatchesBurst,
		series: seriesLimit{l.AgentSeries, l.SeriesWindow},
		recent: lru.New[string, *agent](int64(l.AgentsTracked)),
	}
}

// of returns the state of an agent, which it creates if needed.
func (a *agents) of(name string) *agent {
	return a.recent.GetOrPut(name, 1, func() *agent { return &agent{} })
}

// takeBatch counts one batch of the agent. If that exceeds its rate, it returns false and the time to wait.
func (a *agents) takeBatch(name string) (time.Duration, bool) {
	limiter := a.limiter(name)
	if limiter == nil {
		return 0, true
	}
	now := a.now()
	res := limiter.ReserveN(now, 1)
	wait := res.DelayFrom(now)
	if wait > 0 {
		// The batch is refused, so it must not use up the allowance of the next one.
		res.CancelAt(now)
		return wait, false
	}
	return 0, true
}

// limiter returns the agent's limiter; nil if there is no limit.
func (a *agents) limiter(name string) *rate.Limiter {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limit <= 0 {
		return nil
	}
	one := a.of(name)
	if one.limiter == nil {
		one.limiter = rate.NewLimiter(a.limit, a.burst)
	}
	return one.limiter
}

// setRate changes the rate of every agent; 0 is unlimited.
func (a *agents) setRate(perSecond float64, burst int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limit, a.burst = rate.Limit(perSecond), burst
	now := a.now()
	for _, one := range a.recent.Values() {
		if one.limiter != nil {
			one.limiter.SetLimitAt(now, a.limit)
			one.limiter.SetBurstAt(now, burst)
		}
	}
}

// takeSeries counts the series of a batch for the agent. If there would be more than the
// limit, it counts nothing and returns their estimated number. A batch without a new series
// always passes, so an agent at its limit can still send the series that it has.
func (a *agents) takeSeries(name string, seen *sketch.Sketch) (estimate int, ok bool) {
	if a.series.most <= 0 {
		return 0, true
	}
	return a.of(name).series.take(seen, a.series, a.now())
}

// atSeriesLimit counts the agents that had a batch refused for its series within the last window.
func (a *agents) atSeriesLimit() int {
	n, now := 0, a.now()
	for _, one := range a.recent.Values() {
		if one.series.refusedSince(now.Add(-a.series.window)) {
			n++
		}
	}
	return n
}
