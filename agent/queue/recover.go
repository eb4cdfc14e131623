package queue

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	cutExt     = ".cut"     // a damaged tail: "<segment>-<offset>.cut"
	corruptExt = ".corrupt" // a damaged segment, behind its name
)

// errStop ends a scan of records.
var errStop = errors.New("stop")

// files gives the names of the regular files in dir, in order.
func (q *Queue) files(dir string) ([]string, error) {
	list, err := q.fs.List(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(list))
	for _, e := range list {
		if e.Type.IsRegular() {
			names = append(names, e.Name)
		}
	}
	return names, nil
}

// recover reads the log. A torn tail of the last segment is cut off. A damaged record of an older
// segment was durable once, so it is counted as lost and its file is kept.
func (q *Queue) recover() error {
	names, err := q.files(q.dir)
	if err != nil {
		return err
	}
	var nos []uint64
	var lost uint64 // the youngest segment of which an earlier start kept a damaged part
	for _, name := range names {
		if strings.HasSuffix(name, tmpExt) {
			if err := q.fs.Remove(filepath.Join(q.dir, name)); err != nil {
				return err
			}
			continue
		}
		if no, ok := parseSegmentName(name); ok {
			nos = append(nos, no)
		}
		if no, ok := parseKeptName(name); ok {
			lost = max(lost, no)
		}
	}
	failpoint.Hit("agent.queue.recover.listed")
	slices.Sort(nos)
	if err := errors.Join(q.loadHeldBatches(), q.loadSkips(names)); err != nil {
		return err
	}
	newBoot := ""
	for i, no := range nos {
		why, err := q.load(no, i == len(nos)-1)
		if err != nil {
			return err
		}
		if why != "" {
			newBoot = why
		}
	}
	// An earlier start may have kept a damaged tail or segment, and ended before it began the new
	// boot that this calls for.
	if n := len(nos); newBoot == "" && lost > 0 && (n == 0 || lost >= nos[n-1]) {
		newBoot = "an earlier start removed the damaged end of the log and began no boot"
		nos = append(nos, lost)
	}
	failpoint.Hit("agent.queue.recover.loaded")
	return q.finishRecovery(nos, newBoot)
}

// parseKeptName gives the segment number from the name of a kept tail or of a kept segment.
func parseKeptName(name string) (uint64, bool) {
	no, rest, _ := strings.Cut(name, "-")
	if !strings.HasSuffix(rest, cutExt) {
		segment, ok := strings.CutSuffix(name, corruptExt)
		if !ok {
			return 0, false
		}
		return parseSegmentName(segment)
	}
	n, err := strconv.ParseUint(no, 10, 64)
	return n, err == nil
}

// load reads one segment. why is not empty when the segment's numbers cannot be trusted, so that a
// new boot is needed.
func (q *Queue) load(no uint64, last bool) (why string, err error) {
	s := &segment{no: no, name: segmentName(q.dir, no)}
	if s.f, err = q.fs.Open(s.name); err != nil {
		return "", err
	}
	size, err := s.f.Size()
	if err != nil {
		return "", errors.Join(err, s.f.Close())
	}
	head := make([]byte, min(size, maxSegmentHeader))
	if len(head) > 0 {
		if _, err := s.f.ReadAt(head, 0); err != nil {
			return "", errors.Join(err, s.f.Close())
		}
	}
	o, n, err := parseOrigin(head)
	if errors.Is(err, record.ErrNewerVersion) {
		// It is not damaged. Moving it away, as below, would mean that its batches are never sent.
		return "", errors.Join(fmt.Errorf("segment %s: %w", s.name, err), s.f.Close())
	}
	if err != nil {
		// A segment gets its name after its header was synced, so this is damage and no torn write.
		q.opened.Damaged++
		q.opts.Log.Error("queue segment is unreadable; it is kept under another name", "segment", s.name, "error", err)
		return "a segment header is damaged", errors.Join(s.f.Close(), q.fs.Rename(s.name, s.name+corruptExt))
	}
	q.segments = append(q.segments, s)
	q.boot = q.bootRefOf(o.boot, o.spool)
	q.next = o
	end, tear, err := scan(s.f, int64(n), size, func(off int64, h header, body []byte, damage error) error {
		if damage != nil && last {
			return errStop
		}
		if damage != nil {
			s.damaged = true
			q.opened.Damaged++
			q.opts.Log.Error("queue record is damaged", "segment", s.name, "offset", off, "error", damage)
			return nil
		}
		return q.replay(s, off, h, body)
	})
	if errors.Is(err, errStop) {
		tear, err = entryKind.Corrupt(s.name, "the body of its last record"), nil
	}
	if err != nil {
		return "", fmt.Errorf("segment %s: %w", s.name, err)
	}
	s.size = end
	if tear == nil {
		return "", nil
	}
	if !last {
		s.damaged = true
		q.opened.Damaged++
		q.opts.Log.Error("queue segment is damaged, its rest is lost", "segment", s.name, "offset", end, "error", tear)
		return "", nil
	}
	return q.cutTail(s, end, size)
}

// cutTail cuts off what follows the last whole record. A valid record header behind the damage shows
// more than a torn write: records that were durable, and perhaps sent, may be lost with their
// numbers. Then the tail is kept in a file, and why asks for a new boot.
func (q *Queue) cutTail(s *segment, end, size int64) (why string, err error) {
	q.opened.CutBytes = size - end
	tail := make([]byte, min(size-end, maxBody))
	if _, err := s.f.ReadAt(tail, end); err != nil {
		return "", fmt.Errorf("segment %s: read tail: %w", s.name, err)
	}
	for at := 1; at < len(tail); at++ {
		i := bytes.Index(tail[at:], []byte(recordMagic))
		if i < 0 {
			break
		}
		at += i
		if _, err := parseHeader(tail[at:]); err == nil {
			why = "the log's tail is damaged before its end"
			break
		}
	}
	failpoint.Hit("agent.queue.cut.before")
	if why != "" {
		if err := q.writeDurable(q.dir, fmt.Sprintf("%020d-%d%s", s.no, end, cutExt), tail); err != nil {
			return "", err
		}
		failpoint.Hit("agent.queue.cut.saved")
	}
	if err := s.f.Truncate(end); err != nil {
		return "", fmt.Errorf("segment %s: cut torn tail: %w", s.name, err)
	}
	failpoint.Hit("agent.queue.cut.truncated")
	q.opts.Log.Warn("queue: cut a torn tail", "segment", s.name, "offset", end, "bytes", size-end)
	return why, nil
}

// replay applies one record of segment s to the queue in memory.
func (q *Queue) replay(s *segment, off int64, h header, body []byte) error {
	// The header has the numbers at the time when the segment was created; its records raise them.
	if h.no >= q.next.nextEntry {
		q.next.nextEntry = h.no + 1
	}
	if h.kind == kindState {
		if _, err := parseState(body); err != nil {
			return err
		}
		// The note of an entry that is gone needs nothing: its segment was removed.
		if e := q.byNo[h.no]; e != nil {
			q.finishEntry(e)
		}
		return nil
	}
	f, err := parseFrame(body)
	if err != nil {
		return err
	}
	ref := q.bootRefOf(f.id.BootOf(), f.spool)
	// A requeued batch may be of an older boot, whose numbers are no longer given out.
	if f.id.BootOf() == q.next.boot && f.id.SeqEnd >= q.next.nextSeq {
		q.next.nextSeq = f.id.SeqEnd + 1
	}
	if old := q.byNo[h.no]; old != nil {
		// moveOldestEntries copied the record and was interrupted: the younger copy counts.
		old.seg.live--
		old.seg.liveBytes -= old.recordBytes()
		old.seg, old.off = s, off
		s.live++
		s.liveBytes += old.recordBytes()
		return nil
	}
	q.insert(&entry{
		no: h.no, boot: ref, seqStart: f.id.SeqStart, seqEnd: f.id.SeqEnd,
		created: f.created.UnixNano(), seg: s, off: off, body: int32(len(body)), frame: int32(len(f.frame)),
	})
	return nil
}

// finishRecovery decides whether a new boot is needed, and syncs everything that was read: a killed
// process leaves bytes that only the page cache has, and batches made from them may be sent now.
func (q *Queue) finishRecovery(nos []uint64, newBoot string) error {
	// Moved records are out of order in the log; the sender needs the entries by number.
	slices.SortFunc(q.entries, func(a, b *entry) int {
		if a.no < b.no {
			return -1
		}
		return 1
	})
	q.recoverSkips()
	switch {
	case len(q.segments) == 0 && newBoot == "":
		newBoot = "the queue is new"
	case newBoot != "":
	case q.next.boot.Agent != q.opts.Agent:
		newBoot = "the agent id changed"
	case q.next.fingerprint != q.opts.Fingerprint:
		newBoot = "the queue directory is a copy or moved to another host"
	}
	q.opened.Entries, q.opened.NewBoot = q.pending, newBoot
	for _, s := range q.segments {
		if err := s.f.Sync(); err != nil {
			return fmt.Errorf("sync segment %s: %w", s.name, err)
		}
	}
	if err := q.fs.SyncDir(q.dir); err != nil {
		return err
	}
	if newBoot != "" {
		no := uint64(1)
		if len(nos) > 0 {
			no = nos[len(nos)-1] + 1
		}
		return q.startBoot(no, run.RandomID(), newBoot)
	}
	return q.reclaim()
}

// startBoot opens segment no with a new boot id.
func (q *Queue) startBoot(no uint64, spool, why string) error {
	o := origin{
		boot:  identity.Boot{Agent: q.opts.Agent, Boot: run.RandomID()},
		spool: spool, nextEntry: max(q.next.nextEntry, 1), nextSeq: 1,
		created: q.opts.Now(), fingerprint: q.opts.Fingerprint,
	}
	s, err := createSegment(q.fs, q.dir, no, o)
	if err != nil {
		return err
	}
	q.segments = append(q.segments, s)
	q.carrySkips()
	q.next = o
	q.boot = q.bootRefOf(o.boot, o.spool)
	q.repair = false
	if q.skip.owed > 0 {
		if err := q.writeSkips(); err != nil {
			q.opts.Log.Warn("queue: could not note the skipped numbers of the boot before", "error", err)
		}
	}
	q.opts.Log.Info("queue: new boot", "agent_id", o.boot.Agent, "boot_id", o.boot.Boot, "why", why)
	return q.removeDone()
}
