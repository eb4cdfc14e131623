package erasure

import (
	"errors"
	"fmt"
)

// Limits of chunks, bytes.
const (
	// SmallestChunk bounds the number of requests and files for little data.
	SmallestChunk = 16 << 10
	// LargestMinChunk is the most that is derived from a threshold.
	LargestMinChunk = 4 << 20
	// LargestChunk bounds the memory for one stripe.
	LargestChunk = 64 << 20
)

// Params say how bodies are coded.
type Params struct {
	// K data and M parity shards.
	K, M int
	// MinChunk and MaxChunk bound a shard's share of a stripe, bytes.
	MinChunk, MaxChunk int64
}

// Derive completes a threshold and a smallest chunk, bytes, of which one may be 0. A body of the
// threshold's size is one stripe of smallest chunks: without a smallest chunk that is the threshold
// divided by k, between 16 KiB and 4 MiB; with one, the threshold is k times it.
func Derive(k int, threshold, minChunk int64) (int64, int64) {
	if minChunk > 0 {
		return int64(k) * minChunk, minChunk
	}
	return threshold, min(max(ceilDiv(threshold, int64(k)), SmallestChunk), LargestMinChunk)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// Validate checks the parameters.
func (p Params) Validate() error {
	switch {
	case p.K < 1 || p.M < 0 || p.K+p.M > MaxShards:
		return fmt.Errorf("%d data and %d parity shards: want at least 1 and 0, and at most %d together", p.K, p.M, MaxShards)
	case p.MinChunk < 1 || p.MaxChunk < p.MinChunk || p.MaxChunk > LargestChunk:
		return fmt.Errorf("chunks of %d to %d bytes: want 1 to %d, and the larger one last", p.MinChunk, p.MaxChunk, LargestChunk)
	}
	return nil
}

// Layout says where the bytes of a body are in its shards. A body is cut into stripes of K chunks;
// data shard i has the i-th chunk of each. The last stripe may be short: what it lacks is zero for
// the arithmetic, and is stored nowhere.
type Layout struct {
	K, M  int
	Size  int64 // of the body, bytes
	Chunk int64 // bytes of a data shard in a full stripe; at least 1
}

// Layout chooses the chunk of a body: one stripe when it fits into the largest chunks, otherwise as
// few as possible, of equal size.
func (p Params) Layout(size int64) Layout {
	k := int64(p.K)
	stripes := max(1, ceilDiv(size, k*p.MaxChunk))
	return Layout{p.K, p.M, size, max(p.MinChunk, ceilDiv(size, k*stripes))}
}

// copyLayout is of a whole body: one shard with one chunk.
func copyLayout(size int64) Layout { return Layout{1, 0, size, max(size, 1)} }

var errLayout = errors.New("the layout is impossible")

// check refuses numbers that Params.Layout never gives, before anything is computed with them.
func (l Layout) check() error {
	switch {
	case l.K < 1 || l.M < 0 || l.K+l.M > MaxShards, l.Size < 0 || l.Size > maxBody, l.Chunk < 1:
		return errLayout
	case l.M == 0 && l.K == 1 && l == copyLayout(l.Size):
		return nil
	case l.Chunk > LargestChunk:
		return errLayout
	}
	return nil
}

// maxBody bounds a body, bytes, so that sums of offsets cannot overflow.
const maxBody = 1 << 50

// Stripes is the number of stripes; 1 for an empty body.
func (l Layout) Stripes() int64 { return max(1, ceilDiv(l.Size, int64(l.K)*l.Chunk)) }

// ShardSize is the payload of a shard, bytes.
func (l Layout) ShardSize(index int) int64 {
	last := l.Stripes() - 1
	return last*l.Chunk + l.length(last, index)
}

// length is what a shard has of a stripe, bytes. Parity is as long as the longest data chunk.
func (l Layout) length(stripe int64, index int) int64 {
	rest := l.Size - stripe*int64(l.K)*l.Chunk
	if index < l.K {
		rest -= int64(index) * l.Chunk
	}
	return min(max(rest, 0), l.Chunk)
}

// width is the length of the longest chunk of a stripe, bytes.
func (l Layout) width(stripe int64) int64 { return l.length(stripe, 0) }

// start is where a data shard's chunk of a stripe begins in the body.
func (l Layout) start(stripe int64, index int) int64 {
	return stripe*int64(l.K)*l.Chunk + int64(index)*l.Chunk
}

// BlockSize is the unit of checksums, bytes. Blocks begin anew with each chunk.
const BlockSize = 64 << 10

// blocks is the number of blocks of a shard.
func (l Layout) blocks(index int) int64 {
	last := l.Stripes() - 1
	return last*ceilDiv(l.Chunk, BlockSize) + ceilDiv(l.length(last, index), BlockSize)
}
