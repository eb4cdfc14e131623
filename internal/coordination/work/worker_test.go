package work_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
)

// stub is a handler made of functions.
type stub struct {
	job func(work.Message) (work.Key, uint64, error)
	run func(context.Context, *work.Job) error
}

func (s stub) Job(_ context.Context, m work.Message) (work.Key, uint64, error) {
	if s.job == nil {
		return work.Key{Log: "log", Number: 1}, 0, nil
	}
	return s.job(m)
}

func (s stub) Run(ctx context.Context, j *work.Job) error { return s.run(ctx, j) }

// bench is a store, a clock and a worker over a stub.
type bench struct {
	*testing.T
	now   time.Time
	store *mem.Store
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	b.store = mem.New(func() time.Time { return b.now }, mem.Options{})
	return b
}

func (b *bench) worker(c work.Config, s stub) *work.Worker {
	b.Helper()
	c.Topic, c.Owner = "jobs", "w"
	w, err := work.NewWorker(b.store, b.store, s, c, func() time.Time { return b.now })
	if err != nil {
		b.Fatal(err)
	}
	return w
}

func (b *bench) send(body string) {
	b.Helper()
	if err := b.store.Send(b.Context(), "jobs", []byte(body), work.SendOptions{}); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) step(w *work.Worker, want work.Outcome) error {
	b.Helper()
	o, err := w.Step(b.Context())
	if o != want {
		b.Fatalf("outcome %s (%v), want %s", o, err, want)
	}
	return err
}

func (b *bench) letters(n int) []work.DeadLetter {
	b.Helper()
	ds, _, err := b.store.DeadLetters(b.Context(), "jobs", "", 10)
	if err != nil || len(ds) != n {
		b.Fatalf("dead letters %+v, %v, want %d", ds, err, n)
	}
	return ds
}

// TestPoison: a job that always fails becomes a dead letter with its reason, is not
// brought back by the sweep, and gets one more try when it is redriven.
func TestPoison(t *testing.T) {
	b := newBench(t)
	bad, runs := true, 0
	w := b.worker(work.Config{MaxAttempts: 3}, stub{run: func(context.Context, *work.Job) error {
		if runs++; bad {
			return errors.New("cannot be done")
		}
		return nil
	}})
	b.send("x")
	for _, want := range []work.Outcome{work.Failed, work.Failed, work.Buried} {
		if err := b.step(w, want); err == nil || !strings.Contains(err.Error(), "cannot be done") {
			t.Fatalf("error %v", err)
		}
		b.step(w, work.Idle) // it backs off
		b.now = b.now.Add(time.Hour)
	}
	if d := b.letters(1)[0]; !strings.Contains(d.Reason, "cannot be done") || runs != 3 {
		t.Fatalf("dead letter %+v after %d runs", d, runs)
	}
	n, err := work.Sweep{Queue: b.store, Table: b.store, Grace: time.Minute, MaxAttempts: 3}.Run(t.Context(), b.now)
	if err != nil || n.Stuck != 1 || n.Sent != 0 {
		t.Fatalf("the sweep did %+v, %v", n, err)
	}
	bad = false
	if err := b.store.Redrive(t.Context(), "jobs", b.letters(1)[0].ID); err != nil {
		t.Fatal(err)
	}
	b.step(w, work.Completed)
	b.letters(0)
}

// TestCrashingPoison: a job that takes its worker down each time is buried too.
func TestCrashingPoison(t *testing.T) {
	b := newBench(t)
	w := b.worker(work.Config{MaxAttempts: 3}, stub{run: func(context.Context, *work.Job) error { panic(crashed{}) }})
	b.send("x")
	for i := range 3 {
		if alive(func() { _, _ = w.Step(t.Context()) }) {
			t.Fatalf("survived run %d", i)
		}
		b.now = b.now.Add(time.Hour)
	}
	b.step(w, work.Buried)
	b.letters(1)
}

// TestHandlersAnswers before a job is claimed.
func TestHandlersAnswers(t *testing.T) {
	b := newBench(t)
	var answer error
	w := b.worker(work.Config{}, stub{
		job: func(work.Message) (work.Key, uint64, error) { return work.Key{Log: "log", Number: 1}, 0, answer },
		run: func(context.Context, *work.Job) error { return errors.New("not to be run") }})
	b.send("x")
	answer = work.ErrElsewhere
	b.step(w, work.Deferred)
	b.step(w, work.Idle)
	b.now = b.now.Add(time.Minute)
	answer = fmt.Errorf("the hour is not over: %w", &work.NotDueError{Wait: time.Hour}) // more than a message can wait
	b.step(w, work.Deferred)
	b.now = b.now.Add(work.MaxDelay - time.Second)
	b.step(w, work.Idle)
	b.now = b.now.Add(time.Second)
	answer = errors.New("catalog is down")
	b.step(w, work.Failed)
	b.now = b.now.Add(time.Hour)
	answer = work.ErrPoison
	b.step(w, work.Buried)
	b.letters(1)
	if d, err := b.store.Depth(t.Context(), "jobs"); err != nil || d != (work.Depth{Dead: 1}) {
		t.Fatalf("left %+v, %v", d, err)
	}
}

// TestHandOver: near its time limit, or when it is told to stop, a worker leaves the job
// to the next, which continues at once from the checkpoint.
func TestHandOver(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	var begun []string
	h := stub{run: func(c context.Context, j *work.Job) error {
		begun = append(begun, string(j.State()))
		for i := len(j.State()); i < 10; i++ {
			b.now = b.now.Add(10 * time.Second)
			if i == 7 {
				cancel()
				if c == ctx {
					return c.Err()
				}
			}
			if err := j.Checkpoint(c, []byte(strings.Repeat(".", i+1))); err != nil {
				return err
			}
		}
		return nil
	}}
	w := b.worker(work.Config{TimeLimit: 45 * time.Second, MaxAttempts: 1}, h)
	b.send("x")
	b.step(w, work.HandedOver)
	b.step(w, work.HandedOver)
	if o, err := w.Step(ctx); o != work.HandedOver || err != nil {
		t.Fatalf("drained: %s, %v", o, err)
	}
	for i := 0; ; i++ {
		o, err := w.Step(t.Context())
		if err != nil || i > 5 {
			t.Fatal(o, err)
		}
		if o == work.Completed {
			break
		}
	}
	if got := strings.Join(begun, " "); got != " ... ...... ....... .........." {
		t.Fatalf("begun at %q", got)
	}
}

// TestDrainIsNoAttempt: workers that are told to go do not make a job look like poison.
func TestDrainIsNoAttempt(t *testing.T) {
	b := newBench(t)
	fail := false
	var stop context.CancelFunc
	w := b.worker(work.Config{MaxAttempts: 2}, stub{run: func(ctx context.Context, _ *work.Job) error {
		if fail {
			return errors.New("for once")
		}
		stop()
		return ctx.Err()
	}})
	b.send("x")
	for range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		stop = cancel
		if o, err := w.Step(ctx); o != work.HandedOver || err != nil {
			t.Fatalf("%s, %v", o, err)
		}
	}
	fail = true
	b.step(w, work.Failed)
}

// TestLostWorkerStops: one that slept past its hold while another did the job learns it
// at its next checkpoint, even if its handler does not listen.
func TestLostWorkerStops(t *testing.T) {
	b := newBench(t)
	pieces, asleep := 0, true
	var w *work.Worker
	w = b.worker(work.Config{}, stub{run: func(ctx context.Context, j *work.Job) error {
		if asleep {
			asleep = false
			b.now = b.now.Add(time.Hour)
			b.step(w, work.Completed)
			for range 3 {
				if err := j.Checkpoint(ctx, []byte("stale")); !errors.Is(err, work.ErrMoved) {
					t.Errorf("a checkpoint of the sleeper: %v", err)
				}
			}
			return nil
		}
		pieces++
		return j.Checkpoint(ctx, []byte("1"))
	}})
	b.send("x")
	b.step(w, work.Lost)
	b.now = b.now.Add(time.Hour)
	b.step(w, work.Idle)
	if pieces != 1 {
		t.Errorf("%d pieces", pieces)
	}
}

// TestFencedWorker: a worker whose shard has another owner does not even begin.
func TestFencedWorker(t *testing.T) {
	b := newBench(t)
	fence := uint64(7)
	runs := 0
	w := b.worker(work.Config{}, stub{
		job: func(work.Message) (work.Key, uint64, error) { return work.Key{Log: "log", Number: 1}, fence, nil },
		run: func(_ context.Context, j *work.Job) error {
			runs++
			if j.Fence() != 7 {
				t.Errorf("fence %d", j.Fence())
			}
			return errors.New("once more")
		}})
	b.send("x")
	b.step(w, work.Failed)
	b.now = b.now.Add(time.Hour)
	fence = 6
	b.step(w, work.Fenced)
	if runs != 1 {
		t.Fatalf("%d runs", runs)
	}
}

// TestALostMessageIsSentAgain: a worker dies in a job whose message is then lost; the sweep
// sends another, and forgets the log when it is old.
func TestALostMessageIsSentAgain(t *testing.T) {
	b := newBench(t)
	die := true
	w := b.worker(work.Config{}, stub{run: func(ctx context.Context, j *work.Job) error {
		if err := j.Checkpoint(ctx, []byte("half")); err != nil {
			return err
		}
		if die {
			panic(crashed{})
		}
		return nil
	}})
	b.send("x")
	ms, err := b.store.Receive(t.Context(), "jobs", 1, time.Minute)
	if err != nil || len(ms) != 1 {
		t.Fatal(ms, err)
	}
	if alive(func() { _, _ = w.Handle(t.Context(), ms[0]) }) {
		t.Fatal("survived")
	}
	if err := b.store.Delete(t.Context(), ms[0]); err != nil {
		t.Fatal(err)
	}
	die = false
	b.now = b.now.Add(time.Hour)
	b.step(w, work.Idle)
	sweep := work.Sweep{Queue: b.store, Table: b.store, Grace: time.Minute, MaxAttempts: 5, Forget: 24 * time.Hour}
	if n, err := sweep.Run(t.Context(), b.now); err != nil || n.Sent != 1 {
		t.Fatalf("swept %+v, %v", n, err)
	}
	if n, err := sweep.Run(t.Context(), b.now); err != nil || n.Sent != 0 {
		t.Fatalf("swept again at once %+v, %v", n, err)
	}
	b.step(w, work.Completed)
	if l, err := b.store.Log(t.Context(), "log"); err != nil || string(l.Result) != "half" {
		t.Fatalf("the log keeps %q, %v", l.Result, err)
	}
	b.send("x")
	b.step(w, work.Duplicate)
	b.now = b.now.Add(25 * time.Hour)
	if n, err := sweep.Run(t.Context(), b.now); err != nil || n.Forgot != 1 {
		t.Fatalf("swept %+v, %v", n, err)
	}
}

// TestConfigIsChecked: what no back end would take is refused at the start.
func TestConfigIsChecked(t *testing.T) {
	for what, c := range map[string]work.Config{
		"no topic":          {Owner: "w"},
		"no owner":          {Topic: "jobs"},
		"a hold too long":   {Topic: "jobs", Owner: "w", Hold: 2 * time.Hour},
		"a delay too long":  {Topic: "jobs", Owner: "w", OrderDelay: time.Hour},
		"a retry too short": {Topic: "jobs", Owner: "w", RetryDelay: time.Millisecond},
	} {
		if _, err := work.NewWorker(nil, nil, nil, c, nil); !errors.Is(err, work.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
