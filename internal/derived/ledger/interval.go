package ledger

import (
	"math"
	"slices"
	"sort"
)

// Range is a closed range of sequence numbers.
type Range struct {
	Start, End uint64
}

// Count is the number of sequence numbers in the range; MaxUint64 for the range of all, whose count does not fit.
func (r Range) Count() uint64 {
	n := r.End - r.Start
	if n == math.MaxUint64 {
		return n
	}
	return n + 1
}

// Contains reports whether o lies wholly in r.
func (r Range) Contains(o Range) bool { return r.Start <= o.Start && o.End <= r.End }

// Intersect is the intersection; false when it is empty.
func (r Range) Intersect(o Range) (Range, bool) {
	c := Range{max(r.Start, o.Start), min(r.End, o.End)}
	return c, c.Start <= c.End
}

// intervals is a sorted list of ranges that neither touch nor intersect.
type intervals []Range

// touching returns the indexes [i, j) of the ranges that intersect r or are adjacent to it.
func (s intervals) touching(r Range) (int, int) {
	i := sort.Search(len(s), func(k int) bool {
		return s[k].End >= r.Start || s[k].End+1 == r.Start // the first clause covers End == MaxUint64
	})
	j := i
	for j < len(s) && (s[j].Start <= r.End || s[j].Start-1 == r.End) {
		j++
	}
	return i, j
}

// from is the index of the first range that ends at seq or later.
func (s intervals) from(seq uint64) int {
	return sort.Search(len(s), func(k int) bool { return s[k].End >= seq })
}

// add merges r into the list.
func (s *intervals) add(r Range) {
	i, j := s.touching(r)
	if i == j {
		*s = slices.Insert(*s, i, r)
		return
	}
	(*s)[i] = Range{min(r.Start, (*s)[i].Start), max(r.End, (*s)[j-1].End)}
	*s = slices.Delete(*s, i+1, j)
}

// contains reports whether all of r is covered.
func (s intervals) contains(r Range) bool {
	i := s.from(r.Start)
	return i < len(s) && s[i].Contains(r)
}

// split returns the parts of r that are covered and those that are not, in order.
func (s intervals) split(r Range) (covered, missing []Range) {
	next := r.Start
	for i := s.from(r.Start); i < len(s) && s[i].Start <= r.End; i++ {
		c, _ := s[i].Intersect(r)
		if c.Start > next {
			missing = append(missing, Range{next, c.Start - 1})
		}
		covered = append(covered, c)
		if c.End == r.End {
			return covered, missing
		}
		next = c.End + 1 // c.End < r.End, so no overflow
	}
	return covered, append(missing, Range{next, r.End})
}

// count is the number of covered sequence numbers; MaxUint64 if it does not fit.
func (s intervals) count() uint64 {
	var n uint64
	for _, o := range s {
		c := o.Count()
		if n > math.MaxUint64-c {
			return math.MaxUint64
		}
		n += c
	}
	return n
}
