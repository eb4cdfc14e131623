package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// Readiness says whether a service can do its work now, part by part: its store, its coordinator, the
// completeness of its data. docs/guide/readiness.md has the parts.
type Readiness struct {
	log *slog.Logger

	mu    sync.Mutex
	parts []*Part
}

// Part is one thing that a service needs to do its work.
type Part struct {
	name  string
	check func() error // nil: what Report was given last counts
	r     *Readiness

	// Guarded by r.mu.
	err      error
	since    time.Time // of the present state
	failures int       // reports in a row
	good     int
	ever     bool // it was ready once
}

// PartStatus is a part as /-/ready shows it.
type PartStatus struct {
	Part  string    `json:"part"`
	Ready bool      `json:"ready"`
	Since time.Time `json:"since"`
	Error string    `json:"error,omitempty"`
}

// A probed part changes its state only after several equal results, so that one slow request changes
// nothing.
const (
	failuresToFail  = 2
	successesToHeal = 2

	probeInterval = 5 * time.Second
	probeAgain    = time.Second            // while it fails
	probeAtStart  = 200 * time.Millisecond // until it has answered once
	probeTimeout  = 3 * time.Second
)

var errNotProbed = errors.New("it was not asked yet")

// NewReadiness has no parts, and is ready.
func NewReadiness(log *slog.Logger) *Readiness { return &Readiness{log: log} }

// Check adds a part whose state fn gives; fn is called for every request of the state.
func (r *Readiness) Check(name string, fn func() error) {
	r.add(&Part{name: name, check: fn, since: time.Now()})
}

// Probed adds a part whose state follows from reports; it is not ready before the first
// good one.
func (r *Readiness) Probed(name string) *Part {
	return r.add(&Part{name: name, err: errNotProbed, since: time.Now()})
}

func (r *Readiness) add(p *Part) *Part {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.r = r
	r.parts = append(r.parts, p)
	return p
}

// Report takes the outcome of a probe.
func (p *Part) Report(err error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if err != nil {
		p.failures, p.good = p.failures+1, 0
		// Before the first success a part is not ready anyway, so every error updates the reason.
		if p.failures >= failuresToFail || !p.ever {
			p.set(err)
		}
		return
	}
	p.failures, p.good = 0, p.good+1
	if p.good >= successesToHeal || !p.ever {
		p.ever = true
		p.set(nil)
	}
}

// set changes the state; it logs each change once.
func (p *Part) set(err error) {
	// Only the change of state is logged: the text of an error may differ with each probe.
	changed := (err == nil) != (p.err == nil)
	p.err = err
	if !changed {
		return
	}
	p.since = time.Now()
	if err != nil {
		p.r.log.Warn("not ready", "part", p.name, "error", err)
		return
	}
	p.r.log.Info("ready again", "part", p.name)
}

// Probe asks fn, with a deadline, until ctx ends.
func (p *Part) Probe(ctx context.Context, fn func(context.Context) error) error {
	for {
		pctx, cancel := context.WithTimeout(ctx, probeTimeout)
		err := fn(pctx)
		cancel()
		// The service is ending: the cancelled probe says nothing about the part.
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.Report(err)
		if err := (WallClock{}).Sleep(ctx, p.wait(err != nil)); err != nil {
			return err
		}
	}
}

// wait before the next probe.
func (p *Part) wait(failed bool) time.Duration {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	switch {
	case !p.ever:
		return probeAtStart
	case failed || p.err != nil:
		return probeAgain
	}
	return probeInterval
}

// Status gives every part.
func (r *Readiness) Status() []PartStatus {
	r.mu.Lock()
	// A copy of the slice, so that checks run without the lock: a check may be slow or report to another
	// part.
	parts := r.parts
	r.mu.Unlock()
	out := make([]PartStatus, len(parts))
	for i, p := range parts {
		var err error
		if p.check != nil {
			err = p.check() // it may take locks of its own
		}
		r.mu.Lock()
		if p.check != nil {
			p.set(err)
		}
		out[i] = PartStatus{Part: p.name, Ready: p.err == nil, Since: p.since}
		if p.err != nil {
			out[i].Error = p.err.Error()
		}
		r.mu.Unlock()
	}
	return out
}

// Err names the first part that is not ready; nil when all are.
func (r *Readiness) Err() error {
	for _, s := range r.Status() {
		if !s.Ready {
			return fmt.Errorf("%s since %s: %s", s.Part, s.Since.UTC().Format(time.RFC3339), s.Error)
		}
	}
	return nil
}

// Watch calls fn every second with whether the service is ready, until ctx ends.
func (r *Readiness) Watch(ctx context.Context, fn func(ready bool)) error {
	for {
		fn(r.Err() == nil)
		if err := (WallClock{}).Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// ServeHTTP answers 200 or 503, with the state of every part.
func (r *Readiness) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	parts, code := r.Status(), http.StatusOK
	for _, s := range parts {
		if !s.Ready {
			code = http.StatusServiceUnavailable
		}
	}
	web.WriteJSON(w, code, map[string]any{"ready": code == http.StatusOK, "parts": parts})
}
