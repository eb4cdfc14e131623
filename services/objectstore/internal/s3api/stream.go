package s3api

import (
	"io"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
)

// blockReader reads a stored body block by block; the engine verifies each block before a byte of
// it is returned.
type blockReader struct {
	h         *engine.Handle
	off, size int64
	buf       []byte // what is left of the block
	block     []byte
}

// Read implements io.Reader.
func (r *blockReader) Read(p []byte) (int, error) {
	if len(r.buf) == 0 {
		if r.off >= r.size {
			return 0, io.EOF
		}
		n := min(engine.BlockSize, r.size-r.off)
		w := sliceWriter{r.block[:0]}
		if err := r.h.Copy(&w, r.off, n); err != nil {
			return 0, err
		}
		r.block, r.buf, r.off = w.b, w.b, r.off+n
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

type sliceWriter struct{ b []byte }

func (w *sliceWriter) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}
