package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/harness/netns"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

const (
	rollupWorkers = 3
	rollupShards  = 32
	workerLease   = 2 * time.Second
)

// TestRollupWorkers runs three workers over 32 shards under load with duplicates and
// conflicts, and kills them, pauses them past their lease, cuts them off from the coordinator and the
// store, and kills coordinator, reconciler and store. Afterwards every shard's hour is published with exactly the accepted
// batches, its chunks are those of its frames rolled up anew, generations have no hole,
// fences only grow, and no change moved more shards than it had to.
func TestRollupWorkers(t *testing.T) {
	t.Parallel()
	length := time.Duration(size(t, "SECONDS", 25, 600)) * time.Second
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SEED"); v != "" {
		seed, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("SEED=%d SECONDS=%v", seed, length.Seconds())
	rnd := rand.New(rand.NewPCG(seed, 4))

	o := cluster.Options{Collectors: 2, Rollups: rollupWorkers, Shards: rollupShards, Adjust: quickWorkers}
	hosts := newHosts(t)
	if hosts != nil {
		o.Host = hosts.of
	}
	c := newCluster(t, o)
	ctx := within(t, 2*length+6*time.Minute) // what was sent is read again
	must(t, c.StartStore(ctx))
	for i := range c.Collectors {
		must(t, c.StartCollector(ctx, i))
	}
	must(t, c.StartReconciler(ctx))
	must(t, c.StartCoordinator(ctx))
	for i := range c.Rollups {
		must(t, c.StartRollup(ctx, i))
	}
	must(t, c.StartQuery(ctx))

	fo := load.FleetOptions{Seed: seed, Senders: 48, Rows: 5, Pause: 400 * time.Millisecond, BootBatches: 15}
	if hosts != nil {
		fo.Dial = hosts.agents.DialContext
	}
	f := load.StartFleet(ctx, c, fo)
	done := map[string]int{}
	first := faultsOf(hosts) // each at least once, then at random
	rnd.Shuffle(len(first), func(i, k int) { first[i], first[k] = first[k], first[i] })
	for end := time.Now().Add(length); len(first) > 0 || time.Now().Before(end); {
		must(t, f.Err())
		next := mostOften(faultsOf(hosts), rnd)
		if len(first) > 0 {
			next, first = first[0], first[1:]
		}
		if err := disturb(ctx, c, hosts, rnd, next); err != nil {
			t.Fatalf("%s: %v", next, err)
		}
		done[next]++
	}
	sent, err := f.Stop()
	must(t, err)
	for _, what := range faultsOf(hosts) {
		if done[what] == 0 {
			t.Errorf("no %s", what)
		}
	}
	t.Logf("faults %v; fleet: %d batches acknowledged, %d duplicates, %d conflicts", done, len(sent.Acked), sent.Duplicates, sent.Conflicts)

	var r *load.Rollups
	must(t, cluster.Poll(ctx, "every batch to be rolled up", func() (bool, error) {
		var err error
		r, err = load.CheckRollups(ctx, c, rollupShards)
		if err != nil && !errors.Is(err, load.ErrNotRolledUp) {
			t.Fatal(err)
		}
		return err == nil, err
	}))
	t.Logf("%d sets in %d hours of shards: %d raw generations, %d aborted, %d records; by worker %v", r.Blocks, r.Hours, r.Generations, r.Aborted, r.Records, r.Workers)
	if len(r.Workers) < 2 {
		t.Errorf("all sets were published by one worker: %v", r.Workers)
	}
	must(t, checkMoves(ctx, t, c))
	// The answers come from chunks now, and count every record once.
	_, err = load.Check(ctx, c, sent)
	must(t, err)
}

// quickWorkers notice each other's death, and roll up, within seconds.
func quickWorkers(process string, settings map[string]any) {
	switch process {
	case "coordinator":
		settings["lease"] = map[string]any{"worker": workerLease.String(), "leader": "2s"}
		settings["rebalance"] = map[string]any{"quiet_period": "500ms", "max_delay": "2s"}
	case "query":
		// It sees what is published within a second.
		settings["rollup"] = map[string]any{"poll": "1s"}
	}
}

// Faults of the workers and of what they lean on.
const (
	workerKilled      = "worker killed"
	workerPaused      = "worker paused"
	cutOffCoordinator = "worker cut off from the coordinator"
	cutOffStore       = "worker cut off from the store"
	coordinatorKilled = "coordinator killed"
	reconcilerKilled  = "reconciler killed"
	storeKilled       = "store killed"
)

// faultsOf are those that can be had.
func faultsOf(h *hosts) []string {
	all := []string{workerKilled, workerPaused, coordinatorKilled, reconcilerKilled, storeKilled}
	if h != nil {
		all = append(all, cutOffCoordinator, cutOffStore)
	}
	return all
}

// mostOften prefers what befalls the workers.
func mostOften(all []string, rnd *rand.Rand) string {
	if n := rnd.IntN(10); n < 5 {
		return []string{workerKilled, workerKilled, workerKilled, workerPaused, workerPaused}[n]
	}
	return all[2+rnd.IntN(len(all)-2)]
}

// disturb does one thing to the workers and what they lean on, and mends it.
func disturb(ctx context.Context, c *cluster.Cluster, h *hosts, rnd *rand.Rand, what string) error {
	i := rnd.IntN(rollupWorkers)
	rest := func(d time.Duration) { time.Sleep(d/2 + time.Duration(rnd.Int64N(int64(d)))) }
	restart := func(p **proc.Process, start func(context.Context) error) error {
		cluster.Kill(p)
		rest(workerLease)
		return start(ctx)
	}
	cut := func(to *netns.Host) error {
		if err := h.net.CutBoth(h.workers[i], to); err != nil {
			return err
		}
		rest(2 * workerLease)
		return h.net.Heal()
	}
	defer rest(time.Second)
	switch what {
	case workerKilled:
		return restart(&c.Rollups[i], func(ctx context.Context) error { return c.StartRollup(ctx, i) })
	case workerPaused:
		if err := c.Rollups[i].Pause(); err != nil {
			return err
		}
		// Always longer than its lease.
		time.Sleep(workerLease)
		rest(2 * workerLease)
		return c.Rollups[i].Resume()
	case cutOffCoordinator:
		return cut(h.control)
	case cutOffStore:
		return cut(h.store)
	case coordinatorKilled:
		return restart(&c.Coordinator, c.StartCoordinator)
	case reconcilerKilled:
		return restart(&c.Reconciler, c.StartReconciler)
	default:
		return restart(&c.Store, c.StartStore)
	}
}

// checkMoves holds every change of the assignment against the bound: one worker that comes or
// goes among n moves at most ceil(K/n) shards.
func checkMoves(ctx context.Context, t *testing.T, c *cluster.Cluster) error {
	conn, err := rpc.Dial(c.Addr.CoordinatorGRPC, rpc.ClientConfig{})
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := coordinatorv1.NewOwnershipServiceClient(conn).ListMoves(ctx, &coordinatorv1.ListMovesRequest{Kind: "rollup"})
	if err != nil {
		return err
	}
	most := 0
	for _, m := range resp.GetMoves() {
		changes := len(m.GetJoined()) + len(m.GetLeft())
		before := int(m.GetWorkers()) - len(m.GetJoined()) + len(m.GetLeft())
		fewest := max(1, min(int(m.GetWorkers()), before))
		if changes > 0 && len(m.GetShards()) > changes*((rollupShards+fewest-1)/fewest) {
			return fmt.Errorf("%d shards moved when %v came and %v went, %d workers were left", len(m.GetShards()), m.GetJoined(), m.GetLeft(), m.GetWorkers())
		}
		most = max(most, len(m.GetShards()))
	}
	if len(resp.GetMoves()) < 2 {
		return errors.New("no worker came or went")
	}
	t.Logf("%d changes of the assignment, at most %d shards each", len(resp.GetMoves()), most)
	return nil
}

// hosts are the machines of the test, where the kernel lets it have them.
type hosts struct {
	net                            *netns.Net
	store, control, agents, others *netns.Host
	workers                        []*netns.Host
}

func newHosts(t *testing.T) *hosts {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Logf("partitions are left out: %v", err)
		return nil
	}
	n, err := netns.New()
	must(t, err)
	t.Cleanup(func() { must(t, n.Close()) })
	h := &hosts{net: n}
	add := func(name string) *netns.Host {
		host, err := n.Add(name)
		must(t, err)
		return host
	}
	h.store, h.control, h.agents, h.others = add("store"), add("control"), add("agents"), add("others")
	for i := range rollupWorkers {
		h.workers = append(h.workers, add(fmt.Sprintf("worker-%d", i+1)))
	}
	return h
}

func (h *hosts) of(process string) *netns.Host {
	if i := slices.IndexFunc(h.workers, func(w *netns.Host) bool { return "rollup-"+w.Name[len("worker-"):] == process }); i >= 0 {
		return h.workers[i]
	}
	switch process {
	case "objectstore":
		return h.store
	case "coordinator":
		return h.control
	case "agent":
		return h.agents
	}
	return h.others
}
