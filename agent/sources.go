package agent

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// sources are the running inputs. A reload replaces them while the agent runs.
type sources struct {
	env  input.Env
	sink input.Sink

	mu     sync.Mutex
	group  *run.Group // of the running agent
	active []*activeSource
}

type activeSource struct {
	spec    input.Spec
	source  input.Source
	stop    context.CancelCauseFunc // nil before it runs
	stopped chan struct{}
}

// InputStatus is one source of the agent.
type InputStatus struct {
	// Input is the kind, such as "scrape"; Name tells the sources of a kind apart.
	Input string `json:"input"`
	Name  string `json:"name"`
	input.Status
}

// status lists all of them, in the order of the settings.
func (s *sources) status() []InputStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]InputStatus, 0, len(s.active))
	for _, a := range s.active {
		out = append(out, InputStatus{Input: a.spec.Kind, Name: a.spec.Name, Status: a.source.Status()})
	}
	return out
}

// certFiles lists the files of the client certificates that the sources present.
func (s *sources) certFiles() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, a := range s.active {
		out = append(out, a.spec.CertFiles...)
	}
	return out
}

// start runs all of them in the group.
func (s *sources) start(g *run.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.group = g
	for _, a := range s.active {
		s.run(a)
	}
}

func (s *sources) run(a *activeSource) {
	ctx, stop := context.WithCancelCause(s.group.Context())
	a.stop, a.stopped = stop, make(chan struct{})
	s.group.Go("input "+a.spec.Kind, func(context.Context) error {
		defer close(a.stopped)
		defer stop(nil)
		return a.source.Run(ctx, s.sink)
	})
}

// replace changes to other specs. A source with equal settings continues without a gap; one that
// is gone stops and marks its series as stale. On an error nothing changes.
func (s *sources) replace(specs []input.Spec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := append([]*activeSource(nil), s.active...)
	next := make([]*activeSource, 0, len(specs))
	for _, spec := range specs {
		a, err := s.keepOrMake(spec, &old)
		if err != nil {
			return fmt.Errorf("%s %s: %w", spec.Kind, spec.Name, err)
		}
		next = append(next, a)
	}
	// Every new source could be made, so from here on nothing fails. A source is stopped
	// before its replacement starts, or both would send samples of the same series.
	for _, gone := range old {
		if gone.stop != nil {
			gone.stop(input.ErrRemoved)
			<-gone.stopped
		}
	}
	for _, a := range next {
		if a.stop == nil && s.group != nil {
			s.run(a)
		}
	}
	s.active = next
	return nil
}

// keepOrMake removes the source with the spec's settings from old and returns it, or makes a new
// one.
func (s *sources) keepOrMake(spec input.Spec, old *[]*activeSource) (*activeSource, error) {
	for i, a := range *old {
		// Compared by settings and not by name, so that a changed target is replaced.
		if a.spec.Kind == spec.Kind && reflect.DeepEqual(a.spec.Settings, spec.Settings) {
			*old = append((*old)[:i:i], (*old)[i+1:]...)
			return a, nil
		}
	}
	source, err := spec.New(s.env)
	if err != nil {
		return nil, err
	}
	return &activeSource{spec: spec, source: source}, nil
}

// Reload takes the inputs and the collectors of new settings, which are valid. An error leaves both as they were.
func (a *Agent) Reload(c Config) error {
	var specs []input.Spec
	for _, in := range c.Inputs.all() {
		specs = append(specs, in.Specs(c.Interval)...)
	}
	// What the sender refuses is known before the inputs change, and what it takes is not undone by theirs.
	if err := a.sender.CheckReload(c.Send); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err := a.sources.replace(specs); err != nil {
		return err
	}
	return a.sender.Reload(c.Send)
}
