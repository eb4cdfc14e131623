package rollup

import (
	"context"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/coordinator"
)

// coordinatorOf runs a coordinator with an etcd member of its own.
func coordinatorOf(t *testing.T) string {
	t.Helper()
	c := coordinator.DefaultConfig()
	c.HTTP.Listen, c.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Etcd.Embedded.DataDir = t.TempDir()
	c.Etcd.Embedded.ElectionTimeout = 500 * time.Millisecond
	c.Lease = coordinator.LeaseConfig{Worker: patience, Leader: 10 * time.Second} // none is lost
	c.Etcd.RequestTimeout = patience
	c.Rebalance = coordinator.RebalanceConfig{QuietPeriod: 100 * time.Millisecond, MaxDelay: time.Second}
	s, err := coordinator.New(c, coordinator.Deps{Telemetry: telemetry.Discard()})
	must(t, err)
	runs(t, s.Run, s.Ready())
	return s.GRPCAddr()
}

// together is some in one segment of the journal: a worker sees all of it or nothing.
func (w *world) together(agent string, from, n int, seq uint64) {
	w.t.Helper()
	var es []accepted.Batch
	for i := range n {
		p := point{"load", series.Gauge, at(hour0, time.Duration(from+i+1)*10*time.Second), float64(i)}
		es = append(es, w.acceptSilently(agent, seq+uint64(i), p))
	}
	w.enter(es...)
}

// runs runs a service until the test, or the function that it gives, ends it.
func runs(t *testing.T, fn func(context.Context) error, ready <-chan struct{}) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return stop
}

// TestCoordinated: two workers share the shards that a real coordinator gives; when one
// stops, the other has all of them, under greater fences, and goes on.
func TestCoordinated(t *testing.T) {
	addr := coordinatorOf(t)
	w := newWorld(t, newMem())
	var workers []*Service
	var stops []func()
	for _, id := range []string{"one", "two"} {
		cfg := testConfig()
		cfg.ID, cfg.Coordinator.Addresses = id, []string{addr}
		s, err := Coordinated(cfg, Deps{Store: w.store, Telemetry: telemetry.Discard(), Now: w.now, Policy: testPolicy})
		must(t, err)
		workers, stops = append(workers, s), append(stops, runs(t, s.Run, s.Ready()))
	}
	owned := func() (n int) {
		for _, s := range workers {
			n += len(s.Shards())
		}
		return n
	}
	eventually(t, "every shard has an owner", func() bool { return owned() == testShards })
	for id := range shard.ID(testShards) {
		w.together(agentOf(id, 0), 0, 3, 0)
	}
	published := func(gen uint64) func() bool {
		return func() bool {
			for id := range shard.ID(testShards) {
				if s := w.set(hour0, id, timegrid.OneHour); s == nil || s.Name.Generation < gen || len(w.left(id)) > 0 {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "the first generation", published(1))
	fences := map[shard.ID]uint64{}
	for id := range shard.ID(testShards) {
		w.check(hour0, id, 1)
		fences[id] = w.set(hour0, id, timegrid.Raw).Fence
	}
	moved := workers[0].Shards()
	stops[0]()
	eventually(t, "the other owns all", func() bool { return len(workers[1].Shards()) == testShards })
	for id := range shard.ID(testShards) {
		w.together(agentOf(id, 0), 10, 2, 100)
	}
	next := published(2)
	eventually(t, "the second generation", func() bool { w.advance(time.Minute); return next() })
	for id := range shard.ID(testShards) {
		w.check(hour0, id, 2)
		block := w.set(hour0, id, timegrid.Raw)
		if block.Fence < fences[id] || block.WorkerID != "two" {
			t.Errorf("shard %s: fence %d after %d, by %s", id, block.Fence, fences[id], block.WorkerID)
		}
	}
	for _, st := range moved {
		id, err := shard.Parse(st.Shard)
		must(t, err)
		if block := w.set(hour0, id, timegrid.Raw); block.Fence <= fences[id] {
			t.Errorf("shard %s moved, and its fence stayed %d", id, block.Fence)
		}
	}
}

// TestAWorkerThatShutsDownLeavesItsProgress: its successor goes on where it was, and does not read what it has read.
func TestAWorkerThatShutsDownLeavesItsProgress(t *testing.T) {
	w := newWorld(t, newMem())
	w.clock.Store(hour0.Start().Add(30 * time.Minute).UnixNano()) // nothing is due
	cfg := testConfig()
	cfg.ID, cfg.Coordinator.Addresses = "one", []string{coordinatorOf(t)}
	s, err := Coordinated(cfg, Deps{Store: w.store, Telemetry: telemetry.Discard(), Now: w.now, Policy: testPolicy})
	must(t, err)
	stop := runs(t, s.Run, s.Ready())
	eventually(t, "every shard has an owner", func() bool { return len(s.Shards()) == testShards })
	record := func(id shard.ID) int {
		p, _, err := progress.Read(t.Context(), w.store, testAuthority, id, testShards)
		if err != nil {
			return -1
		}
		return len(p.Pending)
	}
	// The first record is written at once, and the next one not soon.
	for id := range shard.ID(testShards) {
		w.together(agentOf(id, 0), 0, 3, 0)
		eventually(t, "the record", func() bool { return record(id) >= 0 })
		w.together(agentOf(id, 0), 10, 2, 100)
	}
	eventually(t, "all batches are pending", func() bool {
		n := 0
		for _, st := range s.Shards() {
			n += st.PendingBatches
		}
		return n == 5*testShards
	})
	stop()
	for id := range shard.ID(testShards) {
		if n := record(id); n != 5 {
			t.Errorf("shard %s: the record has %d pending batches", id, n)
		}
	}
}
