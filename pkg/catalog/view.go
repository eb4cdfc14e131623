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
	hours map[window.Hour]*hour
}

type slot struct {
	shard  shard.ID
	window window.Window
}

// hour is what one hour's listing and records say.
type hour struct {
	seen map[string]seen // every listed record
	sets map[slot]*Set   // the highest committed generation
	// ordered has them by window, ascending by shard.
	ordered map[window.Window][]*Set
	top     map[slot]uint64 // the highest generation with any record
	// closed slots have met the highest generation that was ever committed.
	closed map[slot]bool
	doubt  []Problem
	// shards of the deployment, as the sets say.
	shards uint32
}

// seen is what the listing said of a record, and what it is when it was read.
type seen struct {
	name   Name
	etag   string
	size   int64
	record *Record // nil: not read, since a higher generation is committed
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

// Set is the highest committed generation; nil when there is none.
func (v *View) Set(h window.Hour, s shard.ID, w window.Window) *Set { return v.at(h).sets[slot{s, w}] }

// Sets are the highest committed generations of all shards of an hour, by shard.
func (v *View) Sets(h window.Hour, w window.Window) []*Set {
	return slices.Clone(v.at(h).ordered[w])
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
// chunks of the window: it is an input of its shard's highest committed generation.
func (v *View) Covers(id identity.Batch, h window.Hour, w window.Window) bool {
	hr := v.at(h)
	s := hr.sets[slot{shard.Of(id.Agent, max(hr.shards, 1)), w}]
	return s != nil && s.Inputs.Covers(id)
}

// Problems of an hour: records that could not be used.
func (v *View) Problems(h window.Hour) []Problem { return v.at(h).doubt }
