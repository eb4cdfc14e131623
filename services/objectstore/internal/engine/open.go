package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// Open opens the store in a directory, or creates it. It takes the lock, makes durable what an
// earlier process wrote without a sync, replays the log into the index, cuts off a torn tail,
// and removes bodies that no record names.
func Open(opt Options) (_ *Engine, err error) {
	opt = opt.withDefaults()
	e := &Engine{
		opt: opt, fs: opt.FS,
		ops: make(chan *op, maxBatchOps), stopped: make(chan struct{}), changed: make(chan struct{}),
		segments: map[uint64]*segment{}, live: map[uint64]int64{}, tombs: map[uint64]int64{}, length: map[uint64]int64{},
		footed: map[uint64]bool{}, versioned: map[string]bool{},
		codedBy: map[string]uint64{}, closedAt: map[uint64]time.Time{}, found: map[uint64]bool{}, unfit: map[uint64]bool{},
	}
	if e.bodies = opt.Bodies; e.bodies == nil {
		e.bodies = body.NewFiles(e.fs, func() { e.counts.fsyncs.Add(1) })
	}
	e.coded.store, e.coded.now = e.bodies, opt.Now
	// The lock comes before everything else: all that follows may write, and two processes
	// that repair one log would destroy it.
	if e.lock, err = e.fs.Lock("LOCK"); err != nil {
		return nil, fmt.Errorf("open store in %s: %w", opt.Dir, err)
	}
	defer func() {
		if err != nil {
			e.abandon()
			err = fmt.Errorf("open store in %s: %w", opt.Dir, err)
		}
	}()
	// The reserve is opened first, because every later step may need disk space and frees the
	// reserve when it finds none.
	if err := e.openReserve(); err != nil {
		return nil, err
	}
	if err := e.makeDirs(); err != nil {
		return nil, full(err)
	}
	numbers, err := e.openSegments()
	if err != nil {
		return nil, err
	}
	failpoint.Hit("objectstore.open.index.before")
	if err := e.syncExisting(numbers); err != nil {
		return nil, err
	}
	if err := e.catchUp(numbers); err != nil {
		return nil, err
	}
	return e, nil
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Dir(o.Dir)
	}
	if o.IndexFS == nil {
		o.IndexFS = pebblevfs.Default
	}
	if o.IndexDir == "" {
		o.IndexDir = filepath.Join(o.Dir, "index")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = defaultSegmentBytes
	}
	if o.InlineBytes <= 0 {
		o.InlineBytes = defaultInlineBytes
	}
	if o.mostSums <= 0 {
		o.mostSums = maxSums
	}
	o.InlineBytes = min(o.InlineBytes, maxInlineBytes)
	if o.ReclaimBelow == 0 {
		o.ReclaimBelow = defaultReclaimBelow
	}
	return o
}

// abandon closes everything that a failed Open has opened. Nothing was promised yet, so errors
// are dropped in favour of the one that made Open fail.
func (e *Engine) abandon() {
	for _, s := range e.segments {
		s.release()
	}
	e.coded.close()
	if e.idx != nil {
		_ = e.idx.close()
	}
	if e.mark.file != nil {
		_ = e.mark.file.Close()
	}
	if e.space.file != nil {
		_ = e.space.file.Close()
	}
	_ = e.lock.Close()
}

func (e *Engine) makeDirs() error {
	for _, d := range []string{logDir, tmpDir, footerDir} {
		if err := vfs.EnsureDir(e.fs, d); err != nil {
			return err
		}
	}
	if err := e.openMark(); err != nil {
		return err
	}
	// The directories' own names must be durable before a record in them is acknowledged.
	return e.fs.SyncDir(".")
}

// openSegments opens all segments and gives their numbers in order. A last segment
// whose header is not whole was never used: segments are durable before their first record.
func (e *Engine) openSegments() ([]uint64, error) {
	names, err := vfs.Names(e.fs, logDir)
	if err != nil {
		return nil, err
	}
	var numbers []uint64
	for _, n := range names {
		num, ok := parseSegName(n)
		if !ok {
			e.opt.Log.Warn("a file is not the store's, and is left alone", "file", logDir+"/"+n)
			continue
		}
		numbers = append(numbers, num)
	}
	for i, num := range numbers {
		s, err := e.openSegment(num)
		if err != nil {
			return nil, err
		}
		e.closedAt[num], e.found[num] = e.opt.Now(), true // or before: see oldEnough
		// Only the newest segment can be half made: an older one was closed, so a bad header
		// there is damage and must not be removed.
		if s.bad != nil && i == len(numbers)-1 && e.neverUsed(s) {
			s.release()
			e.opt.Log.Warn("removed a segment that a crash left unfinished", "segment", num)
			return numbers[:i], errors.Join(e.fs.Remove(segName(num)), e.fs.SyncDir(logDir))
		}
		e.segments[num] = s
	}
	return numbers, nil
}

// syncExisting makes durable what this process will read. A killed process leaves bytes and
// names that only the page cache has. Without this sync a power loss could take back objects
// that this process has already served, and leave the index with records that the log lost.
func (e *Engine) syncExisting(numbers []uint64) error {
	if n := len(numbers); n > 0 {
		// Older segments were synced before the next one was begun.
		if err := e.segments[numbers[n-1]].file.Sync(); err != nil {
			return fmt.Errorf("fsync %s: %w", segName(numbers[n-1]), err)
		}
	}
	if err := e.fs.SyncDir(logDir); err != nil {
		return fmt.Errorf("fsync %s: %w", logDir, err)
	}
	if err := e.bodies.Recover(); err != nil {
		return fmt.Errorf("recover bodies: %w", err)
	}
	return nil
}

// neverUsed reports whether a crash interrupted the creation of a segment. Its header is
// synced before its first record, so a segment without one holds nothing that was
// acknowledged; the mark is a second witness of that.
func (e *Engine) neverUsed(s *segment) bool {
	n, err := s.file.Size()
	return err == nil && n <= segHeaderSize && e.mark.was.pos.seg < s.number
}

// catchUp brings the index to the end of the log. Where the index turns out to be damaged
// it is thrown away, once: the log has everything.
func (e *Engine) catchUp(numbers []uint64) error {
	for try := 0; ; try++ {
		// A damaged index costs one rebuild. If the second attempt fails too, the damage is not
		// in the index, and trying again would loop for ever.
		err := e.readLog(numbers)
		if err == nil || try > 0 || !pebble.IsCorruptionError(err) {
			return err
		}
		if err := e.dropIndex(err); err != nil {
			return err
		}
	}
}

func (e *Engine) readLog(numbers []uint64) error {
	if err := e.openIndex(numbers); err != nil {
		return err
	}
	failpoint.Hit("objectstore.open.replay.before")
	if err := e.replay(numbers); err != nil {
		return err
	}
	// From here on the index is complete. A start that is killed before this finds the marker
	// and builds the index again.
	if err := e.idx.db.Delete([]byte{spaceBuilding}, pebble.NoSync); err != nil {
		return fmt.Errorf("update index: %w", err)
	}
	failpoint.Hit("objectstore.open.sweep.before")
	return e.sweep()
}

func (e *Engine) dropIndex(cause error) error {
	if e.idx != nil {
		_ = e.idx.close()
		e.idx = nil
	}
	e.opt.Log.Warn("the index is built again from the log", "reason", cause)
	return e.opt.IndexFS.RemoveAll(e.opt.IndexDir)
}

// openIndex opens the index, or starts an empty one when it is damaged or belongs to another log.
func (e *Engine) openIndex(numbers []uint64) (err error) {
	for try := 0; ; try++ {
		// Without disk space the index cannot be opened although nothing is wrong with it:
		// dropping it would turn a full disk into a rebuild that needs even more space.
		if e.idx, err = openIndex(pebblevfs.OnDiskFull(e.opt.IndexFS, e.onIndexDiskFull), e.opt.IndexDir); vfs.IsFull(err) {
			return full(err) // nothing is wrong with the index
		} else if err == nil {
			if err = e.loadCheckpoint(numbers); err == nil {
				return nil
			}
			if !errors.Is(err, errForeignIndex) {
				return err
			}
		}
		if try > 0 {
			return err
		}
		if err := e.dropIndex(err); err != nil {
			return err
		}
	}
}

var errForeignIndex = errors.New("the index is not of this log")

// loadCheckpoint reads from the index how far it follows the log and what it knows of each
// segment. It finds segments that are missing, and gives segments with a damaged header the
// salt and first sequence that the index has kept.
func (e *Engine) loadCheckpoint(numbers []uint64) error {
	e.live, e.tombs, e.buckets = map[uint64]int64{}, map[uint64]int64{}, map[string]Bucket{}
	e.sealedBy, e.usage = map[seal.Version]usage{}, map[string]usage{}
	e.head, e.indexed = checkpoint{nextSeq: 1}, false
	clear(e.versioned)
	e.damages.clear()
	err := e.idx.get([]byte{spaceCheckpoint}, func(v []byte) (err error) {
		e.head, err = decodeCheckpoint(v)
		return err
	})
	building := e.idx.get([]byte{spaceBuilding}, func([]byte) error { return nil })
	switch {
	case errors.Is(err, ErrNotFound):
		// An empty index. The marker is set before the first entry, so that a half-built index
		// is never taken for a complete one.
		return e.idx.db.Set([]byte{spaceBuilding}, nil, pebble.NoSync)
	case err != nil:
		return fmt.Errorf("%w: %w", errForeignIndex, err)
	case building == nil:
		return fmt.Errorf("%w: it was not finished", errForeignIndex)
	case !errors.Is(building, ErrNotFound):
		return building
	}
	uses, same := map[uint64]use{}, len(numbers) == 0
	err = e.idx.scan(spaceSegment, func(name, value []byte) error {
		u, err := decodeUse(value)
		if s := e.segments[decodeSegmentKey(name)]; s != nil && s.bad == nil {
			// Salts are random per segment: another salt under the same number is another
			// log, for example one restored from a backup beside an index that was not.
			if s.salt != u.salt {
				return errForeignIndex
			}
			same = true
		}
		uses[decodeSegmentKey(name)] = u
		return err
	})
	if err != nil {
		return err
	}
	// No segment of the index is in this log, and the log does not merely begin after the
	// position of the index: they do not belong together.
	if s := e.segments[e.head.pos.seg]; !same && (s == nil || s.bad == nil) && numbers[0] <= e.head.pos.seg {
		return errForeignIndex
	}
	e.indexed = true
	if err := e.loadDamages(); err != nil {
		return err
	}
	for num, u := range uses {
		if s := e.segments[num]; s != nil {
			s.adoptSalt(u.salt, u.firstSeq)
			e.live[num], e.tombs[num] = u.live, u.tombs
		} else if u.live != 0 {
			e.live[num] = u.live
			// Reclaiming removes a segment only once nothing in it is live, so this file was
			// removed by somebody else. Its bytes stay counted, so that the objects are
			// reported as damaged and not as absent.
			e.quarantine(Damage{File: segName(num), Length: maxSegment, Reason: fmt.Sprintf("the segment is missing, with %d bytes in use", u.live)})
		}
	}
	if err := e.loadUsage(); err != nil {
		return err
	}
	if err := e.idx.scan(spaceVersioned, func(name, _ []byte) error {
		e.versioned[string(name)] = true
		return nil
	}); err != nil {
		return err
	}
	return e.loadBuckets()
}

// sweep removes footers that were not finished, and bodies that were written but never
// committed, or whose object is gone.
func (e *Engine) sweep() error {
	names, err := vfs.Names(e.fs, tmpDir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := e.fs.Remove(tmpDir + "/" + n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return e.eachUnnamedBody(func(id string) error {
		if e.Uncertain() != nil || e.mayHideStub() {
			// A lost record may have named this body, or a lost stub, and an operator's repair may still
			// need it.
			return nil
		}
		if err := e.bodies.Remove(id); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// eachUnnamedBody calls fn for each body that no object names.
func (e *Engine) eachUnnamedBody(fn func(id string) error) error {
	return e.bodies.List(func(id string) error {
		err := e.idx.get(spaceKey(spaceFile, id), func([]byte) error { return nil })
		if errors.Is(err, ErrNotFound) && !e.namesSegment(id) {
			return fn(id)
		}
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	})
}
