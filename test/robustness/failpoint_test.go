package robustness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/layout"
)

// reachedWithin is how long the load may take to reach a point: on a machine with other
// work to do, a point that waits for an agent's next boot took 20 s.
const reachedWithin = 90 * time.Second

// slow rounds are told of.
const slow = 3 * time.Second

// once are the points that a process reaches only once, or seldom: they are armed for
// the first hit both times.
var once = []string{
	"objectstore.open.", "agent.queue.recover.", "ingest.start.", "ingest.qualify.", "ingest.store.get.authority.",
	"ingest.store.create.authority.", "reconciler.store.get.authority.", "agent.send.hello.", "agent.send.welcome.",
	"agent.queue.roll.", "agent.queue.reclaim.", "agent.queue.hold.", "agent.send.park.", "objectstore.log.roll.",
	"objectstore.reclaim.", "objectstore.index.flush.", "reconciler.store.get.reconcile.",
}

// periodic are the points of looks that come once or twice a second.
var periodic = []string{"reconciler.scan.", "reconciler.audit.", "reconciler.store.list.", "reconciler.store.get.quarantine.",
	"query.poll.", "query.store.list.", "query.store.get.journal."}

func hasPrefix(point string, of []string) bool {
	return slices.ContainsFunc(of, func(prefix string) bool { return strings.HasPrefix(point, prefix) })
}

// roundsOf arms each point of a process twice.
func roundsOf(process string, points []string) (first, second []round) {
	for _, p := range points {
		if !strings.HasPrefix(p, process+".") {
			continue
		}
		nth := 3
		switch {
		case hasPrefix(p, once):
			nth = 1
		case hasPrefix(p, periodic):
			nth = 2
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

// batches are how many parts the points are killed at in, with a check after each.
const (
	batchesOfOthers = 4
	batchesOfStore  = 2
)

// part is the i-th of n parts of a lane's rounds.
func (l *lane) part(i, n int) []round {
	return l.rounds[i*len(l.rounds)/n : (i+1)*len(l.rounds)/n]
}

// TestKillAtEveryFailpoint kills real processes with SIGKILL at every named failpoint
// twice, under load with duplicates and conflicts. First every process but the
// store, side by side; then the store, on which all others depend. The invariants are checked after
// each part, so that a failure names few points.
func TestKillAtEveryFailpoint(t *testing.T) {
	t.Parallel()
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
	var collectorStarts sync.RWMutex
	ingest := func(i int, rounds []round) *lane {
		return &lane{process: fmt.Sprintf("collector-%d", i+1), rounds: rounds, p: &c.Collectors[i], starts: &collectorStarts,
			start: func(ctx context.Context) error { return c.StartCollector(ctx, i) },
			// Only a fresh bucket has no authority.
			needs:   func(point string) bool { return strings.HasPrefix(point, "ingest.store.create.authority.") },
			prepare: func(ctx context.Context) error { return store.Delete(ctx, layout.AuthorityKey) }}
	}
	both := func(process string, p **proc.Process, start func(context.Context) error) *lane {
		a, b := roundsOf(process, points)
		return &lane{process: process, rounds: append(a, b...), p: p, start: start, starts: new(sync.RWMutex)}
	}
	others := []*lane{
		ingest(0, ingest1), ingest(1, ingest2),
		both("reconciler", &c.Reconciler, c.StartReconciler),
		both("query", &c.Query, c.StartQuery),
		both("agent", &c.Agent, c.StartAgent),
	}
	objectstore := both("objectstore", &c.Store, c.StartStore)
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
	_, stopAsking := askAllTheTime(ctx, t, c, f)
	sc, err := startScratch(ctx, c, seed)
	must(t, err)
	began := time.Now()
	taken, clash := 0, newClashes()
	batch := func(name string, lanes []*lane, i, n int) {
		if c.Agent == nil {
			must(t, c.StartAgent(ctx))
		}
		clash.begin(ctx, c)
		var killed []string
		var wg sync.WaitGroup
		start := time.Now()
		for _, l := range lanes {
			rounds := l.part(i, n)
			for _, r := range rounds {
				killed = append(killed, fmt.Sprintf("%s@%d", r.point, r.nth))
			}
			wg.Go(func() {
				if err := l.run(ctx, rounds); err != nil {
					t.Errorf("%s: %v", l.process, err)
				}
			})
		}
		wg.Wait()
		took := time.Since(start)
		taken = clash.stop()
		if c.Agent == nil {
			must(t, c.StartAgent(ctx))
		}
		must(t, clash.met(ctx, c))
		slices.Sort(killed)
		rest(ctx, t, c, f, strings.Join(killed, " "))
		t.Logf("%s, part %d of %d: %d kills in %v, checked in %v", name, i+1, n, len(killed),
			took.Round(time.Millisecond), (time.Since(start) - took).Round(time.Millisecond))
	}
	for i := range batchesOfOthers {
		batch("all but the store", others, i, batchesOfOthers)
	}
	for i := range batchesOfStore {
		batch("store", []*lane{objectstore}, i, batchesOfStore)
	}
	t.Logf("%d identities of the agent were taken before it", taken)
	if err := sc.stop(ctx); err != nil {
		t.Error(err)
	}
	finish(ctx, t, c, f)
	stopAsking()
	t.Logf("%d points, %d kills in %v", total/2, total, time.Since(began).Round(time.Millisecond))
}
