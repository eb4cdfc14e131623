package reconciler

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// segmentWriters bounds the shards whose segments are written at once.
const segmentWriters = 8

// intakeBuffer collects new batches for the rollup workers' intake and writes them in rounds.
//
// A ledger snapshot and the scan's checkpoint say that a batch need not be reconciled again.
// So both wait (flush) until the batch is in a segment: else a crash could lose it for the
// rollup workers. A nil *intakeBuffer does nothing, for deployments without rollups.
type intakeBuffer struct {
	w    *intake.Writer
	room int

	mu      sync.Mutex
	cond    *sync.Cond // entries were written
	waiting map[shard.ID][]accepted.Batch
	count   int
	added   uint64

	flushing sync.Mutex
	through  uint64 // guarded by flushing: so many of the batches that were added, in order, are written
}

func newIntakeBuffer(s objstore.Store, cfg IntakeConfig) *intakeBuffer {
	st := &intakeBuffer{
		w: intake.NewWriter(s, run.RandomID(), cfg.Shards), room: cfg.Buffer,
		waiting: map[shard.ID][]accepted.Batch{},
	}
	st.cond = sync.NewCond(&st.mu)
	return st
}

// waitForRoom blocks while the buffer is full. Each caller adds at most one entry afterwards,
// so the bound is exceeded by at most the number of workers.
func (st *intakeBuffer) waitForRoom(ctx context.Context) error {
	if st == nil {
		return nil // no rollups
	}
	// Wait does not end with the context, so its end wakes the waiters.
	stop := context.AfterFunc(ctx, func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.cond.Broadcast()
	})
	defer stop()
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.count >= st.room {
		if err := ctx.Err(); err != nil {
			return err
		}
		st.cond.Wait()
	}
	return nil
}

// add adds a batch. It never waits, because it is called with a ledger's lock held.
func (st *intakeBuffer) add(e accepted.Batch) {
	if st == nil {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	id := shard.Of(e.Agent, st.w.Shards)
	st.waiting[id] = append(st.waiting[id], e)
	st.count++
	st.added++
}

// flush returns once every batch that was added before the call is written.
func (st *intakeBuffer) flush(ctx context.Context) error {
	if st == nil {
		return nil
	}
	st.mu.Lock()
	until := st.added
	st.mu.Unlock()
	st.flushing.Lock()
	defer st.flushing.Unlock()
	// Another flush wrote them while this one waited for the lock.
	if st.through >= until {
		return nil
	}
	st.mu.Lock()
	all := st.added
	ids := make([]shard.ID, 0, len(st.waiting))
	for id := range st.waiting {
		ids = append(ids, id)
	}
	st.mu.Unlock()
	if err := st.write(ctx, ids); err != nil {
		return err
	}
	st.through = all
	return nil
}

// write writes the waiting batches of the shards. The caller holds flushing, so that a shard has one writer.
func (st *intakeBuffer) write(ctx context.Context, ids []shard.ID) error {
	var g errgroup.Group
	g.SetLimit(segmentWriters)
	for _, id := range ids {
		g.Go(func() error {
			for {
				st.mu.Lock()
				entries := st.waiting[id]
				st.mu.Unlock()
				if len(entries) == 0 {
					return nil
				}
				// add only appends, so these entries stay the same while they are written without the lock.
				entries = entries[:min(len(entries), intake.MaxEntries)]
				if err := st.segment(ctx, id, entries); err != nil {
					return err
				}
				st.written(id, len(entries))
			}
		})
	}
	return g.Wait()
}

func (st *intakeBuffer) segment(ctx context.Context, id shard.ID, entries []accepted.Batch) error {
	return st.w.Write(ctx, id, entries)
}

func (st *intakeBuffer) written(id shard.ID, n int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.waiting[id] = st.waiting[id][n:]; len(st.waiting[id]) == 0 {
		delete(st.waiting, id)
	}
	st.count -= n
	st.cond.Broadcast()
}

// pending counts the batches that are not written yet.
func (st *intakeBuffer) pending() int {
	if st == nil {
		return 0
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.count
}

// feedIntake fixes the number of shards and then writes segments until ctx ends.
func (s *Service) feedIntake(ctx context.Context) error {
	for backoff := run.NewBackoff(s.cfg.Queue.RetryBase, s.cfg.Queue.RetryMax); ; {
		err := shards.Ensure(ctx, s.store, s.cfg.Intake.Shards)
		var differ *shards.CountError
		// Another number of shards, or a record that this release can't use, does not change by waiting.
		if err == nil || errors.As(err, &differ) || record.Opaque(err) {
			if err != nil {
				return err
			}
			break
		}
		s.log.Warn("the number of shards is not fixed yet", "error", err)
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
	return every(ctx, s.cfg.Intake.Interval, func() {
		if err := s.intake.flush(ctx); err != nil && ctx.Err() == nil {
			s.m.intakeFailures.Inc()
			s.log.Warn("intake segments were not all written; tried again at the next round", "error", err)
		}
	})
}
