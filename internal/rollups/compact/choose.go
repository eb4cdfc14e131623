package compact

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Settings of compaction.
type Settings struct {
	// Spans of each resolution in hours, ascending. A resolution without spans is not compacted.
	Spans map[timegrid.Resolution][]uint16
	// Group is how many shards, from a multiple of it on, are merged at most.
	Group uint32
	// After a span's end it may be compacted: late batches should be there by then.
	After time.Duration
	// ObjectBytes is the size from which on a chunk is ended.
	ObjectBytes int64
	// MaxBytes bounds what one compaction merges, and so its memory: shards are split up,
	// and a shard whose span has more stays as it is.
	MaxBytes int64
	// Rows of a series in one block, and the series and values of a block: larger ones than
	// of an hour, so that the series of several shards that are alike still meet in one.
	Rows, BlockSeries, BlockValues int
}

// DefaultSettings merge raw sets of 2 hours, then of a day; those of 1 m by the day, of
// 5 m by 7 days and of 1 h by 30 days.
func DefaultSettings() Settings {
	return Settings{
		Spans: map[timegrid.Resolution][]uint16{timegrid.Raw: {2, 24}, timegrid.OneMinute: {24}, timegrid.FiveMinutes: {7 * 24}, timegrid.OneHour: {30 * 24}},
		Group: 8, After: 3 * time.Hour, ObjectBytes: 128 << 20, MaxBytes: 256 << 20, Rows: 16 << 10, BlockSeries: 2048, BlockValues: 1 << 20,
	}
}

// Validate refuses what could not work.
func (s Settings) Validate() error {
	for res, spans := range s.Spans {
		for i, span := range spans {
			if span < 2 || span > catalog.MaxSpan || i > 0 && span <= spans[i-1] {
				return fmt.Errorf("compact: spans %v of %s: 2 to %d hours, ascending", spans, res, catalog.MaxSpan)
			}
		}
	}
	if s.Group == 0 || s.After < 0 || s.ObjectBytes <= 0 || s.MaxBytes <= 0 || s.Rows <= 0 || s.Rows > 1<<16 ||
		s.BlockSeries <= 0 || s.BlockSeries > 1<<16 || s.BlockValues <= 0 || s.BlockValues > 1<<22 {
		return errors.New("compact: group, object size, most bytes, rows, series and values of blocks must be greater than 0")
	}
	return nil
}

// Candidate is what may be compacted now: sources that lie in one span.
type Candidate struct {
	// Name without a generation.
	Name    catalog.Name
	Sources []*catalog.Block
	Bytes   int64 // of the sources' objects, about
}

// Owner of the compactions of a shard: the first of its group, whose owner does them.
func (s Settings) Owner(id shard.ID) shard.ID { return id - id%shard.ID(s.Group) }

// Longest span of any resolution, in hours.
func (s Settings) Longest() uint16 {
	var n uint16
	for _, spans := range s.Spans {
		for _, span := range spans {
			n = max(n, span)
		}
	}
	return n
}

// Choose gives what the owner of the group that begins with first may compact at now, the
// oldest first, and of what overlaps the longest span. sets are highest committed
// generations of resolution w.
func (s Settings) Choose(res timegrid.Resolution, blocks []*catalog.Block, first shard.ID, now time.Time) []Candidate {
	var out []Candidate
	taken := map[catalog.Name]bool{}
	for _, span := range slices.Backward(s.Spans[res]) {
		bySpan := map[timegrid.Hour][]*catalog.Block{}
		for _, block := range blocks {
			start := startOf(block.Name.Hour, span)
			due := !(start + timegrid.Hour(span) - 1).End().Add(s.After).After(now)
			if due && s.Owner(block.Name.Shard) == first && (block.Into == nil || block.Into.Name.Span < span) && !taken[block.Name] {
				bySpan[start] = append(bySpan[start], block)
			}
		}
		for start, of := range bySpan {
			for _, part := range s.split(of) {
				if len(catalog.Pieces(part.Sources)) < 2 {
					continue // nothing to merge
				}
				part.Name = catalog.Name{Hour: start, Shard: part.Sources[0].Name.Shard, Resolution: res, Span: span}
				for _, block := range part.Sources {
					part.Name.Shard = min(part.Name.Shard, block.Name.Shard)
					taken[block.Name] = true
				}
				out = append(out, part)
			}
		}
	}
	slices.SortFunc(out, func(a, b Candidate) int {
		if a.Name.Hour != b.Name.Hour {
			return int(a.Name.Hour - b.Name.Hour)
		}
		return int(a.Name.Shard) - int(b.Name.Shard)
	})
	return out
}

// startOf is the start of the span that the hour lies in; spans are counted from the epoch.
func startOf(h timegrid.Hour, span uint16) timegrid.Hour {
	off := h % timegrid.Hour(span)
	if off < 0 {
		off += timegrid.Hour(span)
	}
	return h - off
}

// split puts the sets of neighbouring shards together as long as they are small enough.
func (s Settings) split(blocks []*catalog.Block) []Candidate {
	byShard := map[shard.ID]*Candidate{}
	var ids []shard.ID
	for _, block := range blocks {
		c := byShard[block.Name.Shard]
		if c == nil {
			c = &Candidate{}
			byShard[block.Name.Shard] = c
			ids = append(ids, block.Name.Shard)
		}
		c.Sources = append(c.Sources, block)
		c.Bytes += bytesOf(block)
	}
	slices.Sort(ids)
	var out []Candidate
	open := false
	for _, id := range ids {
		c := byShard[id]
		if c.Bytes > s.MaxBytes {
			open = false
			continue
		}
		if n := len(out); open && out[n-1].Bytes+c.Bytes <= s.MaxBytes && len(out[n-1].Sources)+len(c.Sources) <= catalog.MaxSources {
			out[n-1].Sources = append(out[n-1].Sources, c.Sources...)
			out[n-1].Bytes += c.Bytes
			continue
		}
		out = append(out, *c)
		open = true
	}
	for i := range out {
		slices.SortFunc(out[i].Sources, func(a, b *catalog.Block) int { return catalog.CompareSources(a.Name, b.Name) })
	}
	return out
}

// bytesOf is the size of a set's objects, or its share of a compaction's.
func bytesOf(s *catalog.Block) int64 {
	of, share := s, int64(1)
	if s.Into != nil {
		if s.Into.Block == nil {
			return 0
		}
		of, share = s.Into.Block, int64(len(s.Into.Block.Sources))
	}
	var n uint64
	for i := range of.Objects {
		n += of.Objects[i].ChunkBytes + of.Objects[i].IndexBytes
	}
	return int64(n) / share
}
