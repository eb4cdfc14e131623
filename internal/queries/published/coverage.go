package published

import (
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// coverage caches the ranges of boots.
type coverage struct {
	mu sync.Mutex
	at map[bootHour][]ledger.Range
}

type bootHour struct {
	boot identity.Boot
	hour timegrid.Hour
}

// Covered returns the sequence numbers that the raw block of the hour counts, or a delta: a live.Coverage. It is empty for
// hours that the query has not pinned; readers pin an hour first. In an hour whose samples have expired everything
// is covered: no sample of it is shown.
func (q *Query) Covered(boot identity.Boot, h timegrid.Hour) []ledger.Range {
	v := q.view(h)
	if v == nil {
		return nil
	}
	if v.Expired(h, timegrid.Raw) {
		return everything
	}
	c := &q.ranges
	c.mu.Lock()
	defer c.mu.Unlock()
	at := bootHour{boot, h}
	// The engine asks for every series of the boot, so the answer is kept for the whole query.
	if rs, ok := c.at[at]; ok {
		return rs
	}
	var rs []ledger.Range
	// An agent belongs to one shard, so no other block of the hour can have its batches.
	if s := v.Block(h, shard.Of(boot.Agent, q.shards), timegrid.Raw); s != nil {
		rs = rangesOf(s, boot)
	}
	// What deltas have is read from them; a number that a block has as well counts there.
	if late := q.lateRanges(boot, h); len(late) > 0 {
		rs = joinRanges(append(slices.Clone(rs), late...))
	}
	if c.at == nil {
		c.at = map[bootHour][]ledger.Range{}
	}
	c.at[at] = rs
	return rs
}

// CoversHour is false if Covered is empty for all boots.
func (q *Query) CoversHour(h timegrid.Hour) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	v := q.hours[h]
	return v != nil && (v.Expired(h, timegrid.Raw) || v.HasBlocks(h, timegrid.Raw) || len(q.late[h]) > 0)
}

// rangesOf returns the sequence numbers of a boot's inputs, ascending and disjoint.
func rangesOf(s *catalog.Block, boot identity.Boot) []ledger.Range {
	boots := s.Inputs.Boots()
	i, ok := slices.BinarySearchFunc(boots, boot, func(b catalog.BootInputs, want identity.Boot) int {
		return identity.Boot{Agent: b.Agent, Boot: b.Boot}.Compare(want)
	})
	if !ok {
		return nil
	}
	var out []ledger.Range
	for _, r := range boots[i].Runs {
		end := r.Start + (r.Records*r.Batches - 1)
		// Adjacent batches are one range; a hole between batches stays open, since it may be filled from memory.
		if n := len(out); n > 0 && (r.Start <= out[n-1].End || r.Start == out[n-1].End+1) {
			out[n-1].End = max(out[n-1].End, end)
			continue
		}
		out = append(out, ledger.Range{Start: r.Start, End: end})
	}
	return out
}
