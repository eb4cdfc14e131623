package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// LostObject is an object whose bytes cannot be read.
type LostObject struct {
	Bucket string `json:"bucket"`
	Key    string `json:"key"`
	Size   int64  `json:"size"`
	ETag   string `json:"etag"`
	Reason string `json:"reason"`
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
	err = e.idx.scan(spaceObject, func(name, value []byte) error {
		x, err := decodeEntry(value)
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		bucket, key, _ := strings.Cut(string(name), "\x00")
		if !isHidden(key) {
			v.Objects++
			v.ObjectBytes += x.size
		} else if id, _, ok := parsePartKey(key); ok && !uploads[id] {
			return nil // left by a crash; its file may have gone with the object
		}
		err = e.readWhole(bucket, key)
		var bad *CorruptError
		if errors.As(err, &bad) {
			v.Lost = append(v.Lost, LostObject{bucket, key, x.size, x.etag, bad.Error(), x.flags&flagLost != 0, &x})
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

func (e *Engine) readWhole(bucket, key string) error {
	h, err := e.Get(bucket, key)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Copy(io.Discard, 0, h.Object.Size)
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
	for ctx.Err() == nil {
		r, at, err := sc.next()
		var bad *CorruptError
		switch {
		case errors.Is(err, io.EOF):
			return e.verifyFooter(num)
		case errors.As(err, &bad):
			if r.kind != 0 {
				sc.skipTo(at + r.size())
			} else {
				sc.skipTo(sc.findRecord(0, nil))
			}
			e.quarantine(Damage{File: bad.File, Offset: at, Length: sc.off - at, Reason: bad.Reason, Bucket: r.bucket, Key: r.key})
		default:
			v.Records++
		}
	}
	return ctx.Err()
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
