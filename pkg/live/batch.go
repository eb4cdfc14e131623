package live

import (
	"cmp"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/pkg/window"
)

// batch is one accepted identity: with columns, or a ghost that only holds its
// sequence numbers (not readable, or evicted for memory).
type batch struct {
	Accepted
	maxT int64 // of the samples, milliseconds
	// hours that have samples, ascending; nil for a ghost that never had columns.
	hours []window.Hour
	late  bool // kept although it lies before the history window
	added uint64
	// removed is the version that evicted its columns; 0 while they are there.
	removed atomic.Uint64
	shape   *shape // nil for a ghost that never had columns
	bytes   int64
	// rivals won some of the sequence numbers. Replaced, never changed, under the store's lock.
	rivals atomic.Pointer[[]rival]
	heapAt int // index in its heap
}

// rival is a range that another identity has won, since a version.
type rival struct {
	start, end uint64
	since      uint64
}

// wins reports whether b counts the sequence numbers that both cover.
func (b *batch) wins(o *batch) bool {
	return cmp.Or(cmp.Compare(b.AcceptedAt, o.AcceptedAt), b.Identity.Compare(o.Identity)) < 0
}

func (b *batch) visible(version uint64) bool {
	r := b.removed.Load()
	return b.added <= version && (r == 0 || r > version)
}

// masked reports whether another identity has won seq.
func (b *batch) masked(seq, version uint64) bool {
	rs := b.rivals.Load()
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

func (b *batch) addRival(o *batch, version uint64) {
	var rs []rival
	if p := b.rivals.Load(); p != nil {
		rs = append(rs, *p...)
	}
	rs = append(rs, rival{o.Identity.SeqStart, o.Identity.SeqEnd, version})
	b.rivals.Store(&rs)
}

// byAge is a heap of batches, the oldest sample time first.
type byAge []*batch

func (h byAge) Len() int           { return len(h) }
func (h byAge) Less(i, j int) bool { return h[i].maxT < h[j].maxT }
func (h byAge) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i, j
}
func (h *byAge) Push(x any) {
	b := x.(*batch)
	b.heapAt = len(*h)
	*h = append(*h, b)
}
func (h *byAge) Pop() any {
	old := *h
	b := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return b
}
