package work

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"
)

// Job is a claimed row in the hands of a handler. It is not safe for concurrent use.
type Job struct {
	w       *Worker
	row     Row
	msg     Message
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

// Checkpoint stores state and extends the hold of job and message. An error ends the job: ErrMoved when another
// worker has it, ErrHandOver when state is stored but the time is nearly up. After other errors the outcome is
// unknown, and the next owner finds out.
func (j *Job) Checkpoint(ctx context.Context, state []byte) error {
	if j.lost != nil {
		return j.lost
	}
	ours := func(r Row) bool {
		return r.Active && r.Owner == j.row.Owner && r.Increment > j.row.Increment && bytes.Equal(r.State, state)
	}
	state = slices.Clone(state)
	row, err := j.w.resolve(ctx, j.row, ours, func() (Row, error) { return j.w.table.Checkpoint(ctx, j.row, state, j.w.cfg.Hold) })
	if err != nil {
		j.lost = err
		return err
	}
	j.row = row
	// Only the row counts: if the message is gone, the sweep sends another, which finds the row.
	_ = j.w.queue.Extend(ctx, j.msg, j.w.cfg.Visibility)
	now := j.w.now()
	j.longest, j.piece = max(j.longest, now.Sub(j.piece)), now
	// The next piece may take as long as the longest so far, and half as much again.
	if limit := j.w.cfg.TimeLimit; limit > 0 && now.Sub(j.started)+j.longest+j.longest/2 >= limit {
		return ErrHandOver
	}
	return nil
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
		if _, err := w.table.Release(ctx, j.row, true); err != nil {
			return Failed, err
		}
		return HandedOver, w.queue.Defer(ctx, j.msg, 0)
	}
	if _, rerr := w.table.Release(ctx, j.row, false); rerr != nil {
		err = errors.Join(err, rerr)
	}
	if errors.Is(err, ErrPoison) || j.row.Attempts >= w.cfg.MaxAttempts {
		return w.bury(ctx, j.msg, err)
	}
	return Failed, errors.Join(err, w.queue.Extend(ctx, j.msg, w.backoff(int(j.row.Attempts))))
}

// releaseTimeout bounds the hand-over of a worker that shuts down.
const releaseTimeout = 5 * time.Second

// complete removes the row, and then the message. In the other order a crash in between would leave a row that
// only the sweep finds.
func (j *Job) complete(ctx context.Context) (Outcome, error) {
	w := j.w
	unknown := false
	var last error
	for range moves {
		err := w.table.Done(ctx, j.row)
		if err == nil {
			return Completed, w.queue.Delete(ctx, j.msg)
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
					return Completed, w.queue.Delete(ctx, j.msg)
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
