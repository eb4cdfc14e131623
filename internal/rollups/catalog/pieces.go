package catalog

import (
	"cmp"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Piece is a part of an answer: the rows of a block's objects that count. Rows of a compaction count only for
// those of its sources that still are the highest committed generation of their shard's hour; all others are
// masked.
type Piece struct {
	// Block is whose objects hold the rows.
	Block *Block
	// From and To are the hours whose rows count, both included.
	From, To timegrid.Hour
	// Shards whose rows count, ascending; nil means all that are there.
	Shards []shard.ID
}

// Holds reports whether the agent's rows count.
func (p *Piece) Holds(agent string) bool {
	if p.Shards == nil {
		return true
	}
	_, ok := slices.BinarySearch(p.Shards, shard.Of(agent, p.Block.Shards))
	return ok
}

// Pieces returns the objects that hold the rows of blocks, which are the highest committed generations of one
// resolution. Each row is in one piece. Pieces are sorted by hour, then by shard.
func Pieces(blocks []*Block) []Piece {
	out := make([]Piece, 0, len(blocks))
	moved := map[string][]*Block{} // by the compaction's key
	for _, s := range blocks {
		switch {
		case s.Redirect == nil:
			out = append(out, Piece{Block: s, From: s.Name.Hour, To: s.Name.Hour})
		// A redirect whose compaction was not read is left out here; the catalog has reported it as a problem.
		case s.Redirect.Block != nil:
			k := s.Redirect.Name.Key()
			moved[k] = append(moved[k], s)
		}
	}
	// The order of a map does not matter, as the pieces are sorted below.
	for _, of := range moved {
		out = append(out, piecesOf(of)...)
	}
	slices.SortFunc(out, func(a, b Piece) int {
		// The last of several samples of one time counts. A block in memory has no generation, and so comes before
		// the published one of its hour: that one counts.
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.first(), b.first()), cmp.Compare(a.To, b.To), cmp.Compare(a.Block.Name.Generation, b.Block.Name.Generation))
	})
	return out
}

func (p *Piece) first() shard.ID {
	if len(p.Shards) > 0 {
		return p.Shards[0]
	}
	return p.Block.Name.Shard
}

// piecesOf cuts the sources of one compaction into runs of hours that have the same shards.
func piecesOf(of []*Block) []Piece {
	byHour := map[timegrid.Hour][]shard.ID{}
	for _, s := range of {
		byHour[s.Name.Hour] = append(byHour[s.Name.Hour], s.Name.Shard)
	}
	hours := make([]timegrid.Hour, 0, len(byHour))
	for h, ids := range byHour {
		slices.Sort(ids)
		hours = append(hours, h)
	}
	slices.Sort(hours)
	var out []Piece
	for _, h := range hours {
		if n := len(out); n > 0 && out[n-1].To == h-1 && slices.Equal(out[n-1].Shards, byHour[h]) {
			out[n-1].To = h
			continue
		}
		out = append(out, Piece{Block: of[0].Redirect.Block, From: h, To: h, Shards: byHour[h]})
	}
	return out
}
