package rollup

import (
	"cmp"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Extendable reports whether fresh inputs win no sequence number of old ones and lose none to them. Then the raw
// series of all are those of the old plus those of the fresh (Extend), and their counts add up.
func Extendable(old, fresh []accepted.Claim) bool {
	together := Lost(slices.Concat(old, fresh))
	apart := slices.Concat(Lost(old), Lost(fresh))
	return slices.EqualFunc(together, apart, func(a, b []ledger.Range) bool { return slices.Equal(a, b) })
}

// Extend adds the raw series of fresh inputs to those of the previous generation, both in the order of Finish. It
// changes neither. It is false when both have a record of one series and time: which of them counts can only be
// decided from the frames.
func Extend(old, fresh []chunk.Series) ([]chunk.Series, bool) {
	out := make([]chunk.Series, 0, len(old)+len(fresh))
	for len(old) > 0 && len(fresh) > 0 {
		switch c := compareNamed(&old[0], &fresh[0]); {
		case c < 0:
			out, old = append(out, old[0]), old[1:]
		case c > 0:
			out, fresh = append(out, fresh[0]), fresh[1:]
		default:
			// The rows of a series that both have are merged; everything else is taken over as it is.
			s := old[0]
			ok := false
			if s.Columns, ok = extendRows(&old[0].Columns, &fresh[0].Columns); !ok {
				return nil, false
			}
			out, old, fresh = append(out, s), old[1:], fresh[1:]
		}
	}
	out = append(append(out, old...), fresh...)
	for i := 1; i < len(out); i++ {
		if slices.Equal(out[i].T, out[i-1].T) {
			out[i].T = out[i-1].T // share equal times again, as Finish does
		}
	}
	return out, true
}

// SortSeries sorts series into the order of Finish.
func SortSeries(ss []chunk.Series) {
	slices.SortFunc(ss, func(x, y chunk.Series) int { return compareNamed(&x, &y) })
}

func compareNamed(x, y *chunk.Series) int {
	return cmp.Or(cmp.Compare(x.Name(), y.Name()), CompareSeries(x, y))
}

// extendRows merges rows by time; it is false when both have a row of one time.
func extendRows(a, b *chunk.Columns) (chunk.Columns, bool) {
	n := len(a.T) + len(b.T)
	out := chunk.Columns{T: make([]int64, 0, n)}
	if a.V != nil {
		out.V = make([]float64, 0, n)
	} else {
		out.H = make([]series.Histogram, 0, n)
	}
	if a.Start != nil || b.Start != nil {
		out.Start = make([]int64, 0, n)
	}
	take := func(c *chunk.Columns, from, to int) {
		out.T = append(out.T, c.T[from:to]...)
		if c.V != nil {
			out.V = append(out.V, c.V[from:to]...)
		} else {
			out.H = append(out.H, c.H[from:to]...)
		}
		switch {
		case c.Start != nil:
			out.Start = append(out.Start, c.Start[from:to]...)
		// Start 0 means unknown, so rows of a side without start times get zeros.
		case out.Start != nil:
			out.Start = append(out.Start, make([]int64, to-from)...)
		}
	}
	i := 0
	for k := range b.T {
		from := i
		for i < len(a.T) && a.T[i] < b.T[k] {
			i++
		}
		if i < len(a.T) && a.T[i] == b.T[k] {
			return out, false
		}
		take(a, from, i)
		take(b, k, k+1)
	}
	take(a, i, len(a.T))
	return out, true
}
