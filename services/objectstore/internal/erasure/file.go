package erasure

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/zeebo/xxh3"
)

// File is an open fragment whose header and footer are whole. Its blocks are verified as they are
// read. Reads may be made at the same time.
type File struct {
	r     io.ReaderAt
	info  Info
	sums  []byte
	whole int64 // blocks of a full chunk
}

// tailOf is what is read from the end of a file at once: the footer, unless the chunks are small, and
// one request to a bucket.
func tailOf(size int64) int64 {
	return min(size, size/BlockSize*sumSize+MaxShards*hashSize+trailerSize+headerSize)
}

// OpenFile reads and checks the header and the footer of a fragment's file of so many bytes.
func OpenFile(r io.ReaderAt, size int64) (*File, error) {
	if size < headerSize+trailerSize+hashSize {
		return nil, fmt.Errorf("%w: it is cut off", ErrCorrupt)
	}
	tail, err := readFull(r, size-tailOf(size), tailOf(size))
	if err != nil {
		return nil, err
	}
	info, sums, err := parseTrailer(tail[len(tail)-trailerSize:])
	if err != nil {
		return nil, err
	}
	foot := sums + int64(info.K+info.M)*hashSize + trailerSize
	if headerSize+info.Layout.ShardSize(info.Index)+foot != size {
		return nil, fmt.Errorf("%w: it is %d bytes long, which is not what it says", ErrCorrupt, size)
	}
	f := &File{r: r, info: info, whole: ceilDiv(info.Layout.Chunk, BlockSize)}
	b := tail[max(0, int64(len(tail))-foot):]
	if foot > int64(len(tail)) {
		if b, err = readFull(r, size-foot, foot); err != nil {
			return nil, err
		}
	}
	table, err := parseFooter(b, &f.info, sums)
	if err != nil {
		return nil, err
	}
	f.sums = slices.Clone(table) // without the rest of what was read
	head := tail
	if size > tailOf(size) {
		if head, err = readFull(r, 0, headerSize); err != nil {
			return nil, err
		}
	}
	name, err := parseHeader(head[:headerSize])
	if err != nil {
		return nil, err
	}
	if name != info.Fragment {
		return nil, fmt.Errorf("%w: header and footer are of two fragments", ErrCorrupt)
	}
	return f, nil
}

func readFull(r io.ReaderAt, off, n int64) ([]byte, error) {
	b := make([]byte, n)
	if got, err := r.ReadAt(b, off); got < len(b) {
		return nil, shortRead(err)
	}
	return b, nil
}

// shortRead makes an end that should not be there a damage.
func shortRead(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut off", ErrCorrupt)
	}
	return err
}

// Info is what the fragment says of itself.
func (f *File) Info() Info { return f.info }

// readBlocks reads and verifies the bytes of a chunk from off on, which is a multiple of BlockSize,
// to the end of a block or of the chunk.
func (f *File) readBlocks(p []byte, stripe, off int64) error {
	at := headerSize + stripe*f.info.Layout.Chunk + off
	if got, err := f.r.ReadAt(p, at); got < len(p) {
		return shortRead(err)
	}
	block := stripe*f.whole + off/BlockSize
	for len(p) > 0 {
		b := p[:min(BlockSize, len(p))]
		if xxh3.Hash(b) != binary.LittleEndian.Uint64(f.sums[block*sumSize:]) {
			return fmt.Errorf("%w: checksum mismatch in the block at byte %d", ErrCorrupt, at)
		}
		p, at, block = p[len(b):], at+int64(len(b)), block+1
	}
	return nil
}

// verifyPiece is how much Verify reads at once, bytes.
const verifyPiece = 1 << 20

// Verify reads everything. Of a copy it also checks the hash of the body.
func (f *File) Verify(ctx context.Context) error {
	buf := make([]byte, verifyPiece)
	whole := xxh3.New()
	l := f.info.Layout
	for stripe := range l.Stripes() {
		n := l.length(stripe, f.info.Index)
		for off := int64(0); off < n; off += verifyPiece {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := buf[:min(verifyPiece, n-off)]
			if err := f.readBlocks(p, stripe, off); err != nil {
				return err
			}
			if f.info.IsCopy() {
				_, _ = whole.Write(p)
			}
		}
	}
	if f.info.IsCopy() && whole.Sum128().Bytes() != f.info.BodyHash {
		return fmt.Errorf("%w: the hash of the body is another", ErrCorrupt)
	}
	return nil
}
