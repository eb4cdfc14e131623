package chunk

import "strings"

// Only gives an index of the same chunk that has only some of the series, ascending numbers: series k of it is series[k]
// of x, with the same labels, parts and rows. It shares no memory with x.
func (x *Index) Only(series []int) *Index {
	y := &Index{Chunk: x.Chunk, Size: x.Size, FooterOffset: x.FooterOffset, series: make([]indexSeries, len(series))}
	symbols, sets := marks(len(x.symbols)), marks(len(x.sets.ends))
	blocks, timeBlocks, times := marks(len(x.blocks)), marks(len(x.timeBlocks)), marks(len(x.times))
	symbols[0] = 1
	parts := 0
	for _, i := range series {
		s := &x.series[i]
		symbols[s.name], symbols[s.agent], symbols[s.unit], sets[s.set] = 1, 1, 1, 1
		for _, l := range x.sets.of(s.set) {
			symbols[l.name], symbols[l.value] = 1, 1
		}
		for _, p := range x.partsOf(i) {
			blocks[p.block], times[p.times], timeBlocks[x.times[p.times].block] = 1, 1, 1
			parts++
		}
	}
	y.symbols = chosen(symbols, func(i int) string { return x.symbols[i] })
	// One string holds all texts, as in the index that was read.
	all := strings.Join(y.symbols, "")
	for i, s := range y.symbols {
		y.symbols[i], all = all[:len(s)], all[len(s):]
	}
	chosen(sets, func(i int) struct{} {
		for _, l := range x.sets.of(uint32(i)) {
			y.sets.refs = append(y.sets.refs, labelRef{symbols[l.name], symbols[l.value]})
		}
		y.sets.ends = append(y.sets.ends, uint32(len(y.sets.refs)))
		return struct{}{}
	})
	y.blocks = chosen(blocks, func(i int) Range { return x.blocks[i] })
	y.timeBlocks = chosen(timeBlocks, func(i int) Range { return x.timeBlocks[i] })
	y.times = chosen(times, func(i int) timeInfo {
		t := x.times[i]
		t.block = timeBlocks[t.block]
		return t
	})
	y.parts = make([]part, 0, parts)
	for k, i := range series {
		s := x.series[i]
		y.series[k] = indexSeries{symbols[s.name], sets[s.set], symbols[s.agent], symbols[s.unit], s.typ, uint32(len(y.parts))}
		for _, p := range x.partsOf(i) {
			y.parts = append(y.parts, part{blocks[p.block], p.slot, times[p.times]})
		}
	}
	return y
}

// marks has an entry for each entry of a table: not 0 for those that stay, which chosen replaces by their new number.
func marks(n int) []uint32 { return make([]uint32, n) }

// chosen makes a table of the entries that are marked, in their order.
func chosen[E any](marked []uint32, of func(i int) E) []E {
	n := 0
	for _, m := range marked {
		n += int(m)
	}
	out := make([]E, 0, n)
	for i, m := range marked {
		if m != 0 {
			marked[i] = uint32(len(out))
			out = append(out, of(i))
		}
	}
	return out
}

// Bytes is about how much memory the tables of the index take, without what Select makes of them.
func (x *Index) Bytes() int64 {
	n := indexCost + cap(x.symbols)*symbolCost + cap(x.sets.ends)*4 + cap(x.sets.refs)*refCost + cap(x.series)*seriesCost +
		cap(x.parts)*partCost + (cap(x.blocks)+cap(x.timeBlocks))*rangeCost + cap(x.times)*timesCost
	for _, s := range x.symbols {
		n += len(s)
	}
	return int64(n)
}

// indexCost is the memory of an index beside its tables.
const indexCost = 320

// Symbols is how many different texts the index has.
func (x *Index) Symbols() int { return len(x.symbols) }
