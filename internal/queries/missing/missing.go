// Package missing counts batches that answers lack, by hours of sample time and by shards, so that an answer can say
// what is missing at a cost that grows with hours and shards and not with batches. It is pure, and not safe for
// concurrent use.
package missing

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// NoShard is the shard of a batch while it is not known how many shards there are.
const NoShard = ^uint32(0)

// Bounds of a Summary.
const (
	MaxHours  = 20
	MaxShards = 20
)

// Summary says what is missing of a range.
type Summary struct {
	// Batches that have samples in the hours of the range; 0 where their number is not known.
	Batches int
	// AtLeast: there are more batches, which were not counted.
	AtLeast bool
	// Hours with samples of them, ascending and apart, at most MaxHours; MoreHours counts the further intervals.
	Hours     []Hours
	MoreHours int
	// Shards of their agents, ascending, at most MaxShards; MoreShards counts the further ones. None where there are no
	// rollups.
	Shards     []uint32
	MoreShards int
}

// Hours are consecutive hours, both included.
type Hours struct{ From, To timegrid.Hour }

// Start is the first moment of the hours, End the one after the last.
func (h Hours) Start() time.Time { return h.From.Start() }
func (h Hours) End() time.Time   { return (h.To + 1).Start() }

// Of is a summary of some hours, in any order, which may meet.
func Of(hours ...Hours) (s Summary) {
	slices.SortFunc(hours, func(a, b Hours) int { return int(a.From - b.From) })
	for _, h := range hours {
		s.add(h)
	}
	s.cut()
	return s
}

// add adds hours that begin no earlier than the last ones.
func (s *Summary) add(h Hours) {
	if n := len(s.Hours); n > 0 && h.From <= s.Hours[n-1].To+1 {
		s.Hours[n-1].To = max(s.Hours[n-1].To, h.To)
		return
	}
	s.Hours = append(s.Hours, h)
}

func (s *Summary) cut() {
	if n := len(s.Hours) - MaxHours; n > 0 {
		s.Hours, s.MoreHours = s.Hours[:MaxHours], n
	}
	if n := len(s.Shards) - MaxShards; n > 0 {
		s.Shards, s.MoreShards = s.Shards[:MaxShards], n
	}
}

// IsZero reports whether it says nothing.
func (s Summary) IsZero() bool { return s.Batches == 0 && len(s.Hours) == 0 }

// String is such as "12 batches of the hours 2026-11-22T10:00:00Z to 2026-11-22T12:00:00Z, shards 1 and 5".
func (s Summary) String() string {
	var parts []string
	if s.Batches > 0 {
		text := fmt.Sprintf("%d batches", s.Batches)
		if s.Batches == 1 {
			text = "1 batch"
		}
		if s.AtLeast {
			text = "at least " + text
		}
		parts = append(parts, text)
	}
	if len(s.Hours) > 0 {
		var hours []string
		for _, h := range s.Hours {
			hours = append(hours, h.Start().Format(time.RFC3339)+" to "+h.End().Format(time.RFC3339))
		}
		parts = append(parts, "hours "+list(hours, s.MoreHours))
	}
	if len(s.Shards) > 0 {
		var shards []string
		for _, n := range s.Shards {
			shards = append(shards, fmt.Sprint(n))
		}
		parts = append(parts, "shards "+list(shards, s.MoreShards))
	}
	return strings.Join(parts, ", ")
}

func list(texts []string, more int) string {
	if more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	if n := len(texts); n > 1 {
		return strings.Join(texts[:n-1], ", ") + " and " + texts[n-1]
	}
	return texts[0]
}

// Tally counts batches. Its memory grows with the hours in which batches begin and end, in each shard.
type Tally struct {
	shards map[uint32]map[timegrid.Hour]edges
	total  int
}

// edges are how many batches have their first, and their last sample in an hour.
type edges struct{ first, last int }

// Add adds n batches of a shard that have samples from one hour to another; the same with -n takes them out.
func (t *Tally) Add(shard uint32, h Hours, n int) {
	if t.shards == nil {
		t.shards = map[uint32]map[timegrid.Hour]edges{}
	}
	hours := t.shards[shard]
	if hours == nil {
		hours = map[timegrid.Hour]edges{}
		t.shards[shard] = hours
	}
	change := func(h timegrid.Hour, first, last int) {
		e := hours[h]
		if e.first, e.last = e.first+first, e.last+last; e == (edges{}) {
			delete(hours, h)
			return
		}
		hours[h] = e
	}
	change(h.From, n, 0)
	change(h.To, 0, n)
	if len(hours) == 0 {
		delete(t.shards, shard)
	}
	t.total += n
}

// Total is the number of batches.
func (t *Tally) Total() int { return t.total }

// In says what there is of a range of hours.
func (t *Tally) In(h Hours) (s Summary) {
	all := map[timegrid.Hour]edges{}
	for _, shard := range slices.Sorted(maps.Keys(t.shards)) {
		// Those that begin in the range or before, but for those that end before.
		n := 0
		for at, e := range t.shards[shard] {
			if at <= h.To {
				n += e.first
			}
			if at < h.From {
				n -= e.last
			}
			sum := all[at]
			all[at] = edges{sum.first + e.first, sum.last + e.last}
		}
		if s.Batches += n; n > 0 && shard != NoShard {
			s.Shards = append(s.Shards, shard)
		}
	}
	// From one edge to the next the number of batches stays the same.
	open, since := 0, timegrid.Hour(0)
	for _, at := range slices.Sorted(maps.Keys(all)) {
		e := all[at]
		if open == 0 {
			since = at
		}
		if open += e.first - e.last; open == 0 && at >= h.From && since <= h.To {
			s.add(Hours{max(since, h.From), min(at, h.To)})
		}
	}
	s.cut()
	return s
}
