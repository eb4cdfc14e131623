package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// life ends at a process's n-th call of store or table; the n-th itself takes effect when
// after is set, and the process never hears of it.
type life struct {
	at, calls int
	after     bool
}

func (l *life) call() (do, answer bool) {
	l.calls++
	return l.calls < l.at || l.calls == l.at && l.after, l.calls < l.at
}

func (l *life) dead() bool { return l.calls >= l.at }

type mortalStore struct {
	objstore.Store
	*life
}

func (m mortalStore) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if _, ok := m.call(); !ok {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrUnavailable}
	}
	return m.Store.Get(ctx, key, o)
}

func (m mortalStore) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if _, ok := m.call(); !ok {
		return objstore.Page{}, &objstore.Error{Op: "list", Key: o.Prefix, Err: objstore.ErrUnavailable}
	}
	return m.Store.List(ctx, o)
}

func (m mortalStore) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (info objstore.Info, err error) {
	do, ok := m.call()
	if do {
		info, err = m.Store.Create(ctx, key, b, o)
	}
	if !ok {
		return info, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrUnknown}
	}
	return info, err
}

func (m mortalStore) Delete(ctx context.Context, key string) (err error) {
	do, ok := m.call()
	if do {
		err = m.Store.Delete(ctx, key)
	}
	if !ok {
		return &objstore.Error{Op: "delete", Key: key, Err: objstore.ErrUnknown}
	}
	return err
}

type mortalTable struct {
	work.Table
	*life
}

func change[T any](l *life, op string, fn func() (T, error)) (v T, err error) {
	do, ok := l.call()
	if do {
		v, err = fn()
	}
	if !ok {
		return v, &work.Error{Op: op, Err: work.ErrUnknown}
	}
	return v, err
}

func (m mortalTable) Create(ctx context.Context, r work.Row, c *work.Claim) (work.Row, error) {
	return change(m.life, "create", func() (work.Row, error) { return m.Table.Create(ctx, r, c) })
}

func (m mortalTable) Claim(ctx context.Context, r work.Row, c work.Claim) (work.Row, error) {
	return change(m.life, "claim", func() (work.Row, error) { return m.Table.Claim(ctx, r, c) })
}

func (m mortalTable) Checkpoint(ctx context.Context, r work.Row, state []byte, hold time.Duration) (work.Row, error) {
	return change(m.life, "checkpoint", func() (work.Row, error) { return m.Table.Checkpoint(ctx, r, state, hold) })
}

func (m mortalTable) Release(ctx context.Context, r work.Row, handOver bool) (work.Row, error) {
	return change(m.life, "release", func() (work.Row, error) { return m.Table.Release(ctx, r, handOver) })
}

func (m mortalTable) Done(ctx context.Context, r work.Row) error {
	_, err := change(m.life, "done", func() (struct{}, error) { return struct{}{}, m.Table.Done(ctx, r) })
	return err
}

func (m mortalTable) Get(ctx context.Context, k work.Key) (work.Row, error) {
	return change(m.life, "get", func() (work.Row, error) { return m.Table.Get(ctx, k) })
}

func (m mortalTable) Log(ctx context.Context, name string) (work.Log, error) {
	return change(m.life, "log", func() (work.Log, error) { return m.Table.Log(ctx, name) })
}

func (m mortalTable) Rows(ctx context.Context, prefix, after string, limit int) (rows []work.Row, next string, err error) {
	_, err = change(m.life, "rows", func() (struct{}, error) {
		rows, next, err = m.Table.Rows(ctx, prefix, after, limit)
		return struct{}{}, err
	})
	return rows, next, err
}

// A worker dies before or after any call, in jobs that merge and write several packs. Its
// successor, under a greater fence or after the hold ran out, resumes: no batch and no
// order is lost, at most one pack is written twice, and nothing is left behind.
func TestKilledAtEveryCall(t *testing.T) {
	ideal := undisturbed(t)
	for _, sameFence := range []bool{false, true} {
		for at := 1; ; at++ {
			finished := false
			for _, after := range []bool{false, true} {
				name := fmt.Sprintf("call %d, after %v, same fence %v", at, after, sameFence)
				finished = killedAt(t, name, at, ideal, after, sameFence)
			}
			if finished {
				if at < 20 {
					t.Errorf("only %d calls", at)
				}
				break
			}
		}
	}
}

// undisturbed counts the packs of the job when nobody dies.
func undisturbed(t *testing.T) int {
	w := newWorld(t)
	n := 0
	c := w.chain(func(c *Config) {
		c.PackBatches = 40
		c.Events.Packed = func(Ref, bool) { n++ }
	})
	for range fan {
		c.Offer(w.accept(1))
		w.step(c, work.Completed)
	}
	n = 0
	c.Offer(w.accept(100))
	w.step(c, work.Completed)
	return n
}

func killedAt(t *testing.T, name string, at, ideal int, after, sameFence bool) (finished bool) {
	w := newWorld(t)
	written := 0
	count := func(c *Config) {
		c.PackBatches = 40
		c.Events.Packed = func(Ref, bool) { written++ }
	}
	c := w.chain(count)
	for range fan {
		c.Offer(w.accept(1))
		w.step(c, work.Completed)
	}
	written = 0
	w.accept(100)
	l := &life{at: at, after: after}
	first := w.chain(func(c *Config) {
		count(c)
		c.Store, c.Table = mortalStore{w.store, l}, mortalTable{w.work, l}
		if sameFence {
			c.Fence = 1
		}
	})
	first.Offer(w.entries)
	_, err := first.Step(bg)
	if !l.dead() {
		w.must(err)
		return true
	}
	second := w.chain(func(c *Config) {
		count(c)
		if sameFence {
			c.Fence = 1
		}
	})
	second.Offer(w.entries)
	if sameFence {
		w.now = w.now.Add(2 * time.Minute) // the hold runs out
	}
	done := func() bool {
		l, err := w.work.Log(bg, Log(mine))
		return err == nil && l.Last == fan+1 && second.Pending() == 0
	}
	for n := 0; !done(); n++ {
		if o, err := second.Step(bg); err != nil || n > 60 {
			t.Fatalf("%s: step %d: %s, %v", name, n, o, err)
		}
		w.now = w.now.Add(minWait)
	}
	if s := w.holds(w.entries); s.Number != fan+1 {
		t.Errorf("%s: number %d", name, s.Number)
	}
	// Packed is not told of a pack whose answer was lost: those writes find it there.
	if written > ideal+1 {
		t.Errorf("%s: %d packs were written, one worker writes %d", name, written, ideal)
	}
	if log, err := w.work.Log(bg, Log(mine)); err != nil || log.Last != fan+1 {
		t.Errorf("%s: the log ends at %d, %v", name, log.Last, err)
	}
	if _, _, err := second.Collect(bg); err != nil {
		t.Fatal(err)
	}
	w.tidy()
	if t.Failed() {
		t.Fatal(name)
	}
	return false
}

// Answers that are lost now and then do not stop a chain.
func TestUnknownOutcomesAreResolved(t *testing.T) {
	for n := range 12 {
		w := newWorld(t)
		lossy := &losing{Store: w.store, at: n}
		c := w.chain(func(c *Config) { c.Store, c.PackBatches = lossy, 4 })
		for range 12 {
			c.Offer(w.accept(6))
			for i := 0; c.Pending() > 0; i++ {
				if _, err := c.Step(bg); err != nil && !errors.Is(err, objstore.ErrUnknown) || i > 30 {
					t.Fatal(err)
				}
				w.now = w.now.Add(2 * time.Second) // its message comes again
			}
		}
		w.holds(w.entries)
		if _, _, err := c.Collect(bg); err != nil {
			t.Fatal(err)
		}
		w.tidy()
	}
}

// losing loses the answers of every few creates, of which some were applied.
type losing struct {
	objstore.Store
	at, calls int
}

func (l *losing) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (info objstore.Info, err error) {
	l.calls++
	lose := (l.calls+l.at)%3 == 0
	if !lose || l.calls%2 == 0 {
		info, err = l.Store.Create(ctx, key, b, o)
	}
	if lose {
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrUnknown}
	}
	return info, err
}

// failing refuses the snapshots' creates while die is set, after their packs are written.
type failing struct {
	objstore.Store
	die *bool
}

func (f failing) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if _, _, err := layout.ParseLiveSnapshot(key); err == nil && *f.die {
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrUnavailable}
	}
	return f.Store.Create(ctx, key, b, o)
}

// A checkpoint of a newer release waits for a worker of that release.
func TestJobsOfANewerReleaseWaitForIt(t *testing.T) {
	w := newWorld(t)
	c := w.chain(nil)
	want := work.Row{Key: work.Key{Log: Log(mine), Number: 1}, Topic: topic(mine), Body: JobBody(mine, 1),
		State: bytes.Replace(ProgressKind.Marshal(progress{}), []byte(".v1"), []byte(".v2"), 1)}
	_, err := w.work.Create(bg, want, nil)
	w.must(err)
	c.Offer(w.accept(2))
	for range 5 {
		if o, err := c.Step(bg); o != work.Failed || !errors.Is(err, record.ErrNewerVersion) {
			t.Fatalf("%s, %v", o, err)
		}
	}
	if row, err := w.work.Get(bg, want.Key); err != nil || !bytes.Equal(row.State, want.State) {
		t.Errorf("%+v, %v", row, err)
	}
	if n := len(w.keys(layout.LivePrefix)); n != 0 {
		t.Errorf("%d objects", n)
	}
}
