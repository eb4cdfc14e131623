package rollup

import (
	"cmp"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
)

// Lost returns, for each input, the sequence numbers that an earlier accepted input has won, ascending; nil for
// most. Inputs come in any order; equal identities count as one.
func Lost(inputs []accepted.Claim) [][]ledger.Range {
	lost := make([][]ledger.Range, len(inputs))
	order := make([]int, len(inputs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(inputs[a].Identity.Compare(inputs[b].Identity), cmp.Compare(a, b))
	})
	// Inputs that overlap directly or through others are decided together; all others lose nothing and cost
	// nothing.
	for i := 0; i < len(order); {
		first := inputs[order[i]].Identity
		end, j := first.SeqEnd, i+1
		for j < len(order) {
			id := inputs[order[j]].Identity
			if id.BootOf() != first.BootOf() || id.SeqStart > end {
				break
			}
			end = max(end, id.SeqEnd)
			j++
		}
		if j > i+1 {
			assignOverlaps(inputs, order[i:j], lost)
		}
		i = j
	}
	return lost
}

// assignOverlaps assigns the sequence numbers of overlapping inputs of one boot: the earliest acceptance wins.
func assignOverlaps(inputs []accepted.Claim, group []int, lost [][]ledger.Range) {
	group = slices.Clone(group)
	slices.SortFunc(group, func(a, b int) int {
		return cmp.Or(inputs[a].Compare(inputs[b]), cmp.Compare(a, b))
	})
	var won []ledger.Range // ascending and disjoint
	for _, i := range group {
		r := ledger.Range{Start: inputs[i].Identity.SeqStart, End: inputs[i].Identity.SeqEnd}
		from, _ := slices.BinarySearchFunc(won, r.Start, func(w ledger.Range, seq uint64) int { return cmp.Compare(w.End, seq) })
		to := from
		merged := r
		for to < len(won) && won[to].Start <= r.End {
			c, _ := won[to].Intersect(r)
			lost[i] = append(lost[i], c)
			// Numbers between the ranges won so far are won by this input, so all become one range.
			merged = ledger.Range{Start: min(merged.Start, won[to].Start), End: max(merged.End, won[to].End)}
			to++
		}
		won = slices.Replace(won, from, to, merged)
	}
}

// within reports whether seq is in one of the ascending ranges.
func within(lost []ledger.Range, seq uint64) bool {
	i, _ := slices.BinarySearchFunc(lost, seq, func(l ledger.Range, s uint64) int { return cmp.Compare(l.End, s) })
	return i < len(lost) && lost[i].Start <= seq
}
