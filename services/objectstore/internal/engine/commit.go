package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// Cond is what must hold for the key at the moment when a write is decided.
type Cond struct {
	Absent bool   // no object (If-None-Match: *)
	Match  string // its ETag, or "*" for any (If-Match); empty: no condition
	Seq    uint64 // this very write; 0: no condition
	// HasSize: its size is Size. HasModified: it was last modified in the second Modified of Unix time.
	HasSize, HasModified bool
	Size, Modified       int64
	at                   position
	atIsSet              bool // the record is at this place (reclaiming space)
	// BypassGovernance is no condition: a governance retention does not protect what the write replaces or deletes.
	BypassGovernance bool
}

// IsSet reports whether there is a condition.
func (c Cond) IsSet() bool {
	c.BypassGovernance = false
	return c != Cond{}
}

// Check decides the condition against an object; nil is absent.
func (c Cond) Check(b *Brief) error {
	switch {
	case c.Absent && b != nil:
		return ErrPrecondition
	case b == nil && (c.Match != "" || c.Seq != 0 || c.atIsSet || c.HasSize || c.HasModified):
		return ErrNotFound
	case c.Match != "" && c.Match != "*" && (b.ETag == "" || b.ETag != c.Match):
		return ErrPrecondition
	case c.HasSize && b.Size != c.Size, c.HasModified && b.Modified.Unix() != c.Modified:
		return ErrPrecondition
	case c.Seq != 0 && b.Seq != c.Seq:
		return ErrPrecondition
	}
	return nil
}

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
		batch[0].err = e.idx.flush()
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

// note puts what an operation makes of its record, at pos, into the overlay.
func (v *overlay) note(o *op, pos position) {
	switch o.rec.kind {
	case kindPut, kindLost:
		o.entry = entryOf(&o.rec, &o.obj, pos)
		v.set(o.rec.bucket, o.rec.key, o.entry)
		if o.versioning != Unversioned && v.newest != nil {
			key, _ := clientKey(o.rec.key)
			v.newest[name{o.rec.bucket, key}] = o.entry
		}
	case kindDelete:
		v.set(o.rec.bucket, o.rec.key, nil)
	}
}

// keepBuffers is the largest buffer, bytes, that the committer keeps from batch to batch.
const keepBuffers = maxBatchBytes + maxInlineBytes

// logBuffer is empty and has room for all of the batch.
func (e *Engine) logBuffer(batch []*op) []byte {
	n := 0
	for _, o := range batch {
		n += int(o.rec.size())
	}
	if cap(e.scratch) < n {
		return make([]byte, 0, n)
	}
	return e.scratch[:0]
}

func (e *Engine) reuseBuffer(b []byte) {
	if cap(b) <= keepBuffers {
		e.scratch = b
	}
}

func failAll(batch []*op, err error) {
	for _, o := range batch {
		o.err = err
	}
}

// skipped reports whether an operation succeeded with nothing to write: a delete of an absent
// key. While lost writes may have created the key, the delete is written all the same, so that
// a record of it cannot bring the key back.
func (e *Engine) skipped(o *op) bool {
	return o.rec.kind == kindDelete && o.prev == nil && !o.tombstone && o.versioning == Unversioned && e.uncertain(nil) == nil
}

func (e *Engine) decide(v *overlay, o *op) (err error) {
	r := &o.rec
	if o.change != nil {
		return e.decideBuckets(o)
	}
	if o.declare {
		o.rec, err = e.declaration()
		return err
	}
	if !o.tombstone {
		// The bucket is checked here and not only by the caller: it may have been deleted while
		// the operation waited. A copied tombstone is kept even after its bucket is gone.
		b, err := e.Bucket(r.bucket)
		if err != nil {
			return err
		}
		if o.byRule {
			o.versioning = b.Versioning()
		}
	}
	current, err := v.find(o)
	if err != nil {
		return err
	}
	if o.upload != "" {
		if err := v.decideUpload(o); err != nil {
			return err
		}
	}
	if r.kind == kindPut && !o.cond.atIsSet && e.batchFull != nil {
		if err := e.checkCondition(o.cond, r.key, current); err != nil {
			return err // freeing space would not change this answer, so the client should not retry
		}
		return e.batchFull
	}
	switch {
	// A copy of reclaiming lost against a newer write of the same key: nothing to do.
	case o.tombstone && o.prev != nil, o.cond.atIsSet && (o.prev == nil || o.prev.pos != o.cond.at):
		return ErrPrecondition
	case o.tombstone || o.cond.atIsSet:
		return nil
	}
	if err := e.checkCondition(o.cond, r.key, current); err != nil {
		return err
	}
	if err := e.checkLock(o, o.prev); err != nil {
		return err
	}
	return v.decideQuota(o)
}

// find finds the entry that an operation replaces, and gives the one that its condition is about.
func (v *overlay) find(o *op) (current *entry, err error) {
	r := &o.rec
	if o.versioning != Enabled { // a new version replaces nothing
		if o.prev, err = v.record(r.bucket, r.key); err != nil {
			return nil, err
		}
	}
	switch {
	case o.versioning == Unversioned:
		return o.prev, nil
	case o.versioning == Enabled && !o.cond.IsSet():
		return nil, nil // nobody asks
	}
	return v.current(r.bucket, r.key)
}

// checkCondition decides a condition of a key whose entry is x; nil is absent. Where a lost
// write may have been the last one of the key, the condition cannot be decided and the error is
// ErrUncertain. The exception is Absent on a known key: whatever was lost, the key was created
// before, so the answer is ErrPrecondition.
func (e *Engine) checkCondition(c Cond, key string, x *entry) error {
	if c.IsSet() && !(c.Absent && x != nil) {
		if err := e.uncertain(x); err != nil {
			return err
		}
	}
	if x == nil {
		return c.Check(nil)
	}
	brief := x.brief(key)
	return c.Check(&brief)
}

// append writes a batch at offset at and syncs it. A failed write is cut off again and the
// store goes on. After a failed fsync, or when the cut fails, the store takes no more writes:
// nobody knows which bytes are durable, and the kernel may report the error only once.
func (e *Engine) append(buf []byte, at int64) (time.Duration, error) {
	failpoint.Hit("objectstore.log.write.before")
	e.prepare(at+int64(len(buf)), int64(len(buf)))
	_, err := e.active.file.WriteAt(buf, at)
	// The first failure for lack of space frees a part of the reserve; the second is the answer.
	if vfs.IsFull(err) && e.freeReserve() {
		_, err = e.active.file.WriteAt(buf, at)
	}
	if err = full(err); err != nil {
		werr := fmt.Errorf("write %s at %d: %w", segName(e.active.number), at, err)
		e.prepared = 0
		if terr := e.active.file.Truncate(at); terr != nil {
			return 0, e.fail(errors.Join(werr, terr))
		}
		return 0, werr
	}
	failpoint.Hit("objectstore.log.sync.before")
	began := time.Now() // measures only; nothing is decided by it
	if err := e.active.file.Sync(); err != nil {
		return 0, e.fail(fmt.Errorf("fsync %s: %w", segName(e.active.number), err))
	}
	failpoint.Hit("objectstore.log.sync.after")
	e.counts.fsyncs.Add(1)
	return time.Since(began), nil
}

// roll starts a new segment. The old one is durable: every batch was synced.
func (e *Engine) roll() error {
	failpoint.Hit("objectstore.log.roll.before")
	if err := e.cutPrepared(); err != nil {
		return e.fail(err)
	}
	num := e.head.pos.seg + 1
	s, err := createSegment(e.fs, num, e.head.nextSeq)
	if vfs.IsFull(err) {
		// Nothing in the new file was acknowledged, so it can be removed and made again.
		if rerr := e.fs.Remove(segName(num)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			return e.fail(errors.Join(err, rerr))
		}
		if e.freeReserve() {
			s, err = createSegment(e.fs, num, e.head.nextSeq)
		}
	}
	if err != nil {
		if vfs.IsFull(err) {
			// If it stays, the next attempt finds the name taken, and the store is poisoned.
			_ = e.fs.Remove(segName(num))
			return full(err)
		}
		return e.fail(err)
	}
	e.mu.Lock()
	failpoint.Hit("objectstore.log.roll.after")
	e.length[e.head.pos.seg], e.closedAt[e.head.pos.seg] = e.head.pos.off, e.opt.Now()
	e.segments[s.number] = s
	e.live[s.number] = 0
	e.end = position{s.number, segHeaderSize}
	e.mu.Unlock()
	e.active = s
	e.head.pos, e.head.salt = e.end, s.salt
	return nil
}

// apply updates the index with the records of ops, which are durable in the log, and advances
// the head to next. The entries and the position go into one batch of the index: after a crash
// the index is at some batch boundary, and replay continues there.
func (e *Engine) apply(v *overlay, ops []*op, next checkpoint) error {
	failpoint.Hit("objectstore.index.apply.before")
	b := e.idx.db.NewBatch()
	defer b.Close()
	delta, sums := map[uint64]int64{}, e.sums.reset(e.idx)
	var buckets map[string]Bucket
	set := func(k, v []byte) error { return b.Set(k, v, nil) }
	// Files that came to a completed object in this very batch, which the index does not show yet.
	owned := ownedFiles(ops)
	for _, o := range ops {
		var err error
		if o.rec.kind == kindBuckets {
			if buckets, err = decodeBuckets(o.rec.body); err == nil {
				err = set([]byte{spaceBuckets}, o.rec.body)
			}
		} else if o.rec.kind == kindDamages {
			err = e.applyDeclaration(b, o.rec.body)
		} else {
			err = e.applyObject(b, v, o, owned, &next, delta, sums)
		}
		if err != nil {
			return fmt.Errorf("update index: %w", err)
		}
	}
	if err := e.applyVersions(b, v, ops, &next); err != nil {
		return fmt.Errorf("update index: %w", err)
	}
	e.mu.Lock()
	delta[next.pos.seg] += 0 // writes the entry of a new segment even when no object changed
	for _, o := range ops {  // all of them are in one segment
		if o.rec.kind == kindDelete {
			e.tombs[next.pos.seg] += o.rec.size()
		}
	}
	for seg, d := range delta {
		e.live[seg] += d
		u := use{live: e.live[seg], tombs: e.tombs[seg]}
		if s := e.segments[seg]; s != nil {
			u.salt, u.firstSeq = s.salt, s.firstSeq
		}
		if err := set(segmentKey(seg), u.encode()); err != nil {
			e.mu.Unlock()
			return fmt.Errorf("update index: %w", err)
		}
	}
	err := e.applyTally(b, sums)
	e.mu.Unlock()
	if err != nil {
		return fmt.Errorf("update index: %w", err)
	}
	if err := set([]byte{spaceCheckpoint}, next.encode()); err != nil {
		return fmt.Errorf("update index: %w", err)
	}
	e.idx.unflushed.Add(int64(b.Len()))
	// No sync: the index has no log of its own, the segments are its log. A lost tail of the
	// index costs a replay at the next open.
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("update index: %w", err)
	}
	failpoint.Hit("objectstore.index.apply.after")
	e.sinceSync += max(0, next.pos.off-e.head.pos.off)
	e.head = next
	e.storeCounts()
	e.counts.batches.Add(1)
	e.counts.records.Add(int64(len(ops)))
	e.mu.Lock()
	if buckets != nil {
		e.buckets = buckets
	}
	e.end, e.endSeq = next.pos, next.nextSeq
	// Wakes the cursors that wait at the end of the log; each takes the new channel next.
	close(e.changed)
	e.changed = make(chan struct{})
	e.mu.Unlock()
	// Bounds the replay of the next open. An index that fails already is not asked again.
	if e.sinceSync >= flushEvery && e.idx.healthy() == nil {
		e.sinceSync = 0
		if _, err := e.idx.db.AsyncFlush(); err != nil {
			return fmt.Errorf("flush index: %w", err)
		}
	}
	return nil
}

func (e *Engine) storeCounts() {
	e.counts.objects.Store(e.head.objects)
	e.counts.bytes.Store(e.head.bytes)
	e.counts.hidden.Store(e.head.hidden)
	e.counts.hiddenBytes.Store(e.head.hiddenBytes)
}

// ownedFiles gives the files of the completed objects among ops; nil for none.
func ownedFiles(ops []*op) (owned map[string]bool) {
	for _, o := range ops {
		if o.obj.Upload == "" {
			continue
		}
		if owned == nil {
			owned = map[string]bool{}
		}
		for _, x := range o.obj.Extents {
			owned[x.File] = true
		}
	}
	return owned
}

// ownerOf is the index's value for the files of an object.
func ownerOf(o *Object) []byte {
	if o.Upload == "" {
		return nil
	}
	return []byte(fileOfObject)
}

// isFileOfObject reports whether a completed object names a file.
func (x *index) isFileOfObject(file string) bool {
	mine := false
	err := x.get(spaceKey(spaceFile, file), func(v []byte) error {
		mine = string(v) == fileOfObject
		return nil
	})
	// A file is rather left behind than removed while the index cannot say whose it is.
	return mine || err != nil && !errors.Is(err, ErrNotFound)
}

// applyObject puts or removes one record.
func (e *Engine) applyObject(b *pebble.Batch, v *overlay, o *op, owned map[string]bool, next *checkpoint, delta map[uint64]int64, sums *tally) error {
	key := objectKey(o.rec.bucket, o.rec.key)
	hidden := isInternal(o.rec.key)
	versioned := !hidden && v.versioned(o.rec.bucket)
	count := func(objects, bytes int64) {
		if versioned { // the current ones are counted by applyCurrent
			next.hidden, next.hiddenBytes = next.hidden+objects, next.hiddenBytes+bytes
		} else if !hidden {
			next.objects, next.bytes = next.objects+objects, next.bytes+bytes
		}
	}
	for _, x := range o.obj.Extents {
		if hidden && (owned[x.File] || e.idx.isFileOfObject(x.File)) {
			continue // a part that reclaiming has moved, whose object is complete
		}
		if err := b.Set(spaceKey(spaceFile, x.File), ownerOf(&o.obj), nil); err != nil {
			return err
		}
	}
	if p := o.prev; p != nil {
		delta[p.pos.seg] -= p.recordSize()
		if err := sums.count(o.rec.bucket, o.rec.key, p, -1); err != nil {
			return err
		}
		count(-1, -p.size)
		at := p.pos.off
		// The old record is not needed any more, so its damage is not either. Damage that hides
		// writes of unknown keys (Last > 0) stays until a repair.
		if err := e.forgetDamage(b, segName(p.pos.seg), func(d Damage) bool { return d.Offset == at && d.Last == 0 }); err != nil {
			return err
		}
		for _, f := range p.files {
			// SetTags and reclaiming write a new record that names the same body files: these must
			// not be removed with the old record.
			if slices.ContainsFunc(o.obj.Extents, func(x Extent) bool { return x.File == f }) {
				continue
			}
			if hidden && (owned[f] || e.idx.isFileOfObject(f)) {
				continue
			}
			o.trash = append(o.trash, f)
			if err := b.Delete(spaceKey(spaceFile, f), nil); err != nil {
				return err
			}
			if err := e.forgetDamage(b, body.Name(f), func(Damage) bool { return true }); err != nil {
				return err
			}
		}
	}
	if o.entry != nil {
		delta[o.entry.pos.seg] += o.entry.recordSize()
		if err := sums.count(o.rec.bucket, o.rec.key, o.entry, 1); err != nil {
			return err
		}
		count(1, o.entry.size)
	}
	switch {
	case versioned && !isHidden(o.rec.key): // applyCurrent knows where the null version belongs
		return nil
	case o.entry == nil:
		return b.Delete(key, nil)
	}
	return b.Set(key, o.entry.encode(make([]byte, 0, 128)), nil)
}
