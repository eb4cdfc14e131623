package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// everyday are the points, by their prefix, that each process reaches many times a second under
// this load. The rare ones are reached by kills, one at a time.
var everyday = []string{
	"agent.batch.", "agent.queue.append.", "agent.queue.note.", "agent.send.ack.", "agent.send.answer.", "agent.send.frame.", "agent.send.launch.",
	"ingest.accept.", "ingest.http.", "ingest.notify.send.", "ingest.stream.", "ingest.unary.", "ingest.store.create.accepted.",
	"ingest.store.create.boots.", "ingest.store.create.quarantine.", "ingest.store.create.raw-blobs.", "ingest.store.get.accepted.",
	"ingest.store.get.gc.", "ingest.store.head.raw-blobs.",
	"objectstore.body.", "objectstore.commit.", "objectstore.delete.", "objectstore.index.apply.", "objectstore.log.sync.",
	"objectstore.log.write.", "objectstore.put.", "objectstore.webhook.",
	"query.live.", "query.store.get.",
	"reconciler.notify.", "reconciler.work.", "reconciler.store.create.accepted-by-blob.",
	"reconciler.store.create.accepted-by-time.", "reconciler.store.create.quarantine-by-blob.", "reconciler.store.create.raw-blobs-by-time.",
	"reconciler.store.get.accepted.", "reconciler.store.get.quarantine.", "reconciler.store.head.raw-blobs.", "reconciler.ledger.write.",
}

// action is what is done at points; its process lives on.
type action struct {
	name string // as it is said in the log
	spec string
	// takes says whether the action does something at a point.
	takes func(point string) bool
}

var actions = []action{
	{failpoint.Sleep, failpoint.Sleep + ":700ms", func(string) bool { return true }},
	{failpoint.Error, failpoint.Error, func(point string) bool { return strings.Contains(point, ".store.") }},
	{failpoint.Stop, failpoint.Stop, func(string) bool { return true }},
}

// atHit is the hit at which a point acts: the first ones may be a part of the start.
const atHit = 2

// TestSleepErrorAndStopAtFailpoints holds goroutines, fails requests and stops whole processes at a
// sample of the failpoints, in all processes at the same time. Each point must say that it acted.
// It resumes every process of this test binary that it finds stopped, so no other test runs beside it.
func TestSleepErrorAndStopAtFailpoints(t *testing.T) {
	seed, rnd := seeded(t)
	sample := size(t, 6, 60)
	var mu sync.Mutex
	armed := map[string]string{}
	c := newCluster(t, cluster.Options{Collectors: 2, Env: func(process string) []string {
		mu.Lock()
		defer mu.Unlock()
		if armed[process] == "" {
			return nil
		}
		return []string{failpoint.Env + "=" + armed[process]}
	}})
	ctx := within(t, 10*time.Minute)
	startAll(ctx, t, c)
	f := load.StartFleet(ctx, c, load.FleetOptions{Seed: seed, Senders: 4, Rows: 5, Pause: 10 * time.Millisecond, BootBatches: 8, HTTPEvery: 4, Races: true})
	_, stopAsking := askAllTheTime(ctx, t, c, f)
	sc, err := startScratch(ctx, c, seed)
	must(t, err)
	points := pointsOf(t)
	for _, a := range actions {
		began := time.Now()
		chosen := map[string][]string{}
		var all []string
		for _, p := range processes(c) {
			chosen[p.name] = a.choose(rnd, points, p.points, sample)
			all = append(all, chosen[p.name]...)
			mu.Lock()
			armed[p.name] = a.arm(chosen[p.name])
			mu.Unlock()
		}
		if os.Getenv("POINTS") == "" && len(all) < 20 {
			t.Fatalf("%s at only %v", a.name, all)
		}
		stopResuming := resumeStopped(ctx)
		for _, p := range processes(c) {
			if *p.p != nil {
				cluster.Kill(p.p)
			}
			must(t, p.start(ctx))
		}
		acted, cancel := context.WithTimeout(ctx, reachedWithin)
		must(t, cluster.Poll(acted, "every point to act: "+a.name, func() (bool, error) {
			for process, points := range chosen {
				log, err := os.ReadFile(filepath.Join(c.Dir(), process+".log"))
				if err != nil {
					return false, err
				}
				for _, p := range points {
					if said := fmt.Sprintf("failpoint %s: %s at hit %d\n", p, a.name, atHit); !strings.Contains(string(log), said) {
						return false, fmt.Errorf("%s: %s at hit %d did not happen", process, p, atHit)
					}
				}
			}
			return true, f.Err()
		}))
		cancel()
		for _, p := range processes(c) {
			select {
			case <-(*p.p).Exited():
				t.Errorf("%s did not survive %s: %v", p.name, a.name, (*p.p).Wait())
			default:
			}
		}
		took := time.Since(began)
		rest(ctx, t, c, f, a.name+" at "+strings.Join(all, " "))
		// Not before: a point says that it stops its process and then does so.
		stopped := stopResuming()
		if (stopped > 0) != (a.name == failpoint.Stop) {
			t.Errorf("%s: %d processes were found stopped", a.name, stopped)
		}
		t.Logf("%s at %d points in %v, checked in %v; %d stops", a.name, len(all), took.Round(time.Millisecond),
			(time.Since(began) - took).Round(time.Millisecond), stopped)
	}
	if err := sc.stop(ctx); err != nil {
		t.Error(err)
	}
	finish(ctx, t, c, f)
	stopAsking()
}

// victim is a process of a cluster with its points.
type victim struct {
	name, points string
	p            **proc.Process
	start        func(context.Context) error
}

func processes(c *cluster.Cluster) []victim {
	v := []victim{
		{"objectstore", "objectstore", &c.Store, c.StartStore},
		{"reconciler", "reconciler", &c.Reconciler, c.StartReconciler},
		{"query", "query", &c.Query, c.StartQuery},
		{"agent", "agent", &c.Agent, c.StartAgent},
	}
	for i := range c.Collectors {
		v = append(v, victim{fmt.Sprintf("collector-%d", i+1), "ingest", &c.Collectors[i],
			func(ctx context.Context) error { return c.StartCollector(ctx, i) }})
	}
	return v
}

// choose takes a sample of a process's points at which the action does something.
func (a action) choose(rnd *rand.Rand, points []string, process string, n int) []string {
	var able []string
	for _, p := range points {
		if strings.HasPrefix(p, process+".") && a.takes(p) && hasPrefix(p, everyday) {
			able = append(able, p)
		}
	}
	rnd.Shuffle(len(able), func(i, k int) { able[i], able[k] = able[k], able[i] })
	able = able[:min(n, len(able))]
	slices.Sort(able)
	return able
}

func (a action) arm(points []string) string {
	var specs []string
	for _, p := range points {
		specs = append(specs, fmt.Sprintf("%s=%s@%d", p, a.spec, atHit))
	}
	return strings.Join(specs, ",")
}
