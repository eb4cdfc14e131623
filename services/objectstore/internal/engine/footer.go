package engine

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// A closed segment has a footer: an index of the segment in a file of its own, so that a lost
// index of the store is built from footers without reading the log. A footer is made in the
// background from the segment; where it is missing or damaged it is made again.
//
// The entries are in runs, each sorted by key and sequence and bounded by runEntries. The trailer
// behind them says where the runs are and what else the segment holds.
const (
	footerDir   = "footers"
	footerMagic = "LMFOOT01"
	footerTail  = 24 // offset and length of the trailer, its CRC32C, magic
	runEntries  = 64 << 10
	blockBytes  = 32 << 10
)

func footerName(n uint64) string { return fmt.Sprintf("%s/%016x", footerDir, n) }

// run is a sorted list of entries within a footer.
type run struct {
	Offset  int64 `json:"offset"`
	Length  int64 `json:"length"`
	Entries int   `json:"entries"`
}

// footer is what a footer says besides its runs.
type footer struct {
	Segment  uint64 `json:"segment"`
	Salt     uint32 `json:"salt"`
	FirstSeq uint64 `json:"first_sequence"`
	NextSeq  uint64 `json:"next_sequence"`
	Length   int64  `json:"length"` // of the segment
	Tombs    int64  `json:"tombstone_bytes"`
	Runs     []run  `json:"runs"`
	// Buckets and Declared are the last lists of their kind in the segment, with their sequences.
	Buckets    json.RawMessage `json:"buckets,omitempty"`
	BucketsSeq uint64          `json:"buckets_sequence,omitempty"`
	Declared   json.RawMessage `json:"declared,omitempty"`
	DeclareSeq uint64          `json:"declared_sequence,omitempty"`
	// Damages were found when the footer was made. Entries of damaged objects that the index knew are among the runs.
	Damages []Damage `json:"damages,omitempty"`
}

// footerItem is the entry of one record: a put, a lost object or a delete.
type footerItem struct {
	key   []byte // of the index: bucket, zero, key
	seq   uint64
	entry []byte // nil: deleted
}

func (a footerItem) compare(b footerItem) int {
	if c := bytes.Compare(a.key, b.key); c != 0 {
		return c
	}
	return cmpSeq(a.seq, b.seq)
}

func cmpSeq(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// footerWriter writes a footer. Memory is bounded by one run.
type footerWriter struct {
	f     vfs.File
	at    int64
	items []footerItem
	block []byte
	out   footer
}

func (w *footerWriter) add(it footerItem) error {
	if w.items = append(w.items, it); len(w.items) < runEntries {
		return nil
	}
	return w.endRun()
}

func (w *footerWriter) endRun() error {
	if len(w.items) == 0 {
		return nil
	}
	slices.SortFunc(w.items, footerItem.compare)
	r := run{Offset: w.at, Entries: len(w.items)}
	for _, it := range w.items {
		w.block = binary.AppendUvarint(w.block, uint64(len(it.key)))
		w.block = append(w.block, it.key...)
		w.block = binary.AppendUvarint(w.block, it.seq)
		w.block = binary.AppendUvarint(w.block, uint64(len(it.entry)))
		w.block = append(w.block, it.entry...)
		if len(w.block) >= blockBytes {
			if err := w.endBlock(); err != nil {
				return err
			}
		}
	}
	if err := w.endBlock(); err != nil {
		return err
	}
	r.Length = w.at - r.Offset
	w.out.Runs = append(w.out.Runs, r)
	w.items = w.items[:0]
	return nil
}

func (w *footerWriter) endBlock() error {
	if len(w.block) == 0 {
		return nil
	}
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(w.block)))
	head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(w.block, castagnoli))
	if err := w.write(head); err != nil {
		return err
	}
	err := w.write(w.block)
	w.block = w.block[:0]
	return err
}

func (w *footerWriter) write(b []byte) error {
	_, err := w.f.WriteAt(b, w.at)
	w.at += int64(len(b))
	return err
}

func (w *footerWriter) finish() error {
	if err := w.endRun(); err != nil {
		return err
	}
	b, err := json.Marshal(w.out)
	if err != nil {
		return err
	}
	tail := binary.LittleEndian.AppendUint64(nil, uint64(w.at))
	tail = binary.LittleEndian.AppendUint32(tail, uint32(len(b)))
	tail = binary.LittleEndian.AppendUint32(tail, crc32.Checksum(b, castagnoli))
	tail = append(tail, footerMagic...)
	return w.write(append(b, tail...))
}

// readFooter reads and verifies a footer's trailer, and gives the open file. The runs are
// verified when they are read.
func readFooter(fsys vfs.FS, num uint64) (footer, vfs.File, error) {
	var out footer
	f, err := fsys.Open(footerName(num))
	if err != nil {
		return out, nil, err
	}
	bad := func(reason string) (footer, vfs.File, error) {
		_ = f.Close()
		return out, nil, &CorruptError{footerName(num), 0, reason}
	}
	size, err := f.Size()
	tail := make([]byte, footerTail)
	if err == nil {
		_, err = f.ReadAt(tail, max(0, size-footerTail))
	}
	if err != nil || size < footerTail || string(tail[16:]) != footerMagic {
		return bad("not a footer")
	}
	at, n := int64(binary.LittleEndian.Uint64(tail)), int64(binary.LittleEndian.Uint32(tail[8:]))
	// This also bounds n by the size of the file, before memory is taken for it.
	if at < 0 || at+n != size-footerTail {
		return bad("not a footer")
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, at); err != nil || crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(tail[12:]) {
		return bad("trailer checksum mismatch")
	}
	if err := json.Unmarshal(b, &out); err != nil || out.Segment != num {
		return bad("the trailer is of something else")
	}
	return out, f, nil
}

// runReader reads the items of a run in order.
type runReader struct {
	name  string
	in    *bufio.Reader
	left  int // items
	block []byte
	item  footerItem
}

func newRunReader(num uint64, f vfs.File, r run) *runReader {
	return &runReader{name: footerName(num), in: bufio.NewReaderSize(io.NewSectionReader(f, r.Offset, r.Length), 16<<10), left: r.Entries}
}

// next reads the next item; io.EOF is the end.
func (r *runReader) next() error {
	if r.left == 0 {
		return io.EOF
	}
	bad := func(reason string) error { return &CorruptError{r.name, 0, reason} }
	if len(r.block) == 0 {
		var head [8]byte
		if _, err := io.ReadFull(r.in, head[:]); err != nil {
			return bad("block is cut off")
		}
		n := binary.LittleEndian.Uint32(head[:])
		if n > blockBytes+maxHiddenLen+maxMetaLen {
			return bad("block is too long")
		}
		r.block = make([]byte, n)
		if _, err := io.ReadFull(r.in, r.block); err != nil || crc32.Checksum(r.block, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
			return bad("block checksum mismatch")
		}
	}
	s := scannerOf(r.block)
	key := s.take(s.Num())
	seq := s.Num()
	entry := s.take(s.Num())
	if s.Bad {
		return bad("block ends early")
	}
	r.block = s.B
	r.left--
	r.item = footerItem{key, seq, entry}
	return nil
}

// lastWritten gives the time of the youngest object in a closed segment, from its footer.
func (e *Engine) lastWritten(num uint64) (time.Time, error) {
	at, f, err := readFooter(e.fs, num)
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	var last int64
	for _, r := range at.Runs {
		rd := newRunReader(num, f, r)
		for err = rd.next(); err == nil; err = rd.next() {
			if rd.item.entry == nil {
				continue // deleted
			}
			x, err := decodeEntry(rd.item.entry)
			if err != nil {
				return time.Time{}, err
			}
			last = max(last, x.modified)
		}
		if !errors.Is(err, io.EOF) {
			return time.Time{}, err
		}
	}
	if last == 0 {
		return time.Time{}, fmt.Errorf("%s: %w", footerName(num), errNoFooter)
	}
	return time.Unix(0, last), nil
}

// take gives the next n bytes.
func (s *scanner) take(n uint64) []byte {
	if s.Bad || n > uint64(len(s.B)) {
		s.Bad = true
		return nil
	}
	b := s.B[:n]
	s.B = s.B[n:]
	return b
}

// Seal writes the footer of one closed segment that has none, and reports whether there was such
// a segment. It reads and verifies the whole segment. Only one call may run at a time, and none
// together with Reclaim.
func (e *Engine) Seal() (bool, error) {
	for _, num := range e.closed() {
		if e.footed[num] {
			continue
		}
		s := e.segmentOf(num)
		if s == nil {
			continue
		}
		err := e.writeFooter(s)
		s.release()
		e.footed[num] = err == nil || errors.Is(err, errNoFooter)
		if errors.Is(err, errNoFooter) {
			continue
		}
		return true, full(err)
	}
	return false, nil
}

// closed lists the segments that are no longer written, the oldest first.
func (e *Engine) closed() (list []uint64) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for n := range e.length {
		if e.segments[n] != nil && n != e.end.seg {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}

// errNoFooter means that a footer of this segment would hold nothing.
var errNoFooter = errors.New("no footer")

func (e *Engine) writeFooter(s *segment) (err error) {
	if s.saltUnknown {
		return errNoFooter
	}
	// Written under a temporary name and renamed when it is durable: a footer that exists is
	// complete.
	tmp := fmt.Sprintf("%s/footer-%016x", tmpDir, s.number)
	if err := e.fs.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := e.fs.Create(tmp)
	if err != nil {
		return fmt.Errorf("make footer: %w", err)
	}
	w := &footerWriter{f: f, out: footer{Segment: s.number, Salt: s.salt, FirstSeq: s.firstSeq, Length: e.segmentLength(s.number)}}
	if err = e.collectEntries(w, s); err == nil {
		err = w.finish()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = e.fs.Rename(tmp, footerName(s.number))
	}
	if err != nil {
		_ = e.fs.Remove(tmp)
		return fmt.Errorf("make footer of %s: %w", segName(s.number), err)
	}
	return e.fs.SyncDir(footerDir)
}

// collectEntries adds the entries of a segment to a footer. For damaged parts it adds what the
// index knows of them.
func (e *Engine) collectEntries(w *footerWriter, s *segment) error {
	sc := newScanner(s, segHeaderSize, w.out.Length)
	w.out.NextSeq = max(1, s.firstSeq)
	for {
		r, at, err := sc.next()
		var bad *CorruptError
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &bad):
			if err := e.collectAroundDamage(w, sc, r, at, bad); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if r.seq != w.out.NextSeq {
			w.out.Damages = append(w.out.Damages, Damage{File: segName(s.number), Offset: at,
				Reason: fmt.Sprintf("record %d where %d was due", r.seq, w.out.NextSeq), First: w.out.NextSeq, Last: max(w.out.NextSeq, r.seq) - 1})
		}
		w.out.NextSeq = max(w.out.NextSeq, r.seq+1)
		if err := w.addRecord(&r, position{s.number, at}); err != nil {
			return err
		}
	}
}

func (w *footerWriter) addRecord(r *record, pos position) error {
	it := footerItem{key: objectKey(r.bucket, r.key)[1:], seq: r.seq}
	switch r.kind {
	case kindBuckets:
		w.out.Buckets, w.out.BucketsSeq = bytes.Clone(r.body), r.seq
		return nil
	case kindDamages:
		w.out.Declared, w.out.DeclareSeq = bytes.Clone(r.body), r.seq
		return nil
	case kindDelete:
		w.out.Tombs += r.size()
	default:
		o, err := decodeMeta(r.meta)
		if err != nil {
			return err
		}
		it.entry = entryOf(r, &o, pos).encode(nil)
	}
	return w.add(it)
}

// collectAroundDamage adds what is known of a damaged record and moves the scanner behind it.
// With a readable head that is the record itself. Otherwise it is the damage, with the range of
// sequences that it hides, and the entries that the index has in the damaged part: after a
// rebuild from this footer those objects are known, and anything else that was there is lost.
func (e *Engine) collectAroundDamage(w *footerWriter, sc *logScanner, r record, at int64, bad *CorruptError) error {
	pos := position{sc.seg.number, at}
	d := Damage{File: segName(pos.seg), Offset: at, Reason: bad.Reason}
	due := w.out.NextSeq
	known := r.kind != 0
	if !known {
		r, known = sc.correctRecord(due)
	}
	if known && r.kind != kindBuckets && r.kind != kindDamages {
		d = d.of(r.bucket, r.key)
		d.Length = r.size()
		sc.skipTo(at + r.size())
		w.out.NextSeq = max(due, r.seq+1)
		w.out.Damages = append(w.out.Damages, d)
		return w.addRecord(&r, pos)
	}
	to := sc.findRecord(due, nil)
	sc.skipTo(to)
	d.Length, d.First, d.Last = to-at, due, due
	if n, _, err := sc.next(); err == nil || n.kind != 0 {
		d.Last = max(due, n.seq-1)
		w.out.NextSeq = n.seq
	} else if next := e.segmentOf(pos.seg + 1); next != nil {
		d.Last = max(due, next.firstSeq-1)
		next.release()
		w.out.NextSeq = d.Last + 1
	}
	sc.skipTo(to)
	w.out.Damages = append(w.out.Damages, d)
	return e.eachRecord(func(bucket, key string, x *entry) error {
		if x.pos.seg != pos.seg || x.pos.off < at || x.pos.off >= to {
			return nil
		}
		return w.add(footerItem{key: objectKey(bucket, key)[1:], seq: x.seq, entry: x.encode(nil)})
	})
}
