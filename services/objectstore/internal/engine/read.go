package engine

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
)

// Peek gives what the index knows of an object; nil when the key is absent.
func (e *Engine) Peek(bucket, key string) (*Brief, error) {
	if _, err := e.Bucket(bucket); err != nil {
		return nil, err
	}
	x, err := e.idx.object(bucket, key)
	if err != nil || x == nil {
		return nil, err
	}
	b := x.brief(key)
	return &b, nil
}

// segmentOf takes a reference to a segment; nil when it was dropped.
func (e *Engine) segmentOf(n uint64) *segment {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if s := e.segments[n]; s != nil && s.acquire() {
		return s
	}
	return nil
}

var errMoved = errors.New("the record was moved")

// readRecord reads n bytes of an entry's record, at least its head, and verifies the head.
func (e *Engine) readRecord(x *entry, bucket, key string, n int) (record, []byte, error) {
	seg := e.segmentOf(x.pos.seg)
	if seg == nil {
		return record{}, nil, errMoved
	}
	defer seg.release()
	b := make([]byte, n)
	bad := func(reason string) (record, []byte, error) {
		return record{}, nil, &CorruptError{segName(seg.number), x.pos.off, reason}
	}
	if got, err := seg.file.ReadAt(b, x.pos.off); got < n {
		if errors.Is(err, io.EOF) {
			return bad("record is cut off")
		}
		return record{}, nil, fmt.Errorf("read %s: %w", segName(seg.number), err)
	}
	r, _, err := decodeHead(b, seg.salt)
	if err != nil {
		return bad(err.Error())
	}
	if r.seq != x.seq || r.bucket != bucket || r.key != key || int(r.bodyLen) != x.bodyLen {
		return bad("the record is not the one that the index names")
	}
	return r, b[x.headLen:], nil
}

// readHead reads an object's metadata from the log.
func (e *Engine) readHead(x *entry, bucket, key string) (Object, error) {
	r, _, err := e.readRecord(x, bucket, key, x.headLen)
	if err != nil {
		return Object{}, err
	}
	return objectOf(&r)
}

func objectOf(r *record) (Object, error) {
	o, err := decodeMeta(r.meta)
	o.Bucket, o.Key, o.Seq = r.bucket, r.key, r.seq
	return o, err
}

// lookup runs fn on the entry of a key, again when the record moved meanwhile.
func (e *Engine) lookup(bucket, key string, fn func(*entry) error) error {
	for range 100 {
		if _, err := e.Bucket(bucket); err != nil {
			return err
		}
		x, err := e.idx.object(bucket, key)
		if err != nil {
			return err
		}
		if x == nil {
			return fmt.Errorf("get %q: %w", key, ErrNotFound)
		}
		if err = fn(x); !errors.Is(err, errMoved) {
			return err
		}
	}
	return &CorruptError{bucket + "/" + key, 0, "the index names a segment that is missing"}
}

// Stat gives an object's description.
func (e *Engine) Stat(bucket, key string) (o Object, err error) {
	err = e.lookup(bucket, key, func(x *entry) error {
		o, err = e.readHead(x, bucket, key)
		return err
	})
	return o, err
}

// Handle reads one version of an object, whatever happens to its key meanwhile.
type Handle struct {
	Object Object
	e      *Engine
	body   []byte
	files  []File
}

// Get opens an object. An inline body is read and verified at once.
func (e *Engine) Get(bucket, key string) (*Handle, error) {
	h := &Handle{e: e}
	err := e.lookup(bucket, key, func(x *entry) error {
		r, body, err := e.readRecord(x, bucket, key, x.headLen+x.bodyLen)
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
		return h.openFiles(x)
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// openFiles opens all body files, so that a replaced object can be read to its end. A
// missing file means that the object was replaced after the look into the index.
func (h *Handle) openFiles(x *entry) error {
	for _, ext := range h.Object.Extents {
		f, err := h.e.fs.Open(blobName(ext.File))
		if err == nil {
			h.files = append(h.files, f)
			continue
		}
		h.Close()
		if errors.Is(err, fs.ErrNotExist) {
			now, ierr := h.e.idx.object(h.Object.Bucket, h.Object.Key)
			if ierr == nil && (now == nil || now.seq != x.seq) {
				return errMoved
			}
			return &CorruptError{blobName(ext.File), 0, "body file is missing"}
		}
		return fmt.Errorf("open body file: %w", err)
	}
	return nil
}

// Copy writes n bytes from off. Bytes are verified before they are written.
func (h *Handle) Copy(w io.Writer, off, n int64) error {
	if off < 0 || n < 0 || off+n > h.Object.Size {
		return fmt.Errorf("read %q: range %d+%d of %d bytes", h.Object.Key, off, n, h.Object.Size)
	}
	if h.files == nil {
		_, err := w.Write(h.body[off : off+n])
		return err
	}
	return h.copyExtents(w, off, n)
}

// Close lets go of the files.
func (h *Handle) Close() {
	for _, f := range h.files {
		_ = f.Close()
	}
	h.files = nil
}
