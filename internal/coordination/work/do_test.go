package work_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
)

// TestJobsWithoutMessages: a job that no message brings has a row from its first checkpoint on, and its rules hold then.
func TestJobsWithoutMessages(t *testing.T) {
	key := work.Key{Log: "log", Number: 3}
	job := work.Row{Key: key, Topic: "jobs", Body: []byte("x"), Fence: 5}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	store := mem.New(func() time.Time { return now }, mem.Options{})
	worker := func(owner string, run func(context.Context, *work.Job) error) *work.Worker {
		w, err := work.NewWorker(nil, store, stub{run: run}, work.Config{Topic: "jobs", Owner: owner, Hold: time.Minute, TimeLimit: time.Hour}, func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	do := func(w *work.Worker, r work.Row, want work.Outcome, cause error) {
		t.Helper()
		if o, err := w.Do(t.Context(), r); o != want || !errors.Is(err, cause) {
			t.Fatalf("%s, %v; want %s, %v", o, err, want, cause)
		}
	}
	row := func() work.Row {
		t.Helper()
		r, err := store.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	broken := errors.New("broken")
	var done error
	short := worker("short", func(context.Context, *work.Job) error { return done })
	long := worker("long", func(ctx context.Context, j *work.Job) error {
		if err := j.Checkpoint(ctx, append(j.State(), '+')); err != nil {
			return err
		}
		return done
	})

	do(short, job, work.Completed, nil)
	done = broken
	do(short, job, work.Failed, broken)
	if _, err := store.Get(t.Context(), key); !errors.Is(err, work.ErrNotFound) {
		t.Error(err)
	}
	do(long, job, work.Failed, broken)
	if r := row(); string(r.State) != "+" || r.Active || r.Fence != 5 {
		t.Errorf("%+v", r)
	}
	// Whoever does not know of the row loses the job, and whoever does continues.
	do(long, job, work.Lost, work.ErrMoved)
	stale := row()
	stale.Fence = 4
	do(long, stale, work.Fenced, nil)
	do(long, row(), work.Failed, broken)
	if r := row(); string(r.State) != "++" {
		t.Errorf("%+v", r)
	}
	// Of two that know of it one gets it, and the other when the hold has ended.
	dead := row()
	if _, err := store.Claim(t.Context(), dead, work.Claim{Owner: "dead", Fence: 5, Hold: time.Minute}); err != nil {
		t.Fatal(err)
	}
	do(long, dead, work.Busy, nil)
	do(long, row(), work.Busy, nil)
	now, done = now.Add(2*time.Minute), nil
	do(long, row(), work.Completed, nil)
	if l, err := store.Log(t.Context(), key.Log); err != nil || l.Last != 3 || string(l.Result) != "+++" {
		t.Errorf("%+v, %v", l, err)
	}
	// It was done by another meanwhile.
	do(long, job, work.Lost, work.ErrMoved)
	// A context that ends gives the row back at once.
	job.Number = 4
	key = job.Key
	ctx, cancel := context.WithCancel(t.Context())
	ends := worker("ends", func(_ context.Context, j *work.Job) error {
		defer cancel()
		return errors.Join(j.Checkpoint(ctx, []byte("half")), broken)
	})
	if o, err := ends.Do(ctx, job); o != work.HandedOver || err != nil {
		t.Fatal(o, err)
	}
	if r := row(); r.Active || string(r.State) != "half" || r.Attempts != 0 {
		t.Errorf("%+v", r)
	}
}
