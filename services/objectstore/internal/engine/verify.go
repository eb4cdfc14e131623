package engine

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
)

// LostObject is an object whose bytes cannot be read.
type LostObject struct {
	Bucket  string `json:"bucket"`
	Key     string `json:"key"`
	Version string `json:"version,omitempty"`
	Size    int64  `json:"size"`
	ETag    string `json:"etag"`
	Reason  string `json:"reason"`
	// Earlier: a repair has written down the loss before.
	Earlier bool `json:"earlier,omitempty"`

	entry *entry
}

// Verified is the result of reading everything.
type Verified struct {
	Objects     int64        `json:"objects"`
	ObjectBytes int64        `json:"object_bytes"`
	Segments    int          `json:"segments"`
	Records     int64        `json:"records"`
	Damages     []Damage     `json:"damages"`
	Lost        []LostObject `json:"lost"`
	// Uncertain: writes with unknown keys were lost; the damages bound their number.
	Uncertain bool `json:"uncertain"`
}

// Verify reads every record of the log, every object and every footer. It records damage as
// ordinary reads do.
func (e *Engine) Verify(ctx context.Context) (Verified, error) {
	v := Verified{Lost: []LostObject{}}
	uploads, err := e.openUploads()
	if err != nil {
		return v, fmt.Errorf("verify: %w", err)
	}
	err = e.eachRecord(func(bucket, record string, x *entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if id, _, ok := parsePartKey(record); ok && !uploads[id] {
			return nil // left by a crash; its file may have gone with the object
		}
		if !isInternal(record) && !x.isMarker() {
			v.Objects++
			v.ObjectBytes += x.size
		}
		err := e.readWhole(bucket, record, x)
		var bad *CorruptError
		if errors.As(err, &bad) {
			key, version := clientKey(record)
			v.Lost = append(v.Lost, LostObject{bucket, key, version, x.size, x.etag, bad.Error(), x.flags&flagLost != 0, x})
			return nil
		}
		return err
	})
	if err != nil {
		return v, fmt.Errorf("verify: %w", err)
	}
	e.mu.RLock()
	numbers := slices.Sorted(maps.Keys(e.segments))
	e.mu.RUnlock()
	for _, num := range numbers {
		if err := e.verifySegment(ctx, num, &v); err != nil {
			return v, fmt.Errorf("verify: %w", err)
		}
	}
	v.Damages, v.Uncertain = e.damages.all(), e.Uncertain() != nil
	return v, nil
}

// openUploads gives the ids of all uploads that have not ended.
func (e *Engine) openUploads() (map[string]bool, error) {
	ids := map[string]bool{}
	var err error
	for _, b := range e.Buckets() {
		err = errors.Join(err, e.hidden(b.Name, uploadPrefix, "", func(hidden string) (bool, error) {
			if key, id, ok := parseUploadKey(hidden); ok && !e.isFinished(b.Name, key, id) {
				ids[id] = true
			}
			return true, nil
		}))
	}
	return ids, err
}

func (e *Engine) readWhole(bucket, record string, x *entry) error {
	key, version := clientKey(record)
	if version == "" && !isHidden(record) {
		version = NullVersion
	}
	if x.isMarker() {
		_, err := e.readHead(x, bucket, key)
		if errors.Is(err, errMoved) {
			return nil // it was copied, and so was whole
		}
		e.quarantineRead(x, bucket, record, err)
		return err
	}
	h, err := e.GetVersion(bucket, key, version)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.verifyStored()
}

func (e *Engine) verifySegment(ctx context.Context, num uint64, v *Verified) error {
	s := e.segmentOf(num)
	if s == nil {
		return nil
	}
	defer s.release()
	v.Segments++
	e.mu.RLock()
	end := e.segmentEnd(num)
	e.mu.RUnlock()
	sc := newScanner(s, segHeaderSize, end)
	next := s.firstSeq
	sum := sha256.New()
	sum.Write(encodeHeader(s.version, s.number, s.salt, s.firstSeq))
	for ctx.Err() == nil {
		r, at, err := sc.next()
		var bad *CorruptError
		switch {
		case errors.Is(err, io.EOF):
			e.verifyEnd(s, end, next)
			if st := s.coded(); st != nil && !e.damages.in(segName(num)) && string(sum.Sum(nil)) != string(st.sum[:]) {
				e.quarantine(Damage{File: segName(num), Reason: "the body of the segment is not the one that its stub names"})
			}
			return e.verifyFooter(num)
		case errors.As(err, &bad):
			if r.kind != 0 {
				sc.skipTo(at + r.size())
			} else {
				sc.skipTo(sc.findRecord(0, nil))
			}
			e.quarantine(Damage{File: bad.File, Offset: at, Length: sc.off - at, Reason: bad.Reason}.of(r.bucket, r.key))
		case err != nil:
			return err
		default:
			v.Records++
			if s.coded() != nil {
				sum.Write(r.appendHead(nil, s.salt))
				sum.Write(r.body)
			}
		}
		if r.kind != 0 {
			next = r.seq + 1
		}
	}
	return ctx.Err()
}

// verifyEnd finds records that are missing behind end, where those of the next segment tell of them. The index knows what
// they did, and may have no use for them; one that is built from the log would not.
func (e *Engine) verifyEnd(s *segment, end int64, next uint64) {
	after := e.segmentOf(s.number + 1)
	if after == nil {
		return
	}
	defer after.release()
	if after.firstSeq > next && !e.damages.in(segName(s.number)) {
		e.quarantine(Damage{File: segName(s.number), Offset: end,
			Reason: fmt.Sprintf("ends before record %d, but the next segment begins with %d", next, after.firstSeq)})
	}
}

func (e *Engine) verifyFooter(num uint64) error {
	out, f, err := readFooter(e.fs, num)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = verifyRuns(num, f, out)
		_ = f.Close()
	}
	var bad *CorruptError
	if errors.As(err, &bad) {
		e.quarantine(Damage{File: bad.File, Reason: bad.Reason})
		return nil
	}
	return err
}
