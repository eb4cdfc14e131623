package chunk

// Plan gives the ranges of the chunk that hold rows with mint <= T <= maxt of the series
// (numbers in the index), ascending; ranges with at most gap bytes between them are one.
func (x *Index) Plan(series []int, mint, maxt, gap int64) []Range {
	values := make([]bool, len(x.blocks))
	times := make([]bool, len(x.timeBlocks))
	for _, i := range series {
		for _, p := range x.partsOf(i) {
			if t := &x.times[p.times]; t.minT <= maxt && t.maxT >= mint {
				values[p.block] = true
				times[t.block] = true
			}
		}
	}
	var out []Range
	for _, k := range [...]struct {
		want   []bool
		ranges []Range
	}{{values, x.blocks}, {times, x.timeBlocks}} {
		for i, want := range k.want {
			if !want {
				continue
			}
			r := k.ranges[i]
			if n := len(out); n > 0 && r.Offset-out[n-1].End() <= gap {
				out[n-1].Length = r.End() - out[n-1].Offset
			} else {
				out = append(out, r)
			}
		}
	}
	return out
}
