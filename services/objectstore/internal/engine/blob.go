package engine

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"lightmetrics.dev/lightmetrics/pkg/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/vfs"
)

// BlockSize is the unit of a body file's checksums, bytes.
const BlockSize = 1 << 20

func blobName(id string) string { return blobDir + "/" + id[:min(2, len(id))] + "/" + id }

// Blob is a body file that is being written. End it with Finish or Discard.
type Blob struct {
	e      *Engine
	id     string
	file   vfs.File
	buf    []byte
	ext    Extent
	landed bool
}

// NewBlob begins a body file.
func (e *Engine) NewBlob() (*Blob, error) {
	if err := errors.Join(e.Err(), e.room()); err != nil {
		return nil, err
	}
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return nil, err
	}
	id := hex.EncodeToString(raw[:])
	f, err := e.fs.Create(tmpDir + "/" + id)
	if err != nil {
		return nil, fmt.Errorf("create body file: %w", full(err))
	}
	failpoint.Hit("objectstore.body.create.after")
	return &Blob{e: e, id: id, file: f, buf: make([]byte, 0, BlockSize), ext: Extent{File: id}}, nil
}

// Write implements io.Writer.
func (b *Blob) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		n := copy(b.buf[len(b.buf):BlockSize], p)
		b.buf, p = b.buf[:len(b.buf)+n], p[n:]
		if len(b.buf) == BlockSize {
			if err := b.block(); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

func (b *Blob) block() error {
	if len(b.buf) == 0 {
		return nil
	}
	if err := b.e.room(); err != nil {
		return fmt.Errorf("write body file: %w", err)
	}
	if _, err := b.file.WriteAt(b.buf, b.ext.Size); err != nil {
		return fmt.Errorf("write body file: %w", full(err))
	}
	failpoint.Hit("objectstore.body.write.after")
	b.ext.Blocks = append(b.ext.Blocks, crc32.Checksum(b.buf, castagnoli))
	b.ext.Size += int64(len(b.buf))
	b.buf = b.buf[:0]
	return nil
}

// Finish makes the file durable under its name. It is removed by Discard, or at the next
// open, unless a record names it.
func (b *Blob) Finish() (Extent, error) {
	if err := b.block(); err != nil {
		return b.ext, err
	}
	failpoint.Hit("objectstore.body.sync.before")
	if err := b.file.Sync(); vfs.IsFull(err) {
		return b.ext, fmt.Errorf("fsync body file: %w", full(err)) // it is thrown away
	} else if err != nil {
		return b.ext, b.e.fail(fmt.Errorf("fsync body file: %w", err))
	}
	b.e.counts.fsyncs.Add(1)
	failpoint.Hit("objectstore.body.rename.before")
	if err := b.land(); err != nil {
		return b.ext, fmt.Errorf("land body file: %w", full(err))
	}
	failpoint.Hit("objectstore.body.rename.after")
	if err := b.e.fs.SyncDir(blobDir + "/" + b.id[:2]); err != nil {
		return b.ext, b.e.fail(fmt.Errorf("fsync directory of body files: %w", err))
	}
	b.e.counts.fsyncs.Add(1)
	failpoint.Hit("objectstore.body.durable.after")
	err := b.file.Close()
	b.file = nil
	return b.ext, err
}

// land renames the file into its directory, which may have to be made.
func (b *Blob) land() error {
	if err := b.e.blobFolder(b.id[:2]); err != nil {
		return err
	}
	err := b.e.fs.Rename(tmpDir+"/"+b.id, blobName(b.id))
	b.landed = err == nil
	return err
}

// blobFolder makes a folder of body files durably. Whoever finds it made must not go on
// before its name is durable, so the one who makes it holds the lock.
func (e *Engine) blobFolder(name string) error {
	e.blobMu.Lock()
	defer e.blobMu.Unlock()
	if e.blobDirs[name] {
		return nil
	}
	if err := vfs.EnsureDir(e.fs, blobDir+"/"+name); err != nil {
		return err
	}
	if err := e.fs.SyncDir(blobDir); err != nil {
		return e.fail(fmt.Errorf("fsync directory of body files: %w", err))
	}
	e.blobDirs[name] = true
	return nil
}

// Discard removes the file.
func (b *Blob) Discard() {
	if b.file != nil {
		_ = b.file.Close()
		b.file = nil
	}
	name := tmpDir + "/" + b.id
	if b.landed {
		name = blobName(b.id)
	}
	_ = b.e.fs.Remove(name) // the next open removes what stays
}

// copyExtents writes n bytes from offset of a body that lies in files. Every block is
// verified before a byte of it is written.
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
		if err := copyExtent(w, h.files[i], x, off, part, buf); err != nil {
			return err
		}
		off, n = 0, n-part
	}
	if n > 0 {
		return fmt.Errorf("%w: body is %d bytes short", ErrCorrupt, n)
	}
	return nil
}

func copyExtent(w io.Writer, f vfs.File, x Extent, off, n int64, buf []byte) error {
	for n > 0 {
		i := off / BlockSize
		start := i * BlockSize
		block := buf[:min(BlockSize, x.Size-start)]
		if got, err := f.ReadAt(block, start); got < len(block) {
			if errors.Is(err, io.EOF) {
				return &CorruptError{blobName(x.File), start + int64(got), "body file is cut off"}
			}
			return fmt.Errorf("read body file: %w", err)
		}
		if crc32.Checksum(block, castagnoli) != x.Blocks[i] {
			return &CorruptError{blobName(x.File), start, "block checksum mismatch"}
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
