package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/shard"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// book watches over the grants of all workers of a test.
type book struct {
	t      testing.TB
	shards uint32

	mu    sync.Mutex
	epoch map[shard.ID]uint64
	fence map[shard.ID]uint64
	owner map[shard.ID]string
	given int
}

func newBook(t testing.TB, shards uint32) *book {
	return &book{t: t, shards: shards, epoch: map[shard.ID]uint64{}, fence: map[shard.ID]uint64{}, owner: map[shard.ID]string{}}
}

// begin notes a grant: epochs and fences grow, so no epoch is granted twice. It does not
// demand that the former owner has noticed: one that was paused could not.
func (b *book) begin(worker string, g coordinator.Grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.Epoch <= b.epoch[g.Shard] || g.Fence <= b.fence[g.Shard] {
		b.t.Errorf("shard %s: granted to %s with epoch %d, fence %d after epoch %d, fence %d", g.Shard, worker, g.Epoch, g.Fence, b.epoch[g.Shard], b.fence[g.Shard])
	}
	b.epoch[g.Shard], b.fence[g.Shard], b.owner[g.Shard] = g.Epoch, g.Fence, worker
	b.given++
}

func (b *book) end(worker string, g coordinator.Grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.epoch[g.Shard] == g.Epoch {
		delete(b.owner, g.Shard)
	}
}

// gone forgets a worker that was killed.
func (b *book) gone(worker string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, w := range b.owner {
		if w == worker {
			delete(b.owner, n)
		}
	}
}

// grants counts the grants so far.
func (b *book) grants() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.given
}

// loads counts the shards of each owner.
func (b *book) loads() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := map[string]int{}
	for _, w := range b.owner {
		m[w]++
	}
	return m
}

// balanced reports whether these workers own everything, evenly.
func (b *book) balanced(workers ...string) bool {
	loads := b.loads()
	if len(loads) != len(workers) {
		return false
	}
	sum, n := 0, len(workers)
	for _, w := range workers {
		l := loads[w]
		if l < int(b.shards)/n || l > (int(b.shards)+n-1)/n {
			return false
		}
		sum += l
	}
	return sum == int(b.shards)
}

// worker is an owner of a test.
type worker struct {
	name string
	stop context.CancelFunc
	done chan error
}

func (b *book) work(name string, addresses ...string) *worker {
	b.t.Helper()
	c := coordinator.DefaultConfig()
	c.Addresses, c.WorkerID, c.Advertise = addresses, name, "here:"+name
	return b.workWith(c)
}

func (b *book) workWith(c coordinator.Config) *worker {
	b.t.Helper()
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("LM_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	o, err := coordinator.NewOwner(c, "rollup", b.shards, coordinator.Deps{Log: log})
	must(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	w := &worker{name: c.WorkerID, stop: cancel, done: make(chan error, 1)}
	go func() {
		w.done <- o.Run(ctx, func(ctx context.Context, g coordinator.Grant) error {
			b.begin(w.name, g)
			<-ctx.Done()
			b.end(w.name, g)
			return nil
		})
	}()
	b.t.Cleanup(func() { w.end(b.t) })
	return w
}

// end lets the worker drain; more than once is harmless.
func (w *worker) end(t testing.TB) {
	w.stop()
	select {
	case err, ok := <-w.done:
		if ok {
			close(w.done)
		}
		if err != nil {
			t.Errorf("worker %s: %v", w.name, err)
		}
	case <-time.After(patience):
		t.Fatalf("worker %s does not stop", w.name)
	}
}

func moves(t testing.TB, c coordinatorv1.OwnershipServiceClient) []*coordinatorv1.Move {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := c.ListMoves(ctx, &coordinatorv1.ListMovesRequest{Kind: "rollup"})
	must(t, err)
	return r.GetMoves()
}

// checkMoves: each change moved at most ceil(K/n) shards for each worker that came or went.
func checkMoves(t testing.TB, k int, ms []*coordinatorv1.Move) {
	t.Helper()
	for _, m := range ms {
		n := int(m.GetWorkers()) + len(m.GetLeft())
		changes := len(m.GetJoined()) + len(m.GetLeft())
		if most := changes * ((k + n - 1) / n); len(m.GetShards()) > most {
			t.Errorf("%d shards moved when %v came and %v went, %d after it; at most %d may", len(m.GetShards()), m.GetJoined(), m.GetLeft(), m.GetWorkers(), most)
		}
	}
}

func TestThreeWorkersShareShards(t *testing.T) {
	cfg := quick(t.TempDir())
	cfg.Lease.Worker = patience // no other moves than those of the test
	s := start(t, cfg, nil)
	c := s.client()
	b := newBook(t, 32)
	var names []string
	var ws []*worker
	for i := range 3 {
		w := b.work(fmt.Sprintf("w%d", i), s.addr())
		ws, names = append(ws, w), append(names, w.name)
		until(t, fmt.Sprintf("%d workers with all shards", i+1), func() bool { return b.balanced(names...) })
	}
	before := len(moves(t, c))
	ws[1].end(t) // drains
	until(t, "two workers with all shards", func() bool { return b.balanced("w0", "w2") })
	ms := moves(t, c)
	if len(ms) != before+1 || len(ms[0].GetLeft()) != 1 || ms[0].GetLeft()[0] != "w1" {
		t.Errorf("moves after a drain: %v", ms)
	}
	checkMoves(t, 32, ms)
}
