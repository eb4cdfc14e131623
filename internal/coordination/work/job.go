package work

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Job is a claimed row in the hands of a handler. It is not safe for concurrent use.
type Job struct {
	w       *Worker
	row     Row
	msg     *Message // nil: no message brought it
	started time.Time
	piece   time.Time     // start of the current piece
	longest time.Duration // of the pieces so far
	lost    error
}

// Key names the job.
func (j *Job) Key() Key { return j.row.Key }

// Body is that of the message that created the row.
func (j *Job) Body() []byte { return j.row.Body }

// State is the last checkpoint; empty at first.
func (j *Job) State() []byte { return j.row.State }

// Fence is the fence of this claim, to be recorded in what the job publishes.
func (j *Job) Fence() uint64 { return j.row.Fence }

// Attempt counts the claims since the last checkpoint, this one included; 0 after one.
func (j *Job) Attempt() uint32 { return j.row.Attempts }

// Checkpoint stores state and extends the hold of job and message; the first one of a job without a row makes it. An error
// ends the job: ErrMoved when another worker has it, ErrHandOver when state is stored but the time is nearly up. After other errors the outcome is
// unknown, and the next owner finds out.
func (j *Job) Checkpoint(ctx context.Context, state []byte) error {
	if j.lost != nil {
		return j.lost
	}
	row, err := j.store(ctx, slices.Clone(state))
	if err != nil {
		j.lost = err
		return err
	}
	j.row = row
	if j.msg != nil {
		// Only the row counts: if the message is gone, the sweep sends another, which finds the row.
		_ = j.w.queue.Extend(ctx, *j.msg, j.w.cfg.Visibility)
	}
	now := j.w.now()
	j.longest, j.piece = max(j.longest, now.Sub(j.piece)), now
	// The next piece may take as long as the longest so far, and half as much again.
	if limit := j.w.cfg.TimeLimit; limit > 0 && now.Sub(j.started)+j.longest+j.longest/2 >= limit {
		return ErrHandOver
	}
	return nil
}

// store writes a checkpoint to the job's row.
func (j *Job) store(ctx context.Context, state []byte) (Row, error) {
	if j.row.Increment != 0 {
		ours := func(r Row) bool {
			return r.Active && r.Owner == j.row.Owner && r.Increment > j.row.Increment && bytes.Equal(r.State, state)
		}
		return j.w.resolve(ctx, j.row, ours, func() (Row, error) { return j.w.table.Checkpoint(ctx, j.row, state, j.w.cfg.Hold) })
	}
	want := j.row
	want.State = state
	c, ours := j.w.claim(want)
	row, err := j.w.resolve(ctx, Row{Key: want.Key}, ours, func() (Row, error) { return j.w.table.Create(ctx, want, &c) })
	// Another worker has begun the job meanwhile, has done it, or owns what it is of.
	if errors.Is(err, ErrExists) || errors.Is(err, ErrCompleted) || errors.Is(err, ErrFenced) {
		err = fmt.Errorf("%w: %w", ErrMoved, err)
	}
	return row, err
}

// finish turns the result of Run into the job's outcome.
func (j *Job) finish(ctx context.Context, err error) (Outcome, error) {
	w := j.w
	switch {
	case j.lost != nil && errors.Is(j.lost, ErrMoved):
		return Lost, j.lost // the message comes again and finds how the job ended
	case j.lost != nil:
		return Failed, j.lost
	case err == nil:
		return j.complete(ctx)
	case errors.Is(err, ErrHandOver), ctx.Err() != nil:
		// Also when the worker shuts down: its context has ended, but the successor must not wait for the hold to
		// run out.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if err := j.release(ctx, true); err != nil {
			return Failed, err
		}
		if j.msg == nil {
			return HandedOver, nil
		}
		return HandedOver, w.queue.Defer(ctx, *j.msg, 0)
	}
	if rerr := j.release(ctx, false); rerr != nil {
		err = errors.Join(err, rerr)
	}
	if j.msg == nil {
		return Failed, err
	}
	if errors.Is(err, ErrPoison) || j.row.Attempts >= w.cfg.MaxAttempts {
		return w.bury(ctx, *j.msg, err)
	}
	return Failed, errors.Join(err, w.queue.Extend(ctx, *j.msg, w.backoff(int(j.row.Attempts))))
}

// release gives the job's row back, if it has one.
func (j *Job) release(ctx context.Context, handOver bool) error {
	if j.row.Increment == 0 {
		return nil
	}
	_, err := j.w.table.Release(ctx, j.row, handOver)
	return err
}

// releaseTimeout bounds the hand-over of a worker that shuts down.
const releaseTimeout = 5 * time.Second

// complete removes the row, if there is one, and then the message. In the other order a crash in between would leave a row that
// only the sweep finds.
func (j *Job) complete(ctx context.Context) (Outcome, error) {
	w := j.w
	if j.row.Increment == 0 {
		return Completed, nil
	}
	unknown := false
	var last error
	for range moves {
		err := w.table.Done(ctx, j.row)
		if err == nil {
			return j.completed(ctx)
		}
		last = err
		switch {
		case errors.Is(err, ErrUnknown):
			unknown = true
		case errors.Is(err, ErrUnavailable):
		case unknown && errors.Is(err, ErrMoved):
			// Either this call's first attempt took effect after all, or another worker took the row: the log
			// tells.
			if log, err := w.table.Log(ctx, j.row.Log); err == nil {
				if log.Last >= j.row.Number {
					return j.completed(ctx)
				}
				return Lost, last
			}
		case errors.Is(err, ErrMoved):
			return Lost, err
		default:
			return Failed, err
		}
	}
	return Failed, last
}

func (j *Job) completed(ctx context.Context) (Outcome, error) {
	if j.msg == nil {
		return Completed, nil
	}
	return Completed, j.w.queue.Delete(ctx, *j.msg)
}
