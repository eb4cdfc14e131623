package snapshot

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/coord"
	"lightmetrics.dev/lightmetrics/pkg/coord/pending"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/work"
)

// TestThousandJobsOverEtcd: the chain keeps its order over a real etcd member, though it
// goes through ten owners, and each loses its grant in a job that it can't commit.
func TestThousandJobsOverEtcd(t *testing.T) {
	t.Parallel() // it waits for etcd's disk, most of the time
	const jobs, owners = 1000, 10
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	cfg := coord.DefaultEtcdConfig()
	cfg.Embedded.DataDir = t.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	member, err := coord.StartEmbedded(t.Context(), cfg.Embedded, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	client, err := coord.Dial(cfg, member.Endpoint(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	table := pending.New(client.Etcd, pending.Options{Prefix: "/test/work", Timeout: 30 * time.Second})

	w := newWorld(t)
	for _, i := range rand.New(rand.NewPCG(seed, 1)).Perm(jobs) {
		n := uint64(i + 1)
		_, err := table.Create(bg, work.Row{Key: work.Key{Log: Log(mine), Number: n}, Topic: Topic(mine), Body: Message(mine, n)}, nil)
		w.must(err)
	}
	var order []uint64
	for o := range owners {
		die := false
		c := w.chain(func(c *Config) {
			c.Table, c.Queue = table, nil
			c.Store = failing{w.store, &die}
			c.Events.Committed = func(s *Snapshot) { order = append(order, s.Number) }
		})
		for len(order) < (o+1)*jobs/owners {
			c.Offer(w.accept(1))
			w.step(c, work.Completed)
			w.now = w.now.Add(time.Second)
		}
		// The grant ends in the middle of the next job: its successor has a greater fence.
		die = o < owners-1
		c.Offer(w.accept(1))
		if _, err := c.Step(bg); die && !errors.Is(err, objstore.ErrUnavailable) {
			t.Fatalf("a dead owner's step: %v", err)
		}
	}
	for i, n := range order[:jobs] {
		if n != uint64(i+1) {
			t.Fatalf("job %d was done at place %d", n, i+1)
		}
	}
	log, err := table.Log(bg, Log(mine))
	if err != nil || log.Last < jobs || log.Fence != owners {
		t.Errorf("log %+v, %v", log, err)
	}
	w.tidy()
}
