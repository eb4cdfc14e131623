package work_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

// schedules is how many seeds a test plays; WORK_SCHEDULES asks for more.
func schedules(n int) int {
	if v, err := strconv.Atoi(os.Getenv("WORK_SCHEDULES")); err == nil {
		return v
	}
	return n
}

func job(log string, n int) work.Row {
	k := work.Key{Log: log, Number: uint64(n)}
	return work.Row{Key: k, Topic: "jobs", Body: []byte(k.String())}
}

// chain plays jobs 1..n of every log to their end under faults.
func (w *world) chain(logs []string, n int) {
	w.t.Helper()
	ctx := context.Background()
	cfg := work.Config{MaxAttempts: 1 << 20, Hold: time.Minute}
	born := 0
	spawn := func() *work.Worker {
		born++
		return w.worker(fmt.Sprint("w", born), cfg)
	}
	workers := []*work.Worker{spawn(), spawn(), spawn()}
	step := func(i int) {
		if !alive(func() { _, _ = workers[i].Step(ctx) }) {
			workers[i] = spawn()
		}
	}
	w.other = func() { step(w.rng.Intn(len(workers))) }
	f := faulty{w}
	var todo []work.Row
	for i := range n {
		for _, l := range logs {
			todo = append(todo, job(l, i+1))
		}
	}
	limit := 4000 + 400*len(todo)
	for range limit {
		switch p := w.rng.Intn(20); {
		case len(todo) > 0 && p < 10:
			r := todo[0]
			if alive(func() {
				if work.Submit(ctx, f, f, r, 0) == nil {
					todo = todo[1:]
				}
			}) && w.rng.Intn(10) == 0 {
				alive(func() { _ = work.Submit(ctx, f, f, r, 0) }) // the feed repeats itself
			}
		case p < 16:
			step(w.rng.Intn(len(workers)))
		case p < 18:
			w.now = w.now.Add(time.Duration(w.rng.Intn(60)) * time.Second)
		case w.rng.Intn(len(todo)/10+1) == 0:
			alive(func() {
				_, _ = work.Sweep{Queue: f, Table: f, Grace: 5 * time.Minute, MaxAttempts: 1 << 20}.Run(ctx, w.now)
			})
		}
		if len(todo) == 0 && w.rng.Intn(10) == 0 && w.completed(logs, n) {
			w.drained(logs, n, cfg)
			return
		}
	}
	w.t.Fatalf("not completed after %d steps", limit)
}

func (w *world) completed(logs []string, n int) bool {
	for _, name := range logs {
		if l, err := w.store.Log(context.Background(), name); err != nil || l.Last < uint64(n) {
			return false
		}
	}
	return true
}

// drained judges the end: every piece was done, no row is left, the last doubles come to nothing.
func (w *world) drained(logs []string, n int, cfg work.Config) {
	w.t.Helper()
	w.crash, w.lose, w.interleave = 0, 0, 0
	for _, fn := range w.late {
		fn()
	}
	w.late = nil
	for _, l := range logs {
		for i := range n {
			for p, times := range w.executed[job(l, i+1).Key] {
				if times == 0 {
					w.t.Fatalf("piece %d of %s#%d was never done", p, l, i+1)
				}
			}
		}
	}
	last := w.worker("last", cfg)
	for range 3 {
		for {
			w.now = w.now.Add(time.Second)
			o, err := last.Step(context.Background())
			if err != nil {
				w.t.Fatalf("after the end: %s, %v", o, err)
			}
			if o == work.Idle {
				break
			}
			if o != work.Duplicate {
				w.t.Fatalf("after the end a message was %s", o)
			}
		}
		w.now = w.now.Add(time.Hour)
	}
	d, err := w.store.Depth(context.Background(), "jobs")
	rows, _, err2 := w.store.Rows(context.Background(), "", "", 10)
	if err != nil || err2 != nil || d != (work.Depth{}) || len(rows) != 0 {
		w.t.Fatalf("left behind: %+v, rows %v, %v, %v", d, rows, err, err2)
	}
}

// TestSeededFaults: crashes, lost and late requests, lost answers, lost, doubled and
// reordered messages, and workers that sleep past their holds while others go on.
func TestSeededFaults(t *testing.T) {
	seeds := schedules(800)
	for seed := range int64(seeds) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			w := newWorld(t, seed, 3)
			w.crash, w.lose, w.delay, w.interleave = 0.01, 0.03, 0.5, 0.03
			w.chain([]string{"a", "a/b"}, 4)
		})
	}
}

// TestChainOfAThousandJobsKeepsItsOrder under the same faults.
func TestChainOfAThousandJobsKeepsItsOrder(t *testing.T) {
	const seed = 1
	t.Logf("seed %d", seed)
	w := newWorld(t, seed, 2)
	w.crash, w.lose, w.delay, w.interleave = 0.002, 0.01, 0.5, 0.01
	w.chain([]string{"chain"}, 1000)
}

// TestCrashAtEveryCall: a worker dies before and after each of its calls; the next one
// continues, and does at most one piece again.
func TestCrashAtEveryCall(t *testing.T) {
	ctx := context.Background()
	const pieces = 5
	for at := 1; ; at++ {
		w := newWorld(t, 1, pieces)
		if err := work.Submit(ctx, w.store, w.store, job("log", 1), 0); err != nil {
			t.Fatal(err)
		}
		w.crashAt = at
		if alive(func() { _, _ = w.worker("first", work.Config{}).Step(ctx) }) {
			if at < 2*(pieces+4) {
				t.Fatalf("only %d moments", at)
			}
			return
		}
		w.now = w.now.Add(time.Hour)
		second := w.worker("second", work.Config{})
		o, err := second.Step(ctx)
		if err != nil || o != work.Completed && o != work.Duplicate && o != work.Idle {
			t.Fatalf("crash at moment %d: then %s, %v", at, o, err)
		}
		w.once(1, at)
	}
}

// once judges that job 1 is completed with at most again pieces done twice.
func (w *world) once(again, at int) {
	w.t.Helper()
	total := 0
	for _, n := range w.executed[work.Key{Log: "log", Number: 1}] {
		total += n
	}
	if total < w.pieces || total > w.pieces+again {
		w.t.Fatalf("crash at moment %d: %d pieces were done, the job has %d", at, total, w.pieces)
	}
	if !w.completed([]string{"log"}, 1) {
		w.t.Fatalf("crash at moment %d: not completed", at)
	}
}

// TestKilledAtEveryCheckpoint: the job comes through although no worker survives a
// checkpoint, and more often than MaxAttempts: progress makes attempts good.
func TestKilledAtEveryCheckpoint(t *testing.T) {
	ctx := context.Background()
	const pieces = 12
	w := newWorld(t, 1, pieces)
	if err := work.Submit(ctx, w.store, w.store, job("log", 1), 0); err != nil {
		t.Fatal(err)
	}
	deaths := 0
	for i := range 100 {
		worker := w.worker(fmt.Sprint("w", i), work.Config{MaxAttempts: 2})
		// Receive, Log, Rows, Create, Get and Claim are done in 12 moments; then each piece checkpoints.
		w.moments, w.crashAt = 0, 14
		if alive(func() { _, _ = worker.Step(ctx) }) {
			w.once(deaths, 14)
			if deaths < pieces-1 {
				t.Fatalf("only %d deaths", deaths)
			}
			return
		}
		deaths++
		w.now = w.now.Add(time.Hour)
	}
	t.Fatal("never completed")
}
