package engine

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// op waits for the committer.
type op struct {
	rec       record
	obj       Object // of a put
	cond      Cond
	flush     bool // decide nothing, write nothing: flush the index and answer
	tombstone bool // a tombstone that is kept only while the key is absent (reclaiming space)

	change  func(map[string]Bucket) error // changes the list of buckets
	declare bool                          // writes the list of damages with unknown keys
	roll    bool                          // write nothing; start a new segment

	// byRule: of a client, on its key: the bucket's versioning, which is set when it is decided, says what record it
	// becomes.
	byRule     bool
	versioning Versioning

	upload string    // hidden key of an upload that must be there
	parts  []partSeq // and of its parts, which must be these
	then   *op       // written behind it, as one with it

	rewrites  bool // the object stays and only gets other metadata
	keepFiles bool // do not remove body files that the operation makes superfluous

	done  chan struct{}
	entry *entry   // the new entry
	prev  *entry   // the entry before it
	trash []string // body files that no object names any more
	err   error
}

// submit hands an operation to the committer and waits for its end.
func (e *Engine) submit(ctx context.Context, o *op) error {
	if err := e.enqueue(ctx, o); err != nil {
		return err
	}
	return e.wait(o)
}

// enqueue hands an operation over; wait must follow when it succeeds.
func (e *Engine) enqueue(ctx context.Context, o *op) error {
	if err := e.Err(); err != nil {
		return err
	}
	o.done = make(chan struct{})
	select {
	case e.ops <- o:
		return nil
	case <-e.stopped:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait does not end with a context: once an operation is taken, its outcome must be known.
func (e *Engine) wait(o *op) error {
	select {
	case <-o.done:
	// The committer may have finished this operation just before it stopped. Then the outcome
	// is known, and ErrClosed would be a wrong answer.
	case <-e.stopped:
		select {
		case <-o.done:
		default:
			return ErrClosed
		}
	}
	if o.keepFiles {
		return o.err
	}
	// The caller removes the files, not the committer: unlinking large files takes long, and
	// every other write waits for the committer. The deletion is durable by now.
	for _, f := range o.trash {
		e.removeBody(f)
	}
	return o.err
}

// markDelay is how long the store must be idle before the mark is synced.
const markDelay = time.Second

// Run commits until ctx ends. Operations that were taken are finished.
func (e *Engine) Run(ctx context.Context) error {
	if e.started.Swap(true) {
		return fmt.Errorf("run: %w", ErrClosed)
	}
	defer close(e.stopped)
	e.endCompleted()
	e.markBuckets()
	var alone *op
	idle := time.NewTimer(0)
	// The timer is created stopped and drained, so that Reset below is always safe.
	<-idle.C
	for {
		first := alone
		alone = nil
		for first == nil {
			idle.Reset(markDelay)
			select {
			case first = <-e.ops:
			case <-idle.C:
				e.syncMark()
				continue
			case <-ctx.Done():
				// Shutdown: finish what was enqueued before the context ended, then stop.
				select {
				case first = <-e.ops:
				default:
					return nil
				}
			}
		}
		// Group commit: everything that waits already shares one write and one fsync. Nothing is waited for, so a single
		// writer pays no delay. But the first operation wakes this goroutine before others that can run, those that the
		// last batch has answered among them: they go first, and what they enqueue joins the batch.
		runtime.Gosched()
		batch, bytes := []*op{first}, first.rec.size()
		for !first.exclusive() && len(batch) < maxBatchOps && bytes < maxBatchBytes && alone == nil {
			select {
			case o := <-e.ops:
				if o.exclusive() {
					// Other operations enqueued before it must be committed first, so it becomes the
					// next batch.
					alone = o
				} else {
					batch, bytes = append(batch, o), bytes+o.rec.size()
				}
				continue
			default:
			}
			break
		}
		e.commit(batch)
		failpoint.Hit("objectstore.commit.answer.before")
		for _, o := range batch {
			// Closing done publishes o.err, o.entry and o.trash to the waiting caller.
			close(o.done)
		}
	}
}

// exclusive reports whether the operation is a batch of its own.
func (o *op) exclusive() bool { return o.flush || o.change != nil || o.declare || o.roll }

// commit decides, writes, syncs and applies a batch.
func (e *Engine) commit(batch []*op) {
	if err := e.Err(); err != nil {
		failAll(batch, err)
		return
	}
	if batch[0].flush {
		failpoint.Hit("objectstore.index.flush.before")
		if batch[0].err = e.idx.flush(); batch[0].err == nil {
			e.flushedTo.Store(e.head.pos.seg)
		}
		e.syncMark() // an old one must not name a segment that is dropped now
		failpoint.Hit("objectstore.index.flush.after")
		return
	}
	if batch[0].roll {
		batch[0].err = e.roll()
		return
	}
	// Pebble blocks a writer whose memtables are full and cannot be flushed. The committer must
	// not block, so it refuses the batch before anything is written.
	if err := e.idx.mayStall(); err != nil {
		failAll(batch, fmt.Errorf("the index takes nothing: %w", full(err)))
		return
	}
	e.batchFull = e.checkSpace()
	if e.head.pos.off >= e.opt.SegmentBytes {
		if err := e.roll(); err != nil {
			failAll(batch, err)
			return
		}
	}
	start := e.head.pos.off
	// Later operations of the batch must see earlier ones, which the index does not have yet.
	view := e.newOverlay(len(batch))
	next := e.head
	buf := e.logBuffer(batch)
	defer func() { e.reuseBuffer(buf) }()
	written := make([]*op, 0, len(batch))
	for _, o := range batch {
		if o.err = e.decide(view, o); o.err != nil || e.skipped(o) {
			continue
		}
		// Sequences are given to accepted operations only, so they have no gaps: a gap found
		// at replay is lost data.
		o.rec.seq, o.rec.batch = next.nextSeq, uint64(start)
		next.nextSeq++
		if o.versioning != Unversioned {
			o.become()
		}
		pos := position{next.pos.seg, start + int64(len(buf))}
		buf = append(o.rec.appendHead(buf, e.active.salt), o.rec.body...)
		view.note(o, pos)
		written = append(written, o)
		if t := o.then; t != nil {
			// Behind it in the same batch: of a torn batch a prefix may survive, and the object without the end of its
			// upload can be told from its metadata. The other way round nothing would be left of either.
			t.rec.seq, t.rec.batch = next.nextSeq, uint64(start)
			next.nextSeq++
			buf = t.rec.appendHead(buf, e.active.salt)
			view.set(t.rec.bucket, t.rec.key, nil)
			written = append(written, t)
		}
	}
	stats := BatchStats{Operations: len(batch), Written: len(written), Bytes: int64(len(buf))}
	if len(written) > 0 {
		failpoint.Hit("objectstore.commit.decided")
		took, err := e.append(buf, start)
		if err != nil {
			failAll(batch, err)
			return
		}
		stats.Sync = took
		next.pos.off = start + int64(len(buf))
		if err := e.apply(view, written, next); err != nil {
			// The records are durable in the log, but the index lacks them. Answering would let
			// later conditions be decided by an old state; only a reopen brings both together.
			failAll(batch, e.fail(err))
			return
		}
		e.writeMark()
	}
	if e.opt.Observe != nil {
		e.opt.Observe(stats)
	}
}

func failAll(batch []*op, err error) {
	for _, o := range batch {
		o.err = err
	}
}
