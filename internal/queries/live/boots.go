package live

import (
	"cmp"
	"slices"
	"sort"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// bootIndex has the known identities of one boot by (SeqStart, SeqEnd).
type bootIndex struct {
	boot    identity.Boot
	batches []*batch
	// longest is the greatest number of records of an identity so far: how far before a sequence number an
	// identity that covers it can start. It never shrinks; too large only costs time.
	longest uint64
}

func compareRange(a, b *batch) int {
	return cmp.Or(cmp.Compare(a.Identity.SeqStart, b.Identity.SeqStart), cmp.Compare(a.Identity.SeqEnd, b.Identity.SeqEnd))
}

func (x *bootIndex) add(b *batch) {
	i, _ := slices.BinarySearchFunc(x.batches, b, compareRange)
	x.batches = slices.Insert(x.batches, i, b)
	x.longest = max(x.longest, b.Identity.Count())
}

func (x *bootIndex) remove(b *batch) {
	if i, ok := slices.BinarySearchFunc(x.batches, b, compareRange); ok {
		x.batches = slices.Delete(x.batches, i, i+1)
	}
}

func (x *bootIndex) find(start, end uint64) *batch {
	i := sort.Search(len(x.batches), func(i int) bool {
		id := x.batches[i].Identity
		return id.SeqStart > start || id.SeqStart == start && id.SeqEnd >= end
	})
	if i < len(x.batches) {
		if id := x.batches[i].Identity; id.SeqStart == start && id.SeqEnd == end {
			return x.batches[i]
		}
	}
	return nil
}

// intersecting calls fn for every other identity that shares a sequence number with b.
func (x *bootIndex) intersecting(b *batch, fn func(*batch)) {
	from := uint64(0)
	// Identities are sorted by their start. One that reaches into b begins before it by at most the number
	// of records of the longest.
	if b.Identity.SeqStart > x.longest {
		from = b.Identity.SeqStart - x.longest
	}
	i := sort.Search(len(x.batches), func(i int) bool { return x.batches[i].Identity.SeqStart >= from })
	for ; i < len(x.batches) && x.batches[i].Identity.SeqStart <= b.Identity.SeqEnd; i++ {
		if o := x.batches[i]; o != b && o.Identity.SeqEnd >= b.Identity.SeqStart {
			fn(o)
		}
	}
}
