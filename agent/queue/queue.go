// Package queue is the agent's durable queue: an append-only log of frames with their identities.
// A batch has its identity from the moment when Append returns: its bytes are on disk then, and no
// other bytes ever get its sequence numbers. The bytes on disk are in docs/format/agent-queue.md,
// the write order and its reasons in docs/protocol/agent.md.
package queue

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Policy says which samples are lost when the disk is full.
type Policy string

// Policies.
const (
	// RefuseNew drops new samples and never queued ones.
	RefuseNew Policy = "refuse_new"
	// DropOldest drops the pending batches of the oldest segment.
	DropOldest Policy = "drop_oldest"
)

// Options of a queue.
type Options struct {
	// Agent that new batches belong to.
	Agent string
	// Fingerprint of this place; a directory that was made elsewhere starts a new boot.
	Fingerprint Fingerprint
	// MaxBytes bounds segments, parked and dead files together.
	MaxBytes int64
	// MaxBatches bounds the pending batches, each of which takes about 120 bytes of memory; 0 is
	// 1,048,576.
	MaxBatches int
	// SegmentBytes is where a segment is closed; MaxBytes must hold at least four.
	SegmentBytes int64
	// DeadBytes bounds the dead-letter folder; the oldest go first.
	DeadBytes int64
	Policy    Policy
	// OnDrop is called for every pending batch that drop_oldest drops. The queue is locked during the
	// call.
	OnDrop func(Entry)
	Now    func() time.Time
	Log    *slog.Logger
}

// Entry is a pending batch.
type Entry struct {
	// No orders entries; it survives restarts.
	No       uint64
	Identity identity.Batch
	// Spool id that the batch's boot was claimed with.
	Spool   string
	Created time.Time
	// Bytes of the frame.
	Bytes int
}

// entry is an Entry in memory. There may be very many, so their boots are shared.
type entry struct {
	no               uint64
	boot             *bootRef
	seqStart, seqEnd uint64
	created          int64
	seg              *segment
	off              int64
	body, frame      int32
	done             bool
}

type bootRef struct {
	boot  identity.Boot
	spool string
}

func (e *entry) recordBytes() int64 { return recordHeader + int64(e.body) }

func (e *entry) public() Entry {
	return Entry{
		No: e.no,
		Identity: identity.Batch{Agent: e.boot.boot.Agent, Boot: e.boot.boot.Boot,
			SeqStart: e.seqStart, SeqEnd: e.seqEnd},
		Spool: e.boot.spool, Created: time.Unix(0, e.created), Bytes: int(e.frame),
	}
}

// Queue is open on one directory. Its methods may be called concurrently.
type Queue struct {
	fs   vfs.FS
	dir  string
	opts Options
	lock io.Closer

	mu           sync.Mutex
	segments     []*segment // oldest first; the last is written
	entries      []*entry   // by number; done ones are trimmed from the front
	byNo         map[uint64]*entry
	boots        map[bootRef]*bootRef
	boot         *bootRef
	next         origin // next numbers of the current boot
	repair       bool   // the written segment may have bytes after its size
	skip         skips
	skipFile     vfs.File // nil while the disk has no room for it
	refusing     bool     // the last batch was dropped
	reserved     bool     // the reserve is on disk
	pending      int
	pendingBytes int64
	held         map[State][]HeldBatch
	heldBytes    map[State]int64
	opened       Recovery
	changed      chan struct{}
	closed       bool
}

// Recovery says what Open found.
type Recovery struct {
	// Entries that are pending.
	Entries int
	// CutBytes is the length of the torn tail.
	CutBytes int64
	// Damaged counts sealed records that are lost.
	Damaged int
	// NewBoot is why a new boot was started; empty when the sequence continues.
	NewBoot string
}

// Open locks the directory, makes it when it is absent, and recovers. Everything that it
// finds is durable when it returns.
func Open(fsys vfs.FS, dir string, opts Options) (*Queue, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	q := &Queue{
		fs: fsys, dir: dir, opts: opts,
		byNo: map[uint64]*entry{}, boots: map[bootRef]*bootRef{},
		held: map[State][]HeldBatch{}, heldBytes: map[State]int64{},
		changed: make(chan struct{}),
	}
	for _, d := range []string{dir, q.heldDir(Parked), q.heldDir(Dead)} {
		if err := vfs.MkdirAll(fsys, d); err != nil {
			return nil, fmt.Errorf("open queue %s: %w", dir, err)
		}
	}
	// Before anything is read or repaired: two processes would give out the same numbers.
	lock, err := fsys.Lock(filepath.Join(dir, "LOCK"))
	if err != nil {
		return nil, fmt.Errorf("open queue %s: %w", dir, err)
	}
	q.lock = lock
	if err := q.recover(); err != nil {
		q.closeFiles()
		return nil, errors.Join(fmt.Errorf("open queue %s: %w", dir, err), lock.Close())
	}
	q.findReserve()
	q.keepReserve()
	return q, nil
}

func (o *Options) check() error {
	boot := identity.Boot{Agent: o.Agent, Boot: "b"}
	if err := boot.Validate(); err != nil {
		return fmt.Errorf("queue options: %w", err)
	}
	switch {
	// Space is freed by whole segments, so a queue of very few segments could be full with one
	// pending batch in each.
	case o.SegmentBytes <= 0 || o.MaxBytes < 4*o.SegmentBytes:
		return fmt.Errorf("queue options: max bytes %d must hold four segments of %d", o.MaxBytes, o.SegmentBytes)
	case o.Policy != RefuseNew && o.Policy != DropOldest:
		return fmt.Errorf("queue options: policy %q, want %q or %q", o.Policy, RefuseNew, DropOldest)
	case o.Now == nil || o.Log == nil:
		return errors.New("queue options: Now and Log are required")
	}
	if o.MaxBatches <= 0 {
		o.MaxBatches = 1 << 20
	}
	if o.DeadBytes <= 0 {
		o.DeadBytes = o.MaxBytes / 8
	}
	return nil
}

func (q *Queue) bootRefOf(b identity.Boot, spool string) *bootRef {
	key := bootRef{b, spool}
	if r, ok := q.boots[key]; ok {
		return r
	}
	r := &key
	q.boots[key] = r
	return r
}

// Recovered says what Open found.
func (q *Queue) Recovered() Recovery { return q.opened }

// Boot is the boot of new batches, the spool id it is claimed with, and the next
// sequence number.
func (q *Queue) Boot() (b identity.Boot, spool string, nextSeq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.boot.boot, q.boot.spool, q.next.nextSeq
}

// Last is the number of the newest entry; 0 before the first.
func (q *Queue) Last() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.next.nextEntry - 1
}

// Changed is closed at the next change of what is pending.
func (q *Queue) Changed() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.changed
}

func (q *Queue) notify() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// Close syncs and unlocks.
func (q *Queue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	// The notes of finished entries were not synced one by one; see finishLocked.
	err := q.active().f.Sync()
	return errors.Join(err, q.closeFiles(), q.lock.Close())
}

func (q *Queue) closeFiles() error {
	var errs []error
	for _, s := range q.segments {
		errs = append(errs, s.f.Close())
	}
	errs = append(errs, q.closeSkips())
	return errors.Join(errs...)
}

func (q *Queue) active() *segment { return q.segments[len(q.segments)-1] }
