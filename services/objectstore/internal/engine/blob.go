package engine

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// BlockSize is the unit of the checksums of a large body, bytes.
const BlockSize = body.BlockSize

// Blob is a large body that is being written. Every Blob must end with Finish or Discard.
type Blob struct {
	e   *Engine
	w   body.Writer
	buf []byte
	ext Extent
}

// NewBlob starts a large body under a new random id.
func (e *Engine) NewBlob() (*Blob, error) {
	if err := errors.Join(e.Err(), e.checkSpace()); err != nil {
		return nil, err
	}
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return nil, err
	}
	id := hex.EncodeToString(raw[:])
	w, err := e.bodies.Create(id)
	if err != nil {
		return nil, e.bodyFailed(err)
	}
	return &Blob{e: e, w: w, buf: make([]byte, 0, BlockSize), ext: Extent{File: id}}, nil
}

// bodyFailed translates an error of the body store. When it is unknown what is durable, the
// engine takes no more writes; a lack of space is an ordinary error.
func (e *Engine) bodyFailed(err error) error {
	if errors.Is(err, body.ErrUnsynced) {
		return e.fail(err)
	}
	return full(err)
}

// Write implements io.Writer.
func (b *Blob) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		n := copy(b.buf[len(b.buf):BlockSize], p)
		b.buf, p = b.buf[:len(b.buf)+n], p[n:]
		if len(b.buf) == BlockSize {
			if err := b.writeBlock(); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

func (b *Blob) writeBlock() error {
	if len(b.buf) == 0 {
		return nil
	}
	if err := b.e.checkSpace(); err != nil {
		return fmt.Errorf("write body: %w", err)
	}
	if _, err := b.w.Write(b.buf); err != nil {
		return b.e.bodyFailed(err)
	}
	b.ext.Blocks = append(b.ext.Blocks, crc32.Checksum(b.buf, castagnoli))
	b.ext.Size += int64(len(b.buf))
	b.buf = b.buf[:0]
	return nil
}

// Finish makes the body durable and gives the extent that a record must name. Until one does, the
// body is garbage: Discard or the next open removes it.
func (b *Blob) Finish() (Extent, error) {
	if err := b.writeBlock(); err != nil {
		return b.ext, err
	}
	if err := b.w.Finish(); err != nil {
		return b.ext, b.e.bodyFailed(err)
	}
	return b.ext, nil
}

// Discard removes the body.
func (b *Blob) Discard() { b.w.Discard() }

// copyExtents writes n bytes of a large body, from offset off on. Each block is verified before a
// byte of it is written, so the first damaged block is an error and not wrong bytes.
func (h *Handle) copyExtents(w io.Writer, off, n int64) error {
	var buf []byte
	for i, x := range h.Object.Extents {
		if n <= 0 {
			return nil
		}
		if off >= x.Size {
			off -= x.Size
			continue
		}
		if buf == nil {
			buf = make([]byte, BlockSize)
		}
		part := min(n, x.Size-off)
		if err := copyExtent(w, h.bodies[i], x, off, part, buf); err != nil {
			return err
		}
		off, n = 0, n-part
	}
	if n > 0 {
		return fmt.Errorf("%w: body is %d bytes short", ErrCorrupt, n)
	}
	return nil
}

func copyExtent(w io.Writer, r body.Reader, x Extent, off, n int64, buf []byte) error {
	for n > 0 {
		i := off / BlockSize
		start := i * BlockSize
		block := buf[:min(BlockSize, x.Size-start)]
		if got, err := r.ReadAt(block, start); got < len(block) {
			if errors.Is(err, io.EOF) {
				return &CorruptError{body.Name(x.File), start + int64(got), "body is cut off"}
			}
			return fmt.Errorf("read body: %w", err)
		}
		if crc32.Checksum(block, castagnoli) != x.Blocks[i] {
			return &CorruptError{body.Name(x.File), start, "block checksum mismatch"}
		}
		part := block[off-start:]
		part = part[:min(n, int64(len(part)))]
		if _, err := w.Write(part); err != nil {
			return err
		}
		off, n = off+int64(len(part)), n-int64(len(part))
	}
	return nil
}
