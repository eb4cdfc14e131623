package engine

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// A closed segment becomes a body in two steps, which the engine's owner takes: OfferSegments names a body for it, whose bytes
// OpenOffered gives to whoever keeps bodies; Settle reads the body back, and puts a stub in the segment's place. Until then nothing
// depends on the body: a crash leaves one that nobody names, and the next offer names another. See
// docs/adr/0068-segments-as-bodies.md.

// Coding says which closed segments are offered.
type Coding struct {
	// After is how long a segment must have been closed.
	After time.Duration
	// Least is the length of the smallest that is worth it, bytes.
	Least int64
	// Live is the smallest fraction that must be in use: what reclaiming will soon rewrite is not coded.
	Live float64
	// Most is how many may be offered at a time.
	Most int
}

// Offer is a closed segment that is to be kept as a body.
type Offer struct {
	Body    string
	Segment uint64
	Size    int64
}

type offer struct {
	Offer
	seg      *segment
	next     uint64 // sequence behind its last record
	settling bool
	failures int // of Settle, because the body could not be read
}

// settleTries is how often Settle may find the places away before another offer takes the place of this one: without an end a segment
// whose body nobody can read would keep others from being offered.
const settleTries = 8

// OfferSegments names bodies for closed segments, and gives those that it has named. It reads each of them first: of a
// segment that is damaged on one drive the others' bytes must be used while they are there. It must not run together with Seal
// or Reclaim.
func (e *Engine) OfferSegments(ctx context.Context, c Coding) (made []Offer, err error) {
	if e.Err() != nil || e.Uncertain() != nil {
		return nil, nil
	}
	waiting, left := e.codable(c), int64(0)
	for i, num := range waiting {
		e.mu.RLock()
		full := len(e.offers) >= c.Most
		e.mu.RUnlock()
		if full || ctx.Err() != nil {
			left = int64(len(waiting) - i)
			break
		}
		if !e.oldEnough(num, c.After) {
			continue
		}
		o, err := e.offer(ctx, num)
		if err != nil {
			return made, fmt.Errorf("offer %s: %w", segName(num), err)
		}
		if o != nil {
			made = append(made, *o)
		}
	}
	e.counts.uncoded.Store(left)
	return made, nil
}

// codable lists the closed segments that can be offered and are not, the oldest first.
func (e *Engine) codable(c Coding) (list []uint64) {
	now := e.opt.Now()
	e.mu.RLock()
	defer e.mu.RUnlock()
	offered := map[uint64]bool{}
	for _, o := range e.offers {
		offered[o.Segment] = true
	}
	for num, s := range e.segments {
		length := e.length[num]
		switch {
		case num == e.end.seg, s.coded() != nil, s.bad != nil, offered[num], e.unfit[num], !e.footed[num]:
		case length < max(c.Least, segHeaderSize+1), now.Sub(e.closedAt[num]) < c.After && !e.found[num]:
		case float64(e.live[num]+e.tombs[num]) < c.Live*float64(length), e.damages.in(segName(num)):
		default:
			list = append(list, num)
		}
	}
	slices.Sort(list)
	return list
}

// oldEnough reports whether a segment has been closed for so long. Of one that an earlier process has closed its footer says when it was
// written to: a store that is restarted again and again would never code any otherwise.
func (e *Engine) oldEnough(num uint64, after time.Duration) bool {
	e.mu.RLock()
	closed, found := e.closedAt[num], e.found[num]
	e.mu.RUnlock()
	if found {
		// Where the footer cannot be read, or the clock was ahead, the segment is as old as this process.
		if written, err := e.lastWritten(num); err == nil && written.Before(closed) {
			closed = written
		}
		e.mu.Lock()
		e.closedAt[num] = closed
		delete(e.found, num)
		e.mu.Unlock()
	}
	return e.opt.Now().Sub(closed) >= after
}

// offer names a body for a segment; nil: the segment cannot be a body.
func (e *Engine) offer(ctx context.Context, num uint64) (*Offer, error) {
	s := e.segmentOf(num)
	if s == nil {
		return nil, nil
	}
	defer s.release()
	next, err := readSegment(ctx, s, e.segmentLength(num), nil)
	if err != nil {
		var bad *CorruptError
		if !errors.As(err, &bad) {
			return nil, err
		}
		// Reads and checks report it. It is not read again and again for this.
		e.opt.Log.Warn("a segment is not coded, because it is damaged", "file", bad.File, "offset", bad.Offset, "reason", bad.Reason)
		e.mu.Lock()
		e.unfit[num] = true
		e.mu.Unlock()
		return nil, nil
	}
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return nil, err
	}
	o := &offer{Offer: Offer{Body: hex.EncodeToString(raw[:]), Segment: num, Size: e.segmentLength(num)}, seg: s, next: next}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.offers == nil {
		e.offers = map[string]*offer{}
	}
	e.offers[o.Body] = o
	return &o.Offer, nil
}

// readSegment reads all of a segment, whose records must follow each other up to its end, and gives the sequence behind the last
// one.
func readSegment(ctx context.Context, s *segment, size int64, sum hash.Hash) (next uint64, err error) {
	bad := func(at int64, reason string) (uint64, error) { return 0, &CorruptError{segName(s.number), at, reason} }
	h := make([]byte, segHeaderSize)
	if n, err := s.file.ReadAt(h, 0); n < len(h) {
		return 0, fmt.Errorf("read %s: %w", segName(s.number), err)
	}
	if string(h) != string(encodeHeader(s.version, s.number, s.salt, s.firstSeq)) {
		return bad(0, "the header is of something else")
	}
	if sum != nil {
		sum.Write(h)
	}
	sc := newScanner(s, segHeaderSize, size)
	for next = s.firstSeq; ctx.Err() == nil; {
		r, at, err := sc.next()
		if errors.Is(err, io.EOF) {
			return next, nil
		}
		if err != nil {
			return 0, err
		}
		if r.seq != next {
			return bad(at, fmt.Sprintf("record %d where %d was due", r.seq, next))
		}
		if next++; sum != nil {
			sum.Write(r.appendHead(nil, s.salt))
			sum.Write(r.body)
		}
	}
	return 0, ctx.Err()
}

// offered gives an offer that nobody settles; nil: there is none.
func (e *Engine) offered(id string) *offer {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if o := e.offers[id]; o != nil && !o.settling {
		return o
	}
	return nil
}

// Offers lists what is offered, in the order of the bodies.
func (e *Engine) Offers() (list []Offer) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(e.offers)) {
		list = append(list, e.offers[id].Offer)
	}
	return list
}

// Offered is the bytes of a segment that is offered.
type Offered struct {
	*io.SectionReader
	seg *segment
}

// Close implements io.Closer.
func (o *Offered) Close() error {
	o.seg.release()
	return nil
}

// OpenOffered opens the bytes that the body of an offer has to have; nil when there is no such offer, or it is being settled.
func (e *Engine) OpenOffered(id string) *Offered {
	o := e.offered(id)
	if o == nil || !o.seg.acquire() {
		return nil
	}
	return &Offered{io.NewSectionReader(o.seg.file, 0, o.Size), o.seg}
}

// withdraw forgets the offer of a segment: its body is named by nothing any more, and never will be.
func (e *Engine) withdraw(num uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.offers, func(_ string, o *offer) bool { return o.Segment == num })
}

// Settle puts a stub in the place of a segment, after reading the whole body back from wherever it is kept: every record must
// verify, with the checksums that the log has for it. Call it when the body is as redundant as it shall be. It is
// fs.ErrNotExist when the offer is gone.
func (e *Engine) Settle(ctx context.Context, id string) (err error) {
	if err := e.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	o := e.offers[id]
	if o == nil || o.settling || !o.seg.acquire() {
		e.mu.Unlock()
		return fmt.Errorf("settle body %s: %w", id, fs.ErrNotExist)
	}
	o.settling = true // from here on the body is read from where it is kept, and not from the segment
	e.mu.Unlock()
	defer o.seg.release()
	defer func() {
		e.mu.Lock()
		o.settling = false
		e.mu.Unlock()
	}()
	st, err := e.readBack(ctx, o)
	switch {
	case err == nil:
	case errors.Is(err, ErrCorrupt), errors.Is(err, body.ErrDamaged):
		// The body is not what it should be, and never will be: the next offer names another.
		e.withdraw(o.Segment)
		e.opt.Log.Error("the body of a segment is not the segment; another one is made", "segment", o.Segment, "body", id, "error", err)
	case ctx.Err() == nil:
		if o.failures++; o.failures >= settleTries {
			e.withdraw(o.Segment)
		}
	}
	if err == nil && e.flushedTo.Load() <= o.Segment {
		// The next start replays what the index lacks, and must not need bodies for it: places may be away then.
		err = e.submit(ctx, &op{flush: true})
	}
	if err != nil {
		return fmt.Errorf("settle %s: %w", segName(o.Segment), err)
	}
	e.closing.Lock()
	defer e.closing.Unlock()
	e.mu.RLock()
	same := e.segments[o.Segment] == o.seg && e.offers[id] == o
	e.mu.RUnlock()
	if !same || e.damages.in(segName(o.Segment)) {
		e.withdraw(o.Segment)
		return fmt.Errorf("settle %s: %w", segName(o.Segment), fs.ErrNotExist)
	}
	if err := e.replaceByStub(o, st); err != nil {
		return fmt.Errorf("settle %s: %w", segName(o.Segment), full(err))
	}
	return nil
}

// readBack reads a body as the segment that it has to be, and gives the stub.
func (e *Engine) readBack(ctx context.Context, o *offer) (stub, error) {
	st := stub{number: o.Segment, version: o.seg.version, salt: o.seg.salt, firstSeq: o.seg.firstSeq, length: o.Size, body: o.Body}
	r, err := e.bodies.Open(o.Body)
	if err != nil {
		return st, codedError(o.Body, err)
	}
	as := &segment{number: o.Segment, version: st.version, salt: st.salt, firstSeq: st.firstSeq, file: &bodyFile{Reader: r, size: o.Size}}
	sum := sha256.New()
	next, err := readSegment(ctx, as, o.Size, sum)
	if err == nil && next != o.next {
		err = &CorruptError{body.Name(o.Body), o.Size, fmt.Sprintf("it ends before record %d, not %d", next, o.next)}
	}
	sum.Sum(st.sum[:0])
	return st, errors.Join(err, r.Close())
}

// bodyFile is a body that is read as the file of a segment.
type bodyFile struct {
	body.Reader
	readOnly
	size int64
}

// ReadAt implements io.ReaderAt.
func (f *bodyFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.Reader.ReadAt(p, off)
	if n == len(p) || errors.Is(err, io.EOF) {
		return n, err
	}
	return n, codedError("", err)
}

// Close implements io.Closer.
func (f *bodyFile) Close() error { return f.Reader.Close() }

// Size implements vfs.File.
func (f *bodyFile) Size() (int64, error) { return f.size, nil }

// nameless is a file on several drives, which are opened as they are needed.
type nameless interface{ Unname() }

// replaceByStub gives the name of a segment to its stub, in one step: whatever happens, each drive has the segment or a whole
// stub, and either is enough. Readers of the segment keep it until they are done.
func (e *Engine) replaceByStub(o *offer, st stub) error {
	failpoint.Hit("objectstore.segment.stub.before")
	name, tmp := segName(st.number), fmt.Sprintf("%s/stub-%016x", tmpDir, st.number)
	if err := e.fs.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := vfs.WriteFile(e.fs, tmp, st.encode()); err != nil {
		_ = e.fs.Remove(tmp)
		return err
	}
	failpoint.Hit("objectstore.segment.rename.before")
	if n, ok := o.seg.file.(nameless); ok {
		n.Unname() // a drive on which the segment is not open yet would give the stub for it
	}
	if err := e.fs.Rename(tmp, name); err != nil {
		_ = e.fs.Remove(tmp)
		again, oerr := e.openSegment(st.number)
		if oerr != nil {
			return errors.Join(err, oerr) // it is not known what has the name, so the body stays named
		}
		e.swap(o, again)
		e.withdraw(st.number) // where the stub has the name after all, that names the body
		return err
	}
	failpoint.Hit("objectstore.segment.rename.after")
	e.swap(o, e.codedSegment(st))
	e.mu.Lock()
	e.codedBy[st.body] = st.number
	delete(e.offers, o.Body)
	e.mu.Unlock()
	if err := e.fs.SyncDir(logDir); err != nil {
		// A loss of power may bring the segment back. That is as good: it is offered again then, and this body is garbage.
		e.opt.Log.Warn("fsync of the log's directory behind a stub", "segment", st.number, "error", err)
	}
	failpoint.Hit("objectstore.segment.settled")
	return nil
}

// swap gives a segment another file.
func (e *Engine) swap(o *offer, next *segment) {
	e.mu.Lock()
	e.segments[next.number] = next
	e.mu.Unlock()
	o.seg.release()
}

// codedSegment gives the segment that a stub stands for.
func (e *Engine) codedSegment(st stub) *segment {
	s := &segment{number: st.number, version: st.version, salt: st.salt, firstSeq: st.firstSeq, file: &codedFile{of: &e.coded, stub: st}}
	s.refs.Store(1)
	return s
}

// coded gives the stub of a segment that is a body; nil: it is a file.
func (s *segment) coded() *stub {
	if f, ok := s.file.(*codedFile); ok {
		return &f.stub
	}
	return nil
}

// openSegment opens a segment, which may be a body.
func (e *Engine) openSegment(num uint64) (*segment, error) {
	s, err := openSegment(e.fs, num)
	if err != nil || s.stub == nil {
		return s, err
	}
	s.release()
	e.mu.Lock()
	e.codedBy[s.stub.body] = num
	e.mu.Unlock()
	return e.codedSegment(*s.stub), nil
}

// removeBodyOf removes the body of a segment whose stub is durably gone, when its last reader is done; the caller holds a
// reference.
func (e *Engine) removeBodyOf(s *segment) {
	f, ok := s.file.(*codedFile)
	if !ok {
		return
	}
	f.dropped = func(id string) {
		// Named until here: a reader that still has the segment opens its body again and again.
		e.mu.Lock()
		delete(e.codedBy, id)
		e.mu.Unlock()
		failpoint.Hit("objectstore.segment.drop.before")
		// What stays is named by nothing, and is found by whoever looks for such bodies, at the latest at the next start.
		if err := e.bodies.Remove(id); err != nil && !errors.Is(err, fs.ErrNotExist) {
			e.opt.Log.Warn("remove the body of a segment", "body", id, "error", err)
		}
	}
}

// namesSegment reports whether a stub names a body, or an offer does.
func (e *Engine) namesSegment(id string) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	_, coded := e.codedBy[id]
	return coded || e.offers[id] != nil
}

// mayHideStub reports whether a stub may be lost: then a body that nothing names may be a segment.
func (e *Engine) mayHideStub() bool {
	if e.damages.kept.Load() == 0 {
		return false
	}
	for _, d := range e.damages.all() {
		if num, ok := parseSegPath(d.File); ok {
			e.mu.RLock()
			s := e.segments[num]
			e.mu.RUnlock()
			if s == nil || s.lostStub {
				return true
			}
		}
	}
	return false
}
