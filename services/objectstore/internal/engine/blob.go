package engine

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

const (
	// BlockSize is the unit in which a large body is written and verified, bytes.
	BlockSize = body.BlockSize
	// blockBits is its logarithm.
	blockBits = 20
)

// Blob is a large body that is being written. Every Blob must end with Finish or Discard.
type Blob struct {
	e    *Engine
	w    body.Writer
	buf  []byte // a block; of a sealed body, with room for the tags of its chunks
	n    int    // bytes of the body in buf
	seal *seal.Body
	ext  Extent
}

// NewBlob starts a large body of an object under a new random id. Where bodies are encrypted, it can be read only as one
// of this key's.
func (e *Engine) NewBlob(bucket, key string) (*Blob, error) {
	if err := errors.Join(e.Err(), e.checkSpace()); err != nil {
		return nil, err
	}
	return e.newBlob(seal.Name{Bucket: bucket, Key: key})
}

func (e *Engine) newBlob(n seal.Name) (*Blob, error) {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return nil, err
	}
	b := &Blob{e: e, ext: Extent{File: hex.EncodeToString(raw[:])}}
	n.Body = b.ext.File
	var err error
	if b.ext.Seal, b.seal, err = e.newSeal(n); err != nil {
		return nil, err
	}
	e.awaited.begin(b.ext.File)
	if b.w, err = e.bodies.Create(b.ext.File); err != nil {
		e.awaited.end(b.ext.File)
		return nil, e.bodyFailed(err)
	}
	b.buf = make([]byte, BlockSize)
	return b, nil
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
		// A full block waits for the next byte: the last one of a sealed body is sealed as such.
		if b.n == b.ext.perBlock() {
			if err := b.writeBlock(false); err != nil {
				return 0, err
			}
		}
		n := copy(b.room(), p)
		b.n, p = b.n+n, p[n:]
	}
	return total, nil
}

// room is where the next bytes of the body go.
func (b *Blob) room() []byte {
	if b.seal == nil {
		return b.buf[b.n:]
	}
	return b.buf[seal.Offset(int64(b.n)):][:seal.PlainChunk-b.n%seal.PlainChunk]
}

func (b *Blob) writeBlock(last bool) error {
	stored := b.buf[:b.n]
	if b.seal != nil {
		stored = b.seal.SealInPlace(b.buf, b.n, uint64(len(b.ext.Blocks))*chunksPerBlock, last)
	}
	if len(stored) == 0 {
		return nil
	}
	if err := b.e.checkSpace(); err != nil {
		return fmt.Errorf("write body: %w", err)
	}
	if _, err := b.w.Write(stored); err != nil {
		return b.e.bodyFailed(err)
	}
	b.ext.Blocks = append(b.ext.Blocks, crc32.Checksum(stored, castagnoli))
	b.ext.Size += int64(len(stored))
	b.n = 0
	return nil
}

// Finish makes the body durable and gives the extent that a record must name. Until one does, the
// body is garbage: Discard or the next open removes it.
func (b *Blob) Finish() (Extent, error) {
	if err := b.writeBlock(true); err != nil {
		return b.ext, err
	}
	if err := b.w.Finish(); err != nil {
		return b.ext, b.e.bodyFailed(err)
	}
	return b.ext, nil
}

// Discard removes the body.
func (b *Blob) Discard() {
	b.e.awaited.end(b.ext.File)
	b.w.Discard()
}

// copyExtents writes n bytes of a large body, from offset off on. Each block is verified before a
// byte of it is written, so the first damaged block is an error and not wrong bytes.
func (h *Handle) copyExtents(w io.Writer, off, n int64) error {
	var buf []byte
	for i := range h.Object.Extents {
		x := &h.Object.Extents[i]
		if n <= 0 {
			return nil
		}
		size := x.PlainSize()
		if off >= size {
			off -= size
			continue
		}
		if buf == nil {
			buf = make([]byte, BlockSize)
		}
		part := min(n, size-off)
		opener, err := h.opener(x)
		if err != nil {
			return err
		}
		r, err := h.readable(i)
		if err != nil {
			return err
		}
		if err := copyExtent(w, r, x, &h.fine, opener, off, part, buf); err != nil {
			return err
		}
		off, n = 0, n-part
	}
	if n > 0 {
		return fmt.Errorf("%w: body is %d bytes short", ErrCorrupt, n)
	}
	return nil
}

// bodyDamaged tells damage from what may pass.
func bodyDamaged(file string, at int64, err error) error {
	if errors.Is(err, body.ErrDamaged) {
		return &CorruptError{body.Name(file), at, err.Error()}
	}
	return fmt.Errorf("read body: %w", err)
}

// copyExtent writes n bytes of one file from off on; opener is nil where it is not sealed.
func copyExtent(w io.Writer, r body.Reader, x *Extent, fine *fineSums, opener *seal.Body, off, n int64, buf []byte) error {
	for per := int64(x.perBlock()); n > 0; {
		i := off / per
		block, err := readBlock(r, x, fine, i, buf)
		if err != nil {
			return err
		}
		at := off - i*per
		part := min(n, per-at)
		if opener != nil {
			if block, err = openChunks(block, x, opener, i, at, part); err != nil {
				return err
			}
			at = 0
		}
		if _, err := w.Write(block[at : at+part]); err != nil {
			return err
		}
		off, n = off+part, n-part
	}
	return nil
}

// readBlock reads the i-th BlockSize bytes of a file and verifies them.
func readBlock(r body.Reader, x *Extent, fine *fineSums, i int64, buf []byte) ([]byte, error) {
	sum, err := fine.sum(r, x, i, buf)
	if err != nil {
		return nil, err
	}
	start := i * BlockSize
	block := buf[:min(BlockSize, x.Size-start)]
	got, err := r.ReadAt(block, start)
	if got == len(block) && crc32.Checksum(block, castagnoli) == sum || mendBlock(r, block, start, sum) {
		return block, nil
	}
	if got < len(block) {
		return nil, cutOff(x.File, start, got, err)
	}
	return nil, &CorruptError{body.Name(x.File), start, "block checksum mismatch"}
}
