// Package spool is the acceptance mode local_spool: a batch is accepted when its
// file in the local spool is durable. A Lander submits the files to the object store
// through the acceptance protocol ("landing"). docs/protocol/acceptance.md has the reasons.
package spool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Config of a Spool. Dir, AuthorityID, CollectorID and Target are required.
type Config struct {
	// Dir is used by one collector at a time; Open locks it.
	Dir         string
	AuthorityID string
	CollectorID string
	// Target is the acceptance protocol over the store. Batches land through it, and
	// it decides submissions whose range may have landed already.
	Target accept.Acceptor
	// MaxBytes on disk, a file counted with its blocks; 0 means 4 GiB.
	MaxBytes int64
	// MaxBatches in the spool, which bounds memory (about 1 KiB each); 0 means 65,536.
	MaxBatches int
	// FS is vfs.OS when nil; Clock is run.WallClock when nil; Rand is crypto/rand when nil.
	FS    vfs.FS
	Clock retry.Clock
	Rand  io.Reader
	// RetryAfter is the hint when the spool is full; 0 means one second.
	RetryAfter time.Duration
	Events     Events
}

// Events are callbacks for metrics and logs; nil fields are skipped.
type Events struct {
	// Landed: the batch is in the store and leaves the spool.
	Landed func(id identity.Batch, o accept.Outcome)
	// Parked: landing found a conflict or a refusal; the file is in the folder conflicts.
	Parked func(id identity.Batch, d identity.Digest, cause error)
	// Corrupt: a file on disk is not what was written. It is kept at path, below Dir.
	Corrupt func(path string, err error)
	// Failed: a disk error after which the spool accepts nothing until it is opened again.
	Failed func(err error)
	// LandingFailed: a round of landing ended early, or left a batch behind; the next round tries again.
	LandingFailed func(err error)
}

// Stats of the spool's contents.
type Stats struct {
	Batches, Quarantined int
	Bytes, MaxBytes      int64
	// Oldest batch's acceptance, Unix nanoseconds; 0 when empty.
	Oldest int64
}

// Spool accepts by local file. Safe for concurrent use.
type Spool struct {
	cfg  Config
	lock io.Closer

	mu      sync.Mutex
	tree    tree
	failed  error
	entries map[identity.Batch]*entry
	losers  []*entry                         // in quarantine, oldest first
	busy    map[identity.Batch]chan struct{} // identities that a call works on; closed when it ends
	used    int64
	parked  int64 // bytes in conflicts whose frame the store has as well
	pending int   // number of batches being written
	writing int64 // and their cost in bytes
	order   uint64
	// recovered is the order of the last file that an earlier process left.
	recovered uint64
	// runs of the journal; the first earlierRuns are of earlier processes.
	runs        []journal.RunID
	earlierRuns int
	temp        uint64
	boots       *lru.Cache[identity.Boot, *boot]
}

type entry struct {
	manifest      accept.Manifest
	manifestBytes []byte
	spoolID       string
	path          string
	cost          int64
	order         uint64
	damaged       bool // reported as damaged; a submission of the same bytes rewrites the file
}

// boot is what the spool has on disk about a boot.
type boot struct {
	spoolID string
	// landed is the watermark: the largest seq_end that ever left the spool. Valid only with any.
	landed uint64
	any    bool
	// clash: the store's boot record names another spool, so nothing of this boot can land.
	clash bool
}

// What acceptance leaves free on the file system, in bytes and in files. A landing writes a
// watermark before it removes anything, so a full file system could never be emptied again.
const (
	keepBytes = 1 << 20
	keepFiles = 256
)

const maxBootsCached = 16384

var errFull = errors.New("spool is full")

// cost is the bytes that a file of size bytes is charged with: whole blocks of 4 KiB, and one for its directory entries.
func cost(size int) int64 { return (int64(size)+4095)/4096*4096 + 4096 }

// Accept makes the submission durable in the spool. A range that may have landed
// before is decided by the target instead, so that an identity never gets a second hash.
func (s *Spool) Accept(ctx context.Context, sub accept.Submission) (accept.Result, error) {
	if err := sub.Validate(); err != nil {
		return accept.Result{}, &accept.RefusedError{Reason: accept.ReasonInvalidSubmission, Err: fmt.Errorf("spool %s: %w", sub.Identity, err)}
	}
	// Checked here, because no store verifies it: a file with a wrong hash would count as
	// damaged at its landing, after it was acknowledged.
	if identity.Sum(sub.Frame) != sub.SHA256 {
		return accept.Result{}, &accept.RefusedError{Reason: accept.ReasonInvalidSubmission, Err: fmt.Errorf("spool %s: frame does not hash to %s", sub.Identity, sub.SHA256)}
	}
	done, err := s.claim(ctx, sub.Identity)
	if err != nil {
		return accept.Result{}, fmt.Errorf("spool %s: %w", sub.Identity, err)
	}
	defer done()
	s.mu.Lock()
	there := s.entries[sub.Identity]
	s.mu.Unlock()
	// The watermark is read after the index, because the lander raises it before a batch
	// leaves the index: so at least one of the two reads sees a batch that lands meanwhile.
	b, err := s.claimBoot(sub.Identity.BootOf(), sub.SpoolID)
	if err != nil {
		return accept.Result{}, err
	}
	switch {
	case there == nil && b.any && sub.Identity.SeqStart <= b.landed:
		return s.cfg.Target.Accept(ctx, sub)
	case there == nil:
		return s.write(sub)
	case there.manifest.FrameSHA256 != sub.SHA256:
		return s.quarantine(sub, there) // same identity, other bytes
	}
	if err := s.ensureFile(sub, there); err != nil {
		return accept.Result{}, err
	}
	if s.has(there) {
		return there.result(accept.Duplicate), nil
	}
	return s.cfg.Target.Accept(ctx, sub) // it has landed meanwhile
}

func (e *entry) result(o accept.Outcome) accept.Result {
	return accept.Result{
		Outcome: o, Manifest: e.manifest, ManifestBytes: slices.Clone(e.manifestBytes),
		ManifestKey: layout.Accepted(e.manifest.Identity),
	}
}

// claim waits until no other call works on the identity, so that two submissions of one identity are decided one after the other. The caller calls the returned function when it is done.
func (s *Spool) claim(ctx context.Context, id identity.Batch) (func(), error) {
	for {
		s.mu.Lock()
		other := s.busy[id]
		if other == nil {
			mine := make(chan struct{})
			s.busy[id] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, id)
				s.mu.Unlock()
				close(mine)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// newEntry makes the index entry and the file's head for a submission; it writes nothing.
func (s *Spool) newEntry(sub accept.Submission, path string) (*entry, []byte, error) {
	m, err := sub.NewManifest(0, s.cfg.AuthorityID, s.cfg.CollectorID, s.cfg.Clock, s.cfg.Rand)
	if err != nil {
		return nil, nil, err
	}
	e := &entry{manifest: m, manifestBytes: m.Marshal(), spoolID: sub.SpoolID, path: path}
	head := encodeHead(e.manifestBytes, sub.SpoolID, len(sub.Frame))
	e.cost = cost(len(head) + len(sub.Frame))
	return e, head, nil
}

// reserve charges for a file before it is written, so that concurrent writes can't exceed the bounds together.
func (s *Spool) reserve(e *entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return s.retry(accept.ReasonSpoolFailed, s.failed)
	}
	if s.used+e.cost > s.cfg.MaxBytes || len(s.entries)+len(s.losers)+s.pending >= s.cfg.MaxBatches {
		return s.retry(accept.ReasonSpoolFull, fmt.Errorf("%w: %d of %d bytes, %d of %d batches",
			errFull, s.used, s.cfg.MaxBytes, len(s.entries)+len(s.losers)+s.pending, s.cfg.MaxBatches))
	}
	if err := s.checkDisk(e.cost); err != nil {
		return err
	}
	s.used += e.cost
	s.writing += e.cost
	s.pending++
	return nil
}

// checkDisk refuses a file that would leave less of the file system than landing needs. The caller holds s.mu.
func (s *Spool) checkDisk(cost int64) error {
	bytes, files, err := s.cfg.FS.Free(s.tree.root)
	if err != nil {
		return s.retry(accept.ReasonSpoolFailed, err)
	}
	// Files that are being written may not show in the free space yet, so they are subtracted.
	if bytes-s.writing-cost < keepBytes || files-int64(s.pending) < keepFiles {
		return s.retry(accept.ReasonSpoolFull, fmt.Errorf("%w: the file system has %d bytes and %d files left", errFull, bytes, files))
	}
	return nil
}

func (s *Spool) retry(reason accept.Reason, err error) error {
	return &accept.RetryError{Reason: reason, After: s.cfg.RetryAfter, Err: err}
}

func (s *Spool) write(sub accept.Submission) (accept.Result, error) {
	e, err := s.store(sub, batchPath(sub.Identity))
	if err != nil {
		return accept.Result{}, err
	}
	s.mu.Lock()
	s.entries[sub.Identity] = e
	s.mu.Unlock()
	failpoint.Hit("ingest.spool.ack.before")
	return e.result(accept.Accepted), nil
}

// quarantine stores the bytes that lost a conflict with a batch in the spool, once per hash.
func (s *Spool) quarantine(sub accept.Submission, winner *entry) (accept.Result, error) {
	path := loserPath(quarantineDir, sub.Identity, sub.SHA256)
	// Without a quarantine key: its record is written at the landing, and until then nobody finds it there.
	res := winner.result(accept.Conflict)
	s.mu.Lock()
	known := slices.IndexFunc(s.losers, func(l *entry) bool { return l.path == path })
	var there *entry
	if known >= 0 {
		there = s.losers[known]
	}
	s.mu.Unlock()
	if there != nil {
		return res, s.ensureFile(sub, there)
	}
	e, err := s.store(sub, path)
	if err != nil {
		return accept.Result{}, err
	}
	s.mu.Lock()
	s.losers = append(s.losers, e)
	s.mu.Unlock()
	return res, nil
}

// store writes one file durably. After an error the file may or may not exist.
func (s *Spool) store(sub accept.Submission, path string) (*entry, error) {
	e, head, err := s.newEntry(sub, path)
	if err != nil {
		return nil, s.retry(accept.ReasonSpoolFailed, err)
	}
	if err := s.reserve(e); err != nil {
		return nil, err
	}
	err = s.placeFile(path, head, sub.Frame)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending--
	s.writing -= e.cost
	if err != nil {
		s.used -= e.cost
		return nil, s.retry(accept.ReasonSpoolFailed, fmt.Errorf("spool %s: %w", sub.Identity, err))
	}
	s.order++
	e.order = s.order
	return e, nil
}

// placeFile makes a durable file under a name that must be free. The order is: bytes,
// sync, name, sync of the folder. An error before the name leaves nothing behind. An error
// after it leaves a file that may or may not be durable, and so fails the spool.
func (s *Spool) placeFile(path string, parts ...[]byte) error {
	s.mu.Lock()
	s.temp++
	temp := s.tree.abs(filepath.Join(tempDir, strconv.FormatUint(s.temp, 10)))
	err := s.tree.mkdirs(filepath.Dir(path))
	s.mu.Unlock()
	if err != nil {
		return err
	}
	failpoint.Hit("ingest.spool.append.before")
	defer s.cfg.FS.Remove(temp) // a left-over is removed at the next start
	if err := vfs.WriteFile(s.cfg.FS, temp, parts...); err != nil {
		return err
	}
	failpoint.Hit("ingest.spool.append.synced")
	to := s.tree.abs(path)
	// A link and no rename: a rename would replace a file that has the name already.
	if err := s.cfg.FS.Link(temp, to); err != nil {
		return s.fail(err)
	}
	failpoint.Hit("ingest.spool.append.linked")
	if err := s.cfg.FS.SyncDir(filepath.Dir(to)); err != nil {
		return s.fail(err)
	}
	failpoint.Hit("ingest.spool.append.durable")
	return nil
}

// fail stops acceptance until the spool is opened again: after a failed sync, the page cache may differ from the disk. It returns err.
func (s *Spool) fail(err error) error {
	s.mu.Lock()
	first := s.failed == nil
	if first {
		s.failed = err
	}
	s.mu.Unlock()
	if first && s.cfg.Events.Failed != nil {
		s.cfg.Events.Failed(err)
	}
	return err
}

// Stats counts what is in the spool.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Batches: len(s.entries), Quarantined: len(s.losers), Bytes: s.used, MaxBytes: s.cfg.MaxBytes}
	for _, e := range s.entries {
		if st.Oldest == 0 || e.manifest.AcceptedAt < st.Oldest {
			st.Oldest = e.manifest.AcceptedAt
		}
	}
	return st
}

// Unlanded is how many accepted batches are in the spool.
func (s *Spool) Unlanded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

// Close releases the lock on the directory. Calls in progress must have ended.
func (s *Spool) Close() error { return s.lock.Close() }

// ErrOtherAuthority says that the spool holds batches that were accepted for another
// authority's store. They must land there, so nothing is changed.
var ErrOtherAuthority = errors.New("the spool is of another acceptance authority")

// Open locks the directory and loads what an earlier process left there. Errors:
// ErrOtherAuthority, record.ErrNewerVersion where a batch is of a newer release, and those of
// the file system. They leave every file as it is.
func Open(cfg Config) (*Spool, error) {
	if cfg.Dir == "" || cfg.AuthorityID == "" || cfg.CollectorID == "" || cfg.Target == nil {
		return nil, errors.New("spool: directory, authority id, collector id and target are required")
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 4 << 30
	}
	if cfg.MaxBatches == 0 {
		cfg.MaxBatches = 65536
	}
	if cfg.MaxBytes < 0 || cfg.MaxBatches < 0 {
		return nil, errors.New("spool: negative bound")
	}
	if cfg.FS == nil {
		cfg.FS = vfs.OS
	}
	if cfg.Clock == nil {
		cfg.Clock = run.WallClock{}
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	if cfg.RetryAfter == 0 {
		cfg.RetryAfter = time.Second
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	s := &Spool{
		cfg: cfg, tree: tree{fs: cfg.FS, root: dir, known: map[string]bool{}},
		entries: map[identity.Batch]*entry{}, busy: map[identity.Batch]chan struct{}{},
		boots: lru.New[identity.Boot, *boot](maxBootsCached),
	}
	if err := vfs.MkdirAll(cfg.FS, dir); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	if s.lock, err = cfg.FS.Lock(s.tree.abs("lock")); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	if err := errors.Join(s.recover(), s.loadRuns()); err != nil {
		return nil, errors.Join(fmt.Errorf("open spool %q: %w", dir, err), s.lock.Close())
	}
	return s, nil
}
