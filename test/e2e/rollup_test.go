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

	"lightmetrics.dev/lightmetrics/internal/cluster"
	"lightmetrics.dev/lightmetrics/internal/load"
	"lightmetrics.dev/lightmetrics/internal/netns"
	"lightmetrics.dev/lightmetrics/internal/proc"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
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
	length := time.Duration(size(t, "SECONDS", 45, 600)) * time.Second
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
	ctx := within(t, length+6*time.Minute)
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
	for end := time.Now().Add(length); time.Now().Before(end); {
		must(t, f.Err())
		what, err := disturb(ctx, c, hosts, rnd)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		done[what]++
	}
	sent, err := f.Stop()
	must(t, err)
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
	t.Logf("%d sets in %d hours of shards: %d raw generations, %d aborted, %d records; by worker %v", r.Sets, r.Hours, r.Generations, r.Aborted, r.Records, r.Workers)
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
		settings["settle"] = map[string]any{"quiet": "500ms", "most": "2s"}
	case "query":
		// It sees what is published within a second.
		settings["rollup"] = map[string]any{"poll": "1s"}
	}
}

// disturb does one thing to the workers and what they lean on, and mends it.
func disturb(ctx context.Context, c *cluster.Cluster, h *hosts, rnd *rand.Rand) (string, error) {
	i := rnd.IntN(rollupWorkers)
	rest := func(d time.Duration) { time.Sleep(d/2 + time.Duration(rnd.Int64N(int64(d)))) }
	restart := func(p **proc.Process, start func(context.Context) error) error {
		cluster.Kill(p)
		rest(workerLease)
		return start(ctx)
	}
	defer rest(time.Second)
	switch n := rnd.IntN(10); {
	case n < 3:
		return "worker killed", restart(&c.Rollups[i], func(ctx context.Context) error { return c.StartRollup(ctx, i) })
	case n < 5:
		if err := c.Rollups[i].Pause(); err != nil {
			return "worker paused", err
		}
		rest(3 * workerLease)
		return "worker paused", c.Rollups[i].Resume()
	case n < 7 && h != nil:
		what, from, to := "worker cut off from the coordinator", h.workers[i], h.control
		if rnd.IntN(2) == 0 {
			what, to = "worker cut off from the store", h.store
		}
		if err := h.net.CutBoth(from, to); err != nil {
			return what, err
		}
		rest(2 * workerLease)
		return what, h.net.Heal()
	case n < 8:
		return "coordinator killed", restart(&c.Coordinator, c.StartCoordinator)
	case n < 9:
		return "reconciler killed", restart(&c.Reconciler, c.StartReconciler)
	default:
		return "store killed", restart(&c.Store, c.StartStore)
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
