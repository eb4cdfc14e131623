package robustness

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
)

// TestPauses stops one process after the other with SIGSTOP for a while under load: requests in
// flight are answered late, streams stall, deadlines pass while nothing is dead.
func TestPauses(t *testing.T) {
	t.Parallel()
	seed, rnd := seeded(t)
	rounds := size(t, 6, 300)
	c := newCluster(t, cluster.Options{Collectors: 2})
	ctx := within(t, time.Duration(rounds)*15*time.Second+3*time.Minute)
	startAll(ctx, t, c)
	f := load.StartFleet(ctx, c, load.FleetOptions{Seed: seed, Senders: 4, Rows: 5, Pause: 10 * time.Millisecond, BootBatches: 20, HTTPEvery: 4, Races: true})
	_, stopAsking := askAllTheTime(ctx, t, c, f)
	victims := []*proc.Process{c.Store, c.Collectors[0], c.Reconciler, c.Agent, c.Query, c.Collectors[1]}
	for i := range rounds {
		v := victims[i%len(victims)]
		must(t, v.Pause())
		time.Sleep(500*time.Millisecond + time.Duration(rnd.IntN(2500))*time.Millisecond) // the length of the fault
		must(t, v.Resume())
		time.Sleep(200 * time.Millisecond) // a moment between two faults
	}
	for _, v := range victims {
		select {
		case <-v.Exited():
			t.Errorf("%s did not survive its pause: %v", v.Spec.Name, v.Wait())
		default:
		}
	}
	finish(ctx, t, c, f)
	stopAsking()
}
