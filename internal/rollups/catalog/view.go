package catalog

import (
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// View is a snapshot of the blocks of the hours that were read. It never
// changes and is safe for concurrent use.
type View struct {
	hours  map[timegrid.Hour]*hour
	expiry Expiry
	doubt  []Problem // of what has expired
	// records: see Config.
	records bool
}

type slot struct {
	shard      shard.ID
	resolution timegrid.Resolution
}

// hour is what one hour's listing and records say.
type hour struct {
	listed []version       // every listed record, in key order
	sets   map[slot]*Block // the highest committed generation
	// ordered has them by resolution, ascending by shard.
	ordered map[timegrid.Resolution][]*Block
	top     map[slot]uint64 // the highest generation with any record
	// committed is the highest generation that was ever committed; no entry when there is none.
	committed map[slot]uint64
	// expired resolutions have a slot whose highest committed generation retention removed.
	expired map[timegrid.Resolution]bool
	doubt   []Problem
	// shards of the deployment, as the sets say.
	shards uint32
}

// version is what the listing said of a record.
type version struct {
	name Name
	etag string
	size int64
}

// Problem is a record that could not be used. While there is one, the highest
// generation of its slot is not known, and an answer from the view may lack data.
type Problem struct {
	Key string
	Err error
}

var nothing = &hour{}

func (v *View) at(h timegrid.Hour) *hour {
	if v != nil {
		if got := v.hours[h]; got != nil {
			return got
		}
	}
	return nothing
}

// Hours that have records, ascending.
func (v *View) Hours() []timegrid.Hour {
	if v == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(v.hours))
}

// Set is the highest committed generation; nil when there is none, or the hour has expired.
func (v *View) Block(h timegrid.Hour, s shard.ID, res timegrid.Resolution) *Block {
	if v.Expired(h, res) {
		return nil
	}
	return v.at(h).sets[slot{s, res}]
}

// Sets are the highest committed generations of all shards of an hour, by shard; none when
// the hour has expired.
func (v *View) Blocks(h timegrid.Hour, res timegrid.Resolution) []*Block {
	if v.Expired(h, res) {
		return nil
	}
	return slices.Clone(v.at(h).ordered[res])
}

// Expired reports whether rows of the hour were published in the resolution and are over: by
// the decision of retention, or since the sets of some shard were removed. Either counts
// for all shards: what is left of such an hour, or is made of it by late batches, is not
// what there was.
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

// Instead gives the sets of a resolution that have rows for all samples of an expired hour:
// of every shard that had samples, a generation that is not older. False when there are none.
func (v *View) Instead(h timegrid.Hour, res timegrid.Resolution) ([]*Block, bool) {
	hr := v.at(h)
	if res == timegrid.Raw || v.Expired(h, res) {
		return nil, false
	}
	for at, gen := range hr.committed {
		if at.resolution != timegrid.Raw {
			continue
		}
		if s := hr.sets[slot{at.shard, res}]; s == nil || s.Name.Generation < gen {
			return nil, false
		}
	}
	return slices.Clone(hr.ordered[res]), len(hr.ordered[res]) > 0
}

// byShard puts the sets in order, once they are known.
func (hr *hour) byShard() {
	hr.ordered = map[timegrid.Resolution][]*Block{}
	for at, s := range hr.sets {
		hr.ordered[at.resolution] = append(hr.ordered[at.resolution], s)
	}
	for _, blocks := range hr.ordered {
		slices.SortFunc(blocks, func(a, b *Block) int { return int(a.Name.Shard) - int(b.Name.Shard) })
	}
}

// Top is the highest generation that has a record of any kind, 0 for none. The next one is free.
func (v *View) Top(h timegrid.Hour, s shard.ID, res timegrid.Resolution) uint64 {
	return v.at(h).top[slot{s, res}]
}

// Covers reports whether the records of the batch in this hour are in the published
// chunks of the resolution: it is an input of its shard's highest committed generation. The
// expiry of the hour changes nothing, since nobody needs the batch from elsewhere: raw sets
// that were removed have covered what the rolled ones do.
func (v *View) Covers(id identity.Batch, h timegrid.Hour, res timegrid.Resolution) bool {
	hr := v.at(h)
	s := hr.sets[slot{shard.Of(id.Agent, max(hr.shards, 1)), res}]
	if s == nil && res == timegrid.Raw && hr.expired[res] {
		return v.RowsCover(id, h)
	}
	return s != nil && s.Inputs.Covers(id)
}

// RowsCover reports whether the records of the batch in this hour are in the rolled rows
// of every resolution that its shard has.
func (v *View) RowsCover(id identity.Batch, h timegrid.Hour) bool {
	hr, any := v.at(h), false
	for _, res := range timegrid.Resolutions()[1:] {
		if s := hr.sets[slot{shard.Of(id.Agent, max(hr.shards, 1)), res}]; s != nil {
			if any = s.Inputs.Covers(id); !any {
				return false
			}
		}
	}
	return any
}

// Problems of an hour: records that could not be used.
func (v *View) Problems(h timegrid.Hour) []Problem {
	doubt := v.at(h).doubt
	if v != nil && len(v.doubt) > 0 {
		return slices.Concat(doubt, v.doubt)
	}
	return doubt
}
