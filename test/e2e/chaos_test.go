package e2e

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
)

// TestKillAnythingAtAnyMoment kills agent, collectors, store, reconciler and query with
// SIGKILL at random moments under load, with duplicates and conflicts on purpose. After
// it, every acknowledged batch is readable byte for byte, and PromQL's sums are the sums that were sent.
func TestKillAnythingAtAnyMoment(t *testing.T) {
	t.Parallel()
	rounds := size(t, "ROUNDS", 30, 500)
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SEED"); v != "" {
		seed, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("SEED=%d ROUNDS=%d", seed, rounds)
	rnd := rand.New(rand.NewPCG(seed, 1))

	c := newCluster(t, cluster.Options{Collectors: 2, ScrapeInterval: 200 * time.Millisecond, BatchAge: 400 * time.Millisecond})
	ctx := within(t, time.Duration(rounds)*10*time.Second+2*time.Minute)
	must(t, c.StartStore(ctx))
	for i := range c.Collectors {
		must(t, c.StartCollector(ctx, i))
	}
	must(t, c.StartReconciler(ctx))
	must(t, c.StartQuery(ctx))
	must(t, c.StartAgent(ctx))

	f := load.StartFleet(ctx, c, load.FleetOptions{Seed: seed})
	victims := []struct {
		name    string
		process **proc.Process
		restart func(context.Context) error
	}{
		{"store", &c.Store, c.StartStore},
		{"collector 1", &c.Collectors[0], func(ctx context.Context) error { return c.StartCollector(ctx, 0) }},
		{"collector 2", &c.Collectors[1], func(ctx context.Context) error { return c.StartCollector(ctx, 1) }},
		{"reconciler", &c.Reconciler, c.StartReconciler},
		{"query", &c.Query, c.StartQuery},
		{"agent", &c.Agent, c.StartAgent},
	}
	killed := map[string]int{}
	for round := range rounds {
		time.Sleep(time.Duration(rnd.IntN(250)) * time.Millisecond)
		v := victims[rnd.IntN(len(victims))]
		cluster.Kill(v.process)
		killed[v.name]++
		time.Sleep(time.Duration(rnd.IntN(150)) * time.Millisecond)
		if err := v.restart(ctx); err != nil {
			t.Fatalf("round %d: restart %s: %v", round, v.name, err)
		}
	}
	sent, err := f.Stop()
	must(t, err)
	t.Logf("killed %v; fleet: %d batches acknowledged, %d duplicates, %d conflicts", killed, len(sent.Acked), sent.Duplicates, sent.Conflicts)
	must(t, cluster.Stop(&c.Agent))
	_, err = load.Check(ctx, c, sent)
	must(t, err)
}
