package late

import (
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/overlaps"
)

// Policy is the settings of deltas.
type Policy struct {
	// FoldAfter is how long a late batch is in a delta at most, before a new generation of its hours has it. 0 makes no
	// deltas.
	FoldAfter time.Duration
	// FirstAfter is when the first generation of an hour is made that has what is not late.
	FirstAfter time.Duration
	// RawKept is how long after their end the samples of an hour are kept, 0 for ever.
	RawKept time.Duration
}

const (
	// foldShare: an hour is folded when the late batches have one part in so many of the bytes of its raw block, and
	// foldBytes at least: a small hour is as cheap to read with its deltas as without.
	foldShare = 4
	foldBytes = 64 << 10
	// maxHeld bounds the bytes of the batches in deltas, and maxBatches those of one hour: a query reads them all.
	maxHeld    = 64 << 20
	maxBatches = 1000
)

// Defers reports whether the pending batches of an hour go into a delta, and the hour's next generation is made
// later. in is what the hour lacks and no delta has. The hour must have been published as a whole at all resolutions, of its
// own time; what is late must be little; and no record number may be in question, since only a generation decides
// that.
func (p Policy) Defers(b *Book, h timegrid.Hour, st *hour.State, in []accepted.Batch, now time.Time) bool {
	if p.FoldAfter == 0 || len(in) == 0 || !Published(st) {
		return false
	}
	raw := st.Blocks[timegrid.Raw]
	// One that was made before its hour was over lacks most of the hour, and what comes at the hour's end is not late.
	if time.Unix(0, raw.CreatedAt).Before(h.End().Add(p.FirstAfter)) {
		return false
	}
	// Rolled rows must have everything when the samples expire.
	if p.RawKept > 0 && h.End().Add(p.RawKept).Before(now.Add(2*p.FoldAfter)) {
		return false
	}
	var bytes, frames uint64
	for i := range in {
		e := &in[i]
		first, last := e.Hours()
		if last-first >= delta.MaxBatchHours || !now.Before(time.Unix(0, e.AcceptedAt).Add(p.FoldAfter)) {
			return false
		}
		frames += e.FrameBytes
		bytes += e.FrameBytes/uint64(last-first+1) + 1
	}
	n := len(in)
	if w := b.hours[h]; w != nil {
		bytes += w.bytes
		n += len(w.ids)
	}
	limit := max(foldBytes, rawBytes(st)/foldShare)
	return n <= maxBatches && bytes <= limit && b.bytes+frames <= maxHeld && !overlap(b, in, raw.Inputs)
}

// Published reports whether all resolutions of the hour have a block of one generation, and nothing above it is
// under way or in doubt.
func Published(st *hour.State) bool {
	if st.Unfinished() || len(st.Damaged) > 0 {
		return false
	}
	raw := st.Blocks[timegrid.Raw]
	for _, res := range timegrid.Resolutions() {
		b := st.Blocks[res]
		if b == nil || raw == nil || b.Name.Generation != raw.Name.Generation || b.PlanSHA256 != raw.PlanSHA256 {
			return false
		}
	}
	return true
}

// rawBytes is about the size of the samples of the hour.
func rawBytes(st *hour.State) (n uint64) {
	raw := st.Blocks[timegrid.Raw]
	for _, o := range raw.Objects {
		n += o.ChunkBytes + o.IndexBytes
	}
	if raw.Redirect != nil {
		n = raw.Counts.Samples // about a byte each, in a compaction
	}
	return n
}

// overlap reports whether one of the batches shares record numbers with another, with an input of the block or with
// a batch in a delta.
func overlap(b *Book, in []accepted.Batch, published catalog.Inputs) bool {
	for i := range in {
		id := in[i].Identity
		// In the order of identities two overlap only if some neighbours do.
		if i > 0 && in[i-1].Intersects(id) || len(b.Overlapping(id)) > 0 || len(overlaps.InBlock(published, id)) > 0 {
			return true
		}
	}
	return false
}
