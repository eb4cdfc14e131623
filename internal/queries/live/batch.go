package live

import (
	"slices"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// batch is one accepted identity: with columns, or as a placeholder that only holds its sequence numbers (not
// readable, or evicted for memory).
type batch struct {
	accepted.Claim
	sha        identity.Digest
	minT, maxT int64 // of the samples, milliseconds
	// hours that have samples, ascending; nil for a placeholder that never had columns.
	hours []timegrid.Hour
	late  bool // kept although it lies before the history window
	added uint64
	// removed is the version that evicted its columns; 0 while they are there.
	removed atomic.Uint64
	shape   *shape // nil for a placeholder that never had columns
	agent   *agent // charged for the batch while it has columns
	bytes   int64
	// overlaps are the sequence numbers that other identities have won. Under the store's lock it is replaced,
	// never changed, so that readers need no lock.
	overlaps atomic.Pointer[[]overlap]
	at       [slots]int32 // index in each heap
}

// overlap is a range that another identity has won, since a version.
type overlap struct {
	start, end uint64
	since      uint64
}

// visible reports whether a snapshot of the version sees the batch's columns.
func (b *batch) visible(version uint64) bool {
	r := b.removed.Load()
	return b.added <= version && (r == 0 || r > version)
}

// masked reports whether another identity has won seq.
func (b *batch) masked(seq, version uint64) bool {
	rs := b.overlaps.Load()
	if rs == nil {
		return false
	}
	for _, r := range *rs {
		if r.since <= version && r.start <= seq && seq <= r.end {
			return true
		}
	}
	return false
}

// unmasked says how much of the batch other identities have not won.
func (b *batch) unmasked(version uint64) share {
	rs := b.overlaps.Load()
	if rs == nil {
		return everything
	}
	out := everything
	for _, r := range *rs {
		switch {
		case r.since > version:
		case r.start <= b.Identity.SeqStart && b.Identity.SeqEnd <= r.end:
			return nothing
		default:
			out = something
		}
	}
	return out
}

// addOverlap masks what o has won of b. Adjacent ranges become one, unless an open snapshot must tell their
// versions apart: many identities over one range must not cost memory by the square of their number.
func (b *batch) addOverlap(o *batch, version uint64, snapshots bool) {
	won := overlap{max(o.Identity.SeqStart, b.Identity.SeqStart), min(o.Identity.SeqEnd, b.Identity.SeqEnd), version}
	var rs []overlap
	if p := b.overlaps.Load(); p != nil {
		for _, r := range *p {
			// It is masked already, since an earlier version.
			if r.start <= won.start && won.end <= r.end {
				return
			}
		}
		rs = slices.Clone(*p)
	}
	if !snapshots {
		rs = slices.DeleteFunc(rs, func(r overlap) bool {
			// Written with subtractions, as end+1 would overflow at the greatest sequence number.
			if r.start > won.end && r.start-won.end > 1 || won.start > r.end && won.start-r.end > 1 {
				return false
			}
			won.start, won.end = min(won.start, r.start), max(won.end, r.end)
			return true
		})
	}
	rs = append(rs, won)
	b.overlaps.Store(&rs)
}

func (b *batch) overlapBytes() int64 {
	if p := b.overlaps.Load(); p != nil {
		return overlapOverhead + int64(len(*p))*overlapSize
	}
	return 0
}

// Heaps that a batch may be in, one of each slot.
const (
	slotRole   = iota // with columns, late, or placeholder
	slotNewest        // with columns
	slotAgent         // of its agent, with columns
	slots
)

// batchHeap has the batch that goes first on top, and keeps each batch's index for removal.
type batchHeap struct {
	list   []*batch
	slot   int
	before func(a, b *batch) bool
}

func older(a, b *batch) bool { return a.maxT < b.maxT }
func newer(a, b *batch) bool { return a.maxT > b.maxT }

func (h *batchHeap) top() *batch        { return h.list[0] }
func (h *batchHeap) Len() int           { return len(h.list) }
func (h *batchHeap) Less(i, j int) bool { return h.before(h.list[i], h.list[j]) }
func (h *batchHeap) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].at[h.slot], h.list[j].at[h.slot] = int32(i), int32(j)
}
func (h *batchHeap) Push(x any) {
	b := x.(*batch)
	b.at[h.slot] = int32(len(h.list))
	h.list = append(h.list, b)
}
func (h *batchHeap) Pop() any {
	n := len(h.list) - 1
	b := h.list[n]
	h.list[n] = nil
	h.list = h.list[:n]
	return b
}
