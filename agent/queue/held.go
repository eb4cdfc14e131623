package queue

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	frameExt  = ".lmbatch"
	reasonExt = ".json"
)

// HeldBatch is a batch that is not sent any more: parked because of a conflict, or dead because a
// collector rejected it. Its exact bytes are in ID.lmbatch, beside ID.json, which is this struct.
type HeldBatch struct {
	// ID is "<seq-start>-<seq-end>-<16 hex digits of the frame's hash>".
	ID          string          `json:"id"`
	AgentID     string          `json:"agent_id"`
	BootID      string          `json:"boot_id"`
	SpoolID     string          `json:"spool_id"`
	SeqStart    uint64          `json:"seq_start"`
	SeqEnd      uint64          `json:"seq_end"`
	FrameSHA256 identity.Digest `json:"frame_sha256"`
	FrameBytes  int64           `json:"frame_bytes"`
	QueuedAt    time.Time       `json:"queued_at"`
	At          time.Time       `json:"at"`
	HoldReason
}

// HoldReason is why a batch is held: what the collector answered.
type HoldReason struct {
	// Reason is the collector's stable code, IDENTITY_CONFLICT or BOOT_ID_CLASH.
	Reason string `json:"reason"`
	Detail string `json:"detail,omitempty"`
	// Collector that gave this answer.
	Collector string `json:"collector,omitempty"`
	// The frame that has the identity; for conflicts.
	AcceptedSHA256 string     `json:"accepted_sha256,omitempty"`
	AcceptedBy     string     `json:"accepted_by,omitempty"`
	AcceptedAt     *time.Time `json:"accepted_at,omitempty"`
	QuarantineKey  string     `json:"quarantine_key,omitempty"`
	// First and last number of the accepted batch, if that is another one of the boot which shares numbers with this one; else nil.
	AcceptedSeqStart *uint64 `json:"accepted_seq_start,omitempty"`
	AcceptedSeqEnd   *uint64 `json:"accepted_seq_end,omitempty"`
}

// Met are the numbers of the accepted batch as "first-last", if they are others than those of the held one; else empty.
func (v HoldReason) Met() string {
	if v.AcceptedSeqStart == nil || v.AcceptedSeqEnd == nil {
		return ""
	}
	return fmt.Sprintf("%d-%d", *v.AcceptedSeqStart, *v.AcceptedSeqEnd)
}

// Identity of the batch.
func (a HeldBatch) Identity() identity.Batch {
	return identity.Batch{Agent: a.AgentID, Boot: a.BootID, SeqStart: a.SeqStart, SeqEnd: a.SeqEnd}
}

// HeldDir is the folder of the frames that are held in that state.
func (q *Queue) HeldDir(s State) string { return q.heldDir(s) }

func (q *Queue) heldDir(s State) string { return filepath.Join(q.dir, s.String()) }

// Park holds an entry because of a conflict. Its files are durable before the entry is finished.
func (q *Queue) Park(no uint64, v HoldReason) (HeldBatch, error) { return q.hold(no, Parked, v) }

// DeadLetter holds an entry that was rejected.
func (q *Queue) DeadLetter(no uint64, v HoldReason) (HeldBatch, error) { return q.hold(no, Dead, v) }

func (q *Queue) hold(no uint64, s State, v HoldReason) (HeldBatch, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return HeldBatch{}, ErrClosed
	}
	e := q.byNo[no]
	if e == nil {
		return HeldBatch{}, fmt.Errorf("%w: %d", ErrNotFound, no)
	}
	_, f, err := q.read(e)
	if err != nil {
		return HeldBatch{}, err
	}
	sum := identity.Sum(f.frame)
	a := HeldBatch{
		ID:      layout.SeqName(e.seqStart, e.seqEnd) + "-" + sum.String()[:16],
		AgentID: f.id.Agent, BootID: f.id.Boot, SpoolID: f.spool,
		SeqStart: e.seqStart, SeqEnd: e.seqEnd, FrameSHA256: sum, FrameBytes: int64(len(f.frame)),
		QueuedAt: f.created.UTC(), At: q.opts.Now().UTC(), HoldReason: v,
	}
	dir := q.heldDir(s)
	failpoint.Hit("agent.queue.hold.before")
	// The frame is written before its reason, so that a reason always has its frame.
	if err := errors.Join(
		q.writeDurable(dir, a.ID+frameExt, f.frame),
		q.writeDurable(dir, a.ID+reasonExt, HeldKind.Marshal(a)),
	); err != nil {
		return HeldBatch{}, fmt.Errorf("hold entry %d: %w", no, err)
	}
	failpoint.Hit("agent.queue.hold.durable")
	q.keepHeld(s, a)
	if err := q.finishLocked(e, s); err != nil {
		// The files are durable. Without the note a restart sends the batch again, and the same answer
		// holds it again.
		q.opts.Log.Warn("queue: could not note an entry's state", "error", err)
	}
	return a, q.boundDead()
}

func (q *Queue) keepHeld(s State, a HeldBatch) {
	q.forgetHeld(s, a.ID)
	q.held[s] = append(q.held[s], a)
	q.heldBytes[s] += a.FrameBytes
}

func (q *Queue) forgetHeld(s State, id string) {
	q.held[s] = slices.DeleteFunc(q.held[s], func(a HeldBatch) bool {
		if a.ID != id {
			return false
		}
		q.heldBytes[s] -= a.FrameBytes
		return true
	})
}

// boundDead removes the oldest dead letters beyond their bound.
func (q *Queue) boundDead() error {
	for q.heldBytes[Dead] > q.opts.DeadBytes && len(q.held[Dead]) > 1 {
		a := q.held[Dead][0]
		q.opts.Log.Warn("dead letters are over their bound: removing the oldest", "id", a.ID, "reason", a.Reason)
		if err := q.removeHeld(Dead, a.ID); err != nil {
			return err
		}
	}
	return nil
}

// writeDurable creates a file of a held batch with all of its bytes, or not at all.
func (q *Queue) writeDurable(dir, name string, data []byte) error {
	return q.persist(dir, name, data, persistHooks{
		synced:  func() { failpoint.Hit("agent.queue.hold.synced") },
		renamed: func() { failpoint.Hit("agent.queue.hold.renamed") },
	})
}

// persistHooks are called while a file is made durable; nil ones are not.
type persistHooks struct{ synced, renamed func() }

func call(f func()) {
	if f != nil {
		f()
	}
}

// persist creates a file with all of its bytes, or not at all: it is written and synced under a
// temporary name and renamed.
func (q *Queue) persist(dir, name string, data []byte, m persistHooks) error {
	path := filepath.Join(dir, name)
	f, err := vfs.CreateEmpty(q.fs, path+tmpExt)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	call(m.synced)
	if err := q.fs.Rename(path+tmpExt, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	call(m.renamed)
	if err := q.fs.SyncDir(dir); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func (q *Queue) readFile(path string, limit int64) ([]byte, error) {
	b, size, err := vfs.ReadFile(q.fs, path, limit)
	if err == nil && size > limit {
		return nil, fmt.Errorf("%s has %d bytes, at most %d", path, size, limit)
	}
	return b, err
}

// loadHeldBatches reads both folders. A frame without its reason is removed: it is half of a write
// whose entry is still in the log, or half of a removal.
func (q *Queue) loadHeldBatches() error {
	for _, s := range []State{Parked, Dead} {
		dir := q.heldDir(s)
		// A killed process may have removed a reason without a sync. The frame must not be removed
		// before that is durable, or a power loss could bring the reason back without its frame.
		if err := q.fs.SyncDir(dir); err != nil {
			return err
		}
		names, err := q.files(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			id, isFrame := strings.CutSuffix(name, frameExt)
			if strings.HasSuffix(name, tmpExt) || isFrame && !slices.Contains(names, id+reasonExt) {
				if err := q.fs.Remove(filepath.Join(dir, name)); err != nil {
					return err
				}
				continue
			}
			if id, ok := strings.CutSuffix(name, reasonExt); ok {
				q.loadHeldBatch(s, dir, id)
			}
		}
		slices.SortStableFunc(q.held[s], func(a, b HeldBatch) int { return a.At.Compare(b.At) })
	}
	return nil
}

func (q *Queue) loadHeldBatch(s State, dir, id string) {
	var a HeldBatch
	text, err := q.readFile(filepath.Join(dir, id+reasonExt), int64(HeldKind.MaxBytes))
	if err == nil {
		err = HeldKind.Unmarshal(text, &a)
	}
	if err == nil && a.ID != id {
		err = HeldKind.Corrupt("", "it is of %q", a.ID)
	}
	if err != nil {
		q.opts.Log.Error("queue: reason file is unreadable", "file", filepath.Join(dir, id+reasonExt), "error", err)
		return
	}
	q.keepHeld(s, a)
}

// HeldBatches lists the held batches of state s, Parked or Dead, oldest first.
func (q *Queue) HeldBatches(s State) []HeldBatch {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.held[s])
}

// RemoveHeld deletes a parked or dead batch permanently, by an operator's decision.
func (q *Queue) RemoveHeld(s State, id string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.ContainsFunc(q.held[s], func(a HeldBatch) bool { return a.ID == id }) {
		return fmt.Errorf("%w: %s %q", ErrNotFound, s, id)
	}
	return q.removeHeld(s, id)
}

func (q *Queue) removeHeld(s State, id string) error {
	dir := q.heldDir(s)
	// The reason is removed first, durably, so that a reason always has its frame.
	for _, ext := range []string{reasonExt, frameExt} {
		if err := q.fs.Remove(filepath.Join(dir, id+ext)); err != nil {
			return fmt.Errorf("remove %s %q: %w", s, id, err)
		}
		if err := q.fs.SyncDir(dir); err != nil {
			return fmt.Errorf("remove %s %q: %w", s, id, err)
		}
		q.forgetHeld(s, id)
		if ext == reasonExt {
			failpoint.Hit("agent.queue.release.forgotten")
		}
	}
	return nil
}

// HeldFrame reads the exact bytes of a held batch; record.ErrCorrupt when the disk has other bytes.
func (q *Queue) HeldFrame(s State, id string) ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.held[s], func(a HeldBatch) bool { return a.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("%w: %s %q", ErrNotFound, s, id)
	}
	frame, err := q.readFile(filepath.Join(q.heldDir(s), id+frameExt), maxBody)
	if err == nil && identity.Sum(frame) != q.held[s][i].FrameSHA256 {
		err = entryKind.Corrupt("", "hash of the frame file")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %q: %w", s, id, err)
	}
	return frame, nil
}

// QueueAs queues a frame that has its identity already, of a boot that this queue gives out no
// numbers of. It is durable on return. A frame that is pending under that identity is left as it is.
func (q *Queue) QueueAs(id identity.Batch, spool string, created time.Time, frame []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	if err := id.Validate(); err != nil {
		return fmt.Errorf("queue %s: %w", id, err)
	}
	if id.BootOf() == q.next.boot {
		return fmt.Errorf("queue %s: its numbers are this queue's own", id)
	}
	if _, err := q.queueAs(id, spool, created, frame); err != nil {
		return fmt.Errorf("queue %s: %w", id, err)
	}
	return nil
}

// queueAs appends a frame with an identity that it has already; one that is pending is not appended
// again.
func (q *Queue) queueAs(id identity.Batch, spool string, created time.Time, frame []byte) (Entry, error) {
	for _, e := range q.entries {
		if !e.done && e.public().Identity == id {
			return e.public(), nil
		}
	}
	no := q.next.nextEntry
	buf := appendFrame(nil, no, frameBody{id: id, spool: spool, created: created, frame: frame})
	e := &entry{
		no: no, boot: q.bootRefOf(id.BootOf(), spool), seqStart: id.SeqStart, seqEnd: id.SeqEnd,
		created: created.UnixNano(), body: int32(len(buf) - recordHeader), frame: int32(len(frame)),
	}
	if err := q.makeRoom(int64(len(buf))); err != nil {
		return Entry{}, err
	}
	if err := q.write(buf, []*entry{e}); err != nil {
		return Entry{}, err
	}
	// The entry gets a new number, but keeps its identity and with it the sequence numbers.
	q.next.nextEntry++
	q.insert(e)
	q.notify()
	return e.public(), nil
}

// Requeue makes a dead letter pending again, with its bytes and its identity.
func (q *Queue) Requeue(id string) (Entry, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return Entry{}, ErrClosed
	}
	i := slices.IndexFunc(q.held[Dead], func(a HeldBatch) bool { return a.ID == id })
	if i < 0 {
		return Entry{}, fmt.Errorf("%w: dead %q", ErrNotFound, id)
	}
	a := q.held[Dead][i]
	frame, err := q.readFile(filepath.Join(q.heldDir(Dead), id+frameExt), maxBody)
	if err != nil {
		return Entry{}, fmt.Errorf("requeue %q: %w", id, err)
	}
	// Other bytes must never be sent under this identity.
	if identity.Sum(frame) != a.FrameSHA256 {
		return Entry{}, fmt.Errorf("requeue %q: %w", id, entryKind.Corrupt("", "hash of the frame file"))
	}
	// A crash may have lost the note of its state, so that the restart has made it pending already.
	e, err := q.queueAs(a.Identity(), a.SpoolID, a.QueuedAt, frame)
	if err != nil {
		return Entry{}, fmt.Errorf("requeue %q: %w", id, err)
	}
	return e, q.removeHeld(Dead, id)
}
