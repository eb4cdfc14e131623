package engine

import (
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
)

// The record of an object has a checksum for each block of its files. Blocks have BlockSize, until the checksums of all
// files are too many for a record: then each stands for 2, 4, ... of these blocks, as many as it takes. The checksum of a
// wide block follows from those of its parts, so nothing is read again when a record is made. Files don't change, and
// neither does what a reader verifies before it hands it out, which is BlockSize bytes. See docs/adr/0070.

const (
	// maxSums bounds the checksums of a record. They take half of the longest metadata; names, sizes and seals of MaxParts
	// extents take most of the other half.
	maxSums = maxMetaLen / 2 / 4
	// maxWide is the largest Extent.Wide, of 128 MiB. Up to there CRC32C finds every change of three bits.
	maxWide = 7
)

// blockSize is how many bytes of the file a block of the checksums has.
func (x *Extent) blockSize() int64 { return BlockSize << x.Wide }

// blocksOf is how many blocks of BlockSize << wide bytes a file of size bytes has.
func blocksOf(size int64, wide uint8) int64 {
	whole := size >> (blockBits + wide)
	if whole<<(blockBits+wide) < size {
		whole++
	}
	return whole
}

// widen gives a list of extents that has at most bound checksums, or as few as it can have: list itself where it has no
// more.
func widen(list []Extent, bound int64) []Extent {
	for wide := uint8(0); ; wide++ {
		n := int64(0)
		for i := range list {
			n += blocksOf(list[i].Size, max(wide, list[i].Wide))
		}
		if n > bound && wide < maxWide {
			continue
		}
		if wide == 0 {
			return list
		}
		out := slices.Clone(list) // what list was made of may be used elsewhere
		for i := range out {
			out[i].widen(wide)
		}
		return out
	}
}

// widen replaces the checksums by those of wide blocks. A file of one block keeps the one that it has.
func (x *Extent) widen(wide uint8) {
	if x.Wide >= wide || len(x.Blocks) < 2 {
		return
	}
	from := x.blockSize()
	each := 1 << (wide - x.Wide)
	sums := make([]uint32, 0, (len(x.Blocks)+each-1)/each)
	for run := range slices.Chunk(x.Blocks, each) {
		end := min(from<<(wide-x.Wide)*int64(len(sums)+1), x.Size)
		sums = append(sums, combine(run, from, end-from<<(wide-x.Wide)*int64(len(sums))))
	}
	x.Blocks, x.Wide = sums, wide
}

// nextBlock combines the checksum of a block of BlockSize bytes with that of what is before it.
var nextBlock = sync.OnceValue(func() *checksum.Next32C { return checksum.NewNext32C(BlockSize) })

// combine gives the CRC32C of size bytes of those of its blocks, which have each bytes, the last one maybe fewer.
func combine(sums []uint32, each, size int64) uint32 {
	sum := sums[0]
	for _, next := range sums[1:] {
		size -= each
		if n := min(each, size); n == BlockSize {
			sum = nextBlock().Combine(sum, next)
		} else {
			sum = checksum.Combine32C(sum, next, n)
		}
	}
	return sum
}

// fineSums are the checksums of the blocks of BlockSize bytes in a wide block. They were made of bytes that have the
// checksum which the record has of the wide block, and so say as much as it does.
type fineSums struct {
	of    *Extent // nil: of none
	block int64
	sums  []uint32
}

// sum gives the checksum of the i-th BlockSize bytes of a file. In a wide block the first one costs reading all of it; so
// the same fineSums should be used for reads that follow each other. buf has BlockSize bytes.
func (f *fineSums) sum(r body.Reader, x *Extent, i int64, buf []byte) (uint32, error) {
	if x.Wide == 0 {
		return x.Blocks[i], nil
	}
	block := i >> x.Wide
	if f.of != x || f.block != block {
		if _, err := f.load(r, x, block, buf); err != nil {
			return 0, err
		}
	}
	return f.sums[i-block<<x.Wide], nil
}

// load reads a wide block. same: what r gives has its checksum; otherwise copies have it, and r has not.
func (f *fineSums) load(r body.Reader, x *Extent, block int64, buf []byte) (same bool, err error) {
	f.of = nil
	if err = f.read(r.ReadAt, x, block, buf); err == nil {
		return true, nil
	}
	c, ok := r.(copies)
	if !ok {
		return false, err
	}
	for i := range c.Copies() {
		if f.read(func(p []byte, off int64) (int, error) { return c.ReadCopy(i, p, off) }, x, block, buf) == nil {
			return false, nil
		}
	}
	if f.mix(c, x, block, buf) {
		return false, nil
	}
	return false, err
}

// mostMixes bounds how many wide blocks are put together of copies: of two copies, eight parts may differ. Each is one more
// chance in 2^32 to take what is wrong for right.
const mostMixes = 256

// mix looks for the wide block in the parts of all copies: each may be damaged in another one.
func (f *fineSums) mix(c copies, x *Extent, block int64, buf []byte) bool {
	start := block * x.blockSize()
	end := min(start+x.blockSize(), x.Size)
	var choices [][]uint32 // by part: the checksums that it has in the copies
	mixes := 1
	for at := start; at < end; at += BlockSize {
		b := buf[:min(BlockSize, end-at)]
		var found []uint32
		for i := range c.Copies() {
			if n, _ := c.ReadCopy(i, b, at); n < len(b) {
				continue
			}
			if sum := crc32.Checksum(b, castagnoli); !slices.Contains(found, sum) {
				found = append(found, sum)
			}
		}
		if mixes *= len(found); mixes == 0 || mixes > mostMixes {
			return false
		}
		choices = append(choices, found)
	}
	for mix := range mixes {
		f.sums = f.sums[:0]
		for _, found := range choices {
			f.sums = append(f.sums, found[mix%len(found)])
			mix /= len(found)
		}
		if combine(f.sums, BlockSize, end-start) == x.Blocks[block] {
			f.of, f.block = x, block
			return true
		}
	}
	return false
}

func (f *fineSums) read(readAt func([]byte, int64) (int, error), x *Extent, block int64, buf []byte) error {
	start := block * x.blockSize()
	end := min(start+x.blockSize(), x.Size)
	f.sums = f.sums[:0]
	for at := start; at < end; at += BlockSize {
		b := buf[:min(BlockSize, end-at)]
		if got, err := readAt(b, at); got < len(b) {
			return cutOff(x.File, at, got, err)
		}
		f.sums = append(f.sums, crc32.Checksum(b, castagnoli))
	}
	if combine(f.sums, BlockSize, end-start) != x.Blocks[block] {
		return &CorruptError{body.Name(x.File), start, "block checksum mismatch"}
	}
	f.of, f.block = x, block
	return nil
}

// cutOff is the error of a read that gave fewer bytes than the record says are there.
func cutOff(file string, start int64, got int, err error) error {
	if errors.Is(err, io.EOF) {
		return &CorruptError{body.Name(file), start + int64(got), "body is cut off"}
	}
	return bodyDamaged(file, start, err)
}
