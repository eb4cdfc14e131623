package all

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// member is one service of the group.
type member struct {
	name string
	spec proc.Spec
	// grace is how long it may take to drain before it is killed.
	grace time.Duration
}

// Restart policy of a member that ends by itself.
const (
	firstRestart = time.Second
	lastRestart  = 30 * time.Second
	// steady is how long a member has to run before its back-off starts from the beginning.
	steady = time.Minute
	// readyWait is how long the start of the group waits for each member. A member that is not ready
	// by then (a slow disk, a rebuild of an index) continues to start beside the next ones.
	readyWait = time.Minute
)

// group starts members in order, restarts those that end, and stops them in reverse order. A member
// that sends is stopped before the one that receives, so each drains into one that still runs.
type group struct {
	members []member
	// event is called with what happens to a member: its name, the event, and an error or nil.
	event func(name, what string, err error)

	mu      sync.Mutex
	running map[string]*proc.Process
}

func newGroup(members []member, event func(name, what string, err error)) *group {
	return &group{members: members, event: event, running: map[string]*proc.Process{}}
}

// run starts the members and keeps them running until ctx ends, or until a member refuses its
// settings at its first start, which no restart would change. started is called once every member
// was started and is ready, or has had its time to become ready.
func (g *group) run(ctx context.Context, started func()) error {
	var wg sync.WaitGroup
	// Room for an error of each member, so that no keeper waits for ever when the first error has ended
	// the loop.
	fatal := make(chan error, len(g.members))
	keepers := make([]context.CancelFunc, 0, len(g.members))
	ends := make([]chan struct{}, 0, len(g.members))
	var err error
	for _, m := range g.members {
		// Each keeper has its own cancel and does not end with ctx, so that the group decides the order
		// in which the members stop.
		kctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		ready, end := make(chan struct{}), make(chan struct{})
		keepers, ends = append(keepers, cancel), append(ends, end)
		wg.Go(func() {
			defer close(end)
			if err := g.keep(kctx, m, sync.OnceFunc(func() { close(ready) })); err != nil {
				fatal <- err
			}
		})
		select {
		case <-ready:
		case <-time.After(readyWait):
			g.event(m.name, "is not ready yet; starting the next ones", nil)
		case err = <-fatal:
		case <-ctx.Done():
		}
		if err != nil || ctx.Err() != nil {
			break
		}
	}
	if err == nil && ctx.Err() == nil {
		started()
		select {
		case err = <-fatal:
		case <-ctx.Done():
		}
	}
	// One after the other and in reverse: a service that others call stops after its callers, which can so
	// finish what they have begun.
	for i := range slices.Backward(keepers) {
		keepers[i]()
		<-ends[i]
	}
	wg.Wait()
	return err
}

// keep runs one member and restarts it when it ends, until ctx ends; then it stops it. ready is
// called when the member is ready. The only error is that of a member that refuses its settings at
// its first start. A member that refuses them later has run with others before: somebody is changing
// a file, and the other members must not stop because of that.
func (g *group) keep(ctx context.Context, m member, ready func()) error {
	backoff := run.NewBackoff(firstRestart, lastRestart)
	for first := true; ; first = false {
		began := time.Now()
		p, err := proc.Start(m.spec)
		if err == nil {
			g.set(m.name, p)
			g.event(m.name, fmt.Sprintf("started, pid %d", p.Pid()), nil)
			err = g.watch(ctx, p, m, ready)
			g.set(m.name, nil)
		}
		if ctx.Err() != nil {
			return nil
		}
		if code := exitCode(err); code == cli.ExitUsage && first {
			return fmt.Errorf("%s refuses its settings: %w", m.name, err)
		}
		// Only a member that ran for a while gets the short wait again; one that fails at every start must
		// not be restarted in a tight loop.
		if time.Since(began) > steady {
			backoff.Reset()
		}
		wait := backoff.Next()
		g.event(m.name, fmt.Sprintf("ended; starting it again in %s", wait.Round(time.Millisecond)), err)
		if run.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// watch waits until the member ends, or until ctx ends; then it stops the member.
func (g *group) watch(ctx context.Context, p *proc.Process, m member, ready func()) error {
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if p.Ready(rctx) == nil {
			ready()
		}
	}()
	select {
	case <-p.Exited():
		return p.Wait()
	case <-ctx.Done():
	}
	g.event(m.name, "stopping", nil)
	// Stop kills the member after its grace, so a member that hangs cannot hold up those before it for
	// ever.
	err := p.Stop(m.grace)
	g.event(m.name, "stopped", err)
	return err
}

func (g *group) set(name string, p *proc.Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p == nil {
		delete(g.running, name)
		return
	}
	g.running[name] = p
}

// reload sends SIGHUP to every running member.
func (g *group) reload() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for name, p := range g.running {
		// A member that is just ending is started again with the new files anyway.
		if err := p.Signal(syscall.SIGHUP); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, fmt.Errorf("reload %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// exitCode gives the exit status in a child's error; 0 for other errors.
func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return 0
}
