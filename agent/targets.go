package agent

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"lightmetrics.dev/lightmetrics/agent/input/scrape"
	"lightmetrics.dev/lightmetrics/pkg/run"
)

// targets are the scrape targets, which a reload exchanges while the agent runs.
type targets struct {
	mu     sync.Mutex
	group  *run.Group // of the running agent
	active []*activeTarget
}

type activeTarget struct {
	target  scrape.Target
	scraper *scrape.Scraper
	stop    context.CancelFunc
	stopped chan struct{}
}

// scraping are the targets' scrapers.
func (t *targets) scraping() []*scrape.Scraper {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*scrape.Scraper, 0, len(t.active))
	for _, a := range t.active {
		out = append(out, a.scraper)
	}
	return out
}

// settings are the targets' own, as the last reload left them.
func (t *targets) settings() []scrape.Target {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]scrape.Target, 0, len(t.active))
	for _, a := range t.active {
		out = append(out, a.target)
	}
	return out
}

// start begins to scrape all targets in the group.
func (t *targets) start(g *run.Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.group = g
	for _, a := range t.active {
		t.run(a)
	}
}

func (t *targets) run(a *activeTarget) {
	ctx, stop := context.WithCancel(t.group.Context())
	a.stop, a.stopped = stop, make(chan struct{})
	t.group.Go("scrape", func(context.Context) error {
		defer close(a.stopped)
		defer stop()
		return a.scraper.Run(ctx)
	})
}

// Reload takes the scrape targets of new settings: those that are as before go on without
// a gap, the series of those that are gone end. An error changes nothing.
func (a *Agent) Reload(c Config) error {
	a.targets.mu.Lock()
	defer a.targets.mu.Unlock()
	old := append([]*activeTarget(nil), a.targets.active...)
	next := make([]*activeTarget, 0, len(c.Scrape))
	for _, target := range c.Scrape {
		at, err := a.sameOrNew(target.WithDefaults(c.Interval), &old)
		if err != nil {
			return fmt.Errorf("scrape: %w", err)
		}
		next = append(next, at)
	}
	for _, gone := range old {
		if gone.stop == nil {
			continue // never started
		}
		gone.stop()
		<-gone.stopped
		gone.scraper.EndSeries()
	}
	for _, at := range next {
		if at.stop == nil && a.targets.group != nil {
			a.targets.run(at)
		}
	}
	a.targets.active = next
	return nil
}

// sameOrNew takes the target out of those that are there, or makes one.
func (a *Agent) sameOrNew(target scrape.Target, old *[]*activeTarget) (*activeTarget, error) {
	for i, at := range *old {
		if reflect.DeepEqual(at.target, target) {
			*old = append((*old)[:i:i], (*old)[i+1:]...)
			return at, nil
		}
	}
	s, err := scrape.New(target, a.inputs.Push, a.log, a.now)
	if err != nil {
		return nil, err
	}
	return &activeTarget{target: target, scraper: s}, nil
}
