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
	// Spans of each resolution in hours, ascending, each a multiple of the one before, so that what a longer one merges
	// became due with it. A resolution without spans is not compacted.
	Spans map[timegrid.Resolution][]uint16
	// Group is the most shards that are merged with each other. Groups begin at its multiples.
	Group uint32
	// After is the wait between the end of a span and its compaction, so that late batches arrive before.
	After time.Duration
	// ObjectBytes is the size from which on a chunk is finished and the next one begun.
	ObjectBytes int64
	// MaxBytes bounds what one compaction merges, and so its memory. Shards are divided up to stay below, and a
	// shard that exceeds it alone is not compacted.
	MaxBytes int64
	// Rows of a series in one block of the chunk, and series and values of a block. They are larger than those of
	// an hour, so that similar series of several shards still meet in one block.
	Rows, BlockSeries, BlockValues int
}

// DefaultSettings merge raw blocks of 2 hours, then of a day; those of 1m by the day, of 5m by the day and then 7 days,
// of 1h by the day and then 30 days. Groups are large, since a query asks each of them for its rows.
func DefaultSettings() Settings {
	return Settings{
		Spans: map[timegrid.Resolution][]uint16{timegrid.Raw: {2, 24}, timegrid.OneMinute: {24}, timegrid.FiveMinutes: {24, 7 * 24}, timegrid.OneHour: {24, 30 * 24}},
		Group: 32, After: 3 * time.Hour, ObjectBytes: 128 << 20, MaxBytes: 256 << 20, Rows: 16 << 10, BlockSeries: 2048, BlockValues: 1 << 20,
	}
}

// Validate refuses settings that could not work.
func (s Settings) Validate() error {
	for res, spans := range s.Spans {
		for i, span := range spans {
			if span < 2 || span > catalog.MaxSpan || i > 0 && (span <= spans[i-1] || span%spans[i-1] != 0) {
				return fmt.Errorf("compact: spans %v of %s: 2 to %d hours, ascending, each a multiple of the one before", spans, res, catalog.MaxSpan)
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
	Bytes   int64 // of the sources' objects, estimated
}

// Owner is the shard whose owner compacts this one: the first of its group.
func (s Settings) Owner(id shard.ID) shard.ID { return id - id%shard.ID(s.Group) }

// Longest returns the longest span of any resolution, in hours.
func (s Settings) Longest() uint16 {
	var n uint16
	for _, spans := range s.Spans {
		for _, span := range spans {
			n = max(n, span)
		}
	}
	return n
}

// Choose returns what the owner of the group that begins with first may compact at now, oldest first. If spans
// overlap the longest one is chosen. blocks are the highest committed generations of the resolution.
func (s Settings) Choose(res timegrid.Resolution, blocks []*catalog.Block, first shard.ID, now time.Time) []Candidate {
	var out []Candidate
	// A block that a longer span takes is not offered to a shorter one as well: it would be merged twice.
	taken := map[catalog.Name]bool{}
	for _, span := range slices.Backward(s.Spans[res]) {
		bySpan := map[timegrid.Hour][]*catalog.Block{}
		for _, block := range blocks {
			start := startOf(block.Name.Hour, span)
			due := !s.end(start, span).After(now)
			// A source that is in a compaction of this span, or of a longer one, has arrived; only shorter ones
			// move on.
			// A block that was not rolled up has no rows that could move.
			if due && !block.Unrolled && s.Owner(block.Name.Shard) == first && (block.Redirect == nil || block.Redirect.Name.Span < span) && !taken[block.Name] {
				bySpan[start] = append(bySpan[start], block)
			}
		}
		for start, of := range bySpan {
			for _, part := range s.split(of) {
				if len(catalog.Pieces(part.Sources)) < 2 {
					continue // its rows are in one object already
				}
				part.Name = catalog.Name{Hour: start, Shard: part.Sources[0].Name.Shard, Resolution: res, Span: span}
				for _, block := range part.Sources {
					// The lowest shard names the compaction, so that two workers that choose the same sources
					// compete for one key.
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

// DueSince gives the first hour of the spans of a resolution that became due after last; ok is false where none has. What
// was due before was merged then, but for what late batches have changed since.
func (s Settings) DueSince(res timegrid.Resolution, last, now time.Time) (first timegrid.Hour, ok bool) {
	for _, span := range s.Spans[res] {
		n := timegrid.Hour(span)
		start := startOf(timegrid.HourOf(last.Add(-s.After).UnixMilli()), span)
		for !s.end(start, span).After(last) {
			start += n
		}
		if !s.end(start, span).After(now) && (!ok || start < first) {
			first, ok = start, true
		}
	}
	return first, ok
}

// end is when the span that begins at start is due.
func (s Settings) end(start timegrid.Hour, span uint16) time.Time {
	return (start + timegrid.Hour(span) - 1).End().Add(s.After)
}

// startOf is the first hour of the span that h lies in; spans are counted from the epoch, so all workers agree on
// them.
func startOf(h timegrid.Hour, span uint16) timegrid.Hour {
	off := h % timegrid.Hour(span)
	if off < 0 {
		off += timegrid.Hour(span)
	}
	return h - off
}

// split joins the blocks of neighbouring shards as long as they are small enough together.
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
		// Such a shard must not be joined over either: its neighbours are not neighbours of each other.
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

// bytesOf is the size of a block's objects, or its share of the compaction that has its rows.
func bytesOf(s *catalog.Block) int64 {
	of, share := s, int64(1)
	if s.Redirect != nil {
		if s.Redirect.Block == nil {
			return 0 // the compaction was not read
		}
		of, share = s.Redirect.Block, int64(len(s.Redirect.Block.Sources))
	}
	var n uint64
	for i := range of.Objects {
		n += of.Objects[i].ChunkBytes + of.Objects[i].IndexBytes
	}
	return int64(n) / share
}
