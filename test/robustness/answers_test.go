package robustness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
)

// TestAnswersHaveWhatWasAcknowledged kills and pauses every process in turn while senders send and a client asks.
// Runs of the journal are fenced while their writers live, closed after a moment without batches, folded and deleted
// all the time, and hours are rolled up and published. No answer may lack what was acknowledged before the time
// through which it says to be complete, or count a batch twice, and one that is marked says why.
func TestAnswersHaveWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	seed, rnd := seeded(t)
	small := seed%2 == 0
	c := newCluster(t, cluster.Options{Collectors: 2, Rollups: 2, Adjust: func(process string, s map[string]any) {
		switch {
		case process == "reconciler":
			j := s["journal"].(map[string]any)
			j["fence_after"] = "800ms"
		case strings.HasPrefix(process, "collector-"):
			s["journal"] = map[string]any{"idle": "300ms"}
		case process == "coordinator":
			s["lease"] = map[string]any{"worker": "2s", "leader": "2s"}
			s["rebalance"] = map[string]any{"quiet_period": "300ms", "max_delay": "1s"}
		case process == "query":
			s["rollup"] = map[string]any{"poll": "500ms"}
			if small {
				s["history"] = map[string]any{"window": "6h", "max_bytes": "192KiB"}
			}
		}
	}})
	ctx := within(t, 10*time.Minute)
	startAll(ctx, t, c)
	must(t, c.StartCoordinator(ctx))
	for i := range c.Rollups {
		must(t, c.StartRollup(ctx, i))
	}
	f := load.StartFleet(ctx, c, load.FleetOptions{Seed: seed, Senders: 4, Rows: 5, Pause: 40 * time.Millisecond, BootBatches: 12, HTTPEvery: 4, Races: true})
	asker, stopAsking := askAllTheTime(ctx, t, c, f)

	// Every process once each way, and the query node, which must find out at its start what it has, more often.
	var faults []fault
	for range size(t, 1, 40) {
		for _, v := range append(victims(c), victims(c)[0]) {
			faults = append(faults, fault{v, "kill"}, fault{v, "pause"})
		}
	}
	rnd.Shuffle(len(faults), func(i, k int) { faults[i], faults[k] = faults[k], faults[i] })
	for i := 0; i < len(faults); {
		// One or two at a time: a node that starts while the store hangs, a worker that dies beside a collector.
		at := faults[i : i+1]
		if k := i + 1; k < len(faults) && faults[k].p != faults[i].p {
			at = faults[i : k+1]
		}
		var wg sync.WaitGroup
		for _, x := range at {
			after := 300*time.Millisecond + time.Duration(rnd.IntN(1200))*time.Millisecond
			wg.Go(func() {
				if err := x.inflict(ctx, after); err != nil {
					t.Errorf("%s: %v", x, err)
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond) // a moment between two faults
		if err := asker.Err(); err != nil || t.Failed() {
			t.Fatalf("after %v: %v", at, err)
		}
		i += len(at)
	}
	finish(ctx, t, c, f)
	asked := stopAsking()
	if asked.Complete < len(faults) || asked.Proven < 1000 || asked.Strong == 0 || asked.Tokens == 0 {
		t.Errorf("the client has seen too little in %d faults: %+v", len(faults), asked)
	}
	for _, code := range slices.Sorted(maps.Keys(asked.Partial)) {
		if strings.ToUpper(code) != code || code == "" {
			t.Errorf("a reason has the code %q", code)
		}
	}
}

// fault is what is done to a process.
type fault struct {
	victim
	how string
}

func (x fault) String() string { return fmt.Sprintf("%s of %s", x.how, x.name) }

// inflict does it, and undoes it a while later.
func (x fault) inflict(ctx context.Context, after time.Duration) error {
	if x.how == "pause" {
		p := *x.p
		if err := p.Pause(); err != nil {
			return err
		}
		time.Sleep(after)
		return p.Resume()
	}
	cluster.Kill(x.p)
	time.Sleep(after)
	return x.start(ctx)
}

// victims are the processes that answers may depend on, the query node first.
func victims(c *cluster.Cluster) []victim {
	all := slices.DeleteFunc(processes(c), func(v victim) bool { return v.name == "agent" })
	i := slices.IndexFunc(all, func(v victim) bool { return v.name == "query" })
	all[0], all[i] = all[i], all[0]
	all = append(all, victim{"coordinator", "coordinator", &c.Coordinator, c.StartCoordinator})
	for i := range c.Rollups {
		all = append(all, victim{cluster.RollupName(i), "rollup", &c.Rollups[i], func(ctx context.Context) error { return c.StartRollup(ctx, i) }})
	}
	return all
}
