// Package placement says on which places the files of a body should be. It knows nothing but names and sizes, so that those who
// write bodies and those who move their files later come to the same answer.
package placement

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"
)

// Candidate is a place that files may be put on.
type Candidate struct {
	Name string
	// Weight is the room of the place as Adopt gives it, bytes; 0: it is not known, which counts as much as the largest
	// that is.
	Weight int64
}

// Order gives the indexes of places in the order in which a body is kept on them: weighted rendezvous hashing. Each body has an
// order of its own, and a place comes first for a share of the bodies that is its share of the weights. A place that comes or
// goes, or whose weight changes, moves only files that are, or were, on it. It is by name: a drive that replaces another of the
// same size gets the same files. Places of equal weights are in the order of their hashes.
func Order(body string, places []Candidate) []int {
	largest := int64(1)
	for _, c := range places {
		largest = max(largest, c.Weight)
	}
	type ranked struct {
		index int
		hash  uint64
		wait  float64
	}
	list := make([]ranked, len(places))
	for i, c := range places {
		w := c.Weight
		if w <= 0 {
			w = largest
		}
		h := xxh3.HashString(body + c.Name)
		// The hash is a number in [0, 1), -ln(1-h) has the exponential distribution, and of several such times, divided by
		// weights, each is the first with the probability of its weight's share.
		list[i] = ranked{i, h, -math.Log1p(-float64(h)/(1<<64)) / float64(w)}
	}
	slices.SortFunc(list, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.wait, b.wait), cmp.Compare(a.hash, b.hash), cmp.Compare(places[a.index].Name, places[b.index].Name))
	})
	order := make([]int, len(list))
	for i, r := range list {
		order[i] = r.index
	}
	return order
}

// Adopt gives the weight of a place with room for so many bytes, its own files included, given the weight that it had; 0: it had
// none. Files are moved when weights change, so a weight stays while the room is within a quarter of it, and drives of nearly the
// same size have the same weight: it is the room in three binary digits.
func Adopt(before, room int64) int64 {
	if room <= 0 {
		return before
	}
	if before > 0 && room <= before+before/4 && room >= before-before/4 {
		return before
	}
	unit := int64(1) << max(bits.Len64(uint64(room))-3, 0)
	return room / unit * unit
}

// Full reports whether a place takes no more files, given whether it took none before. reserve is what stays free on every place.
// A place that was full takes files again only with twice that: otherwise each file that is removed would bring another.
func Full(before bool, free, room, reserve int64) bool {
	if free < 0 {
		return false
	}
	margin := max(reserve, min(room/marginShare, largestMargin))
	if before {
		margin *= 2
	}
	return free < margin
}

const (
	// marginShare of a place stays free: what is on it is looked at now and then, and workers write meanwhile.
	marginShare   = 128
	largestMargin = 8 << 30
)
