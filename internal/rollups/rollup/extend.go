package rollup

import (
	"cmp"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Losses returns, for each of the fresh inputs, the sequence numbers that an old or another fresh one has won, as Lost
// does. It is true when no fresh input wins a number that an old one has. Then the raw series of all are those of
// the old plus those of the fresh without these numbers (Builder.Lose, Extend), and their counts add up.
func Losses(old, fresh []accepted.Claim) ([][]ledger.Range, bool) {
	together := Lost(slices.Concat(old, fresh))
	same := slices.EqualFunc(Lost(old), together[:len(old)], func(a, b []ledger.Range) bool { return slices.Equal(join(a), join(b)) })
	return together[len(old):], same
}

// join makes one range of those that touch: the same numbers may be lost to one input or to several.
func join(ranges []ledger.Range) (out []ledger.Range) {
	for _, r := range ranges {
		if n := len(out); n > 0 && out[n-1].End+1 == r.Start {
			out[n-1].End = r.End
			continue
		}
		out = append(out, r)
	}
	return out
}

// Winners returns the indices of the fresh inputs that win a sequence number that an old one has.
func Winners(old, fresh []accepted.Claim) (out []int) {
	boots := map[identity.Boot][]accepted.Claim{}
	for _, o := range old {
		boots[o.Identity.BootOf()] = append(boots[o.Identity.BootOf()], o)
	}
	for i, f := range fresh {
		// Who had a number that f has is among those that share numbers with it.
		var of []accepted.Claim
		for _, o := range boots[f.Identity.BootOf()] {
			if o.Identity.Intersects(f.Identity) {
				of = append(of, o)
			}
		}
		if _, ok := Losses(of, fresh[i:i+1]); !ok {
			out = append(out, i)
		}
	}
	return out
}

// Extend adds the raw series of fresh inputs to those of the previous generation, both in the order of Finish. It
// changes neither. It gives nothing but the series where both have a record of one time: which of them counts can
// only be decided from the frames.
func Extend(old, fresh []chunk.Series) (all []chunk.Series, both *chunk.Series) {
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
				return nil, &old[0]
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
	return out, nil
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
