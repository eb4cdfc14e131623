package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// Reconcile makes the logs on several drives equal, each of which has everything that was acknowledged, before the
// store is opened from them: a loss of power takes more from one drive than from another, and the end of a log must
// mean the same on all of them before anything is written behind it. What any of them has whole is kept. behind has an error for each drive
// that lacks what was acknowledged, or that cannot be written: it must not be used.
//
// Bodies and footers need nothing: their names are those that any drive has, and a body that a record names was durable
// on all drives before the record was written.
func Reconcile(drives []vfs.FS, log *slog.Logger) (behind []error, err error) {
	r := &reconciler{drives: drives, behind: make([]error, len(drives)), log: log}
	r.marks()
	r.reserves()
	if err := r.segments(); err != nil {
		return nil, err
	}
	return r.behind, nil
}

type reconciler struct {
	drives []vfs.FS
	behind []error
	log    *slog.Logger
	mark   mark // the furthest one
	number uint64
	logs   []*tail // by drive; of the last segment
}

// tail is the last segment on one drive.
type tail struct {
	drive   int
	seg     *segment
	size    int64
	end     int64  // behind the last record that verifies, one after the other
	next    uint64 // sequence that is due there
	changed bool
}

// out says that a drive cannot be used.
func (r *reconciler) out(i int, err error) {
	if r.behind[i] == nil {
		r.behind[i] = err
	}
}

// marks finds the furthest mark of what was acknowledged and gives it to all drives. Where none is valid, but the file is
// there, all get the file.
func (r *reconciler) marks() {
	var best []byte
	some := false
	for _, d := range r.drives {
		b, _, err := vfs.ReadFile(d, markName, markSize)
		some = some || err == nil
		if m := decodeMark(b); err == nil && m.nextSeq > r.mark.nextSeq {
			r.mark, best = m, b
		}
	}
	if !some {
		return
	}
	for i, d := range r.drives {
		b, _, err := vfs.ReadFile(d, markName, markSize)
		if err == nil && decodeMark(b) == r.mark {
			continue
		}
		f, err := vfs.CreateEmpty(d, markName)
		if err == nil {
			if best != nil {
				_, err = f.WriteAt(best, 0)
			}
			err = errors.Join(err, f.Sync(), f.Close(), d.SyncDir("."))
		}
		if err != nil {
			r.out(i, fmt.Errorf("write the mark of what was acknowledged: %w", err))
		}
	}
}

// reserves cuts the reserves to the shortest; the store fills them up again.
func (r *reconciler) reserves() {
	least, some := int64(-1), false
	for _, d := range r.drives {
		st, err := d.Stat(reserveName)
		if err != nil {
			st.Size = 0
		}
		some = some || err == nil
		if least < 0 || st.Size < least {
			least = st.Size
		}
	}
	for i, d := range r.drives {
		if !some {
			return
		}
		f, err := d.Open(reserveName)
		if errors.Is(err, fs.ErrNotExist) {
			f, err = d.Create(reserveName)
		}
		if err == nil {
			err = errors.Join(f.Truncate(least), f.Close())
		}
		if err != nil && !vfs.IsFull(err) {
			r.out(i, fmt.Errorf("cut the reserve: %w", err))
		}
	}
}

// usable gives the drives that are not out.
func (r *reconciler) usable() (list []int) {
	for i, err := range r.behind {
		if err == nil {
			list = append(list, i)
		}
	}
	return list
}

func (r *reconciler) segments() error {
	have := make([]map[uint64]int64, len(r.drives))
	all := map[uint64]int64{} // the longest of each
	for _, i := range r.usable() {
		have[i] = map[uint64]int64{}
		list, err := r.drives[i].List(logDir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.out(i, fmt.Errorf("list the log: %w", err))
			continue
		}
		for _, e := range list {
			num, ok := parseSegName(e.Name)
			if !ok {
				continue
			}
			st, err := r.drives[i].Stat(segName(num))
			if err != nil {
				r.out(i, err)
				break
			}
			have[i][num] = st.Size
			all[num] = max(all[num], st.Size)
		}
	}
	if len(all) == 0 {
		return nil
	}
	numbers := slices.Sorted(maps.Keys(all))
	for _, num := range numbers {
		if all[num] > 0 {
			r.stubs(num, have, all)
		}
	}
	r.number = numbers[len(numbers)-1]
	r.closed(numbers[:len(numbers)-1], have, all)
	return r.last(have)
}

// closed brings back a closed segment that one drive lacks: its removal was not durable everywhere, which it must be or not be. A
// drive that lacks more than one, or has a shorter one, has lost them.
func (r *reconciler) closed(numbers []uint64, have []map[uint64]int64, longest map[uint64]int64) {
	for _, i := range r.usable() {
		var missing []uint64
		for _, num := range numbers {
			size, ok := have[i][num]
			if !ok {
				missing = append(missing, num)
			} else if size < longest[num] {
				r.out(i, fmt.Errorf("%s has %d bytes, and %d on another drive", segName(num), size, longest[num]))
			}
		}
		if _, ok := have[i][r.number]; !ok && r.mark.pos.seg == r.number {
			missing = append(missing, r.number)
		}
		switch {
		case len(missing) > 1 || len(missing) == 1 && missing[0] == r.number:
			r.out(i, fmt.Errorf("segments of the log are missing, %s the first", segName(missing[0])))
		case len(missing) == 1:
			if err := r.bringBack(missing[0], i, have); err != nil {
				r.out(i, err)
			}
		}
	}
}

// stubs gives a stub that one drive has in the place of a segment to the others: it says that the segment is a body, which was
// read back before, and a drive that still has the segment has only missed that.
func (r *reconciler) stubs(num uint64, have []map[uint64]int64, all map[uint64]int64) {
	var st stub
	found := false
	for i := range r.drives {
		if size, ok := have[i][num]; ok && size <= stubBytes && !found {
			b, _, err := vfs.ReadFile(r.drives[i], segName(num), stubBytes)
			if err == nil {
				st, found = eitherHalf(b, num)
			}
		}
	}
	if !found {
		return
	}
	all[num] = stubBytes
	for _, i := range r.usable() {
		if _, ok := have[i][num]; !ok {
			continue // it is brought back with all that is missing
		}
		if b, size, err := vfs.ReadFile(r.drives[i], segName(num), stubBytes); err == nil && size == stubBytes && bothHalves(b, num) {
			continue
		}
		r.log.Info("a drive has a segment that is a body by now", "file", segName(num))
		if err := r.putStub(i, st); err != nil {
			r.out(i, fmt.Errorf("replace %s by its stub: %w", segName(num), err))
			continue
		}
		have[i][num] = stubBytes
	}
}

func (r *reconciler) putStub(i int, st stub) error {
	d, tmp := r.drives[i], fmt.Sprintf("%s/stub-%016x", tmpDir, st.number)
	if err := errors.Join(vfs.EnsureDir(d, tmpDir), d.SyncDir(".")); err != nil {
		return err
	}
	if err := d.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := vfs.WriteFile(d, tmp, st.encode()); err != nil {
		return err
	}
	return errors.Join(d.Rename(tmp, segName(st.number)), d.SyncDir(logDir))
}

// bringBack copies a segment from another drive.
func (r *reconciler) bringBack(num uint64, to int, have []map[uint64]int64) error {
	for from := range r.drives {
		if _, ok := have[from][num]; !ok {
			continue
		}
		src, err := r.drives[from].Open(segName(num))
		if err != nil {
			continue
		}
		dst, err := vfs.CreateEmpty(r.drives[to], segName(num))
		if err == nil {
			err = errors.Join(overwrite(dst, src, 0, have[from][num]), dst.Sync(), dst.Close(), r.drives[to].SyncDir(logDir))
		}
		return errors.Join(err, src.Close())
	}
	return fmt.Errorf("%s: %w", segName(num), fs.ErrNotExist)
}

// overwrite makes dst have the bytes of src from one offset to another.
func overwrite(dst vfs.File, src io.ReaderAt, from, to int64) error {
	b := make([]byte, 256<<10)
	for from < to {
		n := min(int64(len(b)), to-from)
		if k, err := src.ReadAt(b[:n], from); int64(k) < n {
			return err
		}
		if _, err := dst.WriteAt(b[:n], from); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// last makes the segment equal that was being written.
func (r *reconciler) last(have []map[uint64]int64) (err error) {
	defer func() {
		for _, t := range r.logs {
			err = errors.Join(err, t.seg.file.Close())
		}
	}()
	head, version := r.header()
	if head == nil || version > segVersion {
		return nil // none is whole: it was never used. Or it is of a newer release, which Open says.
	}
	for _, i := range r.usable() {
		if t, err := r.open(i, head, have); err != nil {
			r.out(i, err)
		} else {
			r.logs = append(r.logs, t)
		}
	}
	r.dropBehind()
	if len(r.logs) == 0 {
		return nil
	}
	lead := r.merge()
	r.equalTails(lead)
	for _, t := range r.logs {
		if t.changed {
			if err := t.seg.file.Sync(); err != nil {
				r.out(t.drive, fmt.Errorf("fsync %s: %w", segName(r.number), err))
			}
		}
	}
	return nil
}

// header gives the header of the last segment: that of the mark where drives have different ones, since records are only acknowledged when
// all have the same.
func (r *reconciler) header() (head []byte, version uint32) {
	for _, i := range r.usable() {
		h, _, err := vfs.ReadFile(r.drives[i], segName(r.number), segHeaderSize)
		if err != nil || len(h) < segHeaderSize || !wholeHeader(h, r.number) {
			continue
		}
		marked := r.mark.pos.seg == r.number && binary.LittleEndian.Uint32(h[12:]) == r.mark.salt
		if head == nil || marked {
			head, version = h, binary.LittleEndian.Uint32(h[8:])
		}
		if marked {
			break
		}
	}
	return head, version
}

// acked is the offset up to which the last segment was acknowledged, as far as the mark knows.
func (r *reconciler) acked(s *segment) int64 {
	if r.mark.pos.seg == s.number && r.mark.salt == s.salt {
		return r.mark.pos.off
	}
	return 0
}

// open opens the last segment on a drive, makes its header right, and reads its records.
func (r *reconciler) open(i int, head []byte, have []map[uint64]int64) (*tail, error) {
	d := r.drives[i]
	f, err := d.Open(segName(r.number))
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = d.Create(segName(r.number)); err == nil {
			err = d.SyncDir(logDir)
		}
	}
	if err != nil {
		return nil, err
	}
	t := &tail{drive: i, size: have[i][r.number], seg: &segment{
		number: r.number, version: binary.LittleEndian.Uint32(head[8:]), salt: binary.LittleEndian.Uint32(head[12:]),
		firstSeq: binary.LittleEndian.Uint64(head[16+8:]), file: f,
	}}
	h := make([]byte, segHeaderSize)
	if n, _ := f.ReadAt(h, 0); n < segHeaderSize || string(h) != string(head) {
		if _, err := f.WriteAt(head, 0); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		t.changed, t.size = true, max(t.size, segHeaderSize)
	}
	t.end, t.next = segHeaderSize, t.seg.firstSeq
	t.read()
	return t, nil
}

// read goes on to the last record that verifies.
func (t *tail) read() {
	sc := newScanner(t.seg, t.end, t.size)
	for {
		rec, _, err := sc.next()
		if err != nil || rec.seq != t.next {
			return
		}
		t.end, t.next = sc.off, rec.seq+1
	}
}

// dropBehind takes out the drives whose log ends before what was acknowledged, while another one has it. A damaged record is no end.
func (r *reconciler) dropBehind() {
	var lacks, rest []*tail
	for _, t := range r.logs {
		acked := r.acked(t.seg)
		if t.end < acked && (t.size < acked || isUnused(t.seg, t.end, acked)) {
			lacks = append(lacks, t)
		} else {
			rest = append(rest, t)
		}
	}
	if len(rest) == 0 {
		return // all have lost it, which Open reports
	}
	for _, t := range lacks {
		r.out(t.drive, fmt.Errorf("%s ends at byte %d, and was acknowledged up to %d", segName(r.number), t.end, r.acked(t.seg)))
		_ = t.seg.file.Close()
	}
	r.logs = rest
}

// merge makes one log whole with the records of the others, and gives all of them its records.
func (r *reconciler) merge() *tail {
	lead := slices.MaxFunc(r.logs, func(a, b *tail) int { return int(a.end - b.end) })
	for r.borrow(lead) {
		lead.read()
	}
	for _, t := range r.logs {
		if t == lead || sameBytes(t.seg.file, lead.seg.file, segHeaderSize, lead.end) {
			continue
		}
		if err := overwrite(t.seg.file, lead.seg.file, segHeaderSize, lead.end); err != nil {
			r.out(t.drive, fmt.Errorf("complete %s: %w", segName(r.number), err))
			continue
		}
		r.log.Info("the end of the log was completed from another drive", "file", segName(r.number), "from", t.end, "to", lead.end)
		t.changed, t.end, t.next, t.size = true, lead.end, lead.next, max(t.size, lead.end)
	}
	return lead
}

// borrow copies the record that is due in the lead's log from a log that has it whole. A record of a batch that began before must be of
// the same batch: two attempts at one place may have left their bytes on different drives.
func (r *reconciler) borrow(lead *tail) bool {
	for _, t := range r.logs {
		if t == lead || t.size <= lead.end {
			continue
		}
		rec, at, err := newScanner(t.seg, lead.end, t.size).next()
		if err != nil || rec.seq != lead.next || int64(rec.batch) > at || int64(rec.batch) < segHeaderSize ||
			!sameBytes(t.seg.file, lead.seg.file, int64(rec.batch), at) {
			continue
		}
		if err := overwrite(lead.seg.file, t.seg.file, at, at+rec.size()); err != nil {
			r.out(lead.drive, fmt.Errorf("mend %s: %w", segName(r.number), err))
			return false
		}
		lead.changed, lead.size = true, max(lead.size, at+rec.size())
		return true
	}
	return false
}

// equalTails makes what is behind the last record equal. Where it is the rest of a write that never ended, on all drives, it is cut off. Where
// one drive shows that it was whole once, all get what that one has, so that Open finds the damage.
func (r *reconciler) equalTails(lead *tail) {
	if lead.end < r.acked(lead.seg) {
		return // damage: Open writes no more to this segment
	}
	var witness *tail
	for _, t := range r.logs {
		if t.size > lead.end && !isTornTail(t.seg, lead.end, t.size, r.acked(t.seg)) {
			witness = t
			break
		}
	}
	for _, t := range r.logs {
		if t == witness {
			continue
		}
		to := lead.end
		var err error
		if witness != nil {
			to = witness.size
			err = overwrite(t.seg.file, witness.seg.file, lead.end, to)
		}
		if t.size == to && witness == nil {
			continue
		}
		if err = errors.Join(err, t.seg.file.Truncate(to)); err != nil {
			r.out(t.drive, fmt.Errorf("cut %s: %w", segName(r.number), err))
		}
		t.changed = true
	}
}
