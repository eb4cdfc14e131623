package place

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// partSize is what a writer keeps in memory and sends at once, bytes. 10,000 parts of it are 78 GiB.
const partSize = 8 << 20

// bucketWriter writes an object: in one request when it is small, otherwise in parts. The name is
// taken with the last request, under the condition that there is none.
type bucketWriter struct {
	b    *Bucket
	ctx  context.Context
	name string
	key  string

	buf    []byte
	upload string   // its id; empty before the first part
	parts  []string // their ETags
	done   bool
	ended  bool // the bucket does not count it among its writers any more
}

// Write implements io.Writer.
func (w *bucketWriter) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		if len(w.buf) == partSize {
			if err := w.sendPart(); err != nil {
				return 0, w.b.failed("write "+w.name, err)
			}
		}
		n := min(len(p), partSize-len(w.buf))
		w.buf, p = append(w.buf, p[:n]...), p[n:]
	}
	return total, nil
}

func (w *bucketWriter) sendPart() (err error) {
	if w.upload == "" {
		if w.upload, err = w.b.s3.begin(w.ctx, w.key); err != nil {
			return err
		}
	}
	tag, err := w.b.s3.part(w.ctx, w.key, w.upload, len(w.parts)+1, w.buf)
	if err != nil {
		return err
	}
	w.parts, w.buf = append(w.parts, tag), w.buf[:0]
	return nil
}

// Finish implements Writer.
func (w *bucketWriter) Finish() error {
	var err error
	switch {
	case w.upload == "":
		err = w.b.s3.create(w.ctx, w.key, w.buf)
	default:
		if err = w.sendPart(); err == nil {
			err = w.b.s3.complete(w.ctx, w.key, w.upload, w.parts)
		}
	}
	if errors.Is(err, fs.ErrExist) && w.upload == "" && w.mine() {
		err = nil // the request was sent again after an answer that was lost
	}
	if err != nil {
		return w.b.failed("finish "+w.name, err)
	}
	w.done, w.buf = true, nil
	w.end()
	return nil
}

// mine reports whether the object is the one that this writer wrote: of a small one all bytes are
// compared.
func (w *bucketWriter) mine() bool {
	got, size, err := w.b.s3.get(w.ctx, w.key, 0, int64(len(w.buf))+1)
	return err == nil && size == int64(len(w.buf)) && bytes.Equal(got, w.buf)
}

// abortTime is how long an upload that is discarded may take to end.
const abortTime = 30 * time.Second

// end is called once the writer has ended, again and again.
func (w *bucketWriter) end() {
	if !w.ended {
		w.ended = true
		w.b.setWriting(w.key, false)
	}
}

// Discard implements Writer. Tidy removes parts that cannot be removed now.
func (w *bucketWriter) Discard() {
	defer w.end()
	w.buf = nil
	if w.done || w.upload == "" {
		return
	}
	// The context may have ended, which is often why the file is discarded.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), abortTime)
	defer cancel()
	_ = w.b.s3.abort(ctx, w.key, w.upload)
	w.upload = ""
}

// bucketReader reads ranges of an object.
type bucketReader struct {
	b    *Bucket
	ctx  context.Context
	name string
	key  string
	size int64
	tail []byte
}

// Size implements Reader.
func (r *bucketReader) Size() int64 { return r.size }

// Close implements Reader.
func (r *bucketReader) Close() error { return nil }

// ReadAt implements io.ReaderAt.
func (r *bucketReader) ReadAt(p []byte, off int64) (int, error) {
	if off >= r.size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), r.size-off)]
	if at := off - (r.size - int64(len(r.tail))); at >= 0 {
		copy(want, r.tail[at:])
	} else {
		got, size, err := r.b.s3.get(r.ctx, r.key, off, int64(len(want)))
		if err == nil && (size != r.size || len(got) != len(want)) {
			err = fmt.Errorf("%w: it gave %d bytes of %d, of an object of %d", ErrOut, len(got), len(want), size)
		}
		if err != nil {
			return 0, r.b.failed("read "+r.name, err)
		}
		copy(want, got)
	}
	if len(want) < len(p) {
		return len(want), io.EOF
	}
	return len(want), nil
}
