package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

// chain judges jobs 1, 2, 3, … of three pieces each.
type chain struct {
	table work.Table

	mu    sync.Mutex
	done  map[work.Key][]int // how often each piece
	wrong []string
}

const chainPieces = 3

func (c *chain) Job(_ context.Context, m work.Message) (work.Key, uint64, error) {
	_, n, _ := strings.Cut(string(m.Body), "#")
	number, err := strconv.ParseUint(n, 10, 64)
	return work.Key{Log: "chain", Number: number}, 0, err
}

func (c *chain) Run(ctx context.Context, j *work.Job) error {
	l, err := c.table.Log(ctx, j.Key().Log)
	if err != nil {
		return err
	}
	if l.Last+1 < j.Key().Number {
		c.mu.Lock()
		c.wrong = append(c.wrong, fmt.Sprintf("%s ran when %d was completed", j.Key(), l.Last))
		c.mu.Unlock()
	}
	for p := len(j.State()); p < chainPieces; p++ {
		c.mu.Lock()
		if c.done[j.Key()] == nil {
			c.done[j.Key()] = make([]int, chainPieces)
		}
		c.done[j.Key()][p]++
		c.mu.Unlock()
		if err := j.Checkpoint(ctx, make([]byte, p+1)); err != nil {
			return err
		}
	}
	return nil
}

// TestChainOverALostLeader: the leader of three members is killed in the middle of a
// chain, and comes back; workers go on, in order, and nothing is missing.
func TestChainOverALostLeader(t *testing.T) {
	t.Parallel()
	const jobs = 16
	members := startMembers(t, 3)
	c := dial(t, members)
	s := NewPendingWork(c, PendingOptions{Prefix: "/test", Timeout: 2 * time.Second})
	judge := &chain{table: s, done: map[work.Key][]int{}}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	for n := range uint64(jobs) {
		k := work.Key{Log: "chain", Number: n + 1}
		for {
			err := work.Submit(ctx, s, s, work.Row{Key: k, Topic: "chain", Body: []byte(k.String())}, 0)
			if err == nil {
				break
			}
			if !errors.Is(err, work.ErrUnavailable) && !errors.Is(err, work.ErrUnknown) || ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for i := range 3 {
		w, err := work.NewWorker(s, s, judge, work.Config{Topic: "chain", Owner: fmt.Sprint("w", i),
			Hold: 2 * time.Second, Visibility: 2 * time.Second, OrderDelay: time.Second, RetryDelay: time.Second, MaxAttempts: 1000}, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				if o, err := w.Step(ctx); o == work.Idle || err != nil {
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	reached := func(n uint64) {
		t.Helper()
		for swept := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			l, err := s.Log(ctx, "chain")
			if err == nil && l.Last >= n {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("completed %d of %d: %v", l.Last, n, err)
			}
			if time.Since(swept) > 2*time.Second { // what an unknown outcome has left without a message
				swept = time.Now()
				_, _ = work.Sweep{Queue: s, Table: s, Grace: 2 * time.Second, MaxAttempts: 1000}.Run(ctx, time.Now())
			}
		}
	}
	reached(jobs / 4)
	lost := leaderOf(t, members)
	members[lost].stop()
	reached(jobs / 2)
	members[lost].restart(t)
	reached(jobs)
	stop()
	wg.Wait()
	for _, w := range judge.wrong {
		t.Error(w)
	}
	again := 0
	for n := range uint64(jobs) {
		for p, times := range judge.done[work.Key{Log: "chain", Number: n + 1}] {
			if times == 0 {
				t.Errorf("piece %d of job %d was never done", p, n+1)
			}
			again += times - 1
		}
	}
	if len(judge.done) != jobs {
		t.Errorf("%d jobs of %d", len(judge.done), jobs)
	}
	t.Logf("%d of %d pieces were done again", again, jobs*chainPieces)
}
