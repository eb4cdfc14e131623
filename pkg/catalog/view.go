package catalog

import (
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// View is a snapshot of the published sets of the hours that were read. It never
// changes and is safe for concurrent use.
type View struct {
	hours  map[window.Hour]*hour
	expiry Expiry
	doubt  []Problem // of what has expired
	// records: see Config.
	records bool
}

type slot struct {
	shard  shard.ID
	window window.Window
}

// hour is what one hour's listing and records say.
type hour struct {
	listed []version     // every listed record, in key order
	sets   map[slot]*Set // the highest committed generation
	// ordered has them by window, ascending by shard.
	ordered map[window.Window][]*Set
	top     map[slot]uint64 // the highest generation with any record
	// committed is the highest generation that was ever committed; no entry when there is none.
	committed map[slot]uint64
	// expired windows have a slot whose highest committed generation retention removed.
	expired map[window.Window]bool
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

func (v *View) at(h window.Hour) *hour {
	if v != nil {
		if got := v.hours[h]; got != nil {
			return got
		}
	}
	return nothing
}

// Hours that have records, ascending.
func (v *View) Hours() []window.Hour {
	if v == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(v.hours))
}

// Set is the highest committed generation; nil when there is none, or the hour has expired.
func (v *View) Set(h window.Hour, s shard.ID, w window.Window) *Set {
	if v.Expired(h, w) {
		return nil
	}
	return v.at(h).sets[slot{s, w}]
}

// Sets are the highest committed generations of all shards of an hour, by shard; none when
// the hour has expired.
func (v *View) Sets(h window.Hour, w window.Window) []*Set {
	if v.Expired(h, w) {
		return nil
	}
	return slices.Clone(v.at(h).ordered[w])
}

// Expired reports whether rows of the hour were published in the window and are over: by
// the decision of retention, or since the sets of some shard were removed. Either counts
// for all shards: what is left of such an hour, or is made of it by late batches, is not
// what there was.
func (v *View) Expired(h window.Hour, w window.Window) bool {
	if v == nil || v.records {
		return false
	}
	hr := v.at(h)
	return hr.expired[w] || v.expiry.Covers(h, w) && hr.has(w)
}

// has reports whether anything was ever committed in the window.
func (hr *hour) has(w window.Window) bool {
	for at := range hr.committed {
		if at.window == w {
			return true
		}
	}
	return false
}

// Empty reports whether nothing was ever committed of the hour, in any window.
func (v *View) Empty(h window.Hour) bool { return len(v.at(h).committed) == 0 }

// Instead gives the sets of a window that have rows for all samples of an expired hour:
// of every shard that had samples, a generation that is not older. False when there are none.
func (v *View) Instead(h window.Hour, w window.Window) ([]*Set, bool) {
	hr := v.at(h)
	if w == window.Raw || v.Expired(h, w) {
		return nil, false
	}
	for at, gen := range hr.committed {
		if at.window != window.Raw {
			continue
		}
		if s := hr.sets[slot{at.shard, w}]; s == nil || s.Name.Generation < gen {
			return nil, false
		}
	}
	return slices.Clone(hr.ordered[w]), len(hr.ordered[w]) > 0
}

// byShard puts the sets in order, once they are known.
func (hr *hour) byShard() {
	hr.ordered = map[window.Window][]*Set{}
	for at, s := range hr.sets {
		hr.ordered[at.window] = append(hr.ordered[at.window], s)
	}
	for _, sets := range hr.ordered {
		slices.SortFunc(sets, func(a, b *Set) int { return int(a.Name.Shard) - int(b.Name.Shard) })
	}
}

// Top is the highest generation that has a record of any kind, 0 for none. The next one is free.
func (v *View) Top(h window.Hour, s shard.ID, w window.Window) uint64 { return v.at(h).top[slot{s, w}] }

// Covers reports whether the records of the batch in this hour are in the published
// chunks of the window: it is an input of its shard's highest committed generation. The
// expiry of the hour changes nothing, since nobody needs the batch from elsewhere: raw sets
// that were removed have covered what the rolled ones do.
func (v *View) Covers(id identity.Batch, h window.Hour, w window.Window) bool {
	hr := v.at(h)
	s := hr.sets[slot{shard.Of(id.Agent, max(hr.shards, 1)), w}]
	if s == nil && w == window.Raw && hr.expired[w] {
		return v.RowsCover(id, h)
	}
	return s != nil && s.Inputs.Covers(id)
}

// RowsCover reports whether the records of the batch in this hour are in the rolled rows
// of every window that its shard has.
func (v *View) RowsCover(id identity.Batch, h window.Hour) bool {
	hr, any := v.at(h), false
	for _, w := range window.All()[1:] {
		if s := hr.sets[slot{shard.Of(id.Agent, max(hr.shards, 1)), w}]; s != nil {
			if any = s.Inputs.Covers(id); !any {
				return false
			}
		}
	}
	return any
}

// Problems of an hour: records that could not be used.
func (v *View) Problems(h window.Hour) []Problem {
	doubt := v.at(h).doubt
	if v != nil && len(v.doubt) > 0 {
		return slices.Concat(doubt, v.doubt)
	}
	return doubt
}
