package robustness

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// round is one kill: at the nth hit of a point.
type round struct {
	point string
	nth   int
}

// lane kills one process at its points, one after the other. Its process is armed with
// the next point as it comes back from the last one, so each recovery runs into the next fault.
type lane struct {
	process string // as in the name of its log
	rounds  []round
	p       **proc.Process
	start   func(context.Context) error
	// prepare makes a point reachable, for which nobody else may start. May be nil.
	prepare func(context.Context) error
	needs   func(point string) bool
	// starts is held by whoever starts a process of this kind.
	starts *sync.RWMutex
	log    func(string, ...any)

	mu    sync.Mutex
	armed string // for the environment of the next start
}

func (l *lane) arm(spec string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = spec
}

func (l *lane) env() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.armed == "" {
		return nil
	}
	return []string{failpoint.Env + "=" + l.armed}
}

// run kills the process at each of the rounds. It gives what went wrong and ends with a
// clean process.
func (l *lane) run(ctx context.Context, rounds []round) error {
	var errs []error
	if *l.p != nil {
		cluster.Kill(l.p)
	}
	for _, r := range rounds {
		began := time.Now()
		err := l.round(ctx, r)
		if took := time.Since(began); took > slow {
			l.log("%s at hit %d took %v", r.point, r.nth, took.Round(time.Millisecond))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s at hit %d: %w", r.point, r.nth, err))
		}
	}
	l.arm("")
	return errors.Join(append(errs, l.startShared(ctx))...)
}

func (l *lane) startShared(ctx context.Context) error {
	l.starts.RLock()
	defer l.starts.RUnlock()
	return l.start(ctx)
}

// round starts the armed process and waits for its death. A process that dies before it
// is ready reached its point on the way.
func (l *lane) round(ctx context.Context, r round) error {
	l.arm(fmt.Sprintf("%s=%s@%d", r.point, failpoint.Kill, r.nth))
	start := l.startShared
	if l.prepare != nil && l.needs(r.point) {
		// Another one of its kind would undo it.
		l.starts.Lock()
		defer l.starts.Unlock()
		if err := l.prepare(ctx); err != nil {
			return err
		}
		start = l.start
	}
	ctx, cancel := context.WithTimeout(ctx, reachedWithin)
	defer cancel()
	readyErr := start(ctx)
	p := *l.p
	if p == nil {
		return readyErr
	}
	defer func() { *l.p = nil }()
	select {
	case <-p.Exited():
	case <-ctx.Done():
		p.Kill()
		return errors.Join(errors.New("was not reached"), readyErr)
	}
	var e *exec.ExitError
	if err := p.Wait(); !errors.As(err, &e) || e.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		return fmt.Errorf("ended with %v, not by SIGKILL\n%s", err, p.Tail(10))
	}
	if said := fmt.Sprintf("failpoint %s: kill at hit %d", r.point, r.nth); !strings.Contains(p.Tail(3), said) {
		return fmt.Errorf("died without saying so\n%s", p.Tail(10))
	}
	return nil
}
