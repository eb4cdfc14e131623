package engine

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// Scrubbed is what a scrub has read.
type Scrubbed struct {
	Bytes int64 // of one copy
	// Different counts the places where copies were not equal. Those of which one copy verifies are put right.
	Different int64
	// Damaged counts the records and bodies of which no copy verifies; they are among the damages.
	Damaged int64
}

// Scrub compares all copies of the log, and of the bodies that it names, and puts those right that have other bytes than
// one that verifies. Reads only find what is wrong with the copy that they read. pace is called with the bytes that were read
// of each copy. Where there is one copy it reads nothing.
func (e *Engine) Scrub(ctx context.Context, pace func(bytes int64)) (out Scrubbed, err error) {
	e.mu.RLock()
	numbers := slices.Sorted(maps.Keys(e.segments))
	e.mu.RUnlock()
	s := &scrubber{e: e, ctx: ctx, pace: pace, out: &out}
	for _, num := range numbers {
		if err := s.segment(num); err != nil {
			return out, fmt.Errorf("scrub: %w", err)
		}
	}
	return out, nil
}

type scrubber struct {
	e    *Engine
	ctx  context.Context
	pace func(int64)
	out  *Scrubbed
	a, b []byte
}

func (s *scrubber) segment(num uint64) error {
	seg := s.e.segmentOf(num)
	if seg == nil {
		return nil // it was reclaimed
	}
	defer seg.release()
	if st := seg.coded(); st != nil {
		return s.stub(st)
	}
	c, ok := seg.file.(copies)
	if !ok || c.Copies() < 2 || seg.saltUnknown {
		return nil
	}
	s.e.mu.RLock()
	end := s.e.segmentEnd(num)
	s.e.mu.RUnlock()
	equal, err := s.equal(c, 0, end)
	if err != nil {
		return err
	}
	if !equal {
		h := make([]byte, segHeaderSize)
		mendFrom(seg.file, h, 0, func() bool { return wholeHeader(h, num) })
	}
	sc := newScanner(seg, segHeaderSize, end)
	for s.ctx.Err() == nil {
		r, at, err := sc.next()
		var bad *CorruptError
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &bad):
			s.out.Damaged++
			if r.kind != 0 {
				sc.skipTo(at + r.size())
			} else {
				sc.skipTo(sc.findRecord(0, nil))
			}
			s.e.quarantine(Damage{File: bad.File, Offset: at, Length: sc.off - at, Reason: bad.Reason}.of(r.bucket, r.key))
			continue
		case err != nil:
			return err
		}
		if !equal {
			s.record(seg, c, &r, at)
		}
		if r.flags&flagFile != 0 {
			if err := s.bodies(&r); err != nil {
				return err
			}
		}
	}
	return s.ctx.Err()
}

// stub compares the copies of a stub. The body is compared by whoever keeps it.
func (s *scrubber) stub(st *stub) error {
	f, err := s.e.fs.Open(segName(st.number))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was reclaimed
	}
	if err != nil {
		return err
	}
	defer f.Close()
	c, ok := f.(copies)
	if !ok || c.Copies() < 2 {
		return nil
	}
	equal, err := s.equal(c, 0, stubBytes)
	if err == nil && !equal {
		c.Mend(st.encode(), 0)
	}
	return err
}

// record compares the copies of one record, which verifies.
func (s *scrubber) record(seg *segment, c copies, r *record, at int64) {
	b := make([]byte, r.size())
	if n, _ := seg.file.ReadAt(b, at); n < len(b) {
		return
	}
	if k, _, err := decodeHead(b, seg.salt); err == nil && k.seq == r.seq && crc32.Checksum(b[k.headLen():], castagnoli) == k.bodyCRC {
		c.Mend(b, at)
	}
}

// bodies compares the copies of the bodies that a record names. One that is gone belonged to an object that was replaced.
func (s *scrubber) bodies(r *record) error {
	o, err := decodeMeta(r.meta)
	if err != nil {
		return nil //nolint:nilerr // the record is no put; its damage is found where it is read
	}
	for _, x := range o.Extents {
		f, err := s.e.bodies.Open(x.File)
		if err != nil {
			continue
		}
		err = s.body(f, x, r)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (s *scrubber) body(f body.Reader, x Extent, r *record) error {
	c, ok := f.(copies)
	if !ok || c.Copies() < 2 {
		return nil
	}
	var fine fineSums
	for i := range blocksOf(x.Size, 0) {
		start := i * BlockSize
		end := min(start+BlockSize, x.Size)
		equal, err := s.equal(c, start, end)
		if err != nil {
			return err
		}
		if equal {
			continue
		}
		block := make([]byte, BlockSize)
		sum, err := fine.sum(f, &x, i, block)
		if err != nil || !mendBlock(f, block[:end-start], start, sum) {
			s.out.Damaged++
			// The record may be an earlier one of the object, whose present one names the file too.
			if now, err := s.e.idx.record(r.bucket, r.key); err == nil && now != nil && slices.Contains(now.files, x.File) {
				s.e.quarantineRead(now, r.bucket, r.key, &CorruptError{body.Name(x.File), start, "block checksum mismatch in every copy"})
			}
		}
	}
	return nil
}

// scrubUnit is how many bytes are compared at once.
const scrubUnit = 256 << 10

// equal compares all copies between two offsets.
func (s *scrubber) equal(c copies, from, to int64) (bool, error) {
	if s.a == nil {
		s.a, s.b = make([]byte, scrubUnit), make([]byte, scrubUnit)
	}
	equal := true
	for ; from < to; from += scrubUnit {
		n := min(scrubUnit, to-from)
		for i := range c.Copies() {
			if err := s.ctx.Err(); err != nil {
				return false, err
			}
			into := s.b[:n]
			if i == 0 {
				into = s.a[:n]
			}
			k, _ := c.ReadCopy(i, into, from)
			if int64(k) < n || string(into) != string(s.a[:n]) {
				equal = false
				s.out.Different++
			}
		}
		s.out.Bytes += n
		s.pace(n)
	}
	return equal, nil
}
