package claims

import (
	"fmt"
	"slices"
	"sort"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// stored is a claim as the store has it.
type stored struct {
	Claim
	created, modified int64
}

// view is what a Group knows of a boot. It may be old: whatever is decided by it is guarded by the revisions that it was
// decided by.
type view struct {
	boot identity.Boot
	// claims by their start; none intersects another.
	claims []stored
	// heads that have what is folded; headsAt is their revision, 0 where the store knows of none.
	heads   Heads
	above   uint64
	headsAt int64
	// forgotten is the revision at which heads of this boot, or of another one, were forgotten last.
	forgotten int64
	// more: there are further claims behind these, of which nothing is known.
	more bool
}

// knows reports whether what stands in the way of id, if anything, is in the view.
func (v *view) knows(id identity.Batch) bool {
	return !v.more || id.SeqEnd <= v.claims[len(v.claims)-1].Identity.SeqEnd
}

// reads are what a view is made from: the order is that of load.
func reads(k *bootKeys, most int) []Range {
	return []Range{{From: k.heads}, {From: k.forgotten}, {From: k.from, End: k.end, Limit: int64(most) + 1}}
}

// load makes a view of what reads gave. Errors wrap ErrEpoch, ErrCorrupt or ErrNewer.
func load(k *bootKeys, epoch uint64, most int, got [][]Entry) (*view, error) {
	b := k.boot
	if len(got) != 3 {
		return nil, fmt.Errorf("%w: the store read %d ranges, not 3", ErrCorrupt, len(got))
	}
	v := &view{boot: b}
	for _, e := range got[0] {
		h, above, err := ParseHeads(b, e.Value)
		if err != nil {
			return nil, err
		}
		v.heads, v.above, v.headsAt = h, above, e.Modified
	}
	for _, e := range got[1] {
		v.forgotten = e.Modified
	}
	found := got[2]
	if v.more = len(found) > most; v.more {
		found = found[:most]
	}
	for _, e := range found {
		of, start, err := k.ParseClaim(e.Key)
		if err != nil || of != b {
			return nil, fmt.Errorf("%w: key %q among those of boot %s", ErrCorrupt, e.Key, b)
		}
		c, err := ParseClaim(b, start, e.Value)
		if err != nil {
			return nil, err
		}
		// A recovery writes every claim again. One of another epoch was written by somebody who does not know of it.
		if c.Stamp.Epoch != epoch {
			return nil, fmt.Errorf("%w: claim %s in the store is of epoch %d, the linearizer is in %d", ErrEpoch, c.Identity, c.Stamp.Epoch, epoch)
		}
		// The revision of a claim's key is its fence until it is durable.
		if c.State == Claimed {
			c.Stamp.Fence = uint64(e.Modified)
		}
		if n := len(v.claims); n > 0 && v.claims[n-1].Identity.SeqEnd >= start {
			return nil, fmt.Errorf("%w: claims %s and %s intersect", ErrCorrupt, v.claims[n-1].Identity, c.Identity)
		}
		v.claims = append(v.claims, stored{c, e.Created, e.Modified})
	}
	return v, nil
}

// from is the index of the first claim that ends at start or later.
func (v *view) from(start uint64) int {
	return sort.Search(len(v.claims), func(i int) bool { return v.claims[i].Identity.SeqEnd >= start })
}

// intersecting are the claims that share a sequence number with id.
func (v *view) intersecting(id identity.Batch) []stored {
	i := v.from(id.SeqStart)
	j := i
	for j < len(v.claims) && v.claims[j].Identity.SeqStart <= id.SeqEnd {
		j++
	}
	return v.claims[i:j]
}

// find gives the claim that begins at start.
func (v *view) find(start uint64) (int, bool) {
	return slices.BinarySearchFunc(v.claims, start, func(s stored, at uint64) int {
		switch {
		case s.Identity.SeqStart < at:
			return -1
		case s.Identity.SeqStart > at:
			return 1
		}
		return 0
	})
}

// weight is about the view's bytes in memory.
func (v *view) weight() int64 {
	return int64(256 + len(v.boot.Agent) + len(v.boot.Boot) + 256*len(v.claims) + 40*len(v.heads))
}

// folds is what the store knows of the boot's folds, at a revision of an epoch.
func (v *view) folds(epoch uint64, revision int64) Folds {
	return Folds{Heads: v.heads, Above: v.above, Modified: v.headsAt, Forgotten: v.forgotten, At: revision, Epoch: epoch}
}
