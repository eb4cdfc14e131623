package work_test

import (
	"context"
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
)

// world is a queue and a table with faults, and the judge of what the workers do.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	now    time.Time
	store  *mem.Store
	pieces int

	// rates of the faults, per call
	crash, lose, delay, interleave float64
	// crashAt crashes at the n-th moment, counted from 1; each call has one before and one after.
	crashAt, moments int
	late             []func() // requests without an answer that take effect later
	other            func()   // steps another worker, in the middle of a call
	depth            int

	executed map[work.Key][]int // how often each piece was
	top      map[work.Key]int   // the greatest checkpoint
}

func newWorld(t *testing.T, seed int64, pieces int) *world {
	w := &world{t: t, rng: rand.New(rand.NewSource(seed)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), pieces: pieces,
		executed: map[work.Key][]int{}, top: map[work.Key]int{}}
	w.store = mem.New(func() time.Time { return w.now }, mem.Options{})
	return w
}

type crashed struct{}

func (w *world) worker(name string, c work.Config) *work.Worker {
	w.t.Helper()
	c.Topic, c.Owner = "jobs", name
	f := faulty{w}
	worker, err := work.NewWorker(f, f, handler{w}, c, func() time.Time { return w.now })
	if err != nil {
		w.t.Fatal(err)
	}
	return worker
}

// alive runs fn and reports whether the process survived it.
func alive(fn func()) (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, is := r.(crashed); !is {
				panic(r)
			}
			ok = false
		}
	}()
	fn()
	return true
}

// moment is before or after a call.
func (w *world) moment() {
	w.moments++
	if w.moments == w.crashAt || w.rng.Float64() < w.crash {
		panic(crashed{})
	}
	if w.rng.Float64() < w.interleave && w.depth < 2 && w.other != nil {
		w.depth++
		if w.rng.Intn(2) == 0 {
			w.now = w.now.Add(time.Duration(w.rng.Intn(180)) * time.Second) // this process sleeps past its hold
		}
		w.other()
		w.depth--
	}
	if len(w.late) > 0 && w.rng.Intn(4) == 0 {
		i := w.rng.Intn(len(w.late))
		fn := w.late[i]
		w.late = append(w.late[:i], w.late[i+1:]...)
		fn()
	}
}

// call makes one request with its faults.
func call[T any](w *world, change bool, fn func() (T, error)) (T, error) {
	var zero T
	lost := work.ErrUnavailable
	if change {
		lost = work.ErrUnknown
	}
	w.moment()
	if w.rng.Float64() < w.lose {
		if change && w.rng.Float64() < w.delay {
			w.late = append(w.late, func() { _, _ = fn() })
		}
		return zero, &work.Error{Op: "test", Key: "request", Err: lost}
	}
	v, err := fn()
	w.moment()
	if w.rng.Float64() < w.lose {
		return zero, &work.Error{Op: "test", Key: "answer", Err: lost}
	}
	return v, err
}

func do(w *world, fn func() error) error {
	_, err := call(w, true, func() (struct{}, error) { return struct{}{}, fn() })
	return err
}

// handler does jobs of some pieces; a state is the number of pieces done.
type handler struct{ w *world }

func (h handler) Job(_ context.Context, m work.Message) (work.Key, uint64, error) {
	log, n, ok := strings.Cut(string(m.Body), "#")
	number, err := strconv.ParseUint(n, 10, 64)
	if !ok || err != nil {
		return work.Key{}, 0, fmt.Errorf("%w: body %q", work.ErrPoison, m.Body)
	}
	return work.Key{Log: log, Number: number}, 0, nil
}

func (h handler) Run(ctx context.Context, j *work.Job) error {
	w := h.w
	done := 0
	if s := string(j.State()); s != "" {
		done, _ = strconv.Atoi(s)
	}
	for ; done < w.pieces; done++ {
		w.execute(j.Key(), done)
		if err := j.Checkpoint(ctx, []byte(strconv.Itoa(done+1))); err != nil {
			return err
		}
	}
	return nil
}

// execute judges one piece of output.
func (w *world) execute(k work.Key, piece int) {
	w.t.Helper()
	l, err := w.store.Log(context.Background(), k.Log)
	if err != nil {
		w.t.Fatal(err)
	}
	if l.Last+1 < k.Number {
		w.t.Fatalf("piece %d of %s was done when only %d was completed", piece, k, l.Last)
	}
	if piece > w.top[k] {
		w.t.Fatalf("piece %d of %s was done, the last checkpoint is %d: more than one piece can be lost", piece, k, w.top[k])
	}
	if w.executed[k] == nil {
		w.executed[k] = make([]int, w.pieces)
	}
	w.executed[k][piece]++
}

// check judges the table after a change of k.
func (w *world) check(k work.Key) {
	w.t.Helper()
	ctx := context.Background()
	if r, err := w.store.Get(ctx, k); err == nil {
		n := 0
		if len(r.State) > 0 {
			n, _ = strconv.Atoi(string(r.State))
		}
		if n < w.top[k] {
			w.t.Fatalf("the checkpoint of %s went back from %d to %d", k, w.top[k], n)
		}
		w.top[k] = n
	}
	l, err := w.store.Log(ctx, k.Log)
	if err != nil {
		w.t.Fatal(err)
	}
	if l.Last >= k.Number {
		if w.top[k] != w.pieces {
			w.t.Fatalf("%s is completed after %d pieces", k, w.top[k])
		}
		if _, err := w.store.Get(ctx, k); err == nil {
			w.t.Fatalf("%s is pending after it was completed", k)
		}
	}
}

// faulty is the store as a process sees it.
type faulty struct{ w *world }

func (f faulty) Send(ctx context.Context, topic string, body []byte, o work.SendOptions) error {
	if f.w.rng.Float64() < f.w.lose {
		return nil // the queue loses it
	}
	if f.w.rng.Float64() < f.w.lose {
		_ = f.w.store.Send(ctx, topic, body, work.SendOptions{})
	}
	return do(f.w, func() error { return f.w.store.Send(ctx, topic, body, o) })
}

func (f faulty) Receive(ctx context.Context, topic string, n int, d time.Duration) ([]work.Message, error) {
	return call(f.w, false, func() ([]work.Message, error) { return f.w.store.Receive(ctx, topic, n, d) })
}

func (f faulty) Extend(ctx context.Context, m work.Message, d time.Duration) error {
	return do(f.w, func() error { return f.w.store.Extend(ctx, m, d) })
}

func (f faulty) Terminate(ctx context.Context, m work.Message) error {
	return do(f.w, func() error { return f.w.store.Terminate(ctx, m) })
}

func (f faulty) Defer(ctx context.Context, m work.Message, d time.Duration) error {
	return do(f.w, func() error { return f.w.store.Defer(ctx, m, d) })
}

func (f faulty) Delete(ctx context.Context, m work.Message) error {
	return do(f.w, func() error { return f.w.store.Delete(ctx, m) })
}

func (f faulty) Bury(ctx context.Context, m work.Message, reason string) error {
	return do(f.w, func() error { return f.w.store.Bury(ctx, m, reason) })
}

func (f faulty) DeadLetters(ctx context.Context, topic, after string, limit int) ([]work.DeadLetter, string, error) {
	return f.w.store.DeadLetters(ctx, topic, after, limit)
}

func (f faulty) Redrive(ctx context.Context, topic, id string) error {
	return do(f.w, func() error { return f.w.store.Redrive(ctx, topic, id) })
}

func (f faulty) Depth(ctx context.Context, topic string) (work.Depth, error) {
	return f.w.store.Depth(ctx, topic)
}

// change is a call that changes the row of k, decided afterwards.
func (f faulty) change(k work.Key, fn func() (work.Row, error)) (work.Row, error) {
	return call(f.w, true, func() (work.Row, error) {
		r, err := fn()
		f.w.check(k)
		return r, err
	})
}

func (f faulty) Create(ctx context.Context, r work.Row, c *work.Claim) (work.Row, error) {
	return f.change(r.Key, func() (work.Row, error) { return f.w.store.Create(ctx, r, c) })
}

func (f faulty) Get(ctx context.Context, k work.Key) (work.Row, error) {
	return call(f.w, false, func() (work.Row, error) { return f.w.store.Get(ctx, k) })
}

func (f faulty) Claim(ctx context.Context, r work.Row, c work.Claim) (work.Row, error) {
	return f.change(r.Key, func() (work.Row, error) { return f.w.store.Claim(ctx, r, c) })
}

func (f faulty) Checkpoint(ctx context.Context, r work.Row, state []byte, d time.Duration) (work.Row, error) {
	return f.change(r.Key, func() (work.Row, error) { return f.w.store.Checkpoint(ctx, r, state, d) })
}

func (f faulty) Release(ctx context.Context, r work.Row, handOver bool) (work.Row, error) {
	return f.change(r.Key, func() (work.Row, error) { return f.w.store.Release(ctx, r, handOver) })
}

func (f faulty) Touch(ctx context.Context, r work.Row) (work.Row, error) {
	return f.change(r.Key, func() (work.Row, error) { return f.w.store.Touch(ctx, r) })
}

func (f faulty) Done(ctx context.Context, r work.Row) error {
	_, err := f.change(r.Key, func() (work.Row, error) { return work.Row{}, f.w.store.Done(ctx, r) })
	return err
}

type rowsPage struct {
	rows []work.Row
	next string
}

func (f faulty) Rows(ctx context.Context, prefix, after string, limit int) ([]work.Row, string, error) {
	p, err := call(f.w, false, func() (rowsPage, error) {
		rows, next, err := f.w.store.Rows(ctx, prefix, after, limit)
		return rowsPage{rows, next}, err
	})
	return p.rows, p.next, err
}

func (f faulty) Log(ctx context.Context, name string) (work.Log, error) {
	return call(f.w, false, func() (work.Log, error) { return f.w.store.Log(ctx, name) })
}

func (f faulty) Logs(ctx context.Context, prefix, after string, limit int) ([]work.Log, string, error) {
	return f.w.store.Logs(ctx, prefix, after, limit)
}

func (f faulty) Forget(ctx context.Context, l work.Log) error {
	return do(f.w, func() error { return f.w.store.Forget(ctx, l) })
}
