package catalog

import (
	"cmp"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Piece is a part of an answer: the rows of a set's objects that count. Rows of a
// compaction count for those of its sources that are the highest committed generation
// of their shard's hour; all others are masked.
type Piece struct {
	// Set whose objects hold the rows.
	Block *Block
	// From and To are the hours whose rows count, both included.
	From, To timegrid.Hour
	// Shards whose rows count, ascending; nil is all that are there.
	Shards []shard.ID
}

// Holds reports whether rows of the agent count.
func (p *Piece) Holds(agent string) bool {
	if p.Shards == nil {
		return true
	}
	_, ok := slices.BinarySearch(p.Shards, shard.Of(agent, p.Block.Shards))
	return ok
}

// Pieces gives what has the rows of sets, which are highest committed generations of one
// resolution: each row once. They are in the order of hours, then shards.
func Pieces(blocks []*Block) []Piece {
	out := make([]Piece, 0, len(blocks))
	moved := map[string][]*Block{} // by the compaction's key
	for _, s := range blocks {
		switch {
		case s.Into == nil:
			out = append(out, Piece{Block: s, From: s.Name.Hour, To: s.Name.Hour})
		case s.Into.Block != nil:
			k := s.Into.Name.Key()
			moved[k] = append(moved[k], s)
		}
	}
	for _, of := range moved {
		out = append(out, piecesOf(of)...)
	}
	slices.SortFunc(out, func(a, b Piece) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.first(), b.first()), cmp.Compare(a.To, b.To))
	})
	return out
}

func (p *Piece) first() shard.ID {
	if len(p.Shards) > 0 {
		return p.Shards[0]
	}
	return p.Block.Name.Shard
}

// piecesOf cuts the sources of one compaction into stretches of hours with equal shards.
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
		out = append(out, Piece{Block: of[0].Into.Block, From: h, To: h, Shards: byHour[h]})
	}
	return out
}
