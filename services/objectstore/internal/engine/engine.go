package engine

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// Options of an engine. The zero value of a field means its default.
type Options struct {
	// Bodies keeps the bodies that are too large for the log; default: files below Dir.
	Bodies   body.Store
	FS       vfs.FS       // default: vfs.Dir(Dir)
	Dir      string       // the directory
	IndexFS  pebblevfs.FS // default: the real one
	IndexDir string       // default: Dir/index
	Log      *slog.Logger
	// SegmentBytes is the length at which a new segment is begun; default 256 MiB.
	SegmentBytes int64
	// InlineBytes is the largest body that goes into the log; default 1 MiB, at most 4 MiB.
	InlineBytes int64
	// ReclaimBelow: a segment with a smaller live fraction is rewritten; default 0.4, negative is never.
	ReclaimBelow float64
	// Reserve is the room that is kept for deletes, reclaiming and the index on a full disk; 0: none.
	Reserve int64
	// Keys seal the bodies of objects; nil: they are not sealed, and a store whose bodies are takes no new ones.
	Keys *seal.Keys
	// Now is the clock that decides whether a retention has ended; default: time.Now.
	Now func() time.Time
	// Observe sees every batch after its fsync; nil is none.
	Observe func(BatchStats)

	mostSums int64 // of a record; default maxSums
}

// BatchStats describes one group commit.
type BatchStats struct {
	Operations int // decided, failed conditions included
	Written    int // records
	Bytes      int64
	Sync       time.Duration
}

const (
	defaultSegmentBytes = 256 << 20
	defaultInlineBytes  = 1 << 20
	maxInlineBytes      = 4 << 20
	maxBatchBytes       = 4 << 20
	maxBatchOps         = 1024
	flushEvery          = 64 << 20 // bytes of log between index flushes: bounds the replay at open
	tmpDir              = "tmp"
)

// Bucket is a bucket's state.
type Bucket struct {
	Name    string
	Created time.Time
	Policy  []byte // nil: none
	// Settings are what else is kept with a bucket, by name, such as its tags. The map is never changed in place.
	Settings map[string][]byte
}

// Engine is an open store. Reads work from Open on; writes while Run runs.
type Engine struct {
	opt    Options
	fs     vfs.FS
	lock   io.Closer
	idx    *index
	bodies body.Store
	pins   pins

	awaited   awaited // bodies without a record yet
	completed completions

	ops     chan *op
	started atomic.Bool
	stopped chan struct{} // closed when Run has ended
	poison  atomic.Pointer[error]

	damages damages
	space   space
	// indexed: the index of an earlier start is in use. No segment behind its position can have
	// been reclaimed.
	indexed bool

	versioned map[string]bool // buckets that may have versions; owned by Open, then by the committer

	footed map[uint64]bool // closed segments with a footer; owned by Open, then by Seal, Reclaim and OfferSegments

	coded   codedBodies // of segments
	closing sync.Mutex  // held by what takes closed segments away or replaces them

	// Owned by Open, then by the committer.
	head      checkpoint // the durable end of the log
	active    *segment
	prepared  int64  // where the zeros behind the active segment's records end; see prepare
	sinceSync int64  // log bytes since the last index flush
	scratch   []byte // of the last batch
	sums      tally
	batchFull error // ErrFull when there was no space for objects at the start of the batch
	mark      struct {
		file             vfs.File
		was              mark // at open
		unsynced, warned bool
	}

	mu       sync.RWMutex
	segments map[uint64]*segment
	live     map[uint64]int64 // bytes of live records per segment
	tombs    map[uint64]int64 // bytes of tombstones per segment
	length   map[uint64]int64 // of closed segments; the active one's is head.pos.off
	closedAt map[uint64]time.Time
	found    map[uint64]bool   // segments that were there at the start: closedAt says no more than that
	codedBy  map[string]uint64 // segments that are bodies, by body
	offers   map[string]*offer // segments that are to be bodies, by body
	// flushedTo is the segment in which the index on its drive ends, as far as the committer knows: what is before it is never replayed.
	flushedTo atomic.Uint64
	stays     map[uint64]stay // segments that Reclaim has tried and had to keep
	unfit     map[uint64]bool // segments that cannot be bodies: they are damaged
	buckets   map[string]Bucket
	sealedBy  map[seal.Version]usage
	usage     map[string]usage // by bucket
	end       position         // copy of head.pos for readers
	endSeq    uint64           // copy of head.nextSeq
	changed   chan struct{}    // closed and replaced when end grows
	floor     func() uint64    // first sequence that readers still need; nil: none

	counts struct {
		objects, bytes, hidden, hiddenBytes, fsyncs, batches, records atomic.Int64
		uncoded                                                       atomic.Int64 // segments that wait for an offer
	}
}

// Stats are the figures of an engine.
type Stats struct {
	Objects, ObjectBytes int64
	// Hidden counts versions that are not the current one, and delete markers; HiddenBytes is the sum of their sizes.
	Hidden, HiddenBytes int64
	Segments            int
	LogBytes, LiveBytes int64 // LogBytes are without those of segments that are bodies
	// CodedSegments are bodies, of CodedBytes; UncodedSegments could be, and are offered or wait for that.
	CodedSegments, UncodedSegments int
	CodedBytes                     int64
	Fsyncs, Batches, Records       int64
	IndexDiskBytes                 int64
	Poisoned                       bool
	// Damaged counts the places that were found damaged. Uncertain: some hide writes of unknown keys.
	Damaged   int64
	Uncertain bool
	// Full: only deletes are taken. ReserveBytes is what is left of the reserve.
	Full         bool
	ReserveBytes int64
	// FreeBytes of the disk, the reserve not counted; -1 when it is not known.
	FreeBytes int64
	// StaleBytes are not sealed with the current key; LockedBytes are, with one that was not given.
	StaleBytes, LockedBytes int64
}

// Stats gives the figures now.
func (e *Engine) Stats() Stats {
	s := Stats{
		Objects: e.counts.objects.Load(), ObjectBytes: e.counts.bytes.Load(),
		Hidden: e.counts.hidden.Load(), HiddenBytes: e.counts.hiddenBytes.Load(),
		Fsyncs: e.counts.fsyncs.Load(), Batches: e.counts.batches.Load(), Records: e.counts.records.Load(),
		Poisoned: e.Err() != nil, IndexDiskBytes: e.idx.diskBytes(),
		Damaged: e.damages.kept.Load(), Uncertain: e.Uncertain() != nil, Full: e.CheckSpace() != nil,
	}
	if free, _, err := e.fs.Free("."); err == nil {
		s.FreeBytes = free
	} else {
		s.FreeBytes = -1
	}
	s.StaleBytes = e.StaleBytes()
	for _, u := range e.KeyUsage() {
		if !u.Given {
			s.LockedBytes += u.Bytes
		}
	}
	e.space.mu.Lock()
	s.ReserveBytes = e.space.held
	e.space.mu.Unlock()
	e.mu.RLock()
	defer e.mu.RUnlock()
	s.Segments = len(e.segments)
	for _, n := range e.length {
		s.LogBytes += n
	}
	for _, num := range e.codedBy {
		s.CodedBytes += e.length[num]
	}
	s.CodedSegments, s.UncodedSegments = len(e.codedBy), len(e.offers)+int(e.counts.uncoded.Load())
	s.LogBytes += e.end.off - s.CodedBytes
	for _, n := range e.live {
		s.LiveBytes += n
	}
	return s
}

// FS is the file system of the store's directory.
func (e *Engine) FS() vfs.FS { return e.fs }

// Err gives the reason why the store refuses all writes; nil when it takes them.
func (e *Engine) Err() error {
	if p := e.poison.Load(); p != nil {
		return *p
	}
	return nil
}

// TakesWrites reports whether a write would be decided now. It is false while the store takes
// none, and while the index cannot.
func (e *Engine) TakesWrites() bool { return e.Err() == nil && e.idx.mayStall() == nil }

// fail ends all writing until the store is opened again, and gives the first cause.
func (e *Engine) fail(cause error) error {
	err := fmt.Errorf("%w: %w", ErrPoisoned, cause)
	if e.poison.CompareAndSwap(nil, &err) {
		e.opt.Log.Error("the store takes no more writes until it is restarted", "error", cause)
	}
	return e.Err()
}

// closeIndex closes the index, and removes it when it was found damaged.
func (e *Engine) closeIndex() error {
	err := e.idx.close()
	if e.idx.corrupt.Load() {
		err = e.opt.IndexFS.RemoveAll(e.opt.IndexDir)
	}
	return err
}

// IndexDamaged is closed when a read has found the index damaged. Close removes it then,
// and the next Open builds it again.
func (e *Engine) IndexDamaged() <-chan struct{} { return e.idx.damaged }

// InlineBytes is the largest body that Put takes; larger ones go through NewBlob.
func (e *Engine) InlineBytes() int64 { return e.opt.InlineBytes }

// Close closes the engine. The context of Run must have ended; Close waits for it to return.
func (e *Engine) Close() error {
	if !e.started.Swap(true) {
		close(e.stopped)
	}
	<-e.stopped
	var first error
	keep := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	if e.Err() == nil {
		// A failure is tolerated: the next open replays what the index lacks.
		if err := e.idx.flush(); err != nil {
			e.opt.Log.Warn("the index could not be made durable; the next start replays the log", "error", err)
		}
		keep(e.cutPrepared())
	}
	keep(e.closeIndex())
	e.syncMark()
	keep(e.mark.file.Close())
	if e.space.file != nil {
		keep(e.space.file.Close())
	}
	e.mu.Lock()
	for n, s := range e.segments {
		s.release()
		delete(e.segments, n)
	}
	e.mu.Unlock()
	e.coded.close()
	keep(e.lock.Close())
	return first
}
