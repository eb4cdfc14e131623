package catalog

import (
	"maps"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// View is a snapshot of the blocks of the hours that were read. It never changes and is safe for concurrent use.
type View struct {
	hours      map[timegrid.Hour]*hour
	expiry     Expiry
	unreadable []Problem // of the expiry record
	deltas     *deltas   // nil: none are known
	// records: see Config.
	records bool

	// order has the hours in order, also for views with other deltas; nil: they are sorted whenever they are asked for.
	order *hourOrder
}

// hourOrder is the hours of a view, sorted when they are first asked for: every query asks for the last one.
type hourOrder struct {
	once  sync.Once
	hours []timegrid.Hour
}

type slot struct {
	shard      shard.ID
	resolution timegrid.Resolution
}

// hour is what the listing and the records of one hour say.
type hour struct {
	listed []version       // every listed record, in key order
	blocks map[slot]*Block // the highest committed generation
	// ordered has the same blocks by resolution, ascending by shard.
	ordered map[timegrid.Resolution][]*Block
	// rolled has, for each of the raw ones in order, the block whose rows were made from the same plan, or nil; no entry for
	// a resolution that has none of them.
	rolled map[timegrid.Resolution][]*Block
	top    map[slot]uint64 // the highest generation with any record
	// committed is the highest generation that was ever committed; no entry when there is none.
	committed map[slot]uint64
	// expired resolutions have a slot whose highest committed generation retention removed.
	expired    map[timegrid.Resolution]bool
	unreadable []Problem
	// shards of the deployment, as the blocks record it.
	shards uint32
}

// version is what the listing said about a record.
type version struct {
	name Name
	etag string
	size int64
}

// Problem is a record that could not be used. As long as there is one, the highest generation of its slot is not
// known, and an answer from the view may lack data.
type Problem struct {
	Key string
	Err error
}

var emptyHour = &hour{}

func (v *View) at(h timegrid.Hour) *hour {
	if v != nil {
		if got := v.hours[h]; got != nil {
			return got
		}
	}
	return emptyHour
}

// Hours that have records, ascending.
func (v *View) Hours() []timegrid.Hour {
	if v == nil {
		return nil
	}
	return slices.Clone(v.inOrder())
}

// inOrder are the hours that have records, ascending; not to be changed.
func (v *View) inOrder() []timegrid.Hour {
	if v.order == nil {
		return slices.Sorted(maps.Keys(v.hours))
	}
	v.order.once.Do(func() { v.order.hours = slices.Sorted(maps.Keys(v.hours)) })
	return v.order.hours
}

// Last is the last hour that has records; false when there is none.
func (v *View) Last() (last timegrid.Hour, any bool) {
	if v == nil || len(v.hours) == 0 {
		return 0, false
	}
	hours := v.inOrder()
	return hours[len(hours)-1], true
}

// Any reports whether an hour of from..to has records.
func (v *View) Any(from, to timegrid.Hour) bool {
	if v == nil {
		return false
	}
	hours := v.inOrder()
	i, _ := slices.BinarySearch(hours, from)
	return i < len(hours) && hours[i] <= to
}

// Block is the highest committed generation; nil when there is none, or the hour has expired.
func (v *View) Block(h timegrid.Hour, s shard.ID, res timegrid.Resolution) *Block {
	if v.Expired(h, res) {
		return nil
	}
	return v.at(h).blocks[slot{s, res}]
}

// Blocks are the highest committed generations of all shards of an hour, by shard; none when
// the hour has expired.
func (v *View) Blocks(h timegrid.Hour, res timegrid.Resolution) []*Block {
	if v.Expired(h, res) {
		return nil
	}
	return slices.Clone(v.at(h).ordered[res])
}

// Rolled has, for each of Blocks of the raw resolution, the block of another whose rows were made from the same plan, or
// nil. It is nil when there are none. Rows of another plan lack batches that the samples have, or the other way round.
func (v *View) Rolled(h timegrid.Hour, res timegrid.Resolution) []*Block {
	if rolled := v.at(h).rolled[res]; rolled != nil && !v.Expired(h, res) && !v.Expired(h, timegrid.Raw) {
		return rolled
	}
	return nil
}

// HasBlocks reports whether Blocks returns any.
func (v *View) HasBlocks(h timegrid.Hour, res timegrid.Resolution) bool {
	return !v.Expired(h, res) && len(v.at(h).ordered[res]) > 0
}

// Expired reports whether the hour had rows in the resolution that have expired: by the decision of retention, or
// because blocks of some shard were removed. Either counts for all shards, since what is left of such an hour, or
// what late batches add to it, is no longer all that there was.
func (v *View) Expired(h timegrid.Hour, res timegrid.Resolution) bool {
	if v == nil || v.records {
		return false
	}
	hr := v.at(h)
	return hr.expired[res] || v.expiry.Covers(h, res) && hr.has(res)
}

// has reports whether anything was ever committed in the resolution.
func (hr *hour) has(res timegrid.Resolution) bool {
	for at := range hr.committed {
		if at.resolution == res {
			return true
		}
	}
	return false
}

// Empty reports whether nothing was ever committed of the hour, in any resolution.
func (v *View) Empty(h timegrid.Hour) bool { return len(v.at(h).committed) == 0 }

// StandIns returns the blocks of a resolution that together have rows for all samples of an expired hour: for
// every shard that had samples a generation that is at least as new as its raw one. It is false when a shard lacks
// one.
func (v *View) StandIns(h timegrid.Hour, res timegrid.Resolution) ([]*Block, bool) {
	hr := v.at(h)
	if res == timegrid.Raw || v.Expired(h, res) {
		return nil, false
	}
	for at, gen := range hr.committed {
		if at.resolution != timegrid.Raw {
			continue
		}
		// An older generation was made without the late batches of the raw one, so its rows would silently be
		// short.
		// One that was not rolled up has nothing that could stand in for samples.
		if s := hr.blocks[slot{at.shard, res}]; s == nil || s.Name.Generation < gen || s.Unrolled {
			return nil, false
		}
	}
	return slices.Clone(hr.ordered[res]), len(hr.ordered[res]) > 0
}

// sortByShard puts the blocks in order, and finds which of them belong together, once all are known.
func (hr *hour) sortByShard() {
	hr.ordered = map[timegrid.Resolution][]*Block{}
	for at, s := range hr.blocks {
		hr.ordered[at.resolution] = append(hr.ordered[at.resolution], s)
	}
	for _, blocks := range hr.ordered {
		slices.SortFunc(blocks, func(a, b *Block) int { return int(a.Name.Shard) - int(b.Name.Shard) })
	}
	hr.rolled = map[timegrid.Resolution][]*Block{}
	for i, raw := range hr.ordered[timegrid.Raw] {
		for _, res := range timegrid.Resolutions()[1:] {
			of := hr.blocks[slot{raw.Name.Shard, res}]
			if of == nil || of.Unrolled || of.Name.Generation != raw.Name.Generation || of.PlanSHA256 != raw.PlanSHA256 {
				continue
			}
			if hr.rolled[res] == nil {
				hr.rolled[res] = make([]*Block, len(hr.ordered[timegrid.Raw]))
			}
			hr.rolled[res][i] = of
		}
	}
}

// Top is the highest generation that has a record of any kind, 0 for none. The next one is free.
func (v *View) Top(h timegrid.Hour, s shard.ID, res timegrid.Resolution) uint64 {
	return v.at(h).top[slot{s, res}]
}

// Covers reports whether the batch's records in this hour are published in the resolution: it is an input of its
// shard's highest committed generation, or a delta has it, whose records are all raw. The expiry of the hour changes nothing: the raw blocks that
// were removed covered the same batches as the rolled ones, and the batch need not be read from elsewhere.
func (v *View) Covers(id identity.Batch, h timegrid.Hour, res timegrid.Resolution) bool {
	hr := v.at(h)
	// shards is 0 while no block of the hour was read; then there is nothing to find in any shard.
	s := hr.blocks[slot{shard.Of(id.Agent, max(hr.shards, 1)), res}]
	if s == nil && res == timegrid.Raw && hr.expired[res] {
		return v.RowsCover(id, h)
	}
	if s != nil && s.Inputs.Covers(id) {
		return true
	}
	// Where samples have expired only rows show them, and a delta has none.
	if res != timegrid.Raw || v.Expired(h, res) {
		return false
	}
	b, ok := v.late().batches[id]
	return ok && b.In(h)
}

// RowsCover reports whether the batch's records in this hour are in the rolled rows of every resolution that its
// shard has.
func (v *View) RowsCover(id identity.Batch, h timegrid.Hour) bool {
	hr, any := v.at(h), false
	for _, res := range timegrid.Resolutions()[1:] {
		if s := hr.blocks[slot{shard.Of(id.Agent, max(hr.shards, 1)), res}]; s != nil {
			if any = s.Inputs.Covers(id); !any {
				return false
			}
		}
	}
	return any
}

// Problems returns the records of an hour that could not be used.
func (v *View) Problems(h timegrid.Hour) []Problem {
	doubt := v.at(h).unreadable
	if bad := v.badDeltas(h); len(bad) > 0 || v != nil && len(v.unreadable) > 0 {
		return slices.Concat(doubt, v.unreadable, bad)
	}
	return doubt
}
