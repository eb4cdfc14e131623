package engine

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// rebuildBatch is how much goes into the index at once while it is built.
const rebuildBatch = 1 << 20

// replayedShare of a full segment is replayed record by record; a longer last segment is
// closed, and gets a footer, too.
const replayedShare = 8

// closeTail cuts off a torn write at the end of the last segment, so that a footer of the
// segment can be made.
func (e *Engine) closeTail(s *segment) error {
	size := e.length[s.number]
	sc := newScanner(s, segHeaderSize, size)
	for {
		r, at, err := sc.next()
		var bad *CorruptError
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.As(err, &bad):
			return err
		case errors.As(err, &bad):
			if !errors.Is(err, errUnreadable) && isTornTail(s, at, size, e.ackedUpTo(s)) {
				return e.cutTail(s, at, bad)
			}
			if r.kind != 0 {
				sc.skipTo(at + r.size())
			} else {
				sc.skipTo(sc.findRecord(0, nil))
			}
		}
	}
}

// cutTail truncates a segment at a torn write. The cut is synced: otherwise a power loss could
// bring the torn bytes back behind records that are appended at the same offset.
func (e *Engine) cutTail(s *segment, at int64, bad *CorruptError) error {
	if size := e.length[s.number]; !isUnused(s, at, size) {
		e.opt.Log.Warn("cut off a torn tail", "file", bad.File, "offset", at, "bytes", size-at, "reason", bad.Reason)
	}
	if err := errors.Join(s.file.Truncate(at), s.file.Sync()); err != nil {
		return fmt.Errorf("cut off torn tail: %w", err)
	}
	e.length[s.number] = at
	return nil
}

// buildFromFooters fills an empty index with the entries of the closed segments and moves the
// head behind the last of them. Of each key the record with the highest sequence counts, so a
// merge of all sorted runs is enough, and neither records nor the index are read. False: the
// footers are not enough, and the whole log must be replayed.
func (e *Engine) buildFromFooters(numbers []uint64) (bool, error) {
	closed := slices.Clone(numbers)
	if n := len(numbers); n > 0 {
		if last := e.segments[numbers[n-1]]; last.coded() != nil {
			// It is closed, whatever became of the ones behind it.
		} else if last.saltUnknown || e.length[last.number] < e.opt.SegmentBytes/replayedShare {
			closed = closed[:n-1]
		} else if err := e.closeTail(last); err != nil {
			return false, err
		}
	}
	names, err := vfs.Names(e.fs, footerDir)
	if err != nil {
		return false, err
	}
	for _, n := range names {
		if num, ok := parseSegName(n + ".seg"); ok && e.segments[num] == nil {
			// The segment is missing. Its footer still names the objects that are lost with it,
			// so that they are reported as damaged and not as absent.
			closed = append(closed, num)
		}
	}
	if len(closed) == 0 {
		return false, nil
	}
	slices.Sort(closed)
	b := &rebuild{e: e, named: map[position]Damage{}, sums: tally{idx: e.idx}}
	defer b.close()
	for _, num := range closed {
		if ok, err := b.openFooter(num); !ok || err != nil {
			return false, err
		}
	}
	if err := b.merge(); err != nil {
		return false, err
	}
	if err := b.makeCurrent(); err != nil {
		return false, err
	}
	return true, b.finish()
}

// rebuild is an index that is built from footers.
type rebuild struct {
	e       *Engine
	footers []footer
	files   []vfs.File
	runs    runHeap
	named   map[position]Damage // damages whose key is known, by the place of their record
	next    checkpoint
	sums    tally
}

func (b *rebuild) close() {
	for _, f := range b.files {
		_ = f.Close()
	}
}

// openFooter reads a segment's footer, and makes it first when it is missing, damaged, or of
// another segment. False: it cannot be made.
func (b *rebuild) openFooter(num uint64) (bool, error) {
	e := b.e
	s := e.segments[num]
	out, f, err := readFooter(e.fs, num)
	if err == nil {
		err = verifyRuns(num, f, out)
		if err == nil && s != nil && s.bad == nil && s.salt != out.Salt {
			err = &CorruptError{footerName(num), 0, "the footer is of another segment"}
		}
		if err != nil {
			_ = f.Close()
		}
	}
	switch {
	case err == nil:
	case s == nil:
		// Neither segment nor footer: every write up to the next segment may be lost.
		e.quarantine(Damage{File: segName(num), Length: maxSegment, First: 1, Last: e.seqBehind(num),
			Reason: "the segment is missing, and its footer cannot be read: " + err.Error()})
		return true, nil
	case s.saltUnknown:
		return false, nil
	default:
		if err := e.writeFooter(s); err != nil {
			e.opt.Log.Warn("a footer could not be made; the whole log is replayed", "error", err)
			return false, nil
		}
		if out, f, err = readFooter(e.fs, num); err != nil {
			return false, err
		}
	}
	b.footers, b.files = append(b.footers, out), append(b.files, f)
	e.footed[num] = true
	b.compareWithSegment(s, out)
	for _, r := range out.Runs {
		rd := newRunReader(num, f, r)
		if err := rd.next(); err == nil {
			b.runs = append(b.runs, rd)
		} else if !errors.Is(err, io.EOF) {
			return false, err
		}
	}
	return true, nil
}

// compareWithSegment compares a segment with its footer and takes over the damage that the
// footer lists. s is nil when the segment is missing.
func (b *rebuild) compareWithSegment(s *segment, out footer) {
	e, file := b.e, segName(out.Segment)
	if s == nil {
		e.quarantine(Damage{File: file, Length: maxSegment, Reason: "the segment is missing"})
	} else {
		s.adoptSalt(out.Salt, out.FirstSeq)
		if size := e.length[out.Segment]; size < out.Length {
			e.quarantine(Damage{File: file, Offset: size, Length: out.Length - size, Reason: fmt.Sprintf("records up to byte %d are missing", out.Length)})
		}
	}
	// Numbers that are not adjacent may lie around a reclaimed segment, so only neighbours
	// are compared.
	if n := len(b.footers); n > 1 {
		if p := b.footers[n-2]; p.Segment == out.Segment-1 && p.NextSeq < out.FirstSeq {
			e.quarantine(Damage{File: segName(p.Segment), Offset: p.Length, First: p.NextSeq, Last: out.FirstSeq - 1,
				Reason: fmt.Sprintf("ends before record %d, but the next segment begins with %d", p.NextSeq, out.FirstSeq)})
		}
	}
	for _, d := range out.Damages {
		if d.Last > 0 {
			e.quarantine(d)
		} else {
			// Reported by putEntry, and only if the damaged record is still the key's last one.
			b.named[position{out.Segment, d.Offset}] = d
		}
	}
}

// seqBehind is the last sequence that segment num can have held: the one before the first
// segment with a higher number, or the last acknowledged one.
func (e *Engine) seqBehind(num uint64) uint64 {
	best := uint64(0)
	for n, s := range e.segments {
		if n > num && s.firstSeq > 1 && (best == 0 || s.firstSeq-1 < best) {
			best = s.firstSeq - 1
		}
	}
	return max(1, best, e.mark.was.nextSeq)
}

func verifyRuns(num uint64, f vfs.File, out footer) error {
	for _, r := range out.Runs {
		rd := newRunReader(num, f, r)
		var err error
		for err == nil {
			err = rd.next()
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}

// runHeap orders readers by their current item, for the merge.
type runHeap []*runReader

func (h runHeap) Len() int           { return len(h) }
func (h runHeap) Less(i, j int) bool { return h[i].item.compare(h[j].item) < 0 }
func (h runHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)        { *h = append(*h, x.(*runReader)) }
func (h *runHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// merge enters the last record of each key into the index.
func (b *rebuild) merge() error {
	heap.Init(&b.runs)
	batch := b.e.idx.db.NewBatch()
	defer func() { _ = batch.Close() }()
	var last footerItem
	for len(b.runs) > 0 {
		r := b.runs[0]
		if last.key != nil && !bytes.Equal(last.key, r.item.key) {
			if err := b.putEntry(batch, last); err != nil {
				return err
			}
		}
		last = r.item // of one key the highest sequence comes last
		switch err := r.next(); {
		case err == nil:
			heap.Fix(&b.runs, 0)
		case errors.Is(err, io.EOF):
			heap.Pop(&b.runs)
		default:
			return err
		}
		if batch.Len() >= rebuildBatch {
			if err := batch.Commit(pebble.NoSync); err != nil {
				return fmt.Errorf("build index: %w", err)
			}
			_ = batch.Close()
			batch = b.e.idx.db.NewBatch()
		}
	}
	if last.key != nil {
		if err := b.putEntry(batch, last); err != nil {
			return err
		}
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("build index: %w", err)
	}
	return nil
}

func (b *rebuild) putEntry(batch *pebble.Batch, it footerItem) error {
	if len(it.entry) == 0 {
		return nil // deleted
	}
	x, err := decodeEntry(it.entry)
	if err != nil {
		return fmt.Errorf("%s: %w", footerName(x.pos.seg), err)
	}
	b.e.live[x.pos.seg] += x.recordSize()
	bucket, key, _ := strings.Cut(string(it.key), "\x00")
	if err := b.sums.count(bucket, key, &x, 1); err != nil {
		return err
	}
	switch {
	case x.version != "" || x.isMarker():
		b.e.versioned[bucket] = true // makeCurrent looks at them when all are there
		b.next.hidden++
		b.next.hiddenBytes += x.size
	case !isHidden(key):
		b.next.objects++
		b.next.bytes += x.size
	}
	if d, ok := b.named[x.pos]; ok {
		b.e.quarantine(d)
	}
	for _, f := range x.files {
		// Hidden keys come first, so the entry of a completed object comes behind those of its parts.
		var owner []byte
		if !isInternal(key) && x.flags&flagUpload != 0 {
			owner = []byte(fileOfObject)
		}
		if err := batch.Set(spaceKey(spaceFile, f), owner, nil); err != nil {
			return err
		}
	}
	space := spaceObject
	if x.isMarker() && x.version == "" {
		space = spaceAside
	}
	return batch.Set(append([]byte{byte(space)}, it.key...), it.entry, nil)
}

// makeCurrent enters the current version of each key that has versions. Until then a null version is where the current
// one belongs, unless it is a delete marker.
func (b *rebuild) makeCurrent() error {
	v := b.e.newOverlay(0)
	batch := b.e.idx.db.NewBatch()
	defer func() { _ = batch.Close() }()
	for bucket := range b.e.versioned {
		if err := batch.Set(spaceKey(spaceVersioned, bucket), nil, nil); err != nil {
			return err
		}
		base, last := len(objectKey(bucket, "")), ""
		err := b.e.idx.eachVersion(bucket, "", "", func(k, _ []byte) (bool, error) {
			key, _ := clientKey(string(k[base:]))
			if key == last {
				return true, nil
			}
			last = key
			v.newest = map[name]*entry{}
			if err := b.e.applyCurrent(batch, v, name{bucket, key}, &b.next); err != nil || batch.Len() < rebuildBatch {
				return true, err
			}
			err := batch.Commit(pebble.NoSync)
			_ = batch.Close()
			batch = b.e.idx.db.NewBatch()
			return true, err
		})
		if err != nil {
			return fmt.Errorf("build index: %w", err)
		}
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("build index: %w", err)
	}
	return nil
}

// finish writes the use of the segments, the lists of buckets and damages, and the position
// that the index has reached.
func (b *rebuild) finish() error {
	e := b.e
	if len(b.footers) == 0 {
		return nil
	}
	// Both lists replace the earlier one, so only the newest of each counts.
	var buckets, declared footer
	for _, f := range b.footers {
		e.tombs[f.Segment] = f.Tombs
		if f.BucketsSeq > buckets.BucketsSeq {
			buckets = f
		}
		if f.DeclareSeq > declared.DeclareSeq {
			declared = f
		}
	}
	last := b.footers[len(b.footers)-1]
	b.next.pos, b.next.salt, b.next.nextSeq = position{last.Segment, last.Length}, last.Salt, last.NextSeq
	// A segment shorter than its footer says has lost its end: replay continues at the end
	// that is there.
	if s := e.segments[last.Segment]; s != nil {
		b.next.pos.off = min(last.Length, e.length[last.Segment])
	}
	batch := e.idx.db.NewBatch()
	defer batch.Close()
	for _, f := range b.footers {
		u := use{e.live[f.Segment], e.tombs[f.Segment], f.Salt, f.FirstSeq}
		if err := batch.Set(segmentKey(f.Segment), u.encode(), nil); err != nil {
			return err
		}
	}
	e.mu.Lock()
	err := e.applyTally(batch, &b.sums)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if buckets.BucketsSeq > 0 {
		var err error
		if e.buckets, err = decodeBuckets(buckets.Buckets); err == nil {
			err = batch.Set([]byte{spaceBuckets}, buckets.Buckets, nil)
		}
		if err != nil {
			return err
		}
	}
	if declared.DeclareSeq > 0 {
		if err := e.applyDeclaration(batch, declared.Declared); err != nil {
			return err
		}
	}
	if err := batch.Set([]byte{spaceCheckpoint}, b.next.encode(), nil); err != nil {
		return err
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("build index: %w", err)
	}
	e.head = b.next
	return nil
}
