// Package block reads the objects of published blocks: the chunks and indexes that the records of
// internal/rollups/catalog name. Queries, compaction and the extension of an hour all read through it, so that the
// same damage is refused with the same reason everywhere. It caches nothing: a caller that wants a cache puts it
// around a Fetch, or around the result.
package block

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Requests of ranges: wanted bytes with at most DefaultGap bytes between them are read in one
// request, of at most DefaultMaxRange bytes. A request costs a store about 10 ms, in which it
// sends about half a MiB: reading through a smaller gap is faster than a second request.
const (
	DefaultGap      = 512 << 10
	DefaultMaxRange = 8 << 20
)

// Fetch returns exactly length bytes of an object, from offset on.
type Fetch func(ctx context.Context, key string, offset, length int64) ([]byte, error)

// From fetches from a store. An object that is too short is chunk.Truncated.
func From(g objstore.Getter) Fetch {
	return func(ctx context.Context, key string, offset, length int64) ([]byte, error) {
		b, _, err := g.Get(ctx, key, objstore.GetOptions{Offset: offset, Length: length, Limit: max(length, 1)})
		if err != nil {
			return nil, fmt.Errorf("read %q at %d: %w", key, offset, err)
		}
		if int64(len(b)) != length {
			return nil, fmt.Errorf("read %q at %d: %w: %d bytes, want %d", key, offset, chunk.Truncated, len(b), length)
		}
		return b, nil
	}
}

// Index reads and verifies the index of o. An index with other bytes than the record says, or
// of another chunk, is refused with a reason of internal/rollups/chunk.
func (f Fetch) Index(ctx context.Context, o *catalog.Object, l chunk.Limits) (*chunk.Index, error) {
	b, err := f.whole(ctx, "index", o.IndexKey, o.IndexBytes, o.IndexSHA256)
	if err != nil {
		return nil, err
	}
	x, err := chunk.ReadIndex(b, l)
	if err != nil {
		return nil, fmt.Errorf("index %q: %w", o.IndexKey, err)
	}
	// The index repeats hash and size of its chunk. Without this check an index of another chunk would give
	// offsets that decode to wrong samples.
	if x.Chunk != o.ChunkSHA256 || x.Size != int64(o.ChunkBytes) {
		return nil, fmt.Errorf("index %q: %w: it is of chunk %s", o.IndexKey, chunk.BadIndex, x.Chunk)
	}
	return x, nil
}

// Chunk reads the chunk of o whole and verifies its hash.
func (f Fetch) Chunk(ctx context.Context, o *catalog.Object) ([]byte, error) {
	return f.whole(ctx, "chunk", o.ChunkKey, o.ChunkBytes, o.ChunkSHA256)
}

func (f Fetch) whole(ctx context.Context, what, key string, size uint64, want identity.Digest) ([]byte, error) {
	b, err := f(ctx, key, 0, int64(size))
	if err != nil {
		return nil, err
	}
	if sum := identity.Sum(b); sum != want {
		return nil, fmt.Errorf("%s %q: %w: it hashes to %s", what, key, chunk.ChecksumMismatch, sum)
	}
	return b, nil
}

// Ranges reads ranges of the chunk of o, which must ascend, and calls each with the bytes of every one.
func (f Fetch) Ranges(ctx context.Context, o *catalog.Object, ranges []chunk.Range, each func(chunk.Range, []byte)) error {
	for _, span := range Coalesce(ranges, DefaultGap, DefaultMaxRange) {
		raw, err := f(ctx, o.ChunkKey, span.Offset, span.Length)
		if err != nil {
			return err
		}
		span.Cut(raw, each)
	}
	return nil
}

// Span is a range that one request reads for several ranges.
type Span struct {
	chunk.Range
	Ranges []chunk.Range
}

// Cut calls each with the bytes of every range of the span; raw are the bytes of the span.
func (s Span) Cut(raw []byte, each func(chunk.Range, []byte)) {
	for _, r := range s.Ranges {
		each(r, raw[r.Offset-s.Offset:r.End()-s.Offset])
	}
}

// Coalesce groups ascending ranges into requests: ranges with at most gap bytes between them share one, of at most
// size bytes unless a single range is larger.
func Coalesce(ranges []chunk.Range, gap, size int64) []Span {
	var out []Span
	for i, r := range ranges {
		if n := len(out) - 1; n >= 0 && r.Offset-out[n].End() <= gap && r.End()-out[n].Offset <= size {
			// Grouped ranges are neighbours, so a group is a slice of the input and nothing is copied.
			first := i - len(out[n].Ranges)
			out[n] = Span{chunk.Range{Offset: out[n].Offset, Length: r.End() - out[n].Offset}, ranges[first : i+1]}
			continue
		}
		out = append(out, Span{r, ranges[i : i+1]})
	}
	return out
}
