package robustness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/cluster"
	"lightmetrics.dev/lightmetrics/internal/load"
	"lightmetrics.dev/lightmetrics/internal/proc"
	"lightmetrics.dev/lightmetrics/pkg/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/layout"
)

// reachedWithin is how long the load may take to reach a point.
const reachedWithin = 20 * time.Second

// slow rounds are told of.
const slow = 3 * time.Second

// once are the points that a process reaches only once, or seldom: they are armed for
// the first hit both times.
var once = []string{
	"objectstore.open.", "agent.queue.recover.", "ingest.start.", "ingest.qualify.", "ingest.store.get.authority.",
	"ingest.store.create.authority.", "reconciler.store.get.authority.", "agent.send.hello.", "agent.send.welcome.",
	"agent.queue.roll.", "agent.queue.reclaim.", "agent.queue.aside.", "agent.send.park.", "objectstore.log.roll.",
	"objectstore.reclaim.", "objectstore.index.flush.",
}

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
	// prepare makes a point reachable; undone by the returned function. May be nil.
	prepare func(context.Context, string) error
	log     func(string, ...any)

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

// run is the lane's loop. It gives what went wrong and ends with a clean process.
func (l *lane) run(ctx context.Context) error {
	var errs []error
	cluster.Kill(l.p)
	for _, r := range l.rounds {
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
	return errors.Join(append(errs, l.start(ctx))...)
}

// round starts the armed process and waits for its death. A process that dies before it
// is ready reached its point on the way.
func (l *lane) round(ctx context.Context, r round) error {
	l.arm(fmt.Sprintf("%s=%s@%d", r.point, failpoint.Kill, r.nth))
	if l.prepare != nil {
		if err := l.prepare(ctx, r.point); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, reachedWithin)
	defer cancel()
	readyErr := l.start(ctx)
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

// roundsOf arms each point of a process twice.
func roundsOf(process string, points []string) (first, second []round) {
	for _, p := range points {
		if !strings.HasPrefix(p, process+".") {
			continue
		}
		nth := 3
		if slices.ContainsFunc(once, func(prefix string) bool { return strings.HasPrefix(p, prefix) }) {
			nth = 1
		}
		first, second = append(first, round{p, 1}), append(second, round{p, nth})
	}
	return first, second
}

// pointsOf are the points that the binary knows; POINTS keeps those that contain it.
func pointsOf(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command(bin, "failpoints").Output()
	must(t, err)
	var points []string
	for line := range strings.Lines(string(out)) {
		if name, _, ok := strings.Cut(line, " "); ok && strings.Contains(name, os.Getenv("POINTS")) {
			points = append(points, name)
		}
	}
	return points
}

// TestKillAtEveryFailpoint kills real processes with SIGKILL at every named failpoint
// twice, under load with duplicates and conflicts. First every process but the
// store, side by side; then the store, on which all others depend.
func TestKillAtEveryFailpoint(t *testing.T) {
	seed, rnd := seeded(t)
	lanes := map[string]*lane{}
	c := newCluster(t, cluster.Options{Collectors: 2, Env: func(process string) []string {
		if l := lanes[process]; l != nil {
			return l.env()
		}
		return nil
	}})
	ctx := within(t, 15*time.Minute)
	startAll(ctx, t, c)
	store, err := c.OpenStore(ctx)
	must(t, err)

	points := pointsOf(t)
	ingest1, ingest2 := roundsOf("ingest", points)
	ingest := func(i int, rounds []round) *lane {
		return &lane{process: fmt.Sprintf("collector-%d", i+1), rounds: rounds, p: &c.Collectors[i],
			start: func(ctx context.Context) error { return c.StartCollector(ctx, i) },
			prepare: func(ctx context.Context, point string) error {
				if !strings.HasPrefix(point, "ingest.store.create.authority.") {
					return nil
				}
				// Only a fresh bucket has none.
				return store.Delete(ctx, layout.AuthorityKey)
			}}
	}
	both := func(process string) []round {
		a, b := roundsOf(process, points)
		return append(a, b...)
	}
	others := []*lane{
		ingest(0, ingest1), ingest(1, ingest2),
		{process: "reconciler", rounds: both("reconciler"), p: &c.Reconciler, start: c.StartReconciler},
		{process: "query", rounds: both("query"), p: &c.Query, start: c.StartQuery},
		{process: "agent", rounds: both("agent"), p: &c.Agent, start: c.StartAgent},
	}
	objectstore := &lane{process: "objectstore", rounds: both("objectstore"), p: &c.Store, start: c.StartStore}
	total := 0
	for _, l := range append(others, objectstore) {
		lanes[l.process], l.log = l, t.Logf
		rnd.Shuffle(len(l.rounds), func(i, k int) { l.rounds[i], l.rounds[k] = l.rounds[k], l.rounds[i] })
		total += len(l.rounds)
	}
	if os.Getenv("POINTS") == "" && (total != 2*len(points) || len(points) < 60) {
		t.Fatalf("%d rounds for %d points", total, len(points))
	}

	f := load.StartFleet(ctx, c, load.FleetOptions{Seed: seed, Senders: 4, Rows: 5, Pause: 25 * time.Millisecond, BootBatches: 12, HTTPEvery: 4, Races: true})
	sc, err := startScratch(ctx, c, seed)
	must(t, err)
	clash := startClashes(ctx, c)
	began := time.Now()
	var wg sync.WaitGroup
	for _, l := range others {
		wg.Add(1)
		go func() {
			defer wg.Done()
			start := time.Now()
			if err := l.run(ctx); err != nil {
				t.Errorf("%s: %v", l.process, err)
			}
			t.Logf("%s: %d kills in %v", l.process, len(l.rounds), time.Since(start).Round(time.Millisecond))
		}()
	}
	wg.Wait()
	start := time.Now()
	if err := objectstore.run(ctx); err != nil {
		t.Errorf("objectstore: %v", err)
	}
	t.Logf("objectstore: %d kills in %v", len(objectstore.rounds), time.Since(start).Round(time.Millisecond))
	t.Logf("%d identities of the agent were taken before it", clash.stop())
	if err := sc.stop(ctx); err != nil {
		t.Error(err)
	}
	finish(ctx, t, c, f)
	t.Logf("%d points, %d kills in %v", total/2, total, time.Since(began).Round(time.Millisecond))
}
