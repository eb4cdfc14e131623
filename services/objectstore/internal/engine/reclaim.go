package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

const defaultReclaimBelow = 0.4

// tombstoneShare is the fraction of the closed segments' bytes that tombstones may take. Beyond
// it the oldest segment is rewritten, however full it is: tombstones can be dropped only from the
// oldest segment, and rewriting others would copy them for ever.
const tombstoneShare = 0.25

// SetFloor sets the function that gives the first sequence that readers of the log still need;
// segments from there on are not dropped. Call it before the first Reclaim.
func (e *Engine) SetFloor(floor func() uint64) { e.floor = floor }

// Copying enqueues up to copyRecords records or copyBytes bytes before it waits for them: they
// share fsyncs, and a client's write waits for no more than that.
const (
	copyRecords = 512
	copyBytes   = 1 << 20
)

// Reclaim rewrites the emptiest closed segment below the threshold and drops it. It returns the
// bytes freed; 0 when there is nothing to do. One call at a time. A segment with a damaged record
// that something needs is kept, and the next one is tried (see needed). While writes of
// unknown keys are lost, nothing is reclaimed: a copy gets a later sequence than the lost writes,
// so an object that one of them may have replaced would pass for its last version. An operator's
// repair ends that state.
//
// The order is: copy the live records to the end of the log, as ordinary writes on the condition
// that the index still names the old place; flush the index, so that no replay begins in the old
// segment; remove the file.
func (e *Engine) Reclaim(ctx context.Context) (int64, error) {
	if e.Uncertain() != nil {
		return 0, nil
	}
	e.closing.Lock()
	defer e.closing.Unlock()
	for {
		seg, oldest := e.pickSegment()
		if seg == nil {
			return 0, nil
		}
		n, err := e.rewriteSegment(ctx, seg, oldest)
		seg.release()
		if errors.Is(err, errKept) {
			e.keepSegment(seg.number, oldest)
			continue
		}
		return n, err
	}
}

// errKept means that the segment has damage, which was recorded, and must stay.
var errKept = errors.New("the segment is damaged and stays")

func (e *Engine) rewriteSegment(ctx context.Context, seg *segment, oldest bool) (int64, error) {
	failpoint.Hit("objectstore.reclaim.begin.before")
	size := e.segmentLength(seg.number)
	e.withdraw(seg.number)
	u := &unread{}
	if _, err := e.copyLiveRecords(ctx, seg, size, oldest, u); err != nil {
		return 0, err
	}
	if e.needed(seg.number, oldest, u) {
		return 0, errKept
	}
	failpoint.Hit("objectstore.reclaim.copy.after")
	if err := e.finishCopy(ctx); err != nil {
		return 0, err
	}
	failpoint.Hit("objectstore.reclaim.drop.before")
	return size, e.dropSegment(seg)
}

// finishCopy writes the lists of buckets and damages again behind the copies, since the old ones
// may be in the segment that is dropped next, and makes the index durable.
func (e *Engine) finishCopy(ctx context.Context) error {
	keep := func(map[string]Bucket) error { return nil }
	if err := e.submit(ctx, &op{rec: record{kind: kindBuckets, flags: flagQuiet}, change: keep}); err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	if err := e.submit(ctx, &op{declare: true}); err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	if err := e.submit(ctx, &op{flush: true}); err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	return nil
}

// copyLiveRecords copies the records of a segment that are still needed to the end of the log.
// A damaged record that is in use ends it with errKept; what cannot be read otherwise is noted in u.
// Where u is nil, records with one damaged byte are corrected, copied and counted, and other damaged
// records are skipped.
func (e *Engine) copyLiveRecords(ctx context.Context, seg *segment, size int64, oldest bool, u *unread) (salvaged int64, err error) {
	sc := newScanner(seg, segHeaderSize, size)
	c := &copier{e: e, ctx: ctx, oldest: oldest}
	defer func() { err = errors.Join(err, c.wait()) }()
	due := seg.firstSeq
	for ctx.Err() == nil {
		r, at, err := sc.next()
		var bad *CorruptError
		if errors.Is(err, io.EOF) {
			return salvaged, nil
		}
		if errors.As(err, &bad) {
			if fixed, ok := sc.salvage(due, at); u == nil && ok {
				r, err = fixed, nil
				sc.skipTo(at + r.size())
				salvaged++
			} else if kept, err := e.skipDamagedRecord(sc, r, at, bad, u); err != nil || kept && u != nil {
				return salvaged, errors.Join(err, errKept)
			} else {
				continue
			}
		}
		if err != nil {
			return salvaged, fmt.Errorf("reclaim %s: %w", segName(seg.number), err)
		}
		due = r.seq + 1
		if u != nil && r.kind == kindDelete {
			u.tombs += r.size()
		}
		if err = c.relocate(r, position{seg.number, at}); err != nil {
			return salvaged, fmt.Errorf("reclaim %s: %w", segName(seg.number), err)
		}
	}
	return salvaged, ctx.Err()
}

// skipDamagedRecord moves the scanner behind a damaged record. kept reports that the damage was
// recorded, because the record is in use. Damage of a record whose key is unknown is noted in u, or
// recorded too where that is nil; damage of a record that nothing needs is ignored.
func (e *Engine) skipDamagedRecord(sc *logScanner, r record, at int64, bad *CorruptError, u *unread) (kept bool, err error) {
	d := Damage{File: bad.File, Offset: at, Reason: bad.Reason}
	if r.kind == kindPut || r.kind == kindLost {
		x, err := e.idx.record(r.bucket, r.key)
		if err != nil {
			return false, err
		}
		sc.skipTo(at + r.size())
		if x == nil || x.pos != (position{sc.seg.number, at}) {
			return false, nil
		}
		d = d.of(r.bucket, r.key)
		d.Length = r.size()
	} else {
		sc.skipTo(sc.findRecord(0, nil))
		d.Length = sc.off - at
		if u != nil {
			u.note(d)
			return false, nil
		}
	}
	e.quarantine(d)
	return true, nil
}

func (e *Engine) segmentLength(n uint64) int64 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.length[n]
}

// pickSegment takes a reference to the segment to rewrite; nil when there is none. oldest says
// that no older segment is left.
func (e *Engine) pickSegment() (best *segment, oldest bool) {
	floor := ^uint64(0)
	if e.floor != nil {
		floor = e.floor()
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	share := e.opt.ReclaimBelow
	numbers := []uint64{}
	for n := range e.segments {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var tombs, total int64
	// The last segment is the one that is being written.
	for i, n := range numbers[:max(0, len(numbers)-1)] {
		if e.segments[numbers[i+1]].firstSeq > floor {
			break
		}
		tombs, total = tombs+e.tombs[n], total+e.length[n]
		if e.mustStay(n, i == 0) {
			continue
		}
		kept := e.live[n]
		// A tombstone hides older puts of its key from a rebuild of the index. No puts are older
		// than those of the oldest segment, so its tombstones need not be copied.
		if i > 0 {
			kept += e.tombs[n]
		}
		if f := float64(kept) / float64(max(1, e.length[n])); f < share && e.hasSpaceFor(kept) {
			best, oldest, share = e.segments[n], i == 0, f
		}
	}
	if best == nil && share > 0 && float64(tombs) > tombstoneShare*float64(total) &&
		!e.mustStay(numbers[0], true) && e.hasSpaceFor(e.live[numbers[0]]) {
		best, oldest = e.segments[numbers[0]], true
	}
	if best == nil || !best.acquire() {
		return nil, false
	}
	return best, oldest
}

// copier copies records to the end of the log, several at a time.
type copier struct {
	e      *Engine
	ctx    context.Context
	oldest bool
	ops    []*op
	bytes  int64
}

// relocate enqueues a copy of one record if it is still needed. Copies are quiet: they are no
// events for webhooks.
func (c *copier) relocate(r record, at position) error {
	o := &op{rec: record{kind: r.kind, flags: r.flags | flagQuiet, bucket: r.bucket, key: r.key, meta: r.meta}}
	switch r.kind {
	case kindPut, kindLost:
		x, err := c.e.idx.record(r.bucket, r.key)
		if err != nil || x == nil || x.pos != at {
			return err
		}
		if o.obj, err = objectOf(&r); err != nil {
			return err
		}
		failpoint.Hit("objectstore.reclaim.copy.before")
		o.rec.body, o.rec.bodyLen, o.rec.bodyCRC = append([]byte(nil), r.body...), r.bodyLen, r.bodyCRC
		o.cond = Cond{at: at, atIsSet: true}
	case kindDelete:
		// A tombstone hides puts of older segments from a rebuild of the index.
		if c.oldest {
			return nil
		}
		x, err := c.e.idx.record(r.bucket, r.key)
		if err != nil || x != nil {
			return err
		}
		o.tombstone = true
	default:
		return nil
	}
	if err := c.e.enqueue(c.ctx, o); err != nil {
		return err
	}
	c.ops = append(c.ops, o)
	if c.bytes += o.rec.size(); len(c.ops) >= copyRecords || c.bytes >= copyBytes {
		return c.wait()
	}
	return nil
}

// wait waits for the enqueued copies. A failed condition is no error: the key was written again
// meanwhile, so the old record is not needed.
func (c *copier) wait() error {
	var first error
	for _, o := range c.ops {
		if err := c.e.wait(o); err != nil && !errors.Is(err, ErrPrecondition) && first == nil {
			first = err
		}
	}
	c.ops, c.bytes = c.ops[:0], 0
	return first
}

func (e *Engine) removeFooter(num uint64) error {
	err := e.fs.Remove(footerName(num))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	delete(e.footed, num)
	if err := errors.Join(err, e.fs.SyncDir(footerDir)); err != nil {
		return fmt.Errorf("remove footer: %w", err)
	}
	return nil
}

// dropSegment removes a segment that holds nothing live. When the index still counts live bytes
// in it, the copy has missed records, and the segment is kept.
func (e *Engine) dropSegment(seg *segment) error {
	e.mu.Lock()
	live := e.live[seg.number]
	if live != 0 {
		e.mu.Unlock()
		e.quarantine(Damage{File: segName(seg.number), Reason: fmt.Sprintf("%d bytes are in use that are not there", live)})
		return errKept
	}
	e.mu.Unlock()
	// Nothing needs what is damaged here, and nobody finds it again. A loss of power may bring the
	// list back without the segment: the next open drops it then.
	if err := e.forgetSegmentDamage(seg.number); err != nil {
		return fmt.Errorf("reclaim %s: %w", segName(seg.number), err)
	}
	// The footer goes first: a footer without its segment is reported as a missing segment.
	if err := e.removeFooter(seg.number); err != nil {
		return err
	}
	e.mu.Lock()
	delete(e.segments, seg.number)
	delete(e.live, seg.number)
	delete(e.tombs, seg.number)
	delete(e.length, seg.number)
	delete(e.closedAt, seg.number)
	delete(e.found, seg.number)
	delete(e.unfit, seg.number)
	delete(e.stays, seg.number)
	e.mu.Unlock()
	defer seg.release() // readers that hold it keep the file open until they are done
	failpoint.Hit("objectstore.reclaim.remove.before")
	if err := errors.Join(e.fs.Remove(segName(seg.number)), e.fs.SyncDir(logDir)); err != nil {
		return fmt.Errorf("reclaim %s: %w", segName(seg.number), err)
	}
	// Only now: as long as a loss of power may bring the stub back, its body is there too.
	e.removeBodyOf(seg)
	return nil
}
