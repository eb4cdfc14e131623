package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// CheckCond decides a condition against the present state. It saves reading the body of a write
// that will be refused; the write itself decides the condition again.
func (e *Engine) CheckCond(bucket, key string, c Cond) error {
	if _, err := e.Bucket(bucket); err != nil {
		return err
	}
	x, err := e.idx.current(bucket, key)
	if err != nil {
		return err
	}
	return e.checkCondition(c, key, x)
}

// segmentOf takes a reference to a segment, which the caller releases; nil when it was dropped.
func (e *Engine) segmentOf(n uint64) *segment {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if s := e.segments[n]; s != nil && s.acquire() {
		return s
	}
	return nil
}

var errMoved = errors.New("the record was moved")

// find gives the entry of a version of a key: of the current one when version is empty. nil: there is none.
func (x *index) find(bucket, key, version string) (*entry, error) {
	switch version {
	case "":
		return x.current(bucket, key)
	case NullVersion:
		return x.record(bucket, key)
	}
	return x.record(bucket, recordKey(key, version))
}

// readRecord reads as many bytes of an entry's record as b has, at least its head, and verifies the head. The body that
// it gives is a part of b.
func (e *Engine) readRecord(x *entry, bucket, key string, b []byte) (record, []byte, error) {
	seg := e.segmentOf(x.pos.seg)
	if seg == nil {
		if d := e.damages.of(x); d != nil && d.File == segName(x.pos.seg) {
			return record{}, nil, d.err()
		}
		return record{}, nil, errMoved
	}
	defer seg.release()
	bad := func(reason string) (record, []byte, error) {
		return record{}, nil, &CorruptError{segName(seg.number), x.pos.off, reason}
	}
	if got, err := seg.file.ReadAt(b, x.pos.off); got < len(b) {
		if errors.Is(err, io.EOF) {
			return bad("record is cut off")
		}
		if errors.Is(err, body.ErrDamaged) {
			return bad(err.Error())
		}
		return record{}, nil, fmt.Errorf("read %s: %w", segName(seg.number), err)
	}
	if seg.saltUnknown {
		return bad(seg.bad.Reason)
	}
	r, _, err := decodeHead(b, seg.salt)
	if err != nil {
		return bad(err.Error())
	}
	// A valid record at the wrong place is as bad as a damaged one: it would be another object.
	if r.seq != x.seq || r.bucket != bucket || r.key != recordKey(key, x.version) || int(r.bodyLen) != x.bodyLen {
		return bad("the record is not the one that the index names")
	}
	if r.kind == kindLost {
		return record{}, nil, lostError(b[x.headLen:], seg, x)
	}
	return r, b[x.headLen:], nil
}

// readHead reads an object's metadata from the log.
func (e *Engine) readHead(x *entry, bucket, key string) (Object, error) {
	n := x.headLen
	if x.flags&flagLost != 0 {
		n += x.bodyLen // the body of the record of a loss is its reason, which becomes the error
	}
	r, _, err := e.readRecord(x, bucket, key, make([]byte, n))
	if err != nil {
		return Object{}, err
	}
	o, err := objectOf(&r)
	if err != nil {
		return Object{}, err
	}
	return o, nil
}

// lostError reads from the record of a lost object what happened to it.
func lostError(body []byte, seg *segment, x *entry) error {
	var d Damage
	if json.Unmarshal(body, &d) != nil {
		return &CorruptError{segName(seg.number), x.pos.off, "the object was lost"}
	}
	return d.err()
}

func objectOf(r *record) (Object, error) {
	o, err := decodeMeta(r.meta)
	o.Bucket, o.Seq = r.bucket, r.seq
	o.Key, o.Version = clientKey(r.key)
	return o, err
}

// lookup calls fn with the entry of a version of a key; an empty version is the current one. When reclaiming moved the record between the lookup
// and fn's read of it, it tries again with the new entry. The number of attempts is bounded, so
// that an index that names a missing segment ends in an error.
func (e *Engine) lookup(bucket, key, version string, fn func(*entry) error) error {
	for range 100 {
		if _, err := e.Bucket(bucket); err != nil {
			return err
		}
		x, err := e.idx.find(bucket, key, version)
		if err != nil {
			return err
		}
		if x == nil {
			if err := e.uncertain(nil); err != nil {
				return fmt.Errorf("get %q: %w", key, err)
			}
			return fmt.Errorf("get %q: %w", key, ErrNotFound)
		}
		if x.isMarker() {
			return &MarkerError{x.version, time.Unix(0, x.modified)}
		}
		if err = e.mended(x, fn); !errors.Is(err, errMoved) {
			e.quarantineRead(x, bucket, recordKey(key, x.version), err)
			return err
		}
	}
	return &CorruptError{bucket + "/" + key, 0, "the index names a segment that is missing"}
}

// Stat gives the description of an object's current version.
func (e *Engine) Stat(bucket, key string) (Object, error) { return e.StatVersion(bucket, key, "") }

// StatVersion gives the description of a version, named by its id or NullVersion. The error is a *MarkerError for a delete
// marker. Where the body alone is damaged, the description comes with the error; otherwise it is empty then.
func (e *Engine) StatVersion(bucket, key, version string) (o Object, err error) {
	err = e.lookup(bucket, key, version, func(x *entry) error {
		if o, err = e.readHead(x, bucket, key); err != nil {
			return err
		}
		if d := e.damages.of(x); d != nil { // of the body, which is not read here
			return d.err()
		}
		return nil
	})
	return o, err
}

// Handle reads one version of an object, even when its key is overwritten or deleted meanwhile.
type Handle struct {
	Object Object
	e      *Engine
	of     string // key of the object that a part is for, which its body was sealed under; empty: that of Object
	entry  *entry
	body   []byte        // as it is stored: a part of memory
	opened bool          // body was sealed, and is not any more
	memory *[]byte       // the record
	bodies []body.Reader // by extent; nil: not open now
	pinned bool          // the bodies are opened when they are read, and kept from removal until then
	last   int           // of a pinned handle: the body that is open
	fine   fineSums      // of the wide block that was read last
}

// Get opens the current version of an object. An inline body is read and verified at once.
func (e *Engine) Get(bucket, key string) (*Handle, error) { return e.GetVersion(bucket, key, "") }

// GetVersion opens a version, named by its id or NullVersion. The error is a *MarkerError for a delete marker.
func (e *Engine) GetVersion(bucket, key, version string) (*Handle, error) {
	h := &Handle{e: e}
	err := e.lookup(bucket, key, version, func(x *entry) error {
		h.entry = x
		h.giveBack() // of an attempt that met a moved record
		h.memory = takeMemory(x.headLen + x.bodyLen)
		r, body, err := e.readRecord(x, bucket, key, (*h.memory)[:x.headLen+x.bodyLen])
		if err != nil {
			return err
		}
		if h.Object, err = objectOf(&r); err != nil {
			return err
		}
		if r.flags&flagFile == 0 {
			if crc32.Checksum(body, castagnoli) != r.bodyCRC {
				return &CorruptError{segName(x.pos.seg), x.pos.off, "body checksum mismatch"}
			}
			h.body = body
			return nil
		}
		return h.openBodies(x)
	})
	if err != nil {
		h.giveBack()
		return nil, err
	}
	return h, nil
}

const (
	// smallRecord is the size, bytes, of the memory for the records of most reads.
	smallRecord = 16 << 10
	// largestKept is the largest record whose memory is used again, bytes: that of the largest body in the log.
	largestKept = 2 * maxInlineBytes
)

var smallRecords, largeRecords sync.Pool

// takeMemory gives memory for a record of n bytes.
func takeMemory(n int) *[]byte {
	pool, size := &smallRecords, smallRecord
	if n > smallRecord {
		pool, size = &largeRecords, 1<<bits.Len(uint(n-1)) // few sizes, so that most fit again
	}
	if b, ok := pool.Get().(*[]byte); ok && len(*b) >= n {
		return b
	}
	b := make([]byte, size)
	return &b
}

func (h *Handle) giveBack() {
	returnMemory(h.memory)
	h.memory, h.body = nil, nil
}

// returnMemory takes back what takeMemory gave; nil is nothing.
func returnMemory(b *[]byte) {
	if b == nil {
		return
	}
	switch n := len(*b); {
	case n == smallRecord:
		smallRecords.Put(b)
	case n <= largestKept:
		largeRecords.Put(b)
	}
}

// Copy writes n bytes of the object from offset off on. Bytes are verified before they are
// written.
func (h *Handle) Copy(w io.Writer, off, n int64) error {
	if off < 0 || n < 0 || off+n > h.Object.Size {
		return fmt.Errorf("read %q: range %d+%d of %d bytes", h.Object.Key, off, n, h.Object.Size)
	}
	var err error
	if h.bodies == nil {
		if err = h.openBody(); err == nil {
			_, err = w.Write(h.body[off : off+n])
			return err
		}
	} else {
		err = h.copyExtents(w, off, n)
	}
	h.e.quarantineRead(h.entry, h.Object.Bucket, recordKey(h.Object.Key, h.Object.Version), err)
	return err
}

// Close lets go of the bodies. Nothing that was read may be used any more, but Object.
func (h *Handle) Close() {
	h.closeBodies()
	h.giveBack()
}
